# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of many hours, cell by cell: what is measured is kept, and another session goes on from there."""
import datetime
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def commit():
    """The commit of the tree, or "unknown"."""
    found = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], text=True, capture_output=True,
                           check=False).stdout.strip()
    return found or "unknown"


class Cells:
    """The rows of a benchmark by the cell that they belong to. Without a file nothing is kept.

    Rows go to standard output as they come; rows of former sessions come first. A line that a killed session left
    unfinished is dropped.
    """

    def __init__(self, path, key):
        self._path, self._key = path and pathlib.Path(path), key
        self._rows = {}
        if self._path and self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    print(f"{self._path}: an unfinished line is measured again", file=sys.stderr)
                    continue
                self._rows[key(row)] = row
            self._path.write_text("".join(json.dumps(row) + "\n" for row in self._rows.values()), encoding="utf-8")
        for row in self._rows.values():
            print(json.dumps(row), flush=True)
        self._stamp = {"commit": commit(), "date": datetime.date.today().isoformat()}

    def get(self, *cell):
        """The row of the cell, or None."""
        return self._rows.get(cell)

    def add(self, row):
        """Keeps and prints a row."""
        row = {**row, **self._stamp}
        self._rows[self._key(row)] = row
        line = json.dumps(row)
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        print(line, flush=True)
