# SPDX-License-Identifier: Apache-2.0
"""Runs the hands-on pages of Markdown files as a reader would, from their own code blocks.

A page is what lies between the lines `<!-- hands-on: NAME -->` and `<!-- /hands-on -->`. Its fenced
blocks are taken in order:

    ```sh                     commands, typed into one bash: variables and background jobs stay
    ```text                   what the commands before it print; `…` stands for anything, alone on a
                              line for any number of lines
    ```LANGUAGE               a file, whose name is in its first line: `# file: train.py`, `// file: x.cc`

All of it happens in one scratch directory, in namespaces of its own for processes and the network:
default ports are free, and nothing that a page starts outlives it. A command that fails ends the page.
"""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = re.compile(r"^<!-- hands-on: ([\w-]+) -->\n(.*?)^<!-- /hands-on -->$", re.M | re.S)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILE_NAME = re.compile(r"^(?:#|//) file: (\S+)\n")
OUTPUT_BYTES_MAX = 1 << 20
# The mount namespace is for /proc alone, which must show the processes of this page.
SANDBOX = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"]


class PageError(Exception):
    """A page that cannot be read, or that is not true. The message names page and line."""


@dataclasses.dataclass
class Block:
    """One fenced block: kind is "sh", "text" or "file"; name only of files; line in the document."""
    kind: str
    text: str
    line: int
    name: str = ""


def namespaces_refused():
    """Why pages cannot run here; an empty string where they can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (package util-linux)"
    done = subprocess.run([*SANDBOX, "ip", "link", "set", "lo", "up"], capture_output=True, text=True,
                          timeout=20, check=False)
    said = done.stderr.strip().splitlines()
    return (said[-1] if said else f"unshare ended with status {done.returncode}") if done.returncode else ""


def pages(document):
    """The pages of a Markdown file: name -> blocks. PageError: a mark or a block that is not sound."""
    source = document.read_text(encoding="utf-8")
    found = {}
    for page in PAGE.finditer(source):
        blocks = []
        for match in BLOCK.finditer(page.group(2)):
            line = source.count("\n", 0, page.start(2) + match.start()) + 1
            blocks.append(_block(match.group(1), match.group(2), line, document))
        if not any(block.kind == "sh" for block in blocks):
            raise PageError(f"{document}: page {page.group(1)} has no commands")
        if page.group(1) in found:
            raise PageError(f"{document}: two pages are called {page.group(1)}")
        found[page.group(1)] = blocks
    if source.count("<!-- hands-on: ") != len(found) or source.count("<!-- /hands-on -->") != len(found):
        raise PageError(f"{document}: a page has no end, or an end has no page")
    return found


def _block(language, text, line, document):
    if language in ("sh", "text"):
        return Block(language, text, line)
    name = FILE_NAME.match(text)
    if name is None:
        raise PageError(f"{document}:{line}: expected a first line `file: NAME` in a block of {language}")
    if pathlib.PurePosixPath(name.group(1)).is_absolute() or ".." in name.group(1):
        raise PageError(f"{document}:{line}: {name.group(1)} lies outside the scratch directory")
    return Block("file", text, line, name.group(1))


def matches(expected, found):
    """Whether printed text is what a page says, blank lines at the ends and trailing blanks aside."""
    pattern = ""
    for line in expected.strip("\n").splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ \t]*\n"
    return re.fullmatch(pattern, found.strip("\n") + "\n") is not None


def _script(blocks, scratch):
    """One bash script that does all blocks and says on descriptor 9 which it has reached."""
    lines = ["set -eu -o pipefail", f"exec 9>{scratch}/reached </dev/null", "ip link set lo up"]
    for number, block in enumerate(blocks):
        if block.kind == "text":
            continue
        lines.append(f"echo {number} >&9; exec >{scratch}/{number}.out 2>&1")
        if block.kind == "file":
            kept = scratch / f"{number}.file"
            kept.write_text(block.text, encoding="utf-8")
            lines += [f"mkdir -p \"$(dirname '{block.name}')\"", f"cp '{kept}' '{block.name}'"]
        else:
            lines.append(block.text)
    return "\n".join(lines + ["echo end >&9", ""])


def run_page(document, name, blocks, environment, timeout_s):
    """Runs one page. PageError: a command failed, the time is out, or output is not as the page says."""
    with tempfile.TemporaryDirectory(prefix="weir-page-") as directory:
        scratch = pathlib.Path(directory)
        work = scratch / "work"
        work.mkdir()
        script = scratch / "page.sh"
        script.write_text(_script(blocks, scratch), encoding="utf-8")
        status = "with status 0"
        with open(scratch / "bash.out", "wb") as output:
            process = subprocess.Popen([*SANDBOX, "bash", script], cwd=work, env=environment,
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            try:
                process.wait(timeout=timeout_s)
                status = f"with status {process.returncode}"
            except subprocess.TimeoutExpired:
                status = f"by the time limit of {timeout_s} s"
            finally:
                process.kill()   # the namespace's first process dies with it, and all others with that
                process.wait()
        _judge(document, name, blocks, scratch, status)


def _read(path):
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        return file.read(OUTPUT_BYTES_MAX).decode(errors="replace")


def _judge(document, name, blocks, scratch, status):
    where = document.relative_to(ROOT) if document.is_relative_to(ROOT) else document
    reached = _read(scratch / "reached").split()
    if reached[-1:] != ["end"]:
        number = int(reached[-1]) if reached else 0
        raise PageError(f"{where}:{blocks[number].line}: page {name} was ended {status} in\n"
                        f"{blocks[number].text}\nwhich printed\n{_read(scratch / f'{number}.out')[-3000:]}"
                        f"{_read(scratch / 'bash.out')[-1000:]}{_logs(scratch / 'work')}")
    printed = None
    for number, block in enumerate(blocks):
        if block.kind == "sh":
            printed = _read(scratch / f"{number}.out")
        elif block.kind == "text" and printed is None:
            raise PageError(f"{where}:{block.line}: nothing is printed before this output")
        elif block.kind == "text" and not matches(block.text, printed):
            raise PageError(f"{where}:{block.line}: expected\n{block.text}\nfound\n{printed[-3000:]}"
                            f"{_logs(scratch / 'work')}")


def _logs(work):
    """The ends of the logs that a page's programs wrote."""
    return "".join(f"\n{path.name}:\n{_read(path)[-1500:]}" for path in sorted(work.glob("*.log")))


def reader_environment(build):
    """The environment of a reader's shell: the built programs, the Python package, and their location."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    programs = ["controller/cli", "controller/server", "agent", "deploy/aggregator"]
    path = ":".join(str(build / part) for part in programs)
    environment.update(
        PATH=f"{path}:/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL="C.UTF-8", NO_COLOR="1",
        OMP_NUM_THREADS="1", WEIR_SOURCE=str(ROOT), WEIR_BUILD=str(build),
        PYTHONPATH=str(ROOT / "datapath/python"),
        WEIR_LIBRARY=str(build / "datapath/api/libweir.so"))
    return environment
