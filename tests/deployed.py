"""A deployment on this machine: a server, sites and a run, each a process with a log, stopped and killed at will."""
import os, re, signal, socket, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600                                   # seconds until a busy machine has started a process, or a round ended
LETTERS = re.compile(r"\x1b\[[0-9;]*m")
ENVIRONMENT = os.environ | dict(CI="1", PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1")
STARTED = []


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(*words): return [sys.executable, "-m", "fdgnb", *map(str, words)]


class Started:
    "A command in a group of processes of its own, whose output is a file."
    def __init__(self, words, log, folder):
        self.log = Path(log)
        self.seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=file,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        STARTED.append(self)

    def text(self):
        "What it said, since it was started."
        return LETTERS.sub("", self.log.read_bytes()[self.seen:].decode(errors="replace"))

    def wait_for(self, pattern, seconds=PATIENCE, times=1):
        "What it says that a pattern fits; TimeoutError with its last lines where it says no such thing."
        end = time.monotonic() + seconds
        while True:
            is_over = self.process.poll() is not None or time.monotonic() > end
            found = list(re.finditer(pattern, self.text()))
            if len(found) >= times: return found[times-1]
            if is_over: raise TimeoutError(f"{self.log.name} does not say {pattern}:\n{self.text()[-3000:]}")
            time.sleep(.2)

    def end(self, seconds=PATIENCE):
        "Wait for its end; its code."
        return self.process.wait(seconds)

    def signal(self, which):
        "A signal to it and to all that it has started."
        try: os.killpg(self.process.pid, which)
        except ProcessLookupError: pass

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()


def kill_all():
    "End every process that was started here."
    for started in STARTED: started.signal(signal.SIGKILL)
    STARTED.clear()


class Deployment:
    "A federation with TLS and keys: a folder at the server, and one a site."
    def __init__(self, folder, data, names, timeout=60, wait=60):
        self.folder, self.data, self.port, self.sites = Path(folder), Path(data), free_port(), {}
        self.at_server = self.folder/"server"
        for folder in self.at_server, *map(self.at, names): folder.mkdir(parents=True)
        self.call("federation", "hospitals.toml", *names, "--address", f"127.0.0.1:{self.port}")
        file = self.at_server/"hospitals.toml"
        file.write_text(file.read_text().replace("timeout = 600", f"timeout = {timeout}").replace("wait = 600",
                                                                                                  f"wait = {wait}"))
        for name in names: self.make_key(name)

    def at(self, name): return self.folder/f"at {name}"

    def call(self, *words, where=None):
        "A short command."
        subprocess.run(command(*words), cwd=where or self.at_server, env=ENVIRONMENT, check=True, capture_output=True)

    def make_key(self, name):
        "A site's key, whose public part goes to the server, as the server's certificate goes to the site."
        self.call("key", name, where=self.at(name))
        (self.at_server/f"{name}.pub").write_bytes((self.at(name)/f"{name}.pub").read_bytes())
        (self.at(name)/"ca.crt").write_bytes((self.at_server/"hospitals/ca.crt").read_bytes())

    def start_server(self):
        self.server = Started(command("server", "hospitals.toml"), self.folder/"server.log", self.at_server)
        return self.server

    def start_site(self, name, *more, at=None, log=None):
        "A site; `at` is whose folder and key it has, where these are another's."
        at = at or name
        how = [] if "--insecure" in more else ["--key", at, "--ca", "ca.crt"]
        words = command("site", self.data/name, "--superlink", f"127.0.0.1:{self.port}", "--name", name, *how, *more)
        self.sites[log or name] = site = Started(words, self.folder/f"{log or name}.log", self.at(at))
        return site

    def submit(self, method, out, *more):
        "A run, in a process."
        words = command("run", method, "--engine", "flower", "--federation", "hospitals.toml", "--out", out, *more)
        return Started(words, self.folder/"run.log", self.at_server)
