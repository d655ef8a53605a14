# SPDX-License-Identifier: Apache-2.0
"""Parses every file of the datapath and of the simulation by itself with clang, warnings as errors.

    tests/lint/clang_check.py BUILD_DIRECTORY

BUILD_DIRECTORY was configured with clang, -Werror, no unity build and nothing precompiled. What was built there
has passed and is left out. Without code generation the rest takes a third of a build's time, and this finds
what a build would: wrong uses of locks (-Wthread-safety), missing includes, warnings. Status 1 if a file fails.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("datapath/", "tests/sim/", "tests/support/")
TIMEOUT_S = 300


def check(entry):
    """The file's path and clang's words; none when it is clean."""
    command = shlex.split(entry["command"])
    built = pathlib.Path(entry["directory"], command[command.index("-o") + 1])
    if built.exists() and built.stat().st_mtime > os.path.getmtime(entry["file"]):
        return entry["file"], ""
    while not os.path.basename(command[0]).startswith("clang"):  # a launcher
        command.pop(0)
    output = command.index("-o")
    del command[output:output + 2]
    done = subprocess.run([*command, "-fsyntax-only"], cwd=entry["directory"], timeout=TIMEOUT_S,
                          capture_output=True, text=True, check=False)
    words = done.stdout + done.stderr
    return entry["file"], words if done.returncode != 0 else ""


def main():
    if len(sys.argv) != 2:
        sys.exit("clang_check: expected a build directory")
    database = json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text(encoding="utf-8"))
    entries = {entry["file"]: entry for entry in database
               if os.path.relpath(entry["file"], ROOT).startswith(PARTS)}
    if not entries:
        sys.exit("clang_check: no file of the datapath in compile_commands.json")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, words in pool.map(check, entries.values()):
            if words:
                failed += 1
                print(f"{os.path.relpath(path, ROOT)}:\n{words[:4000]}", flush=True)
    print(f"clang: {len(entries)} files, {failed} with findings")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
