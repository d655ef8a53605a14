# SPDX-License-Identifier: Apache-2.0
"""Chooses the address at which a rank listens: one that its peers really reach.

Where all ranks share a host it is loopback. Otherwise every rank tells the meeting (weir.meeting) the
addresses of its interfaces, and the ranks that will connect to it (higher ranks connect to lower ones) try
them all at once, up to PROBERS of them on other hosts. The rank takes an address that all of these reach:
the one on its route to the store, unless another one is twice as fast. Where none is reached, all ranks
raise an error that names rank, address, interface and variable.

Environment:
  WEIR_LISTEN     host:port of this rank's datapath. The host is an address, a name or an interface;
                  port 0: any. Without a host, or with 0.0.0.0 or [::], only the port is prescribed.
  WEIR_INTERFACE  name of the interface whose addresses are tried, such as eth0
"""
import json
import secrets
import socket
import sys
from typing import Any, Dict

from weir import _lib
from weir import environment
from weir import interfaces
from weir import probe
from weir._lib import WeirError

PROBERS = 4
CANDIDATES_MAX = 8
_WILDCARDS = ("", "0.0.0.0", "::", "*")
_chosen: Dict[tuple, str] = {}  # host by what prescribes it, for later groups of this process


def warn(text):
    """Prints a warning."""
    print(f"weir: {text}", file=sys.stderr, flush=True)


def _refuse(message, rank, status=_lib.PEER_UNAVAILABLE):
    return WeirError(message, status, rank)


class _Candidates:
    """The addresses that this host offers, and the settings that prescribe them."""

    def __init__(self, listen, rank):
        name = environment.read("WEIR_INTERFACE")
        text = listen or environment.read("WEIR_LISTEN", default="")
        self.said = f"WEIR_LISTEN={text}" if text else ""
        try:
            host, self.port = interfaces.split(text)
        except ValueError as error:
            raise WeirError(f"WEIR_LISTEN: {error}", _lib.INVALID_ARGUMENT, rank) from None
        own = interfaces.addresses()
        names = sorted({a.interface for a in own})
        if host in _WILDCARDS:
            host = ""
        if host in names:
            name, host = host, ""
        elif name and not host:
            self.said = f"WEIR_INTERFACE={name}"
        self.prescribed = bool(host or name)
        self.key = (host, name)
        if host:
            self.addresses = self._resolve(host, own, rank)
        elif name:
            self.addresses = [a for a in own if a.interface == name and not a.link_local]
            if not self.addresses:
                what = "has only link-local addresses" if name in names else "is not there or down"
                raise _refuse(f"{self.said}: interface {name} {what}; expected one of "
                              f"{', '.join(names)}", rank, _lib.INVALID_ARGUMENT)
        else:
            self.addresses = [a for a in own if not a.loopback and not a.link_local]

    def _resolve(self, host, own, rank):
        try:
            found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
        except OSError as error:
            raise _refuse(f"{self.said}: cannot resolve '{host}': {error.strerror}", rank,
                          _lib.INVALID_ARGUMENT) from None
        # All of 127/8 is this host's, whatever the interface lists.
        local = [a for a in own if a.host in found] + [
            interfaces.Address(h, "lo", True, False) for h in sorted(found)
            if h.startswith("127.") and not any(a.host == h for a in own)]
        if not local:
            raise _refuse(f"{self.said}: {', '.join(sorted(found))} is not an address of this host, "
                          "which has " + ", ".join(f"{a.host} ({a.interface})" for a in own) +
                          ". Behind a NAT, give the host's own address and forward the port", rank,
                          _lib.INVALID_ARGUMENT)
        return local


def _store_host(store):
    """The name of the host that serves the store, or None."""
    while store is not None:
        host = getattr(store, "host", None)
        if isinstance(host, str) and host:
            return host
        store = getattr(store, "underlying_store", None)
    return environment.read("MASTER_ADDR")


def _loopback():
    """IPv4's loopback address, or that of IPv6 where there is no IPv4."""
    own = [a.host for a in interfaces.addresses() if a.loopback]
    return "127.0.0.1" if "127.0.0.1" in own or not own else own[0]


def alone(listen=None, rank=0):
    """Returns "host:port" to listen at where no peers can be asked: what WEIR_LISTEN or WEIR_INTERFACE
    say, else the address on the route to MASTER_ADDR."""
    mine = _Candidates(listen, rank)
    hosts = [a.host for a in mine.addresses]
    if not mine.prescribed:
        master = environment.read("MASTER_ADDR")
        routes = interfaces.towards(master) if master else []
        named = master in ("localhost", "::1") or (master or "127.").startswith("127.")
        hosts = [h for h in routes if h in hosts] or (hosts if not named else []) or [_loopback()]
    return interfaces.join(hosts[0], mine.port)


def any_port():
    """Returns WEIR_LISTEN with port 0, or None if it names no host."""
    host = environment.read("WEIR_LISTEN", default="").rpartition(":")[0].strip("[]")
    return None if host in _WILDCARDS else interfaces.join(host, 0)


def choose(meeting, listen=None, probes=True):
    """Returns "host:port" at which this rank must listen. All ranks of the weir.meeting must call it.

    listen: replaces WEIR_LISTEN. probes: False if `listen` is of a form that only the transport knows;
    it is then returned as it is. WeirError: the others cannot reach this rank, or this one cannot reach
    another. Takes up to two seconds after the last rank has called. Where an address does not answer, a
    warning says so within these two seconds, and the error follows within five."""
    rank = meeting.rank
    if not probes and listen:
        meeting.set(f"entry/{rank}", json.dumps({"identity": None, "candidates": []}))
        return listen
    mine = _Candidates(listen, rank)
    known = _chosen.get(mine.key)
    entry = {"identity": interfaces.identity(), "name": socket.gethostname(), "said": mine.said,
             "preferred": [], "serves": [], "candidates": []}
    responder = None
    if not known:
        entry["token"] = secrets.token_hex(16)
        responder = _responder(mine, entry["token"], rank)
        server = _store_host(meeting.store) or "localhost"
        routes = interfaces.towards(server)
        found = sorted(mine.addresses, key=lambda a: a.host not in routes)[:CANDIDATES_MAX]
        entry.update(candidates=[(a.host, a.interface, a.loopback) for a in found],
                     port=responder.port, preferred=routes, serves=interfaces.resolve(server))
    try:
        meeting.set(f"entry/{rank}", json.dumps(entry))
        host = _agree(meeting, [json.loads(word) for word in meeting.get_all("entry")], mine)
    finally:
        if responder:
            responder.close()
    return interfaces.join(host, mine.port)


def _responder(mine, token, rank):
    alone_at = mine.addresses[0].host if mine.prescribed and len(mine.addresses) == 1 else None
    try:
        return probe.Responder(token, mine.port, alone_at)
    except OSError as error:
        raise _refuse(f"{mine.said or 'port ' + str(mine.port)}: cannot listen at port {mine.port}: "
                      f"{(error.strerror or str(error)).lower()}", rank) from None


def _probers(entries, target):
    """The ranks that try the addresses of `target`: the next higher ones that are on other hosts, of
    as many hosts as possible."""
    others = [r for r in range(target + 1, len(entries))
              if entries[r]["identity"] not in (None, entries[target]["identity"])]
    first_of_host = {entries[r]["identity"]: r for r in reversed(others)}.values()
    return sorted(others, key=lambda r: (r not in first_of_host, r))[:PROBERS]


def _agree(meeting, entries, mine):
    """The host at which to listen, after all ranks have said what they have."""
    rank = meeting.rank
    spans = len({e["identity"] for e in entries}) > 1
    if not spans:
        return mine.addresses[0].host if mine.prescribed else _loopback()
    usable = [a for a in mine.addresses if not a.loopback]
    if not usable:
        have = ", ".join(f"{a.host} (interface {a.interface})" for a in mine.addresses) or "no other address"
        raise _refuse(f"rank {rank} ({socket.gethostname()}) would listen at loopback, {have}, but ranks "
                      f"are on other hosts. {mine.said or 'No interface but loopback is up'}: set "
                      "WEIR_INTERFACE or WEIR_LISTEN to an address that they reach", rank)
    _vote(meeting, entries)
    if mine.key in _chosen:
        return _chosen[mine.key]
    votes = {prober: json.loads(meeting.get(f"votes/{prober}"))[str(rank)]
             for prober in _probers(entries, rank)}
    host = _pick(entries, rank, votes)
    _chosen[mine.key] = host
    return host


def _vote(meeting, entries):
    """Tries the addresses of the ranks that this one connects to, and tells the meeting what it found:
    {rank: {host: seconds, or why not}}."""
    rank = meeting.rank
    votes: Dict[int, Dict[str, Any]] = {
        r: {host: "only ranks of its own host reach loopback"
            for host, _, loopback in e["candidates"] if loopback}
        for r, e in enumerate(entries) if rank in _probers(entries, r)}
    left = [((r, host), host, entries[r]["port"], entries[r]["token"])
            for r in votes for host, _, loopback in entries[r]["candidates"] if not loopback]
    for limit_s in (probe.PROBE_S, probe.PATIENT_S):
        for r in sorted({target[0][0] for target in left} if limit_s == probe.PATIENT_S else ()):
            warn(f"{_explain(entries, r, rank, votes[r])}. Trying for another {limit_s:g} s")
        results = probe.all_at_once(left, limit_s)
        for (r, host), result in results.items():
            votes[r][host] = str(result) if isinstance(result, probe.Unreachable) else result
        left = [target for target in left if not _reached(votes[target[0][0]])
                and getattr(results[target[0]], "late", False)]
    meeting.set(f"votes/{rank}", json.dumps(votes))
    for r in votes:
        if entries[r]["candidates"] and not _reached(votes[r]):
            raise _refuse(_explain(entries, r, rank, votes[r]), rank)


def _reached(vote):
    return [host for host, result in vote.items() if not isinstance(result, str)]


def _pick(entries, rank, votes):
    """The address that all probers reach. votes: {prober: {host: seconds, or why not}}."""
    entry = entries[rank]
    hosts = [host for host, _, loopback in entry["candidates"] if not loopback]
    if not votes:  # nobody connects to this rank from another host
        return hosts[0]
    for prober, vote in votes.items():
        if not _reached(vote):
            raise _refuse(_explain(entries, rank, prober, vote), rank)
    reached = [h for h in hosts if all(h in _reached(vote) for vote in votes.values())]
    if not reached:
        raise _refuse(f"rank {rank} ({entry['name']}) has no address that all other hosts reach: " +
                      "; ".join(_explain(entries, rank, r, v) for r, v in votes.items()), rank)
    seconds = {h: sum(v[h] for v in votes.values()) for h in reached}
    known = entry["preferred"] + [h for r in votes for h in entries[r]["serves"]]
    preferred = next((h for h in reached if h in known), reached[0])
    best = min(reached, key=lambda host: seconds[host])
    return best if 2 * seconds[best] < seconds[preferred] else preferred


def _explain(entries, target, prober, vote):
    entry, other = entries[target], entries[prober]
    names = {host: name for host, name, _ in entry["candidates"]}
    tried = "; ".join(f"{interfaces.join(host, entry['port'])} (interface {names[host]}): {why}"
                      for host, why in vote.items() if isinstance(why, str))
    said = f" {entry['said']} prescribes it." if entry["said"] else ""
    return (f"rank {prober} ({other['name']}) cannot reach rank {target} ({entry['name']}) at "
            f"{tried}.{said} Set WEIR_INTERFACE or WEIR_LISTEN=ADDRESS:PORT on {entry['name']} to an "
            "address that the other hosts reach, and open its ports between the hosts")
