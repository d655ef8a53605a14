#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what the last tests/run spent its time on: the slowest tests, and compile time by target.

    tests/support/timings.py BUILD [--tests N] [--targets N]

Tests are those of BUILD/ctest.log, which tests/run writes; compile times are those of Ninja's log, summed over the
commands of a target, each by its last run.
"""
import argparse
import collections
import pathlib
import re
import sys

TEST = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*.*?([\d.]+) sec$")
TARGET = re.compile(r"(?:^|.*/)CMakeFiles/(.+?)\.dir/")


def tests(log):
    """Seconds by test; a test that ran twice counts twice."""
    spent = collections.Counter()
    for line in log.read_text(errors="replace").splitlines():
        found = TEST.match(line)
        if found:
            spent[found.group(1)] += float(found.group(2))
    return spent


def targets(log):
    """Seconds of commands by target. What belongs to none, such as links and generated sources, counts by its file."""
    last = {}
    for line in log.read_text(errors="replace").splitlines():
        fields = line.split("\t")
        if len(fields) == 5:
            last[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    spent = collections.Counter()
    for output, seconds in last.items():
        found = TARGET.match(output)
        spent[found.group(1) if found else output] += seconds
    return spent


def table(title, spent, most):
    print(f"\n{title}: {sum(spent.values()):.0f} s in {len(spent)}; the {min(most, len(spent))} slowest:")
    for name, seconds in spent.most_common(most):
        print(f"  {seconds:7.1f} s  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--tests", type=int, default=50, metavar="N")
    parser.add_argument("--targets", type=int, default=50, metavar="N")
    options = parser.parse_args()
    for title, file, read, most in (("Tests", "ctest.log", tests, options.tests),
                                    ("Compile time by target", ".ninja_log", targets, options.targets)):
        if most == 0:
            continue
        log = options.build / file
        if not log.exists():
            sys.exit(f"timings: {log} is missing: tests/run makes it")
        table(title, read(log), most)


if __name__ == "__main__":
    main()
