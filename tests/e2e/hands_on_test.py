# SPDX-License-Identifier: Apache-2.0
"""The hands-on pages say what happens: each is run from its own code blocks (tests/support/hands_on.py).

Usage: hands_on_test.py DOCUMENT PAGE    one page of a Markdown file, paths from the root of the tree
       hands_on_test.py                  what the runner itself promises
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import hands_on

BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
REFUSED = hands_on.namespaces_refused()
PAGE_S = 100


def page(*blocks):
    """A document of one page."""
    text = "\n".join(f"```{language}\n{body}\n```\n" for language, body in blocks)
    return f"prose\n\n<!-- hands-on: one -->\n{text}<!-- /hands-on -->\n"


class ReaderTest(unittest.TestCase):

    def test_wildcards_stand_for_anything_and_nothing_else_does(self):
        self.assertTrue(hands_on.matches("a … c\n", "a b c\n"))
        self.assertTrue(hands_on.matches("a\n…\nd\n", "a\nb\nc\nd\n"))
        self.assertTrue(hands_on.matches("a\n…\n", "a\n"))
        self.assertFalse(hands_on.matches("a c\n", "a b c\n"))
        self.assertFalse(hands_on.matches("a.c\n", "abc\n"))
        self.assertFalse(hands_on.matches("a\n", "a\nb\n"))
        self.assertFalse(hands_on.matches("a …\nb\n", "a b\n"))

    def test_every_page_of_the_tree_is_run_by_a_test(self):
        listed = (ROOT / "tests/e2e/CMakeLists.txt").read_text(encoding="utf-8")
        tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files", "*.md"], capture_output=True,
                                 text=True, timeout=20, check=False).stdout.split()
        found = 0
        for document in tracked or [str(p.relative_to(ROOT)) for p in ROOT.glob("*/**/README.md")]:
            if document.startswith("tests/") or not (ROOT / document).exists():
                continue
            for name in hands_on.pages(ROOT / document):
                self.assertIn(f"weir_hands_on({document} {name} ", listed)
                found += 1
        self.assertGreater(found, 0)


@unittest.skipIf(REFUSED, f"no network namespaces: {REFUSED}")
class RunnerTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weir-md-")))

    def run_one(self, text, timeout_s=20):
        document = self.directory / "README.md"
        document.write_text(text, encoding="utf-8")
        (name, blocks), = hands_on.pages(document).items()
        hands_on.run_page(document, name, blocks, hands_on.reader_environment(BUILD), timeout_s)

    def test_a_true_page_passes(self):
        self.run_one(page(("python", "# file: deep/x.py\nprint(6 * 7)"), ("sh", "answer=$(python3 deep/x.py)"),
                          ("sh", "echo it is $answer, they say"), ("text", "it is 42, …")))

    def test_errors_name_their_line(self):
        with self.assertRaisesRegex(hands_on.PageError, r"(?s):8: expected\nfour.*found\nfive"):
            self.run_one(page(("sh", "echo five"), ("text", "four")))
        with self.assertRaisesRegex(hands_on.PageError, r"(?s):4: page one was ended with status 3.*oops"):
            self.run_one(page(("sh", "echo oops\n(exit 3)"), ("sh", "echo not reached")))
        with self.assertRaisesRegex(hands_on.PageError, "time limit"):
            self.run_one(page(("sh", "sleep 60"),), timeout_s=0.5)
        with self.assertRaisesRegex(hands_on.PageError, "no end"):
            self.run_one("<!-- hands-on: one -->\n```sh\ntrue\n```\n")
        with self.assertRaisesRegex(hands_on.PageError, "file: NAME"):
            self.run_one(page(("python", "print()"), ("sh", "true")))

    def test_nothing_outlives_a_page(self):
        mark = self.directory / "beat"
        self.run_one(page(("sh", f"setsid bash -c 'while touch {mark}; do sleep 0.02; done' &\nuntil test -e {mark}; do sleep 0.02; done"),))
        self.assertTrue(mark.exists())
        mark.unlink()
        time.sleep(0.2)
        self.assertFalse(mark.exists())


def run_from_command_line(document, name):
    """One page of the tree; 0 where it is true, 77 where it cannot be run."""
    if REFUSED:
        print(f"no network namespaces: {REFUSED}")
        return 77
    blocks = hands_on.pages(ROOT / document)[name]
    begin = time.monotonic()
    try:
        hands_on.run_page(ROOT / document, name, blocks, hands_on.reader_environment(BUILD), PAGE_S)
    except hands_on.PageError as error:
        print(error)
        return 1
    print(f"{document}: page {name} is true ({time.monotonic() - begin:.1f} s)")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(run_from_command_line(*sys.argv[1:]))
    unittest.main()
