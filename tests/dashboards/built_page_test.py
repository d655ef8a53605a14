#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""dashboards/web: what is built is what the sources say, needs nothing from elsewhere, and its modules work."""
import filecmp
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import page_tools

WEB = page_tools.WEB
NAMESPACE = "http://www.w3.org/2000/svg"
KINDS = {".html", ".js", ".css", ".svg", ".txt"}


class BuiltPageTest(unittest.TestCase):

    def test_names_no_other_host(self):
        for path in [*(WEB / "dist").iterdir(), *(WEB / "src").rglob("*"), WEB / "package-lock.json",
                     WEB / "package.json", WEB / ".npmrc"]:
            if path.is_file():
                text = path.read_text(encoding="utf-8").replace(NAMESPACE, "")
                self.assertEqual(re.findall(r"https?://[^\s\"'`]*", text), [], path)

    def test_holds_no_inline_script_or_style(self):
        page = (WEB / "dist" / "index.html").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"<style|\sstyle=|\son\w+=|javascript:|data:", page), [])
        for script in re.findall(r"<script\b([^>]*)>(.*?)</script>", page, re.S):
            self.assertIn('src="app.js"', script[0])
            self.assertEqual(script[1].strip(), "")
        code = "\n".join(path.read_text(encoding="utf-8") for path in (WEB / "src").rglob("*.js"))
        self.assertEqual(re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(",
                                    code), [])

    def test_everything_built_can_be_served(self):
        found = {path.suffix for path in (WEB / "dist").iterdir()}
        self.assertLessEqual(found, KINDS)
        self.assertEqual({"index.html", "app.js", "style.css", "favicon.svg", "uplot-license.txt"},
                         {path.name for path in (WEB / "dist").iterdir()})

    def test_equals_a_new_build(self):
        modules, missing = page_tools.modules()
        if missing:
            self.skipTest(missing)
        with tempfile.TemporaryDirectory() as directory:
            work = pathlib.Path(directory) / "web"
            work.mkdir()
            for name in ("src", "build.mjs", "package.json"):
                (work / name).symlink_to(WEB / name)
            (work / "node_modules").symlink_to(modules)
            subprocess.run([page_tools.npm_packages.NODE, "--preserve-symlinks-main", "build.mjs",
                            f"{directory}/out"], cwd=work, check=True, timeout=60)
            names = sorted(path.name for path in (WEB / "dist").iterdir())
            same, *other = filecmp.cmpfiles(WEB / "dist", f"{directory}/out", names, shallow=False)
            self.assertEqual((sorted(same), other), (names, [[], []]),
                             "run `npm run build` in dashboards/web and check dist/ in")

    def test_modules(self):
        if not page_tools.npm_packages.NODE:
            self.skipTest("no page tools: node is not installed")
        status, output = page_tools.run("units.test.mjs", "", 60)
        self.assertEqual(status, 0, output[-6000:])


if __name__ == "__main__":
    unittest.main()
