"""Headless Chromium through ChromeDriver, in the little of the WebDriver protocol that tests need."""
import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "chromium and chromedriver are not both installed"
SKIP_REASON = f"no Chromium: {MISSING}"
ELEMENT_KEY = "element-6066-11e4-a52e-4f735466cecf"   # fixed by the WebDriver standard
REQUEST_TIMEOUT_S = 60


class Browser:
    """One window; a context manager."""

    def __init__(self, width=1400, height=1000):
        self._profile = tempfile.TemporaryDirectory(prefix="weir-browser-")
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0", "--log-level=WARNING"], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self._session = ""
        try:
            self._base = f"http://127.0.0.1:{self._port()}"
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu",
                         "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                         "--disable-background-networking", "--disable-extensions",
                         "--force-color-profile=srgb", f"--window-size={width},{height}",
                         f"--user-data-dir={self._profile.name}"]
            capabilities = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                            "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments}}
            answer = self._call("POST", "/session",
                                {"capabilities": {"alwaysMatch": capabilities}})
            self._session = f"/session/{answer['sessionId']}"
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def _port(self):
        for line in self._driver.stdout:
            if "started successfully on port" in line:
                return int(line.rstrip().rstrip(".").rpartition(" ")[2])
        raise AssertionError("chromedriver ended without naming its port")

    def _call(self, method, path, body=None):
        request = urllib.request.Request(
            self._base + self._session + path, method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                value = json.load(error)["value"]
            raise AssertionError(f"{path}: {value['error']}: {value['message'][:500]}") from None

    def open(self, url):
        """Loads a page."""
        self._call("POST", "/url", {"url": url})

    def script(self, text, *arguments):
        """What the script returns."""
        return self._call("POST", "/execute/sync", {"script": text, "args": list(arguments)})

    def text(self, selector):
        """The visible text of the first element that matches; None where there is none."""
        return self.script("const e = document.querySelector(arguments[0]);"
                           "return e && (e.checkVisibility() ? e.innerText : '');", selector)

    def texts(self, selector):
        """The visible texts of all elements that match."""
        return self.script("return [...document.querySelectorAll(arguments[0])]"
                           ".map((e) => e.innerText);", selector)

    def wait_for(self, selector, pattern=r"\S", deadline_s=30.0):
        """Waits until the visible text of `selector` has a match; returns the text."""
        end = time.monotonic() + deadline_s
        while True:
            found = self.text(selector)
            if found is not None and re.search(pattern, found):
                return found
            if time.monotonic() > end:
                raise AssertionError(f"waited {deadline_s:g} s for {pattern!r} in {selector}; "
                                     f"it says {found!r}")
            time.sleep(0.1)

    def _element(self, selector):
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return f"/element/{found[ELEMENT_KEY]}"

    def type(self, selector, text):
        """Types into a field, as a person would: what cannot be seen cannot be typed into."""
        element = self._element(selector)
        self._call("POST", element + "/clear", {})
        self._call("POST", element + "/value", {"text": text})

    def click(self, selector):
        """Clicks."""
        self._call("POST", self._element(selector) + "/click", {})

    def console(self):
        """Messages of the browser's console since the last call: [{level, message}]."""
        return [{"level": entry["level"], "message": entry["message"]}
                for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path):
        """The whole page as a PNG file; the window is made as high as the page."""
        height = self.script("return document.documentElement.scrollHeight;")
        rectangle = self._call("GET", "/window/rect")
        self._call("POST", "/window/rect", {**rectangle, "height": min(height + 150, 8000)})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))
        self._call("POST", "/window/rect", rectangle)

    def close(self):
        """Ends browser and driver."""
        if self._session:
            try:
                self._call("DELETE", "", None)
            except (AssertionError, OSError):
                pass
            self._session = ""
        self._driver.terminate()
        try:
            self._driver.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
        self._driver.stdout.close()
        self._profile.cleanup()
