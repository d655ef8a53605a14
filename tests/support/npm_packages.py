# SPDX-License-Identifier: Apache-2.0
"""Packages from npm for tests: what a package.json and its lock file name, in a directory of the build."""
import fcntl
import json
import pathlib
import shutil
import subprocess

NODE, NPM = shutil.which("node"), shutil.which("npm")
INSTALL_TIMEOUT_S = 120


def fits(source, modules):
    """Whether the directory holds the very versions that package.json names."""
    wanted = json.loads((source / "package.json").read_text())["devDependencies"]
    for name, version in wanted.items():
        try:
            found = json.loads((modules / name / "package.json").read_text())["version"]
        except (OSError, ValueError, KeyError):
            return False
        if found != version:
            return False
    return True


def install(source, directory):
    """Fills directory/node_modules; returns why that is impossible, or an empty string."""
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(source / name, directory / name)
    try:
        done = subprocess.run([NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                              cwd=directory, capture_output=True, text=True,
                              timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"npm ci took more than {INSTALL_TIMEOUT_S} s"
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line]
        return f"npm ci failed: {'; '.join(said[:3]) or 'without a word'}"
    return ""


def modules(source, own):
    """(directory of the packages of source/package.json, ""), or (None, why). They come from
    source/node_modules where somebody works with them, else from a copy that npm makes in `own` once."""
    source, own = pathlib.Path(source), pathlib.Path(own)
    if not NODE:
        return None, "node is not installed"
    if fits(source, source / "node_modules"):
        return source / "node_modules", ""
    own.mkdir(parents=True, exist_ok=True)
    with open(own / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if fits(source, own / "node_modules"):
            return own / "node_modules", ""
        if not NPM:
            return None, "npm is not installed"
        reason = install(source, own)
    return (None, reason) if reason else (own / "node_modules", "")
