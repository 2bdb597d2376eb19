"""Chromium without a window, driven over a pipe by the DevTools protocol. It needs Python's own library alone."""

import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "Space": (32, " "),
    "ArrowDown": (40, ""),
    "Backspace": (8, ""),
    "End": (35, ""),
    "PageUp": (33, ""),
}


class Failure(Exception):
    pass


class Browser:
    def __init__(self):
        program = next(filter(None, map(shutil.which, CHROMIUM)), None)
        if not program:
            raise Failure("there is no Chromium: apt-get install chromium")
        self.folder = tempfile.TemporaryDirectory(prefix="kvrun-page-", ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        # Chromium reads 3 and writes 4. Above both first, so that neither overwrites the other.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, back_write)]

        def arrange():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, *OPTIONS, f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=arrange,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (to_read, back_write, *high):
            os.close(fd)
        self.n_sent = 0
        self.replies = {}
        self.arrived = threading.Condition()
        self.listeners = {}  # by session
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        rest = b""
        while data := os.read(self.back, 1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    with self.arrived:
                        self.replies[message["id"]] = message
                        self.arrived.notify_all()
                elif listener := self.listeners.get(message.get("sessionId")):
                    listener(message["method"], message["params"])

    def call(self, method, session=None, timeout_s=30, **params):
        with self.arrived:
            self.n_sent += 1
            n = self.n_sent
        message = {"id": n, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.arrived:
            if not self.arrived.wait_for(lambda: n in self.replies, timeout_s):
                raise Failure(f"Chromium does not answer {method}")
            reply = self.replies.pop(n)
        if "error" in reply:
            raise Failure(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def close(self):
        try:
            self.call("Browser.close", timeout_s=5)
            self.process.wait(10)
        except (Failure, subprocess.TimeoutExpired):
            self.process.kill()
        self.folder.cleanup()


class Page:
    """A tab with storage of its own. Notes each request, and all that its console says."""

    def __init__(self, browser, url, width=1280, height=800, is_dark=False, timeout_s=20):
        self.browser = browser
        self.timeout_s = timeout_s
        self.requests = []
        self.console = []
        self.choosers = queue.Queue()
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)[
            "targetId"
        ]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.listeners[self.session] = self._heard
        for domain in ("Page", "Runtime", "Network", "Log", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Page.setInterceptFileChooserDialog", enabled=True)
        self.show(width, height, is_dark)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def _heard(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(
                " ".join(str(one.get("value", one.get("description"))) for one in params["args"])
            )
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Page.fileChooserOpened":
            self.choosers.put(params["backendNodeId"])

    def show(self, width, height, is_dark):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            mobile=width < 500,
            deviceScaleFactor=2 if width < 500 else 1,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=width < 500)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}],
        )

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise Failure(
                f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}"
            )
        return result["result"].get("value")

    def wait(self, expression, timeout_s=None):
        """Until the expression is true; returns its value."""
        end_s = time.monotonic() + (timeout_s or self.timeout_s)
        while time.monotonic() < end_s:
            if value := self.js(f"((value) => value instanceof Node ? true : value)({expression})"):
                return value
            time.sleep(0.03)
        raise Failure(f"this did not come true: {expression}")

    def text(self, selector):
        return self.js(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText).join('\\n')"
        )

    def press(self, key, shift=False):
        code, text = KEYS[key]
        name = " " if key == "Space" else key
        common = {"key": name, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        at = self.wait(f"""(() => {{
          const node = document.querySelector({json.dumps(selector)});
          if (!node || node.getClientRects().length === 0) return null;
          node.scrollIntoView({{block: 'nearest'}});
          const box = node.getBoundingClientRect();
          return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def drop(self, path, x=400, y=300):
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def choose(self, path):
        """Gives the file to the dialog that the page has opened."""
        try:
            node = self.choosers.get(timeout=self.timeout_s)
        except queue.Empty:
            raise Failure("no dialog for a file was opened") from None
        self.call("DOM.setFileInputFiles", files=[str(path)], backendNodeId=node)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
