#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""p4/control: what lines a lease becomes, what it refuses, and that everything it installs is removed again."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import harness  # noqa: E402
import switch  # noqa: E402
import weir_p4_control  # noqa: E402

LEASE = {"lease": 7, "epoch": 2, "cookie": 0xABCDEF0123456789, "mode": "sum", "workers": 2, "slots": 4, "lanes": 32,
         "first_slot": 8}
HOSTS = {"10.1.0.1": {"port": 1, "mac": "02:00:00:00:00:01"}, "10.1.0.2": {"port": 2, "mac": "02:00:00:00:00:02"}}

# A stand-in for the switch's command line: it makes every object, counts entries in a file, and its counters hold
# their index.
STAND_IN = """
import json, pathlib, sys
file = pathlib.Path(__file__).with_suffix(".json")
entries = json.loads(file.read_text()) if file.exists() else {}
for handle, line in enumerate(sys.stdin):
    words = line.split()
    if words[0] == "table_add":
        entries[words[1]] = entries.get(words[1], 0) + 1
        print(f"RuntimeCmd: Adding entry to exact match table {words[1]}")
        print(f"Entry has been added with handle {handle}")
    elif words[0] == "table_delete":
        entries[words[1]] -= 1
    elif words[0] == "table_num_entries":
        print(f"RuntimeCmd: {entries.get(words[1], 0)}")
    elif words[0] == "mc_node_create":
        print(f"RuntimeCmd: node was created with handle {handle}")
    elif words[0] == "counter_read":
        print(f"RuntimeCmd: {words[1]}[{words[2]}]= (0 bytes, {words[2]} packets)")
file.write_text(json.dumps(entries))
"""


def made(request_changes=(), grant_changes=(), hosts=None, **lease):
    request, grant = harness.documents({**LEASE, **lease}, "train-7")
    request.update(dict(request_changes))
    grant.update(dict(grant_changes))
    return weir_p4_control.Lease(request, grant, HOSTS if hosts is None else hosts)


class ControlTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.state = pathlib.Path(directory.name, "state.json")
        self.lines = []
        self.switch = switch.Switch(harness.PROGRAM)
        self.broken = None

    def run_lines(self, lines):
        self.lines += lines
        if self.broken is not None:
            lines = [line if self.broken not in line else "table_add nowhere" for line in lines]
        return self.switch.cli(lines)

    def control(self):
        return weir_p4_control.Control(self.run_lines, self.state)

    def installed(self):
        tables = sum(len(entries) for name, entries in self.switch.entries.items() if name != "WeirIngress.own_address")
        return tables, len(self.switch.groups), len(self.switch.nodes)

    def test_lines_of_a_lease(self):
        self.control().add(made())
        self.assertEqual(self.lines, [
            "table_add WeirIngress.own_address NoAction 10.1.1.1 48864 =>",
            "mc_mgrp_create 1",
            "mc_node_create 1 1",
            "table_add WeirEgress.replica WeirEgress.set_destination 1 1 => 02:00:00:00:00:01 10.1.0.1 40000",
            "table_add WeirIngress.member WeirIngress.set_worker 1 10.1.0.1 40000 7 2 => 0x1",
            "mc_node_create 2 2",
            "table_add WeirEgress.replica WeirEgress.set_destination 1 2 => 02:00:00:00:00:02 10.1.0.2 40001",
            "table_add WeirIngress.member WeirIngress.set_worker 2 10.1.0.2 40001 7 2 => 0x2",
            "mc_node_associate 1 0",
            "mc_node_associate 1 1",
            "table_add WeirIngress.terms WeirIngress.set_terms 7 2 0xabcdef0123456789 1 32 0 => "
            "0 8 4 2 0x3 1 2 0 0x0"])

    def test_lines_of_a_table_lease(self):
        levels = list(range(16))
        self.control().add(made(mode="table", lanes=64, sum_bits=8, levels=levels))
        self.assertEqual(self.lines[-1].split("=> ")[1],
                         "0 8 4 2 0x3 1 1 8 0xf0e0d0c0b0a09080706050403020100")

    def test_everything_is_removed_again(self):
        control = self.control()
        control.add(made())
        self.assertEqual(self.installed(), (5, 1, 2))
        self.control().remove("train-7")  # another process, which knows from the state file
        self.assertEqual(self.installed(), (0, 0, 0))
        # At no time may a packet match an entry whose dependencies are not installed yet or no longer.
        removal = self.lines[self.lines.index(next(l for l in self.lines if l.startswith("table_delete"))):]
        self.assertTrue(removal[0].startswith("table_delete WeirIngress.terms"))
        with self.assertRaisesRegex(weir_p4_control.ControlError, "job: expected one with a lease, found train-7"):
            self.control().remove("train-7")

    def test_another_epoch_takes_the_place_of_the_first(self):
        control = self.control()
        control.add(made())
        control.add(made(epoch=3))
        self.assertEqual(self.installed(), (5, 1, 2))
        self.assertEqual({key[:2] for key in self.switch.entries["WeirIngress.terms"]}, {(7, 3)})
        with self.assertRaisesRegex(weir_p4_control.ControlError, "epoch of train-7: expected above 3, found 3"):
            control.add(made(epoch=3))

    def test_partial_changes_are_undone(self):
        for broken in ("WeirIngress.terms", "10.1.0.2 40001 7", "mc_node_create 2", "mc_node_associate"):
            with self.subTest(broken=broken):
                self.broken = broken
                with self.assertRaisesRegex(weir_p4_control.ControlError, "the switch refused"):
                    self.control().add(made())
                self.broken = None
                self.assertEqual(self.installed(), (0, 0, 0))
                self.assertEqual(json.loads(self.state.read_text())["leases"], {})

    def test_entries_of_a_command_line_that_dies_are_removed(self):
        """The output up to the error names the entries that have to be removed."""
        def run(lines):
            printed = self.switch.cli(lines)
            if "mc_mgrp_create" in lines[0]:
                error = weir_p4_control.ControlError("it died")
                error.printed = printed
                raise error
            return printed

        with self.assertRaisesRegex(weir_p4_control.ControlError, "it died"):
            weir_p4_control.Control(run, self.state).add(made())
        self.assertEqual(self.installed(), (0, 0, 0))

    def test_output_of_a_command_line_survives_its_end(self):
        for words, message in (("sys.exit(3)", "status 3"), ("time.sleep(60)", "no end within")):
            command = f"{sys.executable} -u -c 'import sys, time; print(sys.stdin.readline()); {words}'"
            with self.assertRaisesRegex(weir_p4_control.ControlError, message) as caught:
                weir_p4_control.CommandLine(command, timeout_s=1.5)(["first", "second"])
            self.assertEqual(caught.exception.printed.strip(), "first")

    def test_leases_do_not_overlap(self):
        control = self.control()
        control.add(made())
        for first, count, fits in ((0, 8, True), (0, 9, False), (11, 1, False), (12, 1, True), (9, 2, False)):
            request, grant = harness.documents({**LEASE, "lease": 9, "first_slot": first, "slots": count}, "other")
            lease = weir_p4_control.Lease(request, grant, HOSTS)
            with self.subTest(first=first, count=count):
                if fits:
                    control.add(lease)
                    control.remove("other")
                else:
                    with self.assertRaisesRegex(weir_p4_control.ControlError, "slots of other: expected none of train-7's"):
                        control.add(lease)

    def test_what_a_switch_cannot_serve_is_refused(self):
        cases = [
            (dict(request_changes={"checked": True}), "checked: expected false"),
            (dict(request_changes={"little_endian": True}), "little_endian: expected false"),
            (dict(request_changes={"cutoff_ms": 5}), "cutoff_ms: expected 0"),
            (dict(mode="float"), "mode: expected sum or max or table or sparse, found float"),
            (dict(lanes=24), r"lanes: expected one of \[16, 32, 48, 64\], found 24"),
            (dict(lanes=256), r"lanes: expected one of \[16, 32, 48, 64\], found 256"),
            (dict(mode="sparse", columns=5, lanes=16), "columns: expected 1 .. 4, found 5"),
            (dict(mode="sparse", columns=2, lanes=32), "lanes of a sparse lease: expected 16, found 32"),
            (dict(columns=1), "columns: expected 0, found 1"),
            (dict(mode="table", lanes=64, sum_bits=12, levels=[0] * 16), "sum_bits: expected 8 or 16, found 12"),
            (dict(mode="table", lanes=64, sum_bits=8, levels=[0] * 15), "levels: expected 16 numbers"),
            (dict(mode="table", lanes=64, sum_bits=8, levels=[0] * 15 + [128]), "below 256, found 256"),
            (dict(first_slot=1022), "slots: expected 1 .. 2, found 4"),
            (dict(grant_changes={"epoch": 0}), "epoch: expected 1"),
            (dict(grant_changes={"cookie": "12"}), "cookie: expected 16 hexadecimal digits"),
            (dict(grant_changes={"mode": "max"}), "mode of the grant: expected sum, found max"),
            (dict(grant_changes={"job": "else"}), "job of the grant: expected train-7, found else"),
            (dict(grant_changes={"workers": []}), "workers: expected 1 .. 64, found 0"),
            (dict(grant_changes={"workers": ["10.1.0.1:40000"] * 2}), "workers: expected different addresses"),
            (dict(grant_changes={"workers": ["10.1.0.1"]}), "address: expected IPV4:PORT, found 10.1.0.1"),
            (dict(hosts={"10.1.0.1": HOSTS["10.1.0.1"]}), "host of worker 10.1.0.2: expected an entry in hosts"),
            (dict(hosts={"10.1.0.1": {"port": 511, "mac": "02:00:00:00:00:01"}}), "port: expected 0 .. 510"),
            (dict(hosts={"10.1.0.1": {"port": 1, "mac": "2:0"}}), "mac: expected six octets"),
        ]
        for changes, message in cases:
            with self.subTest(message=message), self.assertRaisesRegex(weir_p4_control.ControlError, message):
                made(**changes)

    def test_statistics(self):
        plane = harness.Plane()
        self.addCleanup(plane.close)
        plane.grant(LEASE, "train-7")
        one = harness.packet(harness.lanes([1] * 32), lease=7, epoch=2, cookie=LEASE["cookie"], lanes=32)
        for source in (1000, 1000, 1001, 1001):
            plane.send(source, one)
        row = [one, one]  # as a switch in software gets them from a virtual interface
        plane.send(1000, b"".join(row))
        plane.send(1009, one)
        lease = {"added": 1, "completed": 1, "served": 1, "noticed": 0, "duplicate": 1, "stale": 0, "early": 0}
        self.assertEqual(plane.control.statistics("train-7"),
                         {"leases": {"train-7": lease},
                          "switch": {"malformed": 1, "foreign": 1, "injected": 0, "lost": 0}})
        self.assertEqual(plane.control.statistics()["leases"], {"train-7": lease})

    def restart(self):
        self.switch = switch.Switch(harness.PROGRAM)

    def test_a_restarted_switch_gets_everything_again(self):
        control = self.control()
        self.assertEqual(control.recover(), "")
        control.add_hosts(HOSTS)
        control.add(made())
        control.inject_loss(1, 0.25, replies=False)
        before = self.switch.entries
        self.assertEqual(control.recover(), "")
        self.restart()
        self.assertEqual(control.recover(), "the switch had lost its entries: installed 1 addresses, 2 hosts and 1 leases "
                                            "again")
        self.assertEqual(self.switch.entries, before)
        self.assertEqual(self.installed(), (8, 1, 2))
        self.restart()
        self.control().recover()  # another process
        self.control().remove("train-7")
        self.assertEqual(self.installed(), (3, 0, 0))

    def test_a_switch_that_somebody_else_changed_is_named(self):
        control = self.control()
        control.add(made())
        self.switch.cli(["table_delete WeirIngress.member 0"])
        with self.assertRaisesRegex(weir_p4_control.ControlError, "entries of WeirIngress.member .*expected 2, found 1"):
            control.recover()
        control.reinstall()
        self.assertEqual(control.recover(), "")
        self.assertEqual(self.installed(), (5, 1, 2))

    def test_windows_that_a_switch_cannot_hold_are_named(self):
        self.assertEqual(made().warning(), "")
        self.assertRegex(made(slots=64).warning(), "2 workers with 64 slots send up to 128 packets at a time; BMv2 has "
                                                   "room for 1024, and for 64 replies at a port.* 32 slots fit")

    def program(self, *arguments):
        """weir_p4.py as people run it, with a stand-in for simple_switch_CLI: (status, output, complaint)."""
        done = subprocess.run([sys.executable, harness.ROOT / "p4/control/weir_p4.py",
                               "--state", self.state, "--cli",
                               f"{sys.executable} {self.state.parent / 'cli.py'}", *arguments],
                              capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_the_program(self):
        (self.state.parent / "cli.py").write_text(STAND_IN)
        files = []
        for name, document in zip(("request", "grant"), harness.documents(LEASE, "train-7")):
            files += [f"--{name}", self.state.parent / f"{name}.json"]
            files[-1].write_text(json.dumps(document))
        (self.state.parent / "hosts.json").write_text(json.dumps(HOSTS))
        hosts = ["--hosts", self.state.parent / "hosts.json"]
        self.assertEqual(self.program("hosts", *hosts), (0, "", ""))
        self.assertEqual(self.program("add", *hosts, *files), (0, "", ""))
        self.assertEqual(len(json.loads(self.state.read_text())["leases"]["train-7"]["entries"]), 5)
        status, output, _ = self.program("show", "--job", "train-7")
        self.assertEqual((status, json.loads(output)["leases"]["train-7"]["duplicate"]), (0, 4))
        (self.state.parent / "cli.json").unlink()
        status, _, complaint = self.program("show")
        self.assertEqual((status, complaint), (0, "weir_p4: the switch had lost its entries: installed 1 addresses, 2 hosts "
                                                  "and 1 leases again\n"))
        self.assertEqual(self.program("loss", "--port", "1", "--share", "0.5"), (0, "", ""))
        self.assertEqual(self.program("remove", "--job", "train-7"), (0, "", ""))
        self.assertEqual(self.program("remove", "--job", "train-7"),
                         (1, "", "weir_p4: job: expected one with a lease, found train-7\n"))
        for arguments, message in ((("add",), "weir_p4: "), (("loss", "--port", "1", "--share", "2"), "share: expected"),
                                   (("add", *hosts, *files, "--cli", "false"), "weir_p4: false: status 1")):
            status, _, complaint = self.program(*arguments)
            self.assertEqual((status, message in complaint, "Traceback" in complaint), (1, True, False), complaint)

    def test_sizes_are_those_of_the_programs(self):
        text = (harness.ROOT / "p4/include/parameters.p4").read_text()
        for name in ("SLOTS", "LEASES"):
            self.assertEqual(int(re.search(rf"\b{name} = (\d+);", text).group(1)), getattr(weir_p4_control, name))
        for number, name in enumerate(weir_p4_control.VERDICTS):
            self.assertRegex(text, rf"VERDICT_{name.upper()} = {number};")


if __name__ == "__main__":
    unittest.main()
