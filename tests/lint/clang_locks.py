#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Lets clang check which mutex guards what (-Wthread-safety), and its other warnings, without generating code.

    tests/lint/clang_locks.py BUILD DIR...

Takes the commands of BUILD/compile_commands.json for the sources below DIR, which are paths within the tree. gcc
ignores the annotations. Exits with 1 if a file has a warning, and with 77 if clang++ is not installed.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
WARNINGS = ["-fsyntax-only", "-Wthread-safety", "-Werror", "-Wno-unknown-warning-option", "-Wno-ignored-optimization-argument"]


def commands(build, directories):
    """(source, clang's arguments) of every source below the directories of the tree or of the build."""
    wanted = [top / directory for top in (ROOT, build) for directory in directories]  # joined sources are in the build
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not any(pathlib.Path(entry["file"]).is_relative_to(directory) for directory in wanted):
            continue
        arguments, kept = iter(shlex.split(entry["command"])[1:]), []
        for argument in arguments:
            if argument in ("-o", "-include"):  # gcc's precompiled header, which sources do without
                next(arguments)
            elif argument not in ("-c", "-Winvalid-pch") and not argument.startswith("--param"):
                kept.append(argument)
        yield entry["file"], kept


def main():
    if shutil.which("clang++") is None:
        print("no clang++: not installed")
        return SKIPPED
    build = pathlib.Path(sys.argv[1]).resolve()
    found = list(commands(build, sys.argv[2:]))
    if not found:
        sys.exit(f"{build}/compile_commands.json: expected sources below {' '.join(sys.argv[2:])}, found none")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        def check(item):
            return item[0], subprocess.run(["clang++", *item[1], *WARNINGS], cwd=build, capture_output=True, text=True, timeout=300,
                                           check=False)
        for source, done in pool.map(check, found):
            if done.returncode != 0:
                failed += 1
                print(f"{source}:\n{done.stderr}")
    print(f"{len(found)} files, {failed} with warnings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
