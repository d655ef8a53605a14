#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the verbs transport on real RDMA verbs, in a virtual machine with soft-RoCE devices.

Usage: verbs_vm.py --build BUILD [--work DIR] [--seconds 400] [--script FILE]

Most kernels on which this project is tested have no RDMA. So Debian's generic kernel boots in QEMU
(software emulation, no KVM), loads rdma_rxe, sees this machine's root file system read-only by 9p, and
runs guest_run.sh, which runs the programs of BUILD. Kernel and initial ramdisk are made once in DIR
(BUILD/verbs_vm unless given). Exits 0 when all parts passed, 77 with the reason when something that the
machine needs is missing, else 1.
"""

import argparse
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
DOWNLOAD_SECONDS = 90
# rdma_rxe uses "crc32" of the crypto API, which no module dependency shows.
MODULES = ("crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "9p", "9pnet_virtio", "virtio_pci",
           "veth", "sch_netem")
PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "depmod", "modprobe", "dpkg-deb", "rdma", "ip")


def skip(reason):
    print(f"verbs_vm: skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def kernel_package():
    """The name of Debian's newest generic kernel, such as linux-image-6.1.0-56-amd64."""
    result = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True,
                            text=True, check=False)
    found = re.search(r"Depends: (linux-image-\S+-amd64)$", result.stdout, re.M)
    return found.group(1) if found else None


def unpack_kernel(package, directory):
    """Fetches `package` and returns (uncompressed kernel, modules in the order of loading)."""
    command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", package]
    try:
        fetched = subprocess.run(command, cwd=directory, capture_output=True, text=True,
                                 timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        skip(f"{package} was not downloaded within {DOWNLOAD_SECONDS} s")
    archives = list(directory.glob("linux-image-*.deb"))
    if fetched.returncode != 0 or len(archives) != 1:
        skip(f"{package} cannot be downloaded: {fetched.stderr.strip()[-300:]}")
    root = directory / "root"
    subprocess.run(["dpkg-deb", "-x", archives[0], root], check=True)
    release = package.removeprefix("linux-image-")
    subprocess.run(["depmod", "-b", root, release], check=True)
    modules = []
    for name in MODULES:
        listed = subprocess.run(["modprobe", "-d", root, "-S", release, "--show-depends", name],
                                capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            kind, path = line.split()[:2]
            if kind == "insmod" and path not in modules:
                modules.append(path)
    image = (root / "boot" / f"vmlinuz-{release}").read_bytes()
    # The compressed kernel inside is an xz stream; unpacking it here spares the guest seconds.
    start = image.index(b"\xfd7zXZ\x00")
    return lzma.LZMADecompressor().decompress(image[start:]), modules


def make_ramdisk(directory, modules):
    """The initial ramdisk as a cpio archive: busybox, the modules and guest_init."""
    tree = directory / "initrd"
    for name in ("bin", "mods", "host", "proc", "sys", "dev"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), tree / "bin" / "busybox")
    for name in ("sh", "mount", "insmod", "chroot", "poweroff", "ip", "sync", "cat", "mkdir", "cut", "tr", "echo"):
        (tree / "bin" / name).symlink_to("busybox")
    order = []
    for number, path in enumerate(modules):
        name = f"{number:02d}_{pathlib.Path(path).name}"
        shutil.copy(path, tree / "mods" / name)
        subprocess.run(["strip", "--strip-debug", tree / "mods" / name], check=False)
        order.append(name)
    (tree / "mods" / "list").write_text("\n".join(order) + "\n")
    shutil.copy(HERE / "guest_init", tree / "init")
    (tree / "init").chmod(0o755)
    names = subprocess.run(["find", "."], cwd=tree, capture_output=True, check=True).stdout
    return subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names,
                          capture_output=True, check=True).stdout


def prepare(work):
    """Makes kernel and ramdisk once per kernel version and contents of this folder."""
    package = kernel_package()
    if package is None:
        stored = sorted(work.glob("linux-image-*.vmlinux"))
        if not stored:
            skip("apt knows no linux-image-amd64")
        package = stored[-1].name.removesuffix(".vmlinux")
    state = hashlib.sha256((HERE / "guest_init").read_bytes() + pathlib.Path(__file__).read_bytes())
    kernel = work / f"{package}.vmlinux"
    ramdisk = work / f"{package}.{state.hexdigest()[:12]}.cpio"
    if not kernel.exists() or not ramdisk.exists():
        with tempfile.TemporaryDirectory(dir=work) as directory:
            image, modules = unpack_kernel(package, pathlib.Path(directory))
            archive = make_ramdisk(pathlib.Path(directory), modules)
        for old in work.glob("linux-image-*"):
            old.unlink()
        kernel.write_bytes(image)
        ramdisk.write_bytes(archive)
    return kernel, ramdisk


def boot(kernel, ramdisk, arguments, seconds):
    """Runs the guest to its end; returns its output. What it prints is shown as it comes."""
    # q35 has an HPET. With microvm's clocks only, the guest counts its ticks against the timer of
    # an interrupt, which is late on busy cores, and waits for ever.
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max",
               "-M", "q35", "-smp", "2", "-m", "2048", "-nographic",
               "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel", kernel,
               "-initrd", ramdisk, "-append",
               "console=ttyS0 quiet panic=-1 tsc=unstable mitigations=off nokaslr "
               + " ".join(f"weir_{name}={value}" for name, value in arguments.items()),
               "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
               "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
    guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
    overdue = threading.Event()

    def end():
        overdue.set()
        guest.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    lines = []
    try:
        for raw in guest.stdout:
            line = raw.decode(errors="replace").rstrip()
            lines.append(line)
            print(line, flush=True)
    finally:
        timer.cancel()
        guest.kill()
        guest.wait()
    if overdue.is_set():
        lines.append("")
        print(f"verbs_vm: the guest did not end within {seconds} s", flush=True)
    return lines


def judge(lines):
    """The exit status, from the guest's lines `weir-vm part NAME rc=N` and `weir-vm end`."""
    parts = [match.groups() for line in lines
             if (match := re.match(r"weir-vm part (\S+) rc=(\d+) seconds=(\d+)$", line))]
    ended = "weir-vm end" in lines
    failed = [name for name, code, _ in parts if code != "0"]
    for name, code, seconds in parts:
        print(f"verbs_vm: {name}: {'passed' if code == '0' else 'FAILED'} in {seconds} s")
    if not ended:
        print("verbs_vm: FAILED: the guest did not finish")
    print(f"verbs_vm: {len(parts) - len(failed)} of {len(parts)} parts passed")
    return 0 if ended and parts and not failed else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--script", type=pathlib.Path, default=HERE / "guest_run.sh")
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        skip(f"not installed: {', '.join(missing)} (deploy/install-deps installs them)")
    if os.uname().machine != "x86_64":
        skip("the guest is for x86_64")
    build = options.build.resolve()
    work = (options.work or build / "verbs_vm").resolve()
    work.mkdir(parents=True, exist_ok=True)
    kernel, ramdisk = prepare(work)
    arguments = {"script": options.script.resolve(), "build": build}
    sys.exit(judge(boot(kernel, ramdisk, arguments, options.seconds)))


if __name__ == "__main__":
    main()
