#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weir_p4.py serve: leases by HTTP as on a weir-aggregator, on the switch program in our own interpreter."""
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import harness  # noqa: E402
import switch  # noqa: E402
import weir_p4_control  # noqa: E402
import weir_p4_server  # noqa: E402

HOSTS = {f"10.1.0.{n}": {"port": n, "mac": f"02:00:00:00:00:0{n}"} for n in (1, 2, 3)}
ASK = {"job": "train-7", "mode": "sum", "slots": 64, "lanes": 64, "workers": ["10.1.0.1:40000", "10.1.0.2:40001"],
       "checked": False, "owner": "a" * 32}


class ServerTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.switch, self.dead = switch.Switch(harness.PROGRAM), False
        control = weir_p4_control.Control(self.run_lines, self.directory / "state.json")
        self.leases = weir_p4_server.Leases(control, HOSTS, "10.1.1.1:48864", slots_per_job=32, goodput=1e9, idle_s=3600)
        self.server = weir_p4_server.Server(("127.0.0.1", 0), self.leases, b"secret", None)
        self.addCleanup(self.server.server_close)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.shutdown)

    def run_lines(self, lines):
        if self.dead:
            raise weir_p4_control.SwitchError("simple_switch_CLI: status 1: Could not connect to thrift client")
        return self.switch.cli(lines)

    def ask(self, method, path, body=None, owner=None, token="secret"):
        """(HTTP status, answer)."""
        connection = http.client.HTTPConnection(*self.server.server_address, timeout=30)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if owner:
            headers["Weir-Lease-Owner"] = owner
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if text.startswith("{") else text

    def test_a_lease_is_granted_renewed_listed_and_ended(self):
        status, grant = self.ask("POST", "/v1/leases", ASK)
        self.assertEqual(status, 200, grant)
        self.assertEqual({key: grant[key] for key in ("job", "lease", "slots", "lanes", "checked", "address", "plane")},
                         {"job": "train-7", "lease": 1, "slots": 32, "lanes": 64, "checked": False,
                          "address": "10.1.1.1:48864", "plane": "p4"})
        self.assertEqual({key[:3] for key in self.switch.entries["WeirIngress.terms"]},
                         {(1, grant["epoch"], int(grant["cookie"], 16))})
        status, again = self.ask("POST", "/v1/leases", ASK)
        self.assertEqual((status, again["lease"]), (200, 1))
        self.assertGreater(again["epoch"], grant["epoch"])
        status, other = self.ask("POST", "/v1/leases", {**ASK, "job": "other", "owner": None})
        self.assertEqual((status, other["lease"], other["first_slot"]), (200, 2, 32))
        status, listed = self.ask("GET", "/v1/leases")
        self.assertEqual([lease["job"] for lease in listed["leases"]], ["other", "train-7"])
        for lease in listed["leases"]:
            self.assertFalse({"cookie", "owner"} & lease.keys())
        self.assertEqual(self.ask("GET", "/v1/capacity")[1],
                         {"shards": 1, "slots": 1024, "slots_free": 960, "slots_free_of_shard": 960, "slots_per_job": 32,
                          "leases_free": 62, "lanes_max": 64, "workers_max": 64, "goodput_bits_per_s": 1e9})
        self.assertEqual(self.ask("DELETE", "/v1/leases/train-7", owner="b" * 32)[0], 403)
        self.assertEqual(self.ask("DELETE", f"/v1/leases/train-7?epoch={grant['epoch']}", owner="a" * 32)[0], 404)
        self.assertEqual(self.ask("DELETE", f"/v1/leases/train-7?epoch={again['epoch']}", owner="a" * 32), (200, {}))
        self.assertEqual(self.ask("DELETE", "/v1/leases/train-7", owner="a" * 32)[0], 404)
        self.assertEqual(len(self.switch.entries["WeirIngress.terms"]), 1)

    def test_what_cannot_be_granted_is_refused_with_the_cause(self):
        self.assertEqual(self.ask("POST", "/v1/leases", ASK)[0], 200)
        for changes, expected, words in (
                ({"owner": "c" * 32}, 403, "another owner's"), ({"checked": True}, 400, "a switch computes no checksum"),
                ({"lanes": 256}, 400, "lanes: expected one of [16, 32, 48, 64], found 256"),
                ({"quorum": 1}, 400, "quorum"), ({"job": "a b"}, 400, "job: expected"),
                ({"slots": "many"}, 400, "slots: expected"), ({"slots": 0}, 400, "slots: expected"),
                ({"workers": ["10.9.9.9:1"]}, 400, "host of worker 10.9.9.9"), ({"workers": "x"}, 400, "address"),
                ({"mode": "float"}, 400, "mode: expected sum"), ({"owner": "short"}, 400, "owner: expected")):
            with self.subTest(changes=changes):
                status, answer = self.ask("POST", "/v1/leases", {**ASK, **changes})
                self.assertEqual((status, words in answer["message"]), (expected, True), answer)
        self.assertEqual(self.ask("POST", "/v1/leases", token="wrong")[0], 401)
        self.assertEqual(self.ask("GET", "/v1/capacity", token=None)[0], 401)
        self.assertEqual(self.ask("GET", "/healthz", token=None), (200, "ok\n"))
        self.assertEqual(self.ask("GET", "/v2")[0], 404)
        self.assertEqual(self.ask("POST", "/v1/leases", [])[0], 400)
        for number in range(31):
            self.assertEqual(self.ask("POST", "/v1/leases", {**ASK, "job": f"job-{number}"})[0], 200)
        status, answer = self.ask("POST", "/v1/leases", {**ASK, "job": "one-more"})
        self.assertEqual((status, "no 32 of 1024" in answer["message"]), (429, True), answer)

    def test_a_switch_that_is_gone_or_restarted(self):
        grant = self.ask("POST", "/v1/leases", ASK)[1]
        before = self.switch.entries
        self.dead, self.leases.counted_at = True, 0.0
        for method, path in (("GET", "/v1/capacity"), ("GET", "/v1/leases"), ("GET", "/metrics")):
            status, answer = self.ask(method, path)
            self.assertEqual((status, "Could not connect" in answer["message"]), (503, True))
        self.dead, self.switch = False, switch.Switch(harness.PROGRAM)
        self.assertEqual(self.ask("GET", "/v1/leases")[1]["leases"][0]["epoch"], grant["epoch"])
        self.assertEqual(self.switch.entries, before)

    def test_idle_leases_end_and_counters_are_shown(self):
        self.ask("POST", "/v1/leases", ASK)
        text = self.ask("GET", "/metrics")[1]
        self.assertIn('weir_p4_packets_total{job="train-7",verdict="added"} 0', text)
        self.assertIn('weir_p4_refused_packets_total{reason="malformed"} 0', text)
        self.leases.end_idle()
        self.assertEqual(len(self.switch.entries["WeirIngress.terms"]), 1)
        self.leases.idle_s = 0.01
        time.sleep(0.05)
        self.leases.end_idle()
        self.assertEqual(len(self.switch.entries["WeirIngress.terms"]), 0)

    def test_slow_clients_keep_nobody_out_for_long(self):
        weir_p4_server.CONNECTION_S, before = 1, weir_p4_server.CONNECTION_S
        try:
            silent = [socket.create_connection(self.server.server_address) for _ in range(40)]
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                try:
                    status = self.ask("GET", "/healthz")[0]
                    break
                except (OSError, http.client.HTTPException):
                    time.sleep(0.1)
            self.assertEqual(status, 200)
            for one in silent:
                one.close()
        finally:
            weir_p4_server.CONNECTION_S = before

    def test_the_program(self):
        cli = self.directory / "cli.py"
        cli.write_text("import sys\nfor line in sys.stdin:\n    if line.startswith('counter_read'):\n"
                       "        print('x= (0 bytes, 0 packets)')\n")
        (self.directory / "hosts.json").write_text("{}")
        command = [sys.executable, harness.ROOT / "p4/control/weir_p4.py", "serve", "--hosts", self.directory / "hosts.json",
                   "--state", self.directory / "other.json", "--cli", f"{sys.executable} {cli}", "--address",
                   "10.1.1.1:48864", "--http"]
        done = subprocess.run([*command, "0.0.0.0:0"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("off loopback: expected --token-file", done.stderr)
        with subprocess.Popen([*command, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
            words = process.stdout.readline().split()
            self.assertEqual((words[0], words[2:]), ("http", ["udp", "10.1.1.1:48864"]))
            connection = http.client.HTTPConnection(words[1], timeout=30)
            connection.request("GET", "/v1/capacity")
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=30), 0)


if __name__ == "__main__":
    unittest.main()
