"""A headless Chromium over its DevTools protocol: opens pages, runs expressions, keeps what went wrong.

Needs the program and the package websocket-client, no driver."""
import base64, functools, json, shutil, subprocess, tempfile, threading, time, urllib.request
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROGRAMS = "chromium chromium-browser google-chrome chrome".split()
FLAGS = """--headless=new --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-port=0
    --no-first-run --disable-dev-shm-usage --disable-background-networking --disable-component-update
    --disable-sync""".split()


def program(): return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    "One tab. `errors` and `requests` are those since the last `open`."
    def __init__(self, chromium, profile):
        from websocket import create_connection
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self.patient(lambda: (Path(profile)/"DevToolsActivePort").read_text().split("\n")[0])
        listed = lambda: json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10))
        tab = self.patient(lambda: next(t for t in listed() if t["type"] == "page"))
        self.socket = create_connection(tab["webSocketDebuggerUrl"], timeout=300, suppress_origin=True)
        self.number, self.events = 0, []
        for domain in ("Page", "Runtime", "Network", "Log"): self.call(f"{domain}.enable")

    def patient(self, look, seconds=180):
        "What `look` gives as soon as it gives something."
        until = time.monotonic() + seconds
        while True:
            try: return look()
            except (OSError, StopIteration):
                if time.monotonic() > until or self.process.poll() is not None: raise
            time.sleep(.1)

    def call(self, method, **params):
        "The answer to one command; what happens meanwhile is kept."
        self.number += 1
        self.socket.send(json.dumps(dict(id=self.number, method=method, params=params)))
        while (message := json.loads(self.socket.recv())).get("id") != self.number:
            self.events.append(message)
        if "error" in message: raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def js(self, expression):
        "The value of an expression on the page; promises are awaited."
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found: raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression, seconds=180):
        "Until an expression is true."
        until = time.monotonic() + seconds
        while not self.js(expression):
            if time.monotonic() > until: raise TimeoutError(expression)
            time.sleep(.05)

    def open(self, url):
        "Go there; back when the page, its scripts, its equations and its tables are ready."
        self.events.clear()
        self.call("Page.navigate", url=url)
        there = f"location.href.split('#')[0] === {json.dumps(url.split('#')[0])}"
        self.wait(f"{there} && document.readyState === 'complete'")
        self.wait("!document.querySelector('script[src*=mathjax]') || Boolean(window.MathJax?.startup?.promise)")
        self.js("window.MathJax?.startup?.promise?.then(() => true)")
        self.wait("!document.querySelector('script[src*=\"tables.js\"]') || document.documentElement.dataset.tables")

    def happened(self, method): return [e["params"] for e in self.events if e["method"] == method]

    @property
    def errors(self):
        "What the console shows in red, exceptions, and what could not be loaded."
        said = self.happened("Runtime.consoleAPICalled")
        said = [e["args"] for e in said if e["type"] in ("error", "assert")]
        thrown = [e["exceptionDetails"] for e in self.happened("Runtime.exceptionThrown")]
        logged = [e["entry"] for e in self.happened("Log.entryAdded") if e["entry"]["level"] == "error"]
        return [str(e)[:400] for e in (*said, *thrown, *logged)]

    @property
    def requests(self): return [e["request"]["url"] for e in self.happened("Network.requestWillBeSent")]

    def screen(self, width, height=900, dark=False):
        "The size of the window, and whether the reader likes it dark."
        size = dict(width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = dict(name="prefers-color-scheme", value="dark" if dark else "light")
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path, whole=False):
        "What is seen, as a PNG; the whole page down to 6,000 pixels if `whole`."
        clip = {}
        if whole:
            size = self.js("[innerWidth, Math.min(6000, document.documentElement.scrollHeight)]")
            clip = dict(x=0, y=0, width=size[0], height=size[1], scale=1)
            clip = dict(captureBeyondViewport=True, clip=clip)
        shot = self.call("Page.captureScreenshot", format="png", **clip)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def browser():
    "A Browser, closed at the end."
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        b = Browser(program(), profile)
        try: yield b
        finally: b.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args): pass


@contextmanager
def served(folder):
    "The address of a server of this machine that gives out a folder."
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try: yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
