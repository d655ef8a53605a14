# SPDX-License-Identifier: Apache-2.0
"""The ways to wrap a model for training on several ranks: do they work with Weir, and equally?

    ways.py [--only WORDS] [--json FILE]      runs them; exit code 1 if any fails
    ways.py --table FILE... [--readme FILE]   makes a table of JSON files: prints it, or writes it

Every way (ways_ddp.py, ways_sharded.py, ways_launched.py) runs over gloo, over the process group
"weir" ("group"), and where DDP's hook applies also over gloo with weir.attach() ("hook", dense).
Its tensors must be those of gloo, bit for bit with two ranks.

A way that torch offers in this version passes, or Weir refuses it with an error that says why, as
the way declares, or it fails. A way that hangs fails at its deadline, and the others run on.
"""
import argparse
import io
import json
import os
import platform
import re
import sys
import tempfile
import time

import torch

import ranks
import ways_ddp  # noqa: F401: registers its ways
import ways_launched  # noqa: F401
import ways_sharded  # noqa: F401
from way_registry import GLOO, GROUP, HOOK, WAYS, outcome

BEGIN = "<!-- ways: printed by tests/datapath/python/ways.py --table -->"
END = "<!-- /ways -->"
BACKENDS = {GLOO: "gloo", HOOK: "gloo", GROUP: "weir"}


def _packed_outcome(rank, world, way, variant, folder):
    """As bytes: tensors that are sent as such need their process to live on."""
    status, text, tensors = outcome(rank, world, way, variant, folder)
    packed = io.BytesIO()
    torch.save(tensors, packed)
    return status, text, packed.getvalue()


def run_variant(way, variant):
    """Returns (status, text, [tensors of each rank]). AssertionError: it fails."""
    with tempfile.TemporaryDirectory() as folder:
        if way.launched:
            return "ran", "", way.function(variant, folder, ranks.free_port(), way.deadline_s)
        answers = [answer for answer, _ in ranks.run(
            way.world, _packed_outcome, way, variant, folder, backend=BACKENDS[variant],
            deadline_s=way.deadline_s)]
    statuses = {status for status, _, _ in answers}
    if len(statuses) != 1:
        raise AssertionError(f"ranks differ: {[answer[:2] for answer in answers]}")
    return statuses.pop(), answers[0][1], [torch.load(io.BytesIO(packed))
                                           for _, _, packed in answers]


def compare(found, expected, tolerance):
    """Raises AssertionError unless two runs gave the same tensors."""
    for rank, (ours, theirs) in enumerate(zip(found, expected)):
        if len(ours) != len(theirs) or not ours:
            raise AssertionError(f"rank {rank}: {len(ours)} tensors, gloo's run has {len(theirs)}")
        for number, (a, b) in enumerate(zip(ours, theirs)):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise AssertionError(f"rank {rank}, tensor {number}: {a.dtype} {tuple(a.shape)}, "
                                     f"gloo's is {b.dtype} {tuple(b.shape)}")
            if not torch.isfinite(b.double()).all():
                raise AssertionError(f"rank {rank}, tensor {number}: gloo's run diverged")
            off = float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
            largest = float(b.double().abs().max()) if b.numel() else 0.0
            if not off <= tolerance * largest:
                raise AssertionError(f"rank {rank}, tensor {number}: off by {off:g}, the largest "
                                     f"number is {largest:g}, tolerance {tolerance:g}")


def judge(way):
    """Returns a row for each variant of a way."""
    rows, expected, missing, broken = [], None, "", ""
    for variant in (GLOO, *way.variants()):
        begin, status, text = time.monotonic(), "fails", ""
        if missing:
            status, text = "not offered", missing
        elif broken:
            text = f"gloo fails: {broken}"
        else:
            try:
                ran, text, found = run_variant(way, variant)
                if variant == GLOO:
                    expected = found
                    missing = text if ran == "not offered" else ""
                    continue
                if ran == "ran":
                    compare(found, expected, way.tolerance)
                status = {"ran": "passes"}.get(ran, ran)
            except Exception as error:  # a way that fails is a row, whatever it raised
                text = str(error)
                if variant == GLOO:
                    broken = text
                    continue
        rows.append({"way": way.name, "variant": variant, "status": status, "text": text,
                     "seconds": round(time.monotonic() - begin, 1)})
    return rows


def run_all(words):
    """Runs the ways whose names contain `words`. Prints and returns their rows."""
    rows = []
    for way in WAYS:
        if words.lower() not in way.name.lower():
            continue
        for row in judge(way):
            rows.append(row)
            print(f"{row['status']:11} {row['way']} ({row['variant']}, {row['seconds']} s)"
                  + (f": {row['text']}" if row["text"] else ""), flush=True)
    return rows


# ---- the table


def _short(version):
    return re.match(r"\d+\.\d+", version).group()


def table(reports):
    """Rows: ways in the order of the registry. Columns: torch versions, process group and hook."""
    reports = sorted(reports, key=lambda r: [int(n) for n in _short(r["torch"]).split(".")])
    cells = {(row["way"], _short(report["torch"]), row["variant"]): row
             for report in reports for row in report["ways"]}
    versions = [_short(report["torch"]) for report in reports]
    columns = [(version, variant) for variant in (GROUP, HOOK) for version in versions]
    titles = {GROUP: "process group", HOOK: "`weir.attach`"}
    lines = ["| Way | " + " | ".join(f"{titles[variant]}, {version}"
                                     for version, variant in columns) + " |",
             "|---" * (1 + len(columns)) + "|"]
    notes = []
    for way in WAYS:
        line = []
        for version, variant in columns:
            row = cells.get((way.name, version, variant))
            if row is None:
                line.append("" if variant not in way.variants() else "not run")
                continue
            line.append(row["status"])
            if row["status"] == "refused":
                if row["text"] not in notes:
                    notes.append(row["text"])
                line[-1] += f" ({notes.index(row['text']) + 1})"
        lines.append(f"| {way.name} | " + " | ".join(line) + " |")
    for number, note in enumerate(notes, 1):
        lines += ["", f"({number}) `{note}`"]
    return "\n".join(lines)


def write_between_markers(path, text):
    with open(path, encoding="utf-8") as file:
        content = file.read()
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: expected the lines {BEGIN} and {END}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n{text}\n{end}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="ways whose names contain this")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="JSON files to print as a table")
    parser.add_argument("--readme", metavar="FILE", help="write the table between its markers")
    options = parser.parse_args()
    if options.table:
        reports = []
        for path in options.table:
            with open(path, encoding="utf-8") as file:
                reports.append(json.load(file))
        text = table(reports)
        if options.readme:
            write_between_markers(options.readme, text)
        else:
            print(text)
        return 0
    rows = run_all(options.only)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "python": platform.python_version(),
                       "ways": rows}, file, indent=1)
    counts = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    print(f"torch {torch.__version__}, Python {platform.python_version()}: "
          + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return 1 if counts.get("fails") or not rows else 0


if __name__ == "__main__":
    os.environ.setdefault("USE_LIBUV", "0")
    sys.exit(main())
