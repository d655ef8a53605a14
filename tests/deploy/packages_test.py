# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: made by CPack, judged by lintian, installed, started as their units say, purged.

They are installed into an overlay of a root file system that nothing else sees. --make-root FILE.tar makes
a fresh Debian there (needs a mirror, but no privilege), with --torch what python3-weir needs, too (a gigabyte);
a test whose WEIR_PACKAGE_ROOT names it, or a directory that root has, uses it, and so sees whether dependencies
are complete. Without, it is the one that images_test.py made, or this machine's own root is the lower layer.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "images"))
import rootless  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
FRESH = pathlib.Path(os.environ.get("WEIR_PACKAGE_ROOT", BUILD / "package-root.tar"))
PACKAGES = ["libweir-dev", "libweir0", "python3-weir", "weir-agent", "weir-aggregator", "weir-common",
            "weir-controller", "weirctl"]
TORCH = "usr/lib/python3/dist-packages/torch/__init__.py"
PATIENCE_S = 120
SUITE = "bookworm"
MAKING_S = 120   # time for a test to make a root
# The maintainer's address is a placeholder until the packages are published (WEIR_PACKAGE_MAINTAINER). CPack calls
# ldconfig from scripts of its own in addition to our trigger; only empty scripts would prevent that.
SUPPRESSED = "bogus-mail-host,maintscript-calls-ldconfig"

# The steps of an administrator, in the root that the packages go to; $1 is yes where torch is installed. Units are
# started by hand with their own command lines: no systemd runs in a test.
REHEARSAL = r"""
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
[ "$1" = yes ] || rm /packages/python3-weir_*.deb
dpkg -i /packages/*.deb >/dev/null
echo "user: $(id -un weir), policies: $(stat -c '%a %G' /etc/weir/policies)"
install -d -o weir -g weir /run/weir
[ -d /var/lib/weir ] || install -d -o weir -g weir /var/lib/weir
export STATE_DIRECTORY=/var/lib/weir CONFIGURATION_DIRECTORY=/etc/weir RUNTIME_DIRECTORY=/run/weir
start() {
  . "/etc/weir/${1#weir-}.env"
  eval "setpriv --reuid weir --regid weir --init-groups $(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/$1.service) &"
  started="$started $!"
}
started=
start weir-controller
start weir-agent
start weir-aggregator
tries=0
until weirctl get nodes | grep ' connected '; do
  tries=$((tries + 1))
  [ $tries -lt 100 ] || { echo "no node within 20 s" >&2; exit 1; }
  sleep 0.2
done
weirctl get policies
kill -0 $started  # all of them run
weirctl simulate --parameters 1M | grep '^\*'
if [ "$1" = yes ]; then
  cd / && /usr/bin/python3 -c 'import weir; print("python:", weir.library_path(), weir.version())'
fi
kill $started
wait $started
# The aggregator in the kernel runs as root, and as its user with the rights of the drop-in for
# systemd.
capabilities=+$(sed -n 's/^AmbientCapabilities=CAP_//p' /usr/share/doc/weir-aggregator/examples/*-xdp.conf |
  sed 's/ CAP_/,+/g' | tr A-Z a-z)
for user in "" "setpriv --reuid weir --regid weir --init-groups --bounding-set -all,$capabilities
    --inh-caps -all,$capabilities --ambient-caps -all,$capabilities"; do
  : >/xdp.log   # output of an earlier start must not count
  $user weir-aggregator --xdp lo --xdp-mode generic --port 0 --http 127.0.0.1:0 >/xdp.log 2>&1 & xdp=$!
  tries=0
  while kill -0 $xdp && ! grep -q ^http /xdp.log && [ $tries -lt 200 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done 2>/dev/null
  echo "xdp as ${user%% *}: $(head -c 300 /xdp.log | head -n 1)"
  kill $xdp 2>/dev/null || true
  wait $xdp || true
done
dpkg -P $(dpkg-query -W -f '${Package}\n' | grep -E '^(libweir|python3-weir|weir)') >/dev/null
for left in /etc/weir /usr/share/weir /var/lib/weir/state.db /usr/bin/weirctl; do
  [ ! -e $left ] || echo "left: $left"
done
echo purged
"""
# $1 lower layer, a directory or a tar, $2 scratch directory, $3 packages, $4 shell script, $5 its argument
OVERLAY = r"""
set -eu
mkdir "$2/upper" "$2/work" "$2/root"
mount -t tmpfs tmpfs "$2/upper" && mkdir "$2/upper/u" "$2/upper/w"
lower=$1
if [ -f "$1" ]; then
  lower=$2/upper/lower
  mkdir "$lower"
  tar -x --exclude='./dev/*' -C "$lower" -f "$1"
fi
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$2/upper/u,workdir=$2/upper/w" "$2/root"
ip link set lo up
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
mkdir "$2/root/packages"
cp "$3"/*.deb "$2/root/packages"
exec chroot "$2/root" sh -c "$4" rehearsal "$5"
"""


def run(*command, **more):
    return subprocess.run([str(part) for part in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **{"timeout": PATIENCE_S, **more})


def make_packages(directory):
    done = run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", directory,
               cwd=directory, env={k: v for k, v in os.environ.items() if k != "DESTDIR"})
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    shutil.rmtree(directory / "_CPack_Packages", ignore_errors=True)
    return {path.name.split("_")[0]: path for path in sorted(directory.glob("*.deb"))}


def mirror():
    """Where this machine gets its packages from; empty where that is unknown."""
    return next(iter(run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages",
                         "Origin: Debian", f"Codename: {SUITE}").stdout.split()), "")


def overlay_refused(directory):
    """Why no overlay can be mounted here; empty where it can."""
    done = run("unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c",
               f"mkdir {directory}/probe && mount -t tmpfs tmpfs {directory}/probe && cd {directory}/probe"
               " && mkdir u w r && mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w r")
    return done.stdout.strip() if done.returncode else ""


class PackagesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(
            tempfile.TemporaryDirectory(prefix="weir-packages-")))
        cls.packages = make_packages(cls.directory)

    def field(self, package, name):
        return run("dpkg-deb", "-f", self.packages[package], name).stdout.strip()

    def test_every_part_has_its_package_and_no_file_has_two(self):
        self.assertEqual(sorted(self.packages), PACKAGES)
        owner = {}
        for name, path in self.packages.items():
            for line in run("dpkg-deb", "-c", path).stdout.splitlines():
                mode, file = line.split()[0], line.split(" ./", 1)[1].split(" -> ")[0]
                if mode.startswith("d"):
                    continue
                self.assertNotIn(file, owner)
                owner[file] = name
                if file.startswith("etc/"):
                    conffiles = run("dpkg-deb", "-I", path, "conffiles").stdout.split()
                    self.assertIn("/" + file, conffiles)
        for file, name in (("usr/bin/weirctl", "weirctl"), ("usr/include/weir.h", "libweir-dev"),
                           ("etc/weir/agent.env", "weir-agent")):
            self.assertEqual(owner.get(file), name)

    def test_dependencies_are_those_of_the_files(self):
        self.assertRegex(self.field("weir-agent", "Depends"), r"weir-common \(= .*libgrpc\+\+")
        self.assertNotRegex(self.field("libweir0", "Depends"), r"grpc|protobuf")
        self.assertIn("libbpf1", self.field("weir-aggregator", "Depends"))   # it has the kernel's plane
        self.assertRegex(self.field("libweir-dev", "Depends"), r"^libweir0 \(= [\d.]+\)$")
        self.assertIn("python3-torch", self.field("python3-weir", "Depends"))
        self.assertEqual(self.field("python3-weir", "Architecture"), "all")
        changelog = (ROOT / "deploy" / "packages" / "debian" / "changelog").read_text(encoding="utf-8")
        self.assertEqual(changelog.split()[1], f"({self.field('weirctl', 'Version')})")

    @unittest.skipIf(shutil.which("lintian") is None, "lintian is not installed")
    def test_lintian_finds_no_error(self):
        done = run("lintian", "--fail-on", "error", "--suppress-tags", SUPPRESSED, "--allow-root",
                   *self.packages.values())
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotRegex(done.stdout, r"(?m)^[EW]: ")

    def test_packages_install_start_and_go(self):
        refused = overlay_refused(self.directory)
        if refused:
            self.skipTest(f"no overlay: {refused}")
        fresh = (FRESH.exists() and ("WEIR_PACKAGE_ROOT" in os.environ or made_for(self.packages))
                 and holds(FRESH, "etc/debian_version"))
        print("root:", FRESH if fresh else "this machine's; dependencies are not proven complete")
        scratch = self.directory / "rehearsal"
        scratch.mkdir()
        lower = FRESH if fresh else pathlib.Path("/")
        torch = holds(lower, TORCH)
        done = run("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", OVERLAY,
                   "overlay", lower, scratch, self.directory, REHEARSAL, "yes" if torch else "no")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("user: weir, policies: 750 weir", done.stdout)
        self.assertRegex(done.stdout, r"default .*(/etc/weir/policies|default\.yaml)")
        if torch:
            self.assertRegex(done.stdout, r"python: /usr/lib/\S+/libweir\.so\.0 \d")
        as_root, as_user = re.findall(r"(?m)^xdp as .*: (.*)$", done.stdout)
        if as_root.startswith("http "):
            self.assertTrue(as_user.startswith("http "), as_user)
        else:  # the kernel or a sandbox does not permit it; the package contains the program anyway
            self.assertIn("cannot load its program into the kernel", as_root)
        self.assertIn("purged", done.stdout)
        self.assertNotIn("left: ", done.stdout)


def needs(packages):
    """The names of what these packages depend on, other than each other."""
    found = {"systemd-standalone-sysusers", "systemd-standalone-tmpfiles"}
    for path in packages.values():
        for group in filter(None, run("dpkg-deb", "-f", path, "Depends").stdout.strip().split(", ")):
            names = [re.match(r"[^ (:]+", name)[0] for name in group.split(" | ")]
            if not found & set(names) and not set(PACKAGES) & set(names):
                found.add(names[0])
    return sorted(found)


def make_root(file, packages, limit_s):
    """A minimal Debian as a tar, with what these packages depend on, and not the packages. Without privilege.
    TimeoutError after limit_s, RuntimeError with mmdebstrap's words."""
    names = needs(packages)
    part = file.with_suffix(".part")
    with open(part, "wb") as out:
        done = rootless.run(lambda _: ["timeout", "-k", "10", limit_s, "mmdebstrap", "--mode=unshare",
                                       "--variant=minbase", "--format=tar", "--quiet", f"--include={','.join(names)}",
                                       SUITE, "-", mirror()], {},
                            stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        part.unlink()
        if done.returncode in (124, 137):
            raise TimeoutError
        raise RuntimeError(f"mmdebstrap: exit {done.returncode}: {done.stderr.decode(errors='replace')}")
    part.rename(file)
    names_of(file).write_text("\n".join(names), encoding="ascii")


def names_of(root):
    """Where it is written what a root was made for."""
    return root.with_suffix(".needs")


def made_for(packages):
    """Whether the root that was made here has what these packages need; one of an older tree may lack some."""
    packages = {name: path for name, path in packages.items() if name != "python3-weir"}
    return (names_of(FRESH).is_file() and FRESH.is_file()
            and set(needs(packages)) <= set(names_of(FRESH).read_text(encoding="ascii").split()))


def root_refused(packages):
    """Makes the root if nobody named one and the one before was made for less; why it cannot, or empty."""
    if "WEIR_PACKAGE_ROOT" in os.environ:
        if not FRESH.exists():
            return f"WEIR_PACKAGE_ROOT: no {FRESH}"
        return f"{FRESH} is a directory, expected a tar" if FRESH.is_dir() and os.geteuid() != 0 else ""
    if made_for(packages):
        return ""
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed"
    with tempfile.TemporaryDirectory(prefix="weir-packages-") as name:
        place = f"{mirror()}dists/{SUITE}/InRelease"
        reached = run("timeout", "20", "/usr/lib/apt/apt-helper", "download-file", place, f"{name}/InRelease")
    if reached.returncode != 0:
        return f"cannot get {place}"
    try:
        make_root(FRESH, packages, MAKING_S)
    except TimeoutError:
        return f"making one took more than {MAKING_S} s"
    except RuntimeError as error:  # a mirror that breaks off says nothing about images
        return str(error)
    return ""


def holds(root, path):
    """Whether a root, a directory or a tar, has this file."""
    return (root / path).exists() if root.is_dir() else run("tar", "-tf", root, f"./{path}").returncode == 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make-root"]:
        with tempfile.TemporaryDirectory(prefix="weir-packages-") as made_in:
            made = make_packages(pathlib.Path(made_in))
            if "--torch" not in sys.argv[3:]:
                del made["python3-weir"]
            make_root(pathlib.Path(sys.argv[2]).resolve(), made, 3600)
    else:
        unittest.main()
