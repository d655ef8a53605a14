# SPDX-License-Identifier: Apache-2.0
"""Reads a Dockerfile: its stages, and what is wrong with them by rules of our own."""
import json
import pathlib
import re
import shlex
from dataclasses import dataclass, field

LABELS = {"org.opencontainers.image." + name for name in ("title", "version", "revision", "vendor",
                                                          "base.name")}


@dataclass
class Stage:
    name: str
    base: str
    steps: list = field(default_factory=list)   # (instruction, its text)

    def last(self, instruction):
        """The text of the last such instruction; None without one."""
        return next((text for word, text in reversed(self.steps) if word == instruction), None)


def read(text):
    """(ARGs before the first stage, stages in order)."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines()
                                            if not line.lstrip().startswith("#")))
    arguments, stages = {}, []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word == "FROM":
            base, _, name = re.match(r"(\S+)(\s+AS\s+(\S+))?", rest, re.I).groups()
            stages.append(Stage(name or str(len(stages)), base))
        elif not stages:
            name, _, value = rest.partition("=")
            arguments[name] = value
        else:
            stages[-1].steps.append((word, rest))
    return arguments, stages


def chain(stages, name):
    """The stage and those that it is built on, first base first."""
    known = {stage.name: stage for stage in stages}
    found = []
    while name in known:
        found.insert(0, known[name])
        name = known[name].base
    return found


def exec_form(text):
    """The words of ["a", "b"]; None for another form."""
    try:
        words = json.loads(text)
    except (json.JSONDecodeError, TypeError):
        return None
    return words if isinstance(words, list) and all(isinstance(w, str) for w in words) else None


def of_images(stages):
    """Stages that nothing is built on or copied from: what is shipped."""
    used = {stage.base for stage in stages}
    for stage in stages:
        used |= {m[1] for word, text in stage.steps if word == "COPY"
                 for m in [re.match(r"--from=(\S+)", text)] if m}
    return [stage for stage in stages if stage.name not in used]


def _of_run(text, shell):
    if "apt-get install" in text:
        if not re.search(r"install[^&|;]* -y", text) or "--no-install-recommends" not in text:
            yield "apt-get install without -y --no-install-recommends"
        if "rm -rf /var/lib/apt/lists/*" not in text:
            yield "package lists stay in the layer"
    if re.search(r"(^|&& *)apt ", text) or "apt-get upgrade" in text:
        yield "apt or apt-get upgrade"
    if "sudo" in text.split():
        yield "sudo"
    if re.search(r"(curl|wget)\b.*\|", text):
        yield "a download is run"
    if "|" in text.replace("||", "") and "pipefail" not in shell:
        yield "a pipe without pipefail"


def _of_stage(stage, stages, context):
    before = [other.name for other in stages[:stages.index(stage)]]
    if stage.base not in before and not re.search(r"@(sha256:[0-9a-f]{64}|\$\{\w*DIGEST\})$", stage.base):
        yield f"base {stage.base} is not pinned by a digest"
    shell = " ".join(s.last("SHELL") or "" for s in chain(stages, stage.name))
    for word, text in stage.steps:
        if word in ("ADD", "MAINTAINER", "ONBUILD"):
            yield f"{word} is not used here"
        if word == "WORKDIR" and not text.startswith("/"):
            yield f"WORKDIR {text} is relative"
        if word in ("ENTRYPOINT", "CMD") and exec_form(text) is None:
            yield f"{word} is not in exec form"
        if word == "RUN":
            yield from _of_run(text, shell)
        if word == "COPY" and not text.startswith("--from="):
            for source in shlex.split(text)[:-1]:
                if not (pathlib.Path(context) / source).exists():
                    yield f"COPY of {source}, which does not exist"
        if word in ("ENV", "ARG") and re.search(r"(?i)(password|secret|token)\w*=\S", text):
            yield f"{word} holds a secret"


def _of_image(stage):
    user = stage.last("USER") or "root"
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", user):
        yield f"runs as {user}: expected a number other than 0"
    labels = {text.split("=")[0] for word, rest in stage.steps if word == "LABEL"
              for text in shlex.split(rest)}
    if missing := sorted(LABELS - labels):
        yield f"labels are missing: {', '.join(missing)}"
    if stage.last("HEALTHCHECK") is None:
        yield "no HEALTHCHECK"
    if stage.last("CMD") is None:
        yield "no CMD"


def findings(text, context):
    """The violations of the rules, one line each: "stage: words"."""
    _, stages = read(text)
    found = [f"{stage.name}: {words}" for stage in stages for words in _of_stage(stage, stages, context)]
    return found + [f"{stage.name}: {words}" for stage in of_images(stages) for words in _of_image(stage)]
