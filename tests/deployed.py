"""A deployment on this machine: a server, sites and a run, each a process with a log, stopped and killed at will."""
import os, re, signal, socket, subprocess, sys, time
from importlib.util import find_spec
from pathlib import Path
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SLOW = [pytest.mark.slow,
        pytest.mark.skipif(os.environ.get("FDGNB_FLOWER") != "1", reason="minutes: make test-flower"),
        pytest.mark.skipif(not find_spec("flwr"), reason="no Flower: make flower")]
PATIENCE = 600                                   # seconds until a busy machine has started a process, or a round ended
LETTERS = re.compile(r"\x1b\[[0-9;]*m")


def write_sites(folder, names, samples=60, classes=3, first=0):
    "Images of digits as <folder>/<site>/<class>/<image>, from the domains of these names."
    from fdgnb import get_dataset
    for name in names:
        domain = get_dataset("digits").domains[name]
        for i, (x, y) in enumerate(zip(domain.x[first:first+samples], domain.y % classes)):
            place = folder/name/f"class {y}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x.permute(1, 2, 0).numpy()).save(place/f"{i:02}.png")
    return folder


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Started:
    "A process in a group of its own, whose output is a file."
    all = []
    def __init__(self, words, log, folder, stdin=subprocess.DEVNULL, **env):
        self.log, self.words, self.seen = Path(log), list(map(str, words)), 0
        self.log.parent.mkdir(parents=True, exist_ok=True)
        own = os.environ | dict(CI="1", PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1") | env
        with self.log.open("ab") as f:
            self.seen = f.tell()
            self.process = subprocess.Popen(self.words, cwd=folder, env=own, stdin=stdin, stdout=f,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        Started.all.append(self)

    def text(self, since=None):
        "What it said, since it was started."
        return LETTERS.sub("", self.log.read_bytes()[self.seen if since is None else since:].decode(errors="replace"))

    def wait_for(self, *patterns, seconds=PATIENCE, times=1):
        "The first of several patterns that it says; TimeoutError with its last lines where it says none."
        end = time.monotonic() + seconds
        while True:
            ended, said = self.process.poll() is not None, self.text()
            for pattern in patterns:
                found = list(re.finditer(pattern, said))
                if len(found) >= times: return found[times-1]
            if time.monotonic() > end or ended:
                raise TimeoutError(f"{self.log.name} does not say {patterns}:\n{said[-3000:]}")
            time.sleep(.2)

    def end(self, seconds=PATIENCE):
        "Wait for its end; its code."
        try: return self.process.wait(seconds)
        except subprocess.TimeoutExpired: said = self.text()[-3000:]
        raise TimeoutError(f"{self.log.name} goes on:\n{said}")

    def signal(self, which):
        "A signal to it and to all that it has started."
        try: os.killpg(self.process.pid, which)
        except ProcessLookupError: pass

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self): self.signal(signal.SIGSTOP)
    def go_on(self): self.signal(signal.SIGCONT)

    def interrupt(self, seconds=60):
        "Ctrl-C."
        self.signal(signal.SIGINT)
        try: return self.process.wait(seconds)
        except subprocess.TimeoutExpired: self.kill()


def kill_all():
    "End every process that a test has started."
    for started in Started.all: started.signal(signal.SIGKILL)
    Started.all.clear()


class Deployment:
    "A federation's folder on the server, and one a site; commands of `python -m fdgnb` in them."
    def __init__(self, folder, data, names, timeout=60, wait=60):
        self.folder, self.data, self.names = Path(folder), Path(data), list(names)
        self.port, self.sites = free_port(), {}
        self.at_server = self.folder/"server"
        self.at_server.mkdir(parents=True)
        for name in names: self.at(name).mkdir()
        self.begin(timeout, wait)

    def at(self, name): return self.folder/f"at {name}"

    def call(self, *words, where=None):
        "A short command; what it printed."
        done = subprocess.run([sys.executable, "-m", "fdgnb", *map(str, words)], cwd=where or self.at_server,
                              capture_output=True, text=True, env=os.environ | dict(PYTHONPATH=str(ROOT), CI="1"))
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def begin(self, timeout, wait):
        "The federation's file, certificates and keys; the public ones go to the server, its certificate to the sites."
        self.call("federation", "hospitals.toml", *self.names, "--address", f"127.0.0.1:{self.port}")
        self.say_in_file("timeout = 600", f"timeout = {timeout}")
        self.say_in_file("wait = 600", f"wait = {wait}")
        for name in self.names: self.make_key(name)

    def say_in_file(self, old, new):
        "Change a line of the federation's file."
        file = self.at_server/"hospitals.toml"
        file.write_text(file.read_text().replace(old, new))

    def ensure(self, name):
        "A site that is there; started where it is not."
        if name not in self.sites or self.sites[name].process.poll() is not None: self.start_site(name)

    def make_key(self, name):
        self.call("key", name, where=self.at(name))
        (self.at_server/f"{name}.pub").write_bytes((self.at(name)/f"{name}.pub").read_bytes())
        (self.at(name)/"ca.crt").write_bytes((self.at_server/"hospitals/ca.crt").read_bytes())

    def start_server(self):
        self.server = Started([sys.executable, "-m", "fdgnb", "server", "hospitals.toml"], self.folder/"server.log",
                              self.at_server)
        return self.server

    def start_site(self, name, *more, log=None, folder=None, key=None, at=None, **env):
        "A site; `name` is what it says, `at` whose folder and key it has."
        at = at or name
        words = [sys.executable, "-m", "fdgnb", "site", folder or self.data/name, "--superlink",
                 f"127.0.0.1:{self.port}", "--name", name]
        if "--insecure" not in more: words += ["--key", key or at, "--ca", "ca.crt"]
        site = Started([*words, *more], self.folder/f"{log or at}.log", self.at(at), **env)
        if not log: self.sites[name] = site
        return site

    def submit(self, method, out, *more):
        "A run, in a process."
        words = ["run", method, "--engine", "flower", "--federation", "hospitals.toml", "--out", out, *more]
        return Started([sys.executable, "-m", "fdgnb", *words], self.folder/"run.log", self.at_server)

    def asked(self, name, round, what="train"):
        "Wait until a site is asked in a round (from 1)."
        return self.sites[name].wait_for(rf"round {round}, {name} is asked for {what}")
