"""A federation of real processes on this machine: a SuperLink, SuperNodes and runs, by the commands a user types."""
import os, signal, subprocess, sys, time
from pathlib import Path
from fdgnb.flower.commands import free_port

TARGET = "blended"


class Processes:
    "Commands of `python -m fdgnb` in one folder; what was started ends with the `with` block."
    def __init__(self, folder, hospitals, names, secure=False):
        self.folder, self.hospitals, self.names, self.secure = Path(folder), hospitals, list(names), secure
        self.address, self.running = f"127.0.0.1:{free_port()}", {}

    def __enter__(self):
        self.call("federation", "hospitals.toml", *self.names, "--address", self.address, *self.insecure)
        for name in self.names if self.secure else (): self.call("key", name)
        return self

    def __exit__(self, *_):
        for name in [*self.running]: self.end(name)

    insecure = property(lambda self: [] if self.secure else ["--insecure"])

    def words(self, *words): return [sys.executable, "-m", "fdgnb", *map(str, words)]

    def call(self, *words, timeout=600):
        "Run a command to its end: its code and output."
        done = subprocess.run(self.words(*words), cwd=self.folder, capture_output=True, text=True, timeout=timeout)
        print(done.stdout, done.stderr)
        return done

    def start(self, name, *words):
        "Start a command, in a group of processes of its own, its output in NAME.log."
        log = open(self.folder/f"{name}.log", "a")
        self.running[name] = subprocess.Popen(self.words(*words), cwd=self.folder, stdout=log, stderr=log,
                                              start_new_session=True)

    def log(self, name): return (self.folder/f"{name}.log").read_text()

    def wait_for(self, name, text, seconds=120, times=1):
        "Wait until a command has printed a text."
        end = time.monotonic() + seconds
        while self.log(name).count(text) < times:
            assert time.monotonic() < end, f"{name} did not say {text!r}:\n{self.log(name)[-3000:]}"
            time.sleep(.2)

    def start_server(self, times=1):
        self.start("server", "server", "hospitals.toml")
        self.wait_for("server", "the server is ready", times=times)

    def start_site(self, name, *more):
        role = ["--role", "target"] if name == TARGET else []
        keys = ["--key", name, "--ca", "hospitals/ca.crt"] if self.secure else self.insecure
        self.start(name, "site", self.hospitals/name, "--superlink", self.address, "--name", name, *role, *keys, *more)

    def run(self, method, *more): return self.call("run", method, "--engine", "flower", "--federation",
                                                   "hospitals.toml", "--out", "out", *more)

    def end(self, name, with_=signal.SIGTERM):
        "End a command and the processes it started; with SIGKILL at once."
        process = self.running.pop(name)
        for sign in (with_, signal.SIGKILL):
            try: os.killpg(process.pid, sign)
            except ProcessLookupError: break
            try: process.wait(20)
            except subprocess.TimeoutExpired: continue
        process.wait()
