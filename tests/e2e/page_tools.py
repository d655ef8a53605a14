# SPDX-License-Identifier: Apache-2.0
"""Node, playwright-core and esbuild for tests of the web page; none of them is needed to build Weir.

They come from dashboards/web/node_modules where somebody works on the page, else from a copy below the
build directory that npm makes of the lock file once.
"""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import npm_packages  # noqa: E402  pylint: disable=wrong-import-position

WEB = ROOT / "dashboards" / "web"
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
OUT = pathlib.Path(os.environ.get("WEIR_E2E_OUT", BUILD / "tests" / "e2e" / "out"))
CHROMIUM = shutil.which("chromium")


def modules():
    """(directory of the packages, ""), or (None, "no page tools: why")."""
    found, reason = npm_packages.modules(WEB, BUILD / "web-tools")
    return found, reason and f"no page tools: {reason}"


def browser_tools():
    """As modules(), and Chromium."""
    if not CHROMIUM:
        return None, "no page tools: chromium is not installed"
    return modules()


def run(script, directory, timeout_s, arguments=(), **environment):
    """Runs a test script of tests/e2e/page by node; its exit status and output."""
    shown = {"WEIR_NODE_MODULES": str(directory), "WEIR_CHROMIUM": CHROMIUM or "",
             "WEIR_PAGE_OUT": str(OUT / "page"), **environment}
    done = subprocess.run(
        [npm_packages.NODE, "--test", *arguments, str(ROOT / "tests" / "e2e" / "page" / script)], text=True,
        env={**os.environ, **shown}, timeout=timeout_s, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout
