# SPDX-License-Identifier: Apache-2.0
"""Weir on another Debian, with the torch of that Debian.

    debian_test.py prepare                 makes the roots, builds in trixie, and unpacks this build's wheel for sid
    debian_test.py trixie|sid FILE [...]   runs a file of tests/datapath/python there, with its arguments

In trixie the library is of that suite's compiler and libraries. In sid it is that of the wheel. Roots are made
by mmdebstrap from the mirror of this machine's apt, kept in .cache/debians, and never written to afterwards: what
runs there sees an overlay in memory, a /dev and a network of its own. Needs root. Where no root can be had, the exit
status is 77 and the last line says why, as it does after WEIR_LAST_START, in seconds since 1970.
"""
import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
ROOTS = ROOT / ".cache" / "debians"
PYTHON_TESTS = ROOT / "tests" / "datapath" / "python"
SKIPPED = 77
MAKING_S, BUILDING_S, TEST_S = 600, 2400, 590
PACKAGES = ["ca-certificates", "ccache", "ethtool", "iproute2", "iptables", "iputils-ping", "mount", "procps", "python3-numpy", "python3-setuptools",
            "python3-torch", "python3-venv"]
BUILT = {"trixie": True, "sid": False}   # suite: whether Weir is built there
LIBRARIES = {"trixie": ROOT / "build-trixie" / "datapath" / "api" / "libweir.so",
             "sid": ROOT / "build-sid" / "weir" / "lib" / "libweir.so"}
# Kernels are the same code for every instruction set, and the programs are for this test alone.
SIMD_LEFT_OUT = "HWY_SSSE3|HWY_SSE4|HWY_AVX2|HWY_AVX3"
# An archive that is no longer updated is valid beyond its dates; its signatures are still checked.
APT = ["--aptopt=Acquire::Check-Valid-Until \"false\""]
ENTER = r"""
root=$1 source=$2
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
cd /mnt/root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${node%:*}" c 1 "${node#*:}"; done
mkdir dev/shm
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
for name in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "${name#*:}" "dev/${name%:*}"; done
mkdir -p "./$source"
mount --bind "$source" "./$source"
printf '127.0.0.1 localhost %s\n' "$(hostname)" > etc/hosts
ip link set lo up
shift 2
exec chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 USE_LIBUV=0 PYTHONDONTWRITEBYTECODE=1 \
  CCACHE_DIR="$CCACHE_DIR" ${CCACHE_DISABLE:+CCACHE_DISABLE=1} "$@"
"""


class Refused(RuntimeError):
    """Why there is no such Debian here."""


def run(command, limit_s, **more):
    """subprocess.run with a deadline for the command and all that it started."""
    return subprocess.run(["timeout", "-k", "10", str(limit_s), *map(str, command)], check=False, **more)


def mirror():
    """Where this machine gets its packages from; empty where that is unknown."""
    return next(iter(run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian",
                          "Codename: bookworm"], 60, stdout=subprocess.PIPE, text=True).stdout.split()), "")


def wanted(suite):
    """The packages of a root."""
    found = list(PACKAGES)
    if BUILT[suite]:
        found += run([ROOT / "deploy" / "install-deps", "--list", "--build"], 60, stdout=subprocess.PIPE, text=True).stdout.split()
    return sorted(set(found))


def make_root(suite, packages=None, kind=""):
    """The directory of a root that holds the packages, None: what is wanted for tests. One that was made for the
    same is taken as it is. kind: a name for roots of one suite that hold different packages."""
    if os.geteuid() != 0:
        raise Refused("needs root")
    if shutil.which("mmdebstrap") is None:
        raise Refused("mmdebstrap is not installed")
    packages, source = packages or wanted(suite), mirror()
    if not source:
        raise Refused("apt names no mirror of Debian")
    # A new root is made every month, because suites change.
    recipe = [*packages, *APT, source, time.strftime("%Y-%m")]
    name = f"{suite}{kind}"
    root = ROOTS / f"{name}-{hashlib.sha256(chr(10).join(recipe).encode()).hexdigest()[:16]}"
    if root.exists():
        return root
    for old in ROOTS.glob(f"{name}-*"):
        shutil.rmtree(old)
    part = ROOTS / f"{name}-part"  # an incomplete root must not be used if this process is killed
    ROOTS.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    # It runs in its own namespaces, so that no processes or mounts remain if it is killed.
    done = run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "mmdebstrap", "--mode=root", "--variant=apt",
                "--quiet", *APT, f"--include={','.join(packages)}", suite, part, source], MAKING_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode != 0:
        shutil.rmtree(part, ignore_errors=True)
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise Refused(f"mmdebstrap {suite}: exit {done.returncode}: {' | '.join(words[-3:])}")
    part.rename(root)
    print(f"made {suite} in {time.monotonic() - begin:.0f} s", flush=True)
    return root


def inside(root, command, limit_s, **more):
    """Runs a command in a root, in the directory of the sources, which both see at the same path."""
    environment = os.environ | {"CCACHE_DIR": os.environ.get("CCACHE_DIR", str(ROOT / ".cache" / "ccache"))}
    return run(["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-euc", ENTER, "enter",
                root, ROOT, "sh", "-c", 'cd "$0" && exec "$@"', ROOT, *command], limit_s, env=environment, **more)


def build_there(root, suite):
    """Builds Weir in a root, without tests and without a warning.

    -O1 takes less time, and still finds what compilers warn of only when they optimise.
    """
    build = ROOT / f"build-{suite}"  # not inside of BUILD, where programs of this machine are looked for
    log = ROOT / f"build-{suite}.log"
    with open(log, "wb") as out:
        for command in (["cmake", "-S", ".", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DWEIR_TESTS=OFF",
                         "-DCMAKE_CXX_FLAGS=-Werror", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
                         "-DCMAKE_UNITY_BUILD_BATCH_SIZE=32", f"-DWEIR_SIMD_LEFT_OUT={SIMD_LEFT_OUT}"],
                        ["ninja", "-C", build, "-j", os.cpu_count()]):
            if inside(root, command, BUILDING_S, stdout=out, stderr=subprocess.STDOUT).returncode != 0:
                words = log.read_text(encoding="utf-8", errors="replace").splitlines()
                print("\n".join(words[-60:]))
                sys.exit(f"{suite}: {command[0]} failed, see {log}")


def take_along(suite):
    """Unpacks this build's wheel, which has the programs and whatever another system may lack."""
    out = ROOT / f"build-{suite}"
    shutil.rmtree(out, ignore_errors=True)
    done = run([sys.executable, ROOT / "deploy" / "wheel" / "make_wheel.py", "--build", BUILD, "--out", out], 300)
    if done.returncode != 0:
        sys.exit(f"{suite}: no wheel of {BUILD}")
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        wheel.extractall(out)
    for program in (out / "weir" / "bin").iterdir():
        program.chmod(0o755)


def prepare():
    """Makes all roots at once, then the libraries for them; the exit status. Later runs find both."""
    def root_of(suite):
        (ROOTS / suite).unlink(missing_ok=True)
        try:
            return make_root(suite)
        except Refused as refused:
            print(f"no {suite}: {refused}")
            return None

    with concurrent.futures.ThreadPoolExecutor(len(BUILT)) as pool:
        roots = dict(zip(BUILT, pool.map(root_of, BUILT)))
    for suite, root in roots.items():
        if root is not None:
            if BUILT[suite]:
                build_there(root, suite)
            else:
                take_along(suite)
            (ROOTS / suite).symlink_to(root.name)
    return 0 if any(roots.values()) else SKIPPED


def is_late(test):
    """Whether a test should not begin any more. One that did in time may be run again, so that its failure stays one."""
    last = os.environ.get("WEIR_LAST_START")
    if last is None:
        return False
    began = BUILD / "began" / f"{last}-{test}"
    if time.time() <= float(last):
        began.parent.mkdir(parents=True, exist_ok=True)
        began.touch()
        return False
    return not began.exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=[*sorted(BUILT), "prepare"])
    parser.add_argument("test", nargs=argparse.REMAINDER, help="a file of tests/datapath/python, and its arguments")
    options = parser.parse_args()
    if is_late("-".join([options.suite, *options.test[:1]])):
        print(f"no {options.suite if options.suite in BUILT else 'trixie or sid'}: time was up")
        return SKIPPED
    if options.suite == "prepare":
        return prepare()
    root = ROOTS / options.suite
    if not root.exists():
        print(f"no {options.suite}: debian_test.py prepare made none")
        return SKIPPED
    if not options.test or not (PYTHON_TESTS / options.test[0]).is_file():
        parser.error(f"expected a file of {PYTHON_TESTS}, found {' '.join(options.test) or 'none'}")
    file, *arguments = options.test
    environment = [f"WEIR_LIBRARY={LIBRARIES[options.suite]}", f"PYTHONPATH={ROOT / 'datapath' / 'python'}"]
    return inside(root.resolve(), ["env", *environment, "python3", PYTHON_TESTS / file, *arguments], TEST_S,
                  stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
