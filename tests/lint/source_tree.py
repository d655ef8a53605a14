#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of the source tree that no compiler makes: which directory may include which, that every
plug-in and test file is built, file sizes, licences, formatting, and words that do not belong.

Usage: source_tree.py ROOT. Prints one line per finding and exits 1 when there is any.
"""

import pathlib
import re
import subprocess
import sys

# Directory -> directories whose headers it may include (itself always). DESIGN: dependencies run one
# way; the controller links no codec, transport or session.
ALLOWED = {
    "datapath/base": set(),
    "datapath/wire": {"datapath/base"},
    "datapath/codec": {"datapath/base", "datapath/wire"},
    "datapath/transport": {"datapath/base", "datapath/wire"},
    "datapath/collective": {"datapath/base", "datapath/wire", "datapath/codec", "datapath/transport"},
    "datapath/aggregation": {"datapath/base", "datapath/wire", "datapath/transport"},
    "datapath/communicator": {"datapath/base", "datapath/wire", "datapath/transport",
                              "datapath/collective"},
    "datapath/exchange": {"datapath/base", "datapath/codec", "datapath/collective"},
    "datapath/plan": {"datapath/base", "datapath/wire", "datapath/codec", "datapath/collective",
                      "datapath/exchange", "datapath/aggregation"},
    "datapath/agent_link": {"datapath/base", "datapath/wire", "datapath/codec",
                            "datapath/transport", "datapath/exchange", "datapath/plan"},
    "datapath/session": {"datapath/base", "datapath/wire", "datapath/codec", "datapath/transport",
                         "datapath/collective", "datapath/aggregation", "datapath/exchange",
                         "datapath/plan", "datapath/agent_link"},
    "datapath/api": {"datapath/base", "datapath/agent_link", "datapath/codec",
                     "datapath/communicator", "datapath/cuda",
                     "datapath/plan", "datapath/session", "datapath/wire"},
    "datapath/cuda": {"datapath/base", "datapath/codec", "datapath/nccl"},
    "datapath/nccl": {"datapath/base", "datapath/wire"},
    "controller/model": {"datapath/base"},
    "controller/policy": {"datapath/base"},
    "controller/objective": {"datapath/base", "controller/model", "controller/policy"},
    "controller/solver": {"datapath/base", "controller/model", "controller/policy",
                          "controller/objective"},
    "controller/rollout": {"datapath/base"},
    "controller/store": {"datapath/base", "deploy/program"},
    "controller/job": {"datapath/base", "controller/model", "controller/policy",
                       "controller/solver", "controller/rollout"},
    "controller/messages": {"datapath/base", "proto", "controller/model", "controller/policy",
                            "controller/objective", "controller/solver", "controller/rollout",
                            "controller/job"},
    "controller/fleet": {"datapath/base", "controller/model", "controller/policy",
                         "controller/objective", "controller/solver", "controller/job",
                         "deploy/program"},
    "controller/server": {"datapath/base", "proto", "controller/messages", "controller/fleet",
                          "controller/job", "controller/objective", "controller/solver",
                          "controller/store", "deploy/program"},
    "controller/cli": {"datapath/base", "proto", "controller/model", "controller/policy",
                       "controller/objective", "controller/solver", "controller/messages",
                       "deploy/program"},
    "agent/measure": {"datapath/base", "datapath/wire"},
    "agent": {"datapath/base", "datapath/wire", "proto", "agent/measure", "deploy/program"},
    "deploy": {"datapath/base"},
    "deploy/program": {"datapath/base"},
    "deploy/aggregator": {"datapath/base", "datapath/aggregation", "deploy/program"},
}

# Single files that may reach further, with the reason.
EXCEPTIONS = {
    # A build-time program that prints what the datapath offers, so that the control plane links none of it.
    "controller/messages/dump_capabilities.cc": {"datapath/agent_link", "datapath/codec", "datapath/cuda"},
}

FORBIDDEN_LINKS = ("weir_codec", "weir_transport", "weir_collective", "weir_exchange", "weir_plan",
                   "weir_agent_link", "weir_session", "weir_api")
LINES_MAX = 600
SOURCE_SUFFIXES = {".cc", ".h", ".c"}
LICENSED_SUFFIXES = {".cc", ".h", ".c", ".cu", ".cuh", ".inl", ".proto", ".p4", ".js", ".mjs", ".def", ".py", ".cmake"}
# Deadlines of the datapath must not use a clock that can be set, because it may jump. Files that show the time to
# people are exempt.
WALL_CLOCK = re.compile(r"system_clock|gettimeofday|CLOCK_REALTIME|\btime\((nullptr|NULL|0)\)|"
                        r"UnixSeconds\(|pthread_cond_timedwait|sem_timedwait")
WALL_CLOCK_FILES = {"datapath/base/clock.cc", "datapath/base/clock.h", "datapath/base/log.cc"}
CPP_TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.M)
PYTHON_TEST = re.compile(r"^ +def (test_\w+)\(", re.M)
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# A comment is a sentence or a noun phrase. One that begins with these words is the end of a sentence whose
# beginning the reader has to guess.
FRAGMENT = re.compile(r"(What|Of|Whose|Nor)\b")
# Words that have a standard term in this code base, or that nobody uses any more.
RETIRED = re.compile(r"\b(anew|whoever|hitherto|thereof|farewells?|lenders?|borrowers?|loans?|server residuals?)\b",
                     re.IGNORECASE)
SLASHES = re.compile(r"(?:^|\s)//[/!]?<?(?: (.*))?$")
HASHES = re.compile(r"(?:^|\s)#(?: (.*))?$")
DOCSTRING = re.compile(r'^\s*"""(.*)$')
SLASH_SUFFIXES = SOURCE_SUFFIXES | {".cu", ".cuh", ".inl", ".proto", ".p4", ".js", ".mjs", ".def"}


def owner_of(path):
    """The key of ALLOWED that a path belongs to, longest match; None for tests and others."""
    best = None
    for directory in ALLOWED:
        if path.startswith(directory + "/") and (best is None or len(directory) > len(best)):
            best = directory
    return best


def include_findings(path, text):
    owner = owner_of(path)
    if owner is None:
        return []
    allowed = ALLOWED[owner] | {owner} | EXCEPTIONS.get(path, set())
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        if target.startswith("weir/v1/"):
            target_owner = "proto"
        else:
            target_owner = owner_of(target)
        if target_owner and target_owner not in allowed:
            found.append(f"{path}:{number}: {owner} may not include {target}")
    return found


def clock_findings(path, text):
    if not path.startswith("datapath/") or path in WALL_CLOCK_FILES:
        return []
    return [f"{path}:{number}: a clock that jumps; the datapath waits by RealClock().Now()"
            for number, line in enumerate(text.splitlines(), 1) if WALL_CLOCK.search(line)]


def comments_of(path, text):
    """(line number, text, whether it begins a comment) of every line of a comment; in Markdown, of every line."""
    suffix = pathlib.PurePosixPath(path).suffix
    if suffix == ".md":
        return [(number, line, False) for number, line in enumerate(text.splitlines(), 1)]
    marker = SLASHES if suffix in SLASH_SUFFIXES else HASHES
    found, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        match = marker.search(line)
        words = (match.group(1) or "") if match else ""
        behind_code = bool(match) and bool(line[:match.start()].strip())
        if match:
            found.append((number, words, behind_code or not inside))
        # A blank line of a comment ends its paragraph, and the licence is no part of the first comment.
        inside = bool(words) and not behind_code and "SPDX-License" not in words
        if marker is HASHES and (match := DOCSTRING.match(line)):
            found.append((number, match.group(1), True))
    return found


def language_findings(path, text):
    """Comments that begin in the middle of a sentence, and words that are no longer used."""
    found = []
    for number, words, begins in comments_of(path, text):
        if begins and FRAGMENT.match(words):
            found.append(f"{path}:{number}: a comment is a sentence or a noun phrase: {words[:60]}")
        if match := RETIRED.search(words):
            found.append(f"{path}:{number}: use another word for '{match.group(0)}': {words[:60]}")
    return found


def plugin_findings(root):
    """Every builtin/x.cc (or builtin/x/) has its line in the .def, and the other way round."""
    found = []
    for kind in ("codec", "transport", "collective"):
        found += one_registry(root, root / "datapath" / kind, f"builtin_{kind}s.def")
    found += one_registry(root, root / "controller" / "objective", "builtin_objectives.def")
    return found


def one_registry(root, directory, def_name):
    builtin = directory / "builtin"
    if not builtin.is_dir():
        return []
    definition = directory / def_name
    if not definition.exists():
        return [f"{directory.relative_to(root)}: {def_name} is missing"]
    text = "\n".join(line.split("//")[0] for line in definition.read_text().splitlines())
    registered = set(re.findall(r"WEIR_\w+\(\s*(\w+)", text))
    registrars = set()
    for source in builtin.rglob("*.cc"):
        registrars |= set(re.findall(r"^void Register(\w+)\(", source.read_text(), re.M))
    found = []
    for name in sorted(registrars - registered):
        found.append(f"{directory.relative_to(root)}/builtin: Register{name} has no line in {def_name}")
    for name in sorted(registered - registrars):
        found.append(f"{directory.relative_to(root)}/{def_name}: {name} has no registrar in builtin/")
    return found


def orphan_tests(root, files):
    """Every C++ test file lies where tests/CMakeLists.txt globs it or its directory's list names it."""
    declared = (root / "tests/CMakeLists.txt").read_text()
    globbed = set()
    for directory, rest in re.findall(r"weir_tests\((\S+)([^)]*)\)", declared):
        rooms = re.search(r"\bROOMS((?: [a-z_]+)+)", rest)
        globbed |= {directory, f"{directory}/builtin"}
        globbed |= {f"{directory}/{room}" for room in (rooms.group(1).split() if rooms else [])}
    found = []
    for path in files:
        if not path.startswith("tests/") or not path.endswith("_test.cc"):
            continue
        directory = str(pathlib.PurePosixPath(path).parent)[len("tests/"):]
        if directory in globbed:
            continue
        local = root / "tests" / directory / "CMakeLists.txt"
        if local.exists() and pathlib.PurePosixPath(path).name in local.read_text():
            continue
        found.append(f"{path}: not built by any CMakeLists.txt")
    return found


def named_tests(root, files):
    """The tests that tables may name: "Suite.Test" of C++, "file_test.test_x" of Python."""
    known = set()
    for path in files:
        name = pathlib.PurePosixPath(path).name
        if not path.startswith("tests/") or not (name.endswith("_test.cc") or name.endswith("_test.py")):
            continue
        text = (root / path).read_text()
        known |= {f"{suite}.{test}" for suite, test in CPP_TEST.findall(text)}
        known |= {f"{name[:-3]}.{test}" for test in PYTHON_TEST.findall(text)}
    return known


def table_findings(path, text, known):
    """A table whose last column is "Test" names, in every row, tests that exist."""
    found, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            inside = False
            continue
        last = line.rstrip().rstrip("|").rpartition("|")[2].strip()
        if not inside:
            inside = last == "Test"
            continue
        if set(line) <= set("|-: "):
            continue
        names = re.findall(r"`([^`]+)`", last)
        if not names:
            found.append(f"{path}:{number}: no test holds this row")
        found += [f"{path}:{number}: there is no test {name}" for name in names if name not in known]
    return found


def link_findings(root, files):
    """The controller links nothing of the datapath but base."""
    found = []
    for path in files:
        if not (path.startswith("controller/") and path.endswith("CMakeLists.txt")):
            continue
        text = (root / path).read_text()
        # The build-time capability printer is the documented exception; it is no part of a product.
        text = re.sub(r"target_link_libraries\(weir_dump_capabilities[^)]*\)", "", text)
        for library in FORBIDDEN_LINKS:
            if re.search(rf"\b{library}\b", text):
                found.append(f"{path}: the controller may not link {library}")
    return found


def format_findings(root, files):
    sources = [path for path in files if pathlib.PurePosixPath(path).suffix in SOURCE_SUFFIXES]
    found = []
    for start in range(0, len(sources), 40):
        batch = sources[start:start + 40]
        result = subprocess.run(["clang-format", "--dry-run", *batch], cwd=root, text=True,
                                stderr=subprocess.PIPE, check=False)
        seen = set()
        for line in result.stderr.splitlines():
            match = re.match(r"([^:]+):(\d+):\d+: (warning|error)", line)
            if match and match.group(1) not in seen:
                seen.add(match.group(1))
                found.append(f"{match.group(1)}:{match.group(2)}: clang-format would change this file")
    return found


def tracked_files(root):
    output = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True,
                            check=False)
    if output.returncode == 0 and output.stdout:
        return [name for name in output.stdout.decode().split("\0") if name]
    return [str(p.relative_to(root)) for p in root.rglob("*")
            if p.is_file() and not p.relative_to(root).parts[0].startswith(("build", ".git"))]


def licence_findings(path, text):
    """Sources say in their first lines under which licence they are."""
    suffix = pathlib.PurePosixPath(path).suffix
    script = suffix == "" and text.startswith("#!")
    if not (script or suffix in LICENSED_SUFFIXES or path.endswith("CMakeLists.txt")) or \
            path.startswith("dashboards/web/dist/"):
        return []
    if any("SPDX-License-Identifier: " in line for line in text.splitlines()[:3]):
        return []
    return [f"{path}:1: no SPDX-License-Identifier"]


def check(root, with_format=True, with_licence=True):
    files = [f for f in tracked_files(root) if "/vendor/" not in f and (root / f).exists()]
    found = []
    known = named_tests(root, files)
    for path in files:
        suffix = pathlib.PurePosixPath(path).suffix
        if suffix not in SOURCE_SUFFIXES | {".py", ".js", ".proto", ".md", ".txt", ".yaml", ".css",
                                            ".html", ""} | LICENSED_SUFFIXES:
            continue
        try:
            text = (root / path).read_text()
        except UnicodeDecodeError:
            continue
        if with_licence:
            found += licence_findings(path, text)
        found += language_findings(path, text)
        if suffix == ".md":
            found += table_findings(path, text, known)
        if suffix in SOURCE_SUFFIXES:
            found += include_findings(path, text)
            found += clock_findings(path, text)
        if suffix in SOURCE_SUFFIXES | {".py", ".js"} and text.count("\n") > LINES_MAX:
            found.append(f"{path}: {text.count(chr(10))} lines, at most {LINES_MAX}")
        if not path.startswith("tests/lint/"):
            for number, line in enumerate(text.splitlines(), 1):
                if WORDS.search(line):
                    found.append(f"{path}:{number}: unfinished mark or foreign path: {line.strip()[:80]}")
    found += plugin_findings(root)
    found += orphan_tests(root, files)
    found += link_findings(root, files)
    if with_format:
        found += format_findings(root, files)
    return found


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = check(root)
    for line in found:
        print(line)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
