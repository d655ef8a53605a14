# SPDX-License-Identifier: Apache-2.0
"""Runs commands without privilege: as a plain user, and as root of a user namespace that such a user makes.

A plain user's ids there are those that /etc/subuid and /etc/subgid give him, mapped by newuidmap. Root becomes a
plain user first, one who exists only in a mount namespace of his own: what works for root works for everybody,
and nothing on the machine is changed.
"""
import contextlib
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile

IDS = 65536              # number of users that an image may have
SPARE = 64821            # the user id that root becomes
SPARE_IDS = 1 << 30      # the first of its subordinate ids
PROBE = """
ip link set lo up
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lower /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o userxattr,lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
"""
NAMED = r"""
here=$1
shift
for file in passwd subuid subgid; do mount --bind "$here/$file" "/etc/$file"; done
mkdir "$here/tmp"
mount -t tmpfs -o mode=1777 tmpfs "$here/tmp"
while [ "$1" != -- ]; do
  mkdir "$here/$1"
  mount --bind "$2" "$here/$1"
  shift 2
done
shift
export TMPDIR="$here/tmp" HOME=/
cd /
setpriv --reuid %(user)d --regid %(user)d --clear-groups -- "$@"
exit $?  # this shell stays process 1 of the namespace, and all end with it
""" % {"user": SPARE}


def in_namespace(words):
    """The command line by which a plain user runs these words as root of a user namespace without a network."""
    return ["unshare", "--user", "--map-root-user", "--map-auto", "--mount", "--net", "--pid", "--fork",
            "--kill-child", "--", *map(str, words)]


def outside_of_root():
    """Who root of this user namespace is outside of it: 0 if nobody has made one."""
    inside, outside, _ = pathlib.Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:3]
    return int(outside) if inside == "0" else None


def lacking():
    """Why this user can make no namespace with the ids that an image needs; empty where nothing is missing."""
    if shutil.which("newuidmap") is None:
        return "newuidmap is not installed (package uidmap)"
    if os.geteuid() == 0:
        return ""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()} has no name"
    for file in ("/etc/subuid", "/etc/subgid"):
        with contextlib.suppress(OSError):
            lines = [line.split(":") for line in pathlib.Path(file).read_text(encoding="utf-8").split()]
            if any(owner in (name, str(os.geteuid())) and int(count) >= IDS - 1 for owner, _, count in lines):
                continue
        return (f"{file} gives {name} no {IDS} ids (as root: usermod --add-subuids 100000-165535"
                f" --add-subgids 100000-165535 {name})")
    return ""


def refused():
    """Why nothing can be run here without privilege; empty where it can."""
    if words := lacking():
        return words
    done = run(lambda _: in_namespace(["sh", "-ec", PROBE]), {}, timeout=30, text=True,
               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.strip() if done.returncode else ""


def run(words_of, places, **more):
    """Runs what `words_of` gives as a plain user; subprocess.run's result.

    places: directories by name that he reads. words_of gets the same names with the paths at which he finds
    them: root's, whatever the permissions on the way to them, are bound to where he can go.
    """
    if os.geteuid() != 0:
        return subprocess.run([str(word) for word in words_of(places)], check=False, **more)
    with tempfile.TemporaryDirectory(prefix="weir-rootless-") as name:
        here = pathlib.Path(name)
        here.chmod(0o755)
        shutil.copy("/etc/passwd", here / "passwd")
        with open(here / "passwd", "a", encoding="utf-8") as users:
            users.write(f"weir-rehearsal:x:{SPARE}:{SPARE}::/:/usr/sbin/nologin\n")
        for file in ("subuid", "subgid"):
            (here / file).write_text(f"weir-rehearsal:{SPARE_IDS}:{IDS}\n", encoding="ascii")
        bound = [word for place, path in places.items() for word in (place, str(path))]
        words = words_of({place: here / place for place in places})
        return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc",
                               NAMED, "named", name, *bound, "--", *map(str, words)], check=False, **more)
