# SPDX-License-Identifier: Apache-2.0
"""Runs the same datagrams through a switch program and through the aggregator in software, and compares.

A worker's address is 1000 plus its number on both sides. On the switch, worker w is host 10.1.0.(w + 1) at port
w + 1, sending from UDP port 40000 + w; what comes from elsewhere comes from a host that no lease knows.
"""
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import records
import switch
import tna

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "p4/control"))
import weir_p4_control  # noqa: E402

PROGRAM = ROOT / "p4/v1model/aggregator.p4"
TNA_PROGRAM = ROOT / "p4/tna/aggregator.p4"
FIRST_ADDRESS = 1000
STRANGER_PORT = 400
SWITCH_IP, SWITCH_UDP, SWITCH_MAC = "10.1.1.1", 48864, "02:00:00:00:ff:01"
HEADER = struct.Struct(">HBBBBHIQHHIIIHHII")
FIELDS = ("magic", "version", "mode", "flags", "columns", "lease", "epoch", "cookie", "slot", "lanes", "round",
          "operation", "offset", "contributions", "exponent", "detail", "checksum")
MODES = {"sum": 1, "max": 2, "table": 3, "sparse": 4}
REPLY, OVERFLOW, NOTICE, LEAD = 1, 8, 16, 32


def packet(payload=b"", **fields):
    """An aggregation packet; fields that are not named are 0."""
    values = {"magic": 0x5741, "version": 2, "mode": 1, **fields}
    return HEADER.pack(*(values.pop(name, 0) for name in FIELDS)) + payload


def fields_of(datagram):
    return dict(zip(FIELDS, HEADER.unpack(datagram[:HEADER.size])))


def lanes(values):
    return struct.pack(f">{len(values)}I", *(value & 0xFFFFFFFF for value in values))


def lanes_of(payload):
    return list(struct.unpack(f">{len(payload) // 4}I", payload))


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def ip_bytes(text):
    return bytes(int(part) for part in text.split("."))


class Place:
    """Where a source address is in the switch's network."""

    def __init__(self, address):
        known = FIRST_ADDRESS <= address < FIRST_ADDRESS + 64
        number = address - FIRST_ADDRESS if known else 200
        self.port = number + 1 if known else STRANGER_PORT
        self.ip, self.mac = f"10.1.0.{number + 1}", f"02:00:00:00:00:{number + 1:02x}"
        self.udp = 40000 + number


def frame_of(place, datagram, **changes):
    """The Ethernet frame of a datagram from a place to the switch's aggregation address."""
    udp = struct.pack(">HHHH", place.udp, changes.get("to_port", SWITCH_UDP),
                      changes.get("udp_length", 8 + len(datagram)), 0x1234)
    head = [changes.get("version_ihl", 0x45), 0, changes.get("total_length", 28 + len(datagram)), 7,
            changes.get("fragment", 0x4000), 64, 17, 0]
    ends = ip_bytes(place.ip) + ip_bytes(changes.get("to_ip", SWITCH_IP))
    words = struct.pack(">BBHHHBBH", *head) + ends
    head[7] = records.checksum16([(int.from_bytes(words, "big"), 160)]) ^ changes.get("checksum_error", 0)
    ip = struct.pack(">BBHHHBBH", *head) + ends
    return (mac_bytes(SWITCH_MAC) + mac_bytes(changes.get("from_mac", place.mac)) + b"\x08\x00" + ip + udp
            + datagram + changes.get("trailer", b""))


def datagram_of(port, frame):
    """(address, datagram) of a reply; AssertionError if it is not one to the worker at this port."""
    place = Place(FIRST_ADDRESS + port - 1)
    ip, udp, datagram = frame[14:34], frame[34:42], frame[42:]
    expected = mac_bytes(place.mac) + mac_bytes(SWITCH_MAC) + b"\x08\x00"
    assert frame[:14] == expected, f"Ethernet header {frame[:14].hex()} instead of {expected.hex()}"
    assert ip[12:] == ip_bytes(SWITCH_IP) + ip_bytes(place.ip), f"addresses {ip[12:].hex()}"
    assert records.checksum16([(int.from_bytes(ip, "big"), 160)]) == 0, "IPv4 checksum"
    assert struct.unpack(">H", ip[2:4])[0] == len(frame) - 14, "IPv4 length"
    assert ip[8] == 64 and ip[9] == 17, "time to live or protocol"
    assert struct.unpack(">HHHH", udp) == (SWITCH_UDP, place.udp, len(frame) - 34, 0), f"UDP {udp.hex()}"
    return FIRST_ADDRESS + port - 1, datagram


class Oracle:
    """The aggregator in software."""

    def __init__(self):
        program = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"), "tests/p4/aggregation_oracle")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        found = []
        while True:
            answer = self.process.stdout.readline().rstrip("\n")
            if answer == "ok":
                return found
            if answer.startswith("error") or not answer:
                raise AssertionError(f"oracle: {line[:80]}: {answer or 'has ended'}")
            found.append(answer)

    def grant(self, lease):
        levels = ",".join(map(str, lease.get("levels", []))) or "-"
        self.ask(f"grant {lease['lease']} {lease['epoch']} {lease['cookie']} {MODES[lease['mode']]} "
                 f"{lease['workers']} {lease['slots']} {lease['lanes']} {lease.get('columns', 0)} "
                 f"{lease.get('sum_bits', 0)} {levels}")

    def send(self, source, datagram):
        replies = [line.split() for line in self.ask(f"packet {source} {datagram.hex() or '-'}")]
        return [(int(to), bytes.fromhex(octets)) for _, to, octets in replies]

    def counters(self):
        return {name: int(count) for name, count in (w.split("=") for w in self.ask("counters")[0].split())}

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=10)


class TnaPlane:
    """The TNA program. Its entries are made here: no control for Tofino is part of p4/control."""

    def __init__(self, seed=1, program=TNA_PROGRAM):
        self.switch = tna.TnaSwitch(program, seed)

    def grant(self, lease, job=None):
        """One lease at a time; of another epoch, in the place of the first."""
        entries, externs = self.switch.entries, self.switch.externs
        for slot in range(lease["slots"]):
            externs["WeirIngress.progress"].values[slot] = 0
            for set_ in (2 * slot, 2 * slot + 1):
                externs["WeirIngress.opened"].values[set_] = 0
        for table in ("WeirIngress.terms", "WeirIngress.member", "WeirEgress.replica"):
            entries[table].clear()
        entries["WeirIngress.own_address"][number_of(ip_bytes(SWITCH_IP)), SWITCH_UDP] = ("NoAction", ())
        members = []
        for number in range(lease["workers"]):
            place = Place(FIRST_ADDRESS + number)
            ip = number_of(ip_bytes(place.ip))
            entries["WeirIngress.member"][place.port, ip, place.udp, lease["lease"], lease["epoch"]] = (
                "set_worker", (1 << number,))
            entries["WeirEgress.replica"][number + 1,] = (
                "set_destination", (number_of(mac_bytes(place.mac)), ip, place.udp))
            self.switch.nodes[number] = (number + 1, [place.port])
            members.append((number + 1, number))
        self.switch.groups[1] = members
        levels = lease.get("levels", ())
        for word in range(16 if levels else 0):
            for octet in range(256):
                entries[f"WeirIngress.expand_{word}"][0, octet] = (
                    f"expand_word_{word}", (levels[octet >> 4] << 16 | levels[octet & 15],))
        key = lease["lease"], lease["epoch"], lease["cookie"], MODES[lease["mode"]]
        entries["WeirIngress.terms"][key] = (
            "set_terms", (0, 0, lease["slots"], lease["workers"], (1 << lease["workers"]) - 1, 1))

    def send(self, source, datagram):
        place = Place(source)
        return [datagram_of(*one) for one in self.switch.send(place.port, frame_of(place, datagram))]

    def count(self, name, index=0):
        return self.switch.externs[name].values[index]

    def close(self):
        """Nothing is left."""


def number_of(octets):
    return int.from_bytes(octets, "big")


class Plane:
    """The switch program, controlled as a real one would be."""

    def __init__(self, seed=1, program=PROGRAM):
        self.switch = switch.Switch(program, seed)
        self.state = tempfile.TemporaryDirectory()
        self.control = weir_p4_control.Control(self.switch.cli, pathlib.Path(self.state.name, "state.json"))
        self.hosts = hosts()

    def grant(self, lease, job=None):
        self.control.add(weir_p4_control.Lease(*documents(lease, job), self.hosts))

    def send(self, source, datagram, **changes):
        place = Place(source)
        port = changes.pop("port", place.port)
        return [datagram_of(*one) for one in self.switch.send(port, frame_of(place, datagram, **changes))]

    def count(self, name, index=0):
        return self.switch.externs[name].values[index]

    def close(self):
        self.state.cleanup()


def hosts():
    """Where all workers are, as p4/control wants it."""
    places = [Place(FIRST_ADDRESS + number) for number in range(64)]
    return {place.ip: {"port": place.port, "mac": place.mac} for place in places}


def traces():
    """The trace suite of every data plane, as (name, workers, slots, steps)."""
    oracle = Oracle()
    found = []
    for line in oracle.ask("traces"):
        kind, rest = line.split(" ", 1)
        if kind == "trace":
            workers, slots, name = rest.split(" ", 2)
            found.append((name, int(workers), int(slots), []))
        else:
            found[-1][3].append({key: int(value) for key, value in re.findall(r"(\w+)=(-?\d+)", rest)})
    oracle.close()
    return found


def trace_lease(workers, slots, epoch, count):
    """The lease of a trace, with `count` lanes."""
    return {"lease": 5, "epoch": epoch, "cookie": 0xC00C1E, "mode": "sum", "workers": workers, "slots": slots,
            "lanes": count}


def trace_packet(step, count):
    names = ("flags", "lease", "epoch", "cookie", "slot", "round", "operation", "offset", "exponent")
    whole = packet(lanes([step["value"] * (i + 1) for i in range(count)]), lanes=count,
                   **{name: step[name] for name in names})
    return whole[:step["longer"]] if step["longer"] < 0 else whole + bytes(step["longer"])


def run_trace(pair, trace, count):
    """Runs one trace of the suite on a pair, whose sides also agree with what the suite itself expects."""
    name, workers, slots, steps = trace
    pair.grant(trace_lease(workers, slots, 1, count))
    for number, step in enumerate(steps):
        if step["grant_epoch"]:
            pair.grant(trace_lease(workers, slots, step["grant_epoch"], count))
            continue
        replies = pair.send(step["source"] or FIRST_ADDRESS + step["worker"], trace_packet(step, count))
        expected = (0, 1, workers, 1)[step["answer"]]  # Answer's kNothing, kToSender, kToAll, kMismatch
        assert len(replies) == expected, f"{name}, step {number}: {len(replies)} replies, not {expected}"
    pair.check_counters()


def documents(lease, job=None):
    """The request and the grant, as weir-aggregator's interface has them, of a lease of the tests."""
    job = job or f"job-{lease['lease']}"
    workers = [Place(FIRST_ADDRESS + number) for number in range(lease["workers"])]
    addresses = [f"{place.ip}:{place.udp}" for place in workers]
    request = {"job": job, "mode": lease["mode"], "workers": addresses, "slots": lease["slots"],
               "lanes": lease["lanes"], "checked": False}
    for key in ("columns", "sum_bits", "levels"):
        if key in lease:
            request[key] = lease[key]
    grant = {"job": job, "lease": lease["lease"], "epoch": lease["epoch"], "cookie": f"{lease['cookie']:016x}",
             "mode": lease["mode"], "address": f"{SWITCH_IP}:{SWITCH_UDP}", "port": SWITCH_UDP, "shard": 0,
             "first_slot": lease.get("first_slot", 0), "slots": lease["slots"], "lanes": lease["lanes"],
             "workers": addresses}
    return request, grant


class Pair:
    """Both sides of a comparison."""

    def __init__(self, seed=1, plane=None, ignored_flags=0):
        self.oracle, self.plane = Oracle(), plane or Plane(seed)
        self.ignored_flags = ignored_flags  # of replies: those that the plane need not set

    def grant(self, lease, job=None):
        self.oracle.grant(lease)
        self.plane.grant(lease, job)

    def send(self, source, datagram):
        """The replies, which are the same to the last bit."""
        expected = [(to, one[:4] + bytes([one[4] & ~self.ignored_flags]) + one[5:])
                    for to, one in self.oracle.send(source, datagram)]
        self.plane.expected = len(expected)  # how long to wait, where that takes time
        found = self.plane.send(source, datagram)
        assert sorted(found) == sorted(expected), difference(datagram, expected, found)
        return found

    def check_counters(self):
        """Outcomes of packets are counted equally; the oracle distinguishes more kinds of refusal."""
        expected = self.oracle.counters()
        for number, name in enumerate(weir_p4_control.VERDICTS):
            found = sum(self.plane.count("WeirIngress.by_lease", index * 16 + number) for index in range(64))
            assert found == expected[name], f"{name}: {found} instead of {expected[name]}"
        refused = sum(self.plane.count("WeirIngress.refused", index) for index in (0, 1))
        assert refused == expected["malformed"] + expected["unknown"] + expected["foreign"], "refused"

    def close(self):
        self.oracle.close()
        self.plane.close()


def difference(datagram, expected, found):
    lines = [f"to {datagram[:HEADER.size].hex()} {datagram[HEADER.size:].hex()}"]
    for title, replies in (("expected", expected), ("found", found)):
        lines.append(f"{title}: {len(replies)} replies")
        lines += [f"  {to}: {fields_of(one)} {one[HEADER.size:].hex()}" for to, one in sorted(replies)[:2]]
    return "\n".join(lines)
