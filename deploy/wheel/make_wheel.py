# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel of the Python package, the libraries and the programs out of a build directory.

    python3 deploy/wheel/make_wheel.py --build build --out DIR

It is the build backend of pyproject.toml, too, so that `pip wheel . -C build=DIR` does the same. README.md
beside this file says what the wheel holds.
"""
import argparse
import base64
import email.message
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "datapath" / "python" / "weir"
LIBRARIES = ("datapath/api/libweir.so", "datapath/nccl/plugin/libnccl-weir.so")
PROGRAMS = {"weir-agent": "agent/weir-agent", "weir-controller": "controller/server/weir-controller",
            "weirctl": "controller/cli/weirctl"}
# Libraries that every system with this tag has: the part of the manylinux policies' allow-lists that Weir uses.
# PEP 600 demands that everything else is in the wheel.
SYSTEM = re.compile(r"(linux-vdso|ld-linux-.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libz)\.so"
                    r"(\.\d+)*")
DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that wheels of one build are identical


def run(*command, **options):
    """Standard output of a command. Raises CalledProcessError if it fails."""
    return subprocess.run([str(part) for part in command], check=True, text=True, timeout=60,
                          stdout=subprocess.PIPE, **options).stdout


def version(build):
    """The project's version that the build directory was configured with."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.+)$", cache, re.MULTILINE)[1]


def tag():
    """Tag of this machine: its glibc is the oldest that the libraries are known to run with."""
    name, release = platform.libc_ver()
    if name != "glibc":
        raise SystemExit(f"make_wheel: the C library is '{name}', expected glibc")
    return f"py3-none-manylinux_{release.replace('.', '_')}_{platform.machine()}"


def needed(file):
    """Names of libraries that `file` asks for itself."""
    return run("patchelf", "--print-needed", file).split()


def closure(files):
    """Library name -> path, of everything that the files load and a system need not have."""
    # The reference LAPACK is enough for the small problems of the linear programme solver. OpenBLAS, which
    # Debian's alternatives may prefer, would be larger than everything else together.
    directories = [path for name in ("lapack", "blas")
                   for path in pathlib.Path("/usr/lib").glob(f"{platform.machine()}-*/{name}")]
    search = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(map(str, directories)))
    found = {}
    for file in files:
        for line in run("ldd", file, env=search).splitlines():
            name, _, path = (part.strip() for part in line.partition("=>"))
            if path.startswith("not found"):
                raise SystemExit(f"make_wheel: {file} needs {name}, which is not on this machine")
            if path:
                found[name] = pathlib.Path(path.split()[0]).resolve()
    wanted, queue = {}, [name for file in files for name in needed(file)]
    while queue:
        name = queue.pop()
        if name in wanted or SYSTEM.fullmatch(name):
            continue
        wanted[name] = found[name]
        queue += needed(found[name])
    return wanted


def bundle(tree, files):
    """Copies the libraries that `files` load to weir.libs, and makes them and the files look there.

    Every copy has the hash of its content in its name and SONAME, as auditwheel does it. So the loader
    never takes for it a library of the same name that another package has loaded, nor the reverse.
    """
    directory = tree / "weir.libs"
    directory.mkdir()
    libraries = closure(files)
    names = {}
    for name, path in libraries.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        names[name] = name.replace(".so", f"-{digest}.so", 1)
    copies = []
    for name, path in libraries.items():
        copies.append(directory / names[name])
        shutil.copyfile(path, copies[-1])
        run("patchelf", "--set-soname", names[name], copies[-1])
    for file, rpath in ([(copy, "$ORIGIN") for copy in copies] +
                        [(file, "$ORIGIN/../../weir.libs") for file in files]):
        replaced = [part for name in needed(file) if name in names
                    for part in ("--replace-needed", name, names[name])]
        # This needs two calls, because patchelf 0.14 garbles the names if one call does both.
        if replaced:
            run("patchelf", *replaced, file)
        run("patchelf", "--set-rpath", rpath, file)


def fill(tree, build, release):
    """Writes everything but the metadata into the directory `tree`."""
    shutil.copytree(PACKAGE, tree / "weir", ignore=shutil.ignore_patterns("__pycache__"))
    sources = [build / library for library in LIBRARIES]
    files = [tree / "weir" / "lib" / source.name for source in sources]
    for program, place in PROGRAMS.items():
        files.append(tree / "weir" / "bin" / program)
        sources.append(build / place)
    launcher = (pathlib.Path(__file__).parent / "launcher.py").read_text(encoding="utf-8")
    scripts = tree / f"weir-{release}.data" / "scripts"
    scripts.mkdir(parents=True)
    for source, file in zip(sources, files):
        if not source.is_file():
            raise SystemExit(f"make_wheel: {source} does not exist: build it first")
        file.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, file)
        if file.name in PROGRAMS:
            file.chmod(0o755)
            (scripts / file.name).write_text(launcher.replace("@PROGRAM@", file.name), encoding="utf-8")
            (scripts / file.name).chmod(0o755)
    bundle(tree, files)


def describe(tree, release):
    """Writes METADATA, WHEEL and entry_points.txt. Returns their directory."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    information = tree / f"weir-{release}.dist-info"
    information.mkdir()
    metadata = email.message.Message()
    metadata["Metadata-Version"] = "2.4"
    metadata["Name"] = project["name"]
    metadata["Version"] = release
    metadata["Summary"] = project["description"]
    metadata["License-Expression"] = project["license"]
    metadata["License-File"] = "LICENSE"
    metadata["Requires-Python"] = project["requires-python"]
    for dependency in project["dependencies"]:
        metadata["Requires-Dist"] = dependency
    (information / "licenses").mkdir()
    shutil.copy(ROOT / "LICENSE", information / "licenses")
    (information / "METADATA").write_text(str(metadata), encoding="utf-8")
    (information / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: weir\nRoot-Is-Purelib: false\nTag: {tag()}\n", encoding="utf-8")
    scripts = "".join(f"{name} = {target}\n" for name, target in project["scripts"].items())
    (information / "entry_points.txt").write_text("[console_scripts]\n" + scripts, encoding="utf-8")
    return information


def pack(tree, information, wheel):
    """Writes the directory `tree` and its RECORD into the file `wheel`."""
    record = information / "RECORD"
    lines = []
    for file in sorted(path for path in tree.rglob("*") if path.is_file()):
        content = file.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(tree)},sha256={digest},{len(content)}\n")
    record.write_text("".join(lines) + f"{record.relative_to(tree)},,\n", encoding="utf-8")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in tree.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(str(file.relative_to(tree)), DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | file.stat().st_mode & 0o777) << 16
            archive.writestr(entry, file.read_bytes())


def make(build, out):
    """Makes the wheel of the build directory `build` in the directory `out`. Returns its path."""
    if shutil.which("patchelf") is None:
        raise SystemExit("make_wheel: patchelf is not installed (Debian: patchelf)")
    release = version(build)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"weir-{release}-{tag()}.whl"
    with tempfile.TemporaryDirectory(prefix="weir-wheel-") as directory:
        tree = pathlib.Path(directory)
        fill(tree, build, release)
        pack(tree, describe(tree, release), wheel)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The hook of PEP 517. The setting `build` names the build directory; `build` below the root is the default."""
    build = pathlib.Path((config_settings or {}).get("build", ROOT / "build"))
    return make(build, pathlib.Path(wheel_directory)).name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory of the wheel")
    options = parser.parse_args()
    print(make(options.build, options.out))


if __name__ == "__main__":
    sys.exit(main())
