"""The controller's page in a browser: what it shows of a running training, and how it takes a token."""
import re
import socket
import sqlite3
import subprocess
import unittest

from browser import MISSING, SKIP_REASON as NO_BROWSER, Browser
from cluster import (FAST_MBPS, JOB, OUT, REFUSED, SKIP_REASON, SLOW_MBPS, Cluster, http,
                     wait_until)

VIEWER, OPERATOR = "viewer-token-of-the-page-test", "operator-token-of-the-page-test"


def severe(messages):
    """What the console holds beyond notes."""
    return [m["message"] for m in messages if m["level"] not in ("INFO", "DEBUG")]


@unittest.skipIf(MISSING, NO_BROWSER)
@unittest.skipIf(REFUSED, SKIP_REASON)
class PageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster("page"))
        cls.browser = cls.enterClassContext(Browser())

    def test_1_shows_a_job_from_its_first_step_without_an_error_in_the_console(self):
        cluster, browser = self.cluster, self.browser
        browser.open(cluster.controls.url)
        browser.wait_for("#empty", "No training job has attached yet")
        cluster.start_ranks()
        browser.wait_for("#tiles .tile b", r"over|dense")
        self.assertEqual(browser.script("return document.getElementById('job').value;"), JOB)
        cluster.wait_for_steps(40)
        known = {d["id"] for d in cluster.decisions()}
        cluster.network.shape(SLOW_MBPS, 0.0)
        switch = cluster.wait_for_switch(known, "bandwidth")
        cluster.wait_for_steps(30)
        known = {d["id"] for d in cluster.decisions()}
        cluster.network.shape(FAST_MBPS, 0.0)
        cluster.wait_for_switch(known)

        browser.wait_for("#marks", re.escape(switch["reason"]))
        browser.wait_for("#connection", "live")
        browser.screenshot(OUT / "page" / "page.png")
        self.assert_tiles()
        self.assert_candidates()
        self.assert_decisions(switch)
        self.assert_charts()
        self.assertEqual(severe(browser.console()), [])

    def assert_tiles(self):
        tiles = dict(reversed(text.split("\n", 1))
                     for text in self.browser.texts("#tiles .tile"))
        found = {caption.split(" · ")[0]: value for caption, value in tiles.items()}
        self.assertRegex(found["running now"], r"\w+ .*over \w+|dense")
        self.assertRegex(found["bandwidth"], r"^[\d.]+ [kMG]b/s$")
        self.assertRegex(found["one-way latency"], r"^[\d.]+ (µs|ms|s)$")
        self.assertRegex(found["step time"], r"^[\d.]+ (ms|s)$")
        self.assertRegex(found["faster than dense"], r"^[\d.]+×$")
        self.assertGreater(int(found["step"]), 50)

    def assert_candidates(self):
        header, *rows = self.browser.texts("#candidates tr")
        self.assertRegex(header, r"candidate\s+step\s+±\s+communication\s+gain\s+objective")
        self.assertGreaterEqual(len(rows), 5)
        chosen = self.browser.texts("#candidates tr.chosen")
        self.assertEqual(len(chosen), 1)
        self.assertIn("chosen", chosen[0])
        dense = [row for row in rows if re.search(r"(\t|, )dense$", row)]
        self.assertEqual(len(dense), 1, f"dense is always compared: {rows}")
        self.assertRegex(self.browser.text("#reason"), r"predicts .* against .* dense|dense")

    def assert_decisions(self, switch):
        # In one go: the page goes on changing.
        rows, marks, everything = self.browser.script("""
            const texts = (selector) =>
              [...document.querySelectorAll(selector)].map((e) => e.innerText);
            const box = document.getElementById('all-decisions');
            const found = [texts('#decisions tr').slice(1), texts('#marks li')];
            box.click();
            found.push(texts('#decisions tr').slice(1));
            box.click();
            return found;""")
        self.assertTrue(any(switch["reason"] in row and switch["to"] in row for row in rows))
        self.assertFalse(any("(kept)" in row for row in rows))
        self.assertTrue(any("(kept)" in row for row in everything))
        self.assertGreater(len(everything), len(rows))
        self.assertEqual(len(marks), len(rows))
        for mark in marks:
            self.assertRegex(mark, r"^step \d+: .+ → .+ over \w+\)?\. .+")

    def assert_charts(self):
        for chart in ("ratio", "step", "network", "prediction", "loss"):
            self.assertEqual(self.browser.script(
                "return document.querySelectorAll(arguments[0]).length;",
                f"#chart-{chart} canvas"), 1, chart)
        self.assertRegex(self.browser.text("#chart-ratio"), r"kept ratio")
        # What was drawn, not only that there is a canvas: pixels in the first line's colour.
        for chart in ("ratio", "network", "prediction"):
            drawn = self.browser.script("""
                const canvas = document.querySelector(arguments[0]);
                const d = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                let count = 0;
                for (let i = 0; i < d.length; i += 4)
                  count += d[i] === 0x0b && d[i + 1] === 0x6e && d[i + 2] === 0x8a && d[i + 3] === 255;
                return count;""", f"#chart-{chart} canvas")
            self.assertGreater(drawn, 50, chart)

    def test_2_asks_for_a_token_and_keeps_it_for_the_tab(self):
        cluster, browser = self.cluster, self.browser
        state = OUT / "page" / "copy.db"
        state.unlink(missing_ok=True)
        with sqlite3.connect(cluster.directory / "control" / "controller.db") as source, \
                sqlite3.connect(state) as copy:
            source.backup(copy)
        source.close()
        copy.close()
        tokens = OUT / "page" / "tokens"
        tokens.write_text(f"viewer {VIEWER}\noperator {OPERATOR}\n")
        port = self.free_port()
        cluster.children.start(
            [cluster.binaries["weir-controller"], "--listen-grpc", "127.0.0.1:0", "--listen-http",
             f"127.0.0.1:{port}", "--state", state, "--token-file", tokens],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: self.answers(url), "the second controller")
        self.assertEqual(http(url + "/v1/jobs")[0], 401)
        self.assertEqual(http(url + "/v1/jobs", VIEWER)[0], 200)

        browser.console()
        browser.open(url)
        self.assertIn("wants a token", browser.wait_for("#token-note"))
        self.assertEqual(browser.text("#connection"), "token needed")
        browser.screenshot(OUT / "page" / "token.png")
        self.assertEqual(browser.text("#content"), "", "nothing is shown")

        browser.type("#token", "not-the-token")
        browser.click("#token-form button")
        browser.wait_for("#token-note", "refused the token: unknown token")
        browser.type("#token", "two words")
        browser.click("#token-form button")
        browser.wait_for("#token-note", "one word")

        browser.type("#token", VIEWER)
        browser.click("#token-form button")
        browser.wait_for("#connection", "live")
        browser.wait_for("#decisions", "over")
        self.assertEqual(browser.script("return document.getElementById('job').value;"), JOB)
        refused = [m for m in severe(browser.console()) if "401" not in m]
        self.assertEqual(refused, [])
        self.assertNotIn(VIEWER, browser.script("return location.href + document.cookie;"))
        self.assertEqual(browser.script("return localStorage.length;"), 0)

        browser.open(url)  # the tab still has it
        browser.wait_for("#connection", "live")
        self.assertEqual(severe(browser.console()), [])
        browser.click("#forget-token")
        browser.wait_for("#token-note", "wants a token")

    @staticmethod
    def free_port():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    @staticmethod
    def answers(url):
        try:
            return http(url + "/healthz")[0] == 200
        except OSError:
            return False


if __name__ == "__main__":
    unittest.main()
