# SPDX-License-Identifier: Apache-2.0
"""Leases on a BMv2 switch: the table entries and multicast groups that they become, installed, removed and installed
again after a restart of the switch. weir_p4.py is the program.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess

MODES = {"sum": 1, "max": 2, "table": 3, "sparse": 4}
# As in p4/include/parameters.p4; tests/p4/control_test.py compares them.
SLOTS = 1024
LEASES = 64
WORDS_PER_GROUP = 16
GROUPS_MAX = 4
WORKERS_MAX = 64
VERDICTS = ("added", "completed", "served", "noticed", "duplicate", "stale", "early")
REFUSALS = ("malformed", "foreign", "injected")
# How many packets BMv2 holds for ingress, and for each port.
INPUT_QUEUE, PORT_QUEUE = 1024, 64
CLI_TIMEOUT_S = 30


class ControlError(Exception):
    """An error with cause, expected and found values; `printed` is the switch's output up to the error."""

    printed = ""


class SwitchError(ControlError):
    """The switch cannot be reached, or refuses what ought to be right."""


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
        self.documents = {"request": request, "grant": grant,
                          "hosts": {ip: hosts[ip] for ip, _ in self.workers}}
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

    def warning(self):
        """Why packets may be lost at the switch; empty: they fit."""
        together = self.slots * len(self.workers)
        if self.slots <= PORT_QUEUE // 2 and together <= INPUT_QUEUE:
            return ""
        return (f"job {self.job}: {len(self.workers)} workers with {self.slots} slots send up to {together} packets at a "
                f"time; BMv2 has room for {INPUT_QUEUE}, and for {PORT_QUEUE} replies at a port. More are lost and sent "
                f"again; {min(PORT_QUEUE // 2, INPUT_QUEUE // len(self.workers))} slots fit")

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
            raise SwitchError(f"{self.command[0]}: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise self.failure(f"no end within {self.timeout_s} s", (error.stdout or b"").decode()) from error
        if done.returncode != 0:
            raise self.failure(f"status {done.returncode}: {done.stderr.strip()[-300:]}", done.stdout)
        return done.stdout

    def failure(self, words, printed):
        error = SwitchError(f"{self.command[0]}: {words}")
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
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
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
            raise SwitchError(f"the switch refused: {'; '.join(wrong[:3]) or 'no answer to some lines'}")

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
        self.own_address(lease.address)
        self.state["leases"][lease.job] = self.install_lease(lease)
        self.save()

    def install_lease(self, lease):
        """The lease's record; nothing is left on the switch when it refuses."""
        record = {"index": lease.index, "id": lease.id, "epoch": lease.epoch, "first_slot": lease.first_slot,
                  "slots": lease.slots, "group": lease.group, "nodes": [], "entries": [],
                  "associated": False, **lease.documents}
        try:
            self.install(lease.members(), record)
            record["associated"] = True
            self.install(lease.activation(record["nodes"]), record)
        except ControlError as error:
            try:
                self.run(self.removal(record))
            except ControlError as second:
                raise SwitchError(f"{error}; and what was installed is still there: {second}") from error
            raise
        return record

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
                place[key] = {"line": line, "entries": record["entries"]}
                self.save()

    def recover(self):
        """Installs everything again if the switch has none of it; returns what it did, or "". ControlError: it has some
        of it, so that another tool has changed it."""
        expected = {}
        for record in self.records():
            for table, _ in record["entries"]:
                expected[table] = expected.get(table, 0) + 1
        if not expected:
            return ""
        tables = sorted(expected)
        printed = self.run([f"table_num_entries {table}" for table in tables])
        found = [int(count) for count in re.findall(r"^(?:RuntimeCmd: )?(\d+)$", printed, re.MULTILINE)]
        if len(found) != len(tables):
            raise SwitchError(f"the switch's entries: expected {len(tables)} numbers, found {printed.strip()[-200:]!r}")
        if sum(found) == 0:
            return self.reinstall()
        for table, count in zip(tables, found):
            need(count == expected[table], f"entries of {table} (`reinstall` makes them anew)", expected[table], count)
        return ""

    def records(self):
        state = self.state
        return [*state["own"].values(), *state["hosts"].values(), *state.get("losses", {}).values(),
                *state["leases"].values()]

    def reinstall(self):
        """Empties the switch and installs everything again; returns what, as words. Jobs have to take new epochs, because
        the sums of their rounds are gone."""
        self.run(["reset_state"])
        kept, self.state = self.state, {**self.state, "leases": {}, "own": {}, "hosts": {}, "losses": {}}
        self.save()
        for kind in ("own", "hosts", "losses"):
            for key, record in kept.get(kind, {}).items():
                self.install_one(record["line"], self.state[kind], key)
        for job, record in kept["leases"].items():
            lease = Lease(record["request"], record["grant"], record["hosts"])
            lease.index = record["index"]
            self.state["leases"][job] = self.install_lease(lease)
            self.save()
        return (f"the switch had lost its entries: installed {len(self.state['own'])} addresses, "
                f"{len(self.state['hosts'])} hosts and {len(self.state['leases'])} leases again")

    def remove(self, job):
        record = self.state["leases"].get(job)
        need(record is not None, "job", " or ".join(sorted(self.state["leases"])) or "one with a lease", job)
        _, wrong = handles_in(self.run(self.removal(record)))
        del self.state["leases"][job]
        self.save()
        if wrong:
            raise SwitchError(f"the switch refused: {'; '.join(wrong[:3])}")

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
            self.run([f"table_delete {entry} {handle}" for entry, handle in losses.pop(key)["entries"]])
        if share > 0:
            self.install_one(f"table_add {table} {action} {port} => {min(65535, round(share * 65536))}", losses, key)
        self.save()

    def statistics(self, job=None):
        """{"leases": {job: packets by what became of them}, "switch": packets to its address that it refused, by reason,
        and replies that it lost on purpose}. A lease's numbers go on counting over epochs of one index. job: None: all."""
        leases = self.state["leases"]
        need(job is None or job in leases, "job", " or ".join(sorted(leases)) or "one with a lease", job)
        jobs = [job] if job is not None else sorted(leases)
        lines = [f"counter_read WeirIngress.by_lease {leases[name]['index'] * 16 + number}"
                 for name in jobs for number in range(len(VERDICTS))]
        lines += [f"counter_read WeirIngress.refused {number}" for number in range(len(REFUSALS))]
        lines.append("counter_read WeirEgress.lost 0")
        counts = [int(count) for count in re.findall(r"(\d+) packets\)", self.run(lines))]
        if len(counts) != len(lines):
            raise SwitchError(f"counters: expected {len(lines)}, found {len(counts)}")
        size = len(VERDICTS)
        return {"leases": {name: dict(zip(VERDICTS, counts[at * size:])) for at, name in enumerate(jobs)},
                "switch": dict(zip((*REFUSALS, "lost"), counts[len(jobs) * size:]))}


def load(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ControlError(f"{path}: {error}") from error
