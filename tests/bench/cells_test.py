# SPDX-License-Identifier: Apache-2.0
"""Cells of a long benchmark outlive the session that measured them."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import cells


def key(row):
    return (row["cell"],)


def opened(path):
    """The cells, and the rows that were printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        kept = cells.Cells(path, key)
    return kept, [json.loads(line) for line in printed.getvalue().splitlines()]


def add(kept, row):
    with contextlib.redirect_stdout(io.StringIO()):
        kept.add(row)


class CellsTest(unittest.TestCase):

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "decisions.cells"

    def test_another_session_goes_on_and_prints_everything(self):
        first, printed = opened(self.path)
        self.assertEqual(printed, [])
        add(first, {"cell": "a", "x": 1})
        second, printed = opened(self.path)
        self.assertEqual([row["cell"] for row in printed], ["a"])
        self.assertEqual(second.get("a")["x"], 1)
        self.assertIsNone(second.get("b"))
        self.assertTrue(second.get("a")["commit"])
        add(second, {"cell": "b", "x": 2})
        self.assertEqual([row["cell"] for row in opened(self.path)[1]], ["a", "b"])

    def test_a_line_of_a_killed_session_is_measured_again(self):
        first, _ = opened(self.path)
        add(first, {"cell": "a", "x": 1})
        with self.path.open("a") as file:
            file.write('{"cell": "b", "x"')
        second, printed = opened(self.path)
        self.assertEqual([row["cell"] for row in printed], ["a"])
        self.assertIsNone(second.get("b"))
        add(second, {"cell": "b", "x": 2})
        self.assertEqual([row["x"] for row in opened(self.path)[1]], [1, 2])

    def test_without_a_file_nothing_is_kept(self):
        kept, _ = opened(None)
        add(kept, {"cell": "a"})
        self.assertEqual(kept.get("a")["cell"], "a")


if __name__ == "__main__":
    unittest.main()
