#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns leases into table entries and multicast groups of the switch programs in p4/, and takes them out again.

    weir_p4.py hosts  --hosts hosts.json
    weir_p4.py add    --hosts hosts.json --request request.json --grant grant.json
    weir_p4.py remove --job train-7
    weir_p4.py loss   --port 3 --share 0.01 [--replies]
    weir_p4.py show   --job train-7

request.json is the body of POST /v1/leases, grant.json its answer, in which `address` is the switch's own;
hosts.json says where hosts are: {"10.0.0.1": {"port": 1, "mac": "02:00:00:00:00:01"}, ...}. Entries go to
simple_switch_CLI (--cli: the command to run). What was installed is kept in --state, so that it can be removed;
one process at a time may use that file. Status 1, and one line that says why, when something is wrong; what a
failed `add` had installed is removed again.
"""
import argparse
import fcntl
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

MODES = {"sum": 1, "max": 2, "table": 3, "sparse": 4}
# As in p4/include/parameters.p4; tests/p4/control_test.py compares them.
SLOTS = 1024
LEASES = 64
WORDS_PER_GROUP = 16
GROUPS_MAX = 4
WORKERS_MAX = 64
VERDICTS = ("added", "completed", "served", "noticed", "duplicate", "stale", "early")
CLI_TIMEOUT_S = 30


class ControlError(Exception):
    """An error with cause, expected and found values; `printed` is the switch's output up to the error."""

    printed = ""


def need(condition, what, expected, found):
    if not condition:
        raise ControlError(f"{what}: expected {expected}, found {found}")


def integer(document, key, low, high, default=None):
    value = document.get(key, default)
    need(isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
         key, f"{low} .. {high}", value)
    return value


def address_of(text):
    """("10.0.0.1", 40000) of "10.0.0.1:40000"."""
    match = re.fullmatch(r"((?:\d{1,3}\.){3}\d{1,3}):(\d{1,5})", str(text))
    need(match and all(int(part) < 256 for part in match.group(1).split("."))
         and 0 < int(match.group(2)) < 65536, "address", "IPV4:PORT", text)
    return match.group(1), int(match.group(2))


def check_hosts(hosts):
    need(isinstance(hosts, dict), "hosts", "an object", type(hosts).__name__)
    for address, host in hosts.items():
        address_of(f"{address}:1")
        need(isinstance(host, dict), f"host {address}", "an object", host)
        integer(host, "port", 0, 510)
        need(re.fullmatch(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", str(host.get("mac"))), f"host {address} mac",
             "six octets with colons, in small letters", host.get("mac"))


def groups_of(mode, lanes, columns, sum_bits):
    """How many groups of sixteen words a packet of this lease has; the programs know no other shapes."""
    if mode == "sparse":
        need(lanes == WORDS_PER_GROUP, "lanes of a sparse lease", WORDS_PER_GROUP, lanes)
        need(1 <= columns <= GROUPS_MAX, "columns", f"1 .. {GROUPS_MAX}", columns)
        return columns
    need(columns == 0, "columns", 0, columns)
    lanes_per_group = WORDS_PER_GROUP
    if mode == "table":
        need(sum_bits in (8, 16), "sum_bits", "8 or 16", sum_bits)
        lanes_per_group *= 32 // sum_bits
    shapes = [lanes_per_group * count for count in range(1, GROUPS_MAX + 1)]
    need(lanes in shapes, "lanes", f"one of {shapes}", lanes)
    return lanes // lanes_per_group


def levels_of(request, workers, sum_bits):
    """The table of levels as one number, level i in octet i from the right; 0 in other modes."""
    if request["mode"] != "table":
        return 0
    levels = request.get("levels")
    need(isinstance(levels, list) and len(levels) == 16
         and all(isinstance(level, int) and 0 <= level < 256 for level in levels),
         "levels", "16 numbers of 0 .. 255", levels)
    need(max(levels) * workers < 1 << sum_bits, "greatest level times workers", f"below {1 << sum_bits}",
         max(levels) * workers)
    return sum(level << 8 * i for i, level in enumerate(levels))


class Lease:
    """A grant whose terms the switch programs can serve. ControlError names what they cannot."""

    def __init__(self, request, grant, hosts):
        check_hosts(hosts)
        self.job = str(grant.get("job"))
        need(grant.get("job") == request.get("job"), "job of the grant", request.get("job"), grant.get("job"))
        self.mode = request.get("mode")
        need(self.mode in MODES, "mode", " or ".join(MODES), self.mode)
        need(grant.get("mode") == self.mode, "mode of the grant", self.mode, grant.get("mode"))
        need(request.get("checked", True) is False, "checked",
             "false: a switch computes no checksum of a packet", request.get("checked", True))
        need(not request.get("little_endian", False), "little_endian", "false", True)
        need(not request.get("cutoff_ms", 0), "cutoff_ms", "0: a switch has no timers",
             request.get("cutoff_ms"))
        self.id = integer(grant, "lease", 0, 0xFFFF)
        self.epoch = integer(grant, "epoch", 1, 0xFFFFFFFF)
        need(re.fullmatch(r"[0-9a-f]{16}", str(grant.get("cookie"))), "cookie", "16 hexadecimal digits",
             "something else")
        self.cookie = int(grant["cookie"], 16)
        self.first_slot = integer(grant, "first_slot", 0, SLOTS - 1)
        self.slots = integer(grant, "slots", 1, SLOTS - self.first_slot)
        self.lanes = integer(grant, "lanes", 1, 256)
        self.columns = integer(request, "columns", 0, 32, 0)
        self.sum_bits = integer(request, "sum_bits", 0, 16, 0)
        self.groups = groups_of(self.mode, self.lanes, self.columns, self.sum_bits)
        self.workers = [address_of(worker) for worker in grant.get("workers", [])]
        need(1 <= len(self.workers) <= WORKERS_MAX, "workers", f"1 .. {WORKERS_MAX}", len(self.workers))
        need(len(set(self.workers)) == len(self.workers), "workers", "different addresses", self.workers)
        for ip, _ in self.workers:
            need(ip in hosts, f"host of worker {ip}", "an entry in hosts", "none")
        self.hosts = hosts
        self.address = address_of(grant.get("address"))
        self.levels = levels_of(request, len(self.workers), self.sum_bits)

    def members(self):
        """First lines: who may send, and where copies of a result go. Handles of nodes come from these."""
        group = self.group
        lines = [f"mc_mgrp_create {group}"]
        for number, (ip, port) in enumerate(self.workers):
            host = self.hosts[ip]
            lines.append(f"mc_node_create {number + 1} {host['port']}")
            lines.append(f"table_add WeirEgress.replica WeirEgress.set_destination {group} {number + 1} => "
                         f"{host['mac']} {ip} {port}")
            lines.append(f"table_add WeirIngress.member WeirIngress.set_worker {host['port']} {ip} {port} "
                         f"{self.id} {self.epoch} => 0x{1 << number:x}")
        return lines

    def activation(self, nodes):
        """Last lines: with `terms` the lease begins."""
        lines = [f"mc_node_associate {self.group} {node}" for node in nodes]
        lines.append(
            f"table_add WeirIngress.terms WeirIngress.set_terms {self.id} {self.epoch} 0x{self.cookie:x} "
            f"{MODES[self.mode]} {self.lanes} {self.columns} => {self.index} {self.first_slot} {self.slots} "
            f"{len(self.workers)} 0x{(1 << len(self.workers)) - 1:x} {self.group} {self.groups} "
            f"{self.sum_bits} 0x{self.levels:x}")
        return lines

    @property
    def group(self):
        return self.index + 1

    index = 0  # among the switch's leases, given when it is added


class CommandLine:
    """simple_switch_CLI as a program that reads lines and prints what became of them."""

    def __init__(self, command, timeout_s=CLI_TIMEOUT_S):
        self.command = shlex.split(command)
        self.timeout_s = timeout_s

    def __call__(self, lines):
        text = "\n".join(lines) + "\n"
        try:
            done = subprocess.run(self.command, input=text, capture_output=True, text=True, timeout=self.timeout_s,
                                  check=False)
        except OSError as error:
            raise ControlError(f"{self.command[0]}: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise self.failure(f"no end within {self.timeout_s} s", (error.stdout or b"").decode()) from error
        if done.returncode != 0:
            raise self.failure(f"status {done.returncode}: {done.stderr.strip()[-300:]}", done.stdout)
        return done.stdout

    def failure(self, words, printed):
        error = ControlError(f"{self.command[0]}: {words}")
        error.printed = printed
        return error


def handles_in(output):
    """The objects that the command line reports: ("node", handle) and (table, handle); and its errors."""
    made, wrong, table = [], [], None
    for line in output.splitlines():
        if match := re.search(r"Adding entry to \w+ match table (\S+)", line):
            table = match.group(1)
        elif match := re.search(r"Entry has been added with handle (\d+)", line):
            made.append((table, int(match.group(1))))
        elif match := re.search(r"node was created with handle (\d+)", line):
            made.append(("node", int(match.group(1))))
        elif match := re.search(r"(?:^|: )((?:Invalid|Error|Could not|\*\*\*).*)", line):
            wrong.append(match.group(1))
    return made, wrong


class Control:
    """The leases of one switch. run: a CommandLine, or something like it."""

    def __init__(self, run, state):
        self.run = run
        self.path = pathlib.Path(state)
        self.state = {"leases": {}, "own": {}, "hosts": {}}
        if self.path.exists():
            self.state = json.loads(self.path.read_text(encoding="utf-8"))

    def save(self):
        """In one step, so that a crash leaves the one or the other."""
        beside = self.path.with_suffix(".new")
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(self.state, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)

    def install(self, lines, record):
        """Runs lines; what they made goes to the record's entries and nodes even when some failed."""
        failure = None
        try:
            printed = self.run(lines)
        except ControlError as error:
            failure, printed = error, error.printed
        made, wrong = handles_in(printed)
        record["nodes"] += [handle for kind, handle in made if kind == "node"]
        record["entries"] += [[kind, handle] for kind, handle in made if kind != "node"]
        if failure is not None:
            raise failure
        expected = sum(line.startswith(("table_add", "mc_node_create")) for line in lines)
        if wrong or len(made) != expected:
            raise ControlError(f"the switch refused: {'; '.join(wrong[:3]) or 'no answer to some lines'}")

    def removal(self, record):
        """Lines that take a record out: its terms, made last, go first."""
        lines = [f"table_delete {table} {handle}" for table, handle in reversed(record["entries"])]
        lines += [f"mc_node_dissociate {record['group']} {node}" for node in record["nodes"]
                  if record["associated"]]
        lines += [f"mc_node_destroy {node}" for node in record["nodes"]]
        return [*lines, f"mc_mgrp_destroy {record['group']}"]

    def add(self, lease):
        """Installs a lease; an earlier epoch of its job goes first."""
        earlier = self.state["leases"].get(lease.job)
        if earlier is not None:
            need(lease.epoch > earlier["epoch"], f"epoch of {lease.job}", f"above {earlier['epoch']}",
                 lease.epoch)
        for job, other in self.state["leases"].items():
            if job == lease.job:
                continue
            need(other["id"] != lease.id, "lease", f"another number than that of {job}", lease.id)
            need(lease.first_slot >= other["first_slot"] + other["slots"]
                 or other["first_slot"] >= lease.first_slot + lease.slots,
                 f"slots of {lease.job}", f"none of {job}'s",
                 f"{lease.first_slot} .. {lease.first_slot + lease.slots - 1}")
        if earlier is not None:
            self.remove(lease.job)
        taken = {record["index"] for record in self.state["leases"].values()}
        free = [index for index in range(LEASES) if index not in taken]
        need(free, "leases on the switch", f"fewer than {LEASES}", LEASES)
        lease.index = free[0]
        record = {"index": lease.index, "id": lease.id, "epoch": lease.epoch, "first_slot": lease.first_slot,
                  "slots": lease.slots, "group": lease.group, "nodes": [], "entries": [],
                  "associated": False, "own": ":".join(map(str, lease.address))}
        try:
            self.own_address(lease.address)
            self.install(lease.members(), record)
            record["associated"] = True
            self.install(lease.activation(record["nodes"]), record)
        except ControlError as error:
            try:
                self.run(self.removal(record))
            except ControlError as second:
                raise ControlError(f"{error}; and what was installed is still there: {second}") from error
            raise
        self.state["leases"][lease.job] = record
        self.save()

    def own_address(self, address):
        """Where the switch aggregates; it stays when leases go, since packets to it are for nobody else."""
        key = ":".join(map(str, address))
        if key in self.state["own"]:
            return
        self.install_one(f"table_add WeirIngress.own_address NoAction {address[0]} {address[1]} =>",
                         self.state["own"], key)

    def install_one(self, line, place, key):
        """Runs a line whose entry is remembered as place[key], even if the command line failed after it."""
        record = {"nodes": [], "entries": []}
        try:
            self.install([line], record)
        finally:
            if record["entries"]:
                place[key] = record["entries"]
                self.save()

    def remove(self, job):
        record = self.state["leases"].get(job)
        need(record is not None, "job", " or ".join(sorted(self.state["leases"])) or "one with a lease", job)
        _, wrong = handles_in(self.run(self.removal(record)))
        del self.state["leases"][job]
        self.save()
        if wrong:
            raise ControlError(f"the switch refused: {'; '.join(wrong[:3])}")

    def add_hosts(self, hosts):
        """Ordinary forwarding to hosts that are not there yet."""
        check_hosts(hosts)
        for host in hosts.values():
            if host["mac"] in self.state["hosts"]:
                continue
            self.install_one(f"table_add WeirIngress.forward WeirIngress.to_port {host['mac']} => {host['port']}",
                             self.state["hosts"], host["mac"])

    def inject_loss(self, port, share, replies):
        """Drops this share of a port's aggregation packets from now on; 0 ends that."""
        need(0 <= share <= 1, "share", "0 .. 1", share)
        integer({"port": port}, "port", 0, 510)
        table, action = (("WeirEgress.inject_reply_loss", "WeirEgress.set_loss") if replies else
                         ("WeirIngress.inject_loss", "WeirIngress.set_loss"))
        losses = self.state.setdefault("losses", {})
        key = f"{table} {port}"
        if key in losses:
            self.run([f"table_delete {entry} {handle}" for entry, handle in losses.pop(key)])
        if share > 0:
            self.install_one(f"table_add {table} {action} {port} => {min(65535, round(share * 65536))}", losses, key)
        self.save()

    def statistics(self, job):
        """Packets of a lease by what became of them; they go on counting over epochs of one index."""
        record = self.state["leases"].get(job)
        need(record is not None, "job", " or ".join(sorted(self.state["leases"])) or "one with a lease", job)
        output = self.run([f"counter_read WeirIngress.by_lease {record['index'] * 16 + number}"
                           for number in range(len(VERDICTS))])
        counts = [int(count) for count in re.findall(r"(\d+) packets\)", output)]
        need(len(counts) == len(VERDICTS), "counters", len(VERDICTS), len(counts))
        return dict(zip(VERDICTS, counts))


def load(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ControlError(f"{path}: {error}") from error


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("hosts", "add", "remove", "loss", "show"))
    parser.add_argument("--state", default="weir-p4.json", help="what is installed (default: %(default)s)")
    parser.add_argument("--cli", default="simple_switch_CLI", help="command that reads lines")
    for name in ("hosts", "request", "grant"):
        parser.add_argument(f"--{name}", help="a JSON file")
    parser.add_argument("--job")
    parser.add_argument("--port", type=int, help="of the switch")
    parser.add_argument("--share", type=float, help="of packets to drop, 0 .. 1")
    parser.add_argument("--replies", action="store_true", help="drop replies to the port instead")
    return parser.parse_args()


def main():
    given = arguments()
    try:
        with open(given.state + ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            control = Control(CommandLine(given.cli), given.state)
            if given.command == "hosts":
                control.add_hosts(load(given.hosts))
            elif given.command == "add":
                control.add(Lease(load(given.request), load(given.grant), load(given.hosts)))
            elif given.command == "remove":
                control.remove(given.job)
            elif given.command == "loss":
                control.inject_loss(given.port, given.share, given.replies)
            else:
                print(json.dumps(control.statistics(given.job)))
    except (ControlError, OSError, TypeError, ValueError) as error:
        print(f"weir_p4: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
