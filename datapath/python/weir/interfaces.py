# SPDX-License-Identifier: Apache-2.0
"""The addresses of this host's network interfaces. Knows nothing of torch."""
import collections
import ctypes
import os
import socket
from typing import Dict, List, Tuple

_UP, _LOOPBACK = 0x1, 0x8  # IFF_UP, IFF_LOOPBACK of linux/if.h
_SOCKADDR_BYTES: Dict[int, Tuple[int, int]] = {
    socket.AF_INET: (4, 8), socket.AF_INET6: (8, 24)}  # where the address lies

Address = collections.namedtuple("Address", "host interface loopback link_local")


class _Entry(ctypes.Structure):
    """struct ifaddrs up to its first address (getifaddrs(3))."""


_Entry._fields_ = [("next", ctypes.POINTER(_Entry)), ("name", ctypes.c_char_p),
                   ("flags", ctypes.c_uint), ("address", ctypes.c_void_p)]


def addresses():
    """Returns the addresses of all interfaces that are up, in the kernel's order. OSError if it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found: List[Address] = []
    entry = first
    try:
        while entry:
            one = entry.contents
            if one.address and one.flags & _UP:
                family = ctypes.c_ushort.from_address(one.address).value
                if family in _SOCKADDR_BYTES:
                    start, end = _SOCKADDR_BYTES[family]
                    raw = ctypes.string_at(one.address, end)[start:]
                    host = socket.inet_ntop(family, raw)
                    found.append(Address(host, one.name.decode(), bool(one.flags & _LOOPBACK),
                                         host.startswith("fe80:")))
            entry = one.next
    finally:
        libc.freeifaddrs(first)
    return found


def identity():
    """Returns a name that is equal for processes that reach each other by loopback: that of the
    running kernel, of the host (virtual machines that continue from one image have one kernel) and of
    the network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {socket.gethostname()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def towards(host):
    """Returns this host's address on the route to each address of `host`. Sends no packet."""
    found: List[str] = []
    try:
        resolved = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return found
    for family, kind, _, _, address in resolved:
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(address)
                found.append(probe.getsockname()[0])
            except OSError:
                pass
    return found


def resolve(host):
    """Returns the addresses of `host`; none where the name is unknown."""
    try:
        return list(dict.fromkeys(entry[4][0] for entry in socket.getaddrinfo(host, None)))
    except OSError:
        return []


def join(host, port):
    """Returns "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(text, port=0):
    """Returns (host, port) of "host", "host:port", "[ipv6]", "[ipv6]:port" or a bare IPv6 address.
    ValueError: the port is not a number from 0 to 65535."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        rest = rest[1:] if rest.startswith(":") else rest
    elif text.count(":") > 1:
        host, rest = text, ""
    else:
        host, _, rest = text.partition(":")
    if rest and not (rest.isdigit() and int(rest) < 65536):
        raise ValueError(f"'{text}': expected a port of 0..65535, found '{rest}'")
    return host, int(rest) if rest else port
