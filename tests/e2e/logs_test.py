# SPDX-License-Identifier: Apache-2.0
"""The logs of programs: JSON, the access log, the id of a request everywhere, and the level while they run."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from controller_program import BUILD, JSON, PROGRAMS, ControllerCase, bearer, token_file

PATIENCE_S = 10
AGGREGATOR = PROGRAMS.get("weir-aggregator") or BUILD / "deploy/aggregator/weir-aggregator"


def lines_of(path):
    """The objects of a log of which every line must be one."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class ControllerLogTest(ControllerCase):
    def until(self, wanted):
        """The first line that `wanted` accepts; a line of an answer may come after it."""
        end = time.monotonic() + PATIENCE_S
        while not (found := [line for line in lines_of(self.log) if wanted(line)]):
            self.assertLess(time.monotonic(), end, self.said())
            time.sleep(0.02)
        return found[0]

    def test_a_request_is_found_by_its_id_in_answer_access_log_audit_trail_and_log(self):
        self.start("--log-format", "json", "--access-log", *token_file(self.directory, ann="admin"))
        status, headers, _ = self.ask("PUT", "/v1/policies/p", {"source": "name: p\n"},
                                      {**JSON, **bearer("ann"), "X-Request-ID": "change-17"})
        self.assertEqual((status, headers["X-Request-ID"]), (200, "change-17"))
        access = self.until(lambda line: line["part"] == "access")
        self.assertEqual(access["message"], "http PUT /v1/policies/p: 200")
        self.assertEqual([access[key] for key in ("peer", "principal", "request_id", "level")],
                         ["127.0.0.1", "ann", "change-17", "info"])
        self.assertGreater(int(access["bytes"]), 0)
        self.assertGreater(float(access["seconds"]), 0)
        self.assertEqual(self.until(lambda line: line["part"] == "audit")["request_id"], "change-17")
        record, = json.loads(self.ask("GET", "/v1/audit", None, bearer("ann"))[2])["records"]
        self.assertEqual(record["request_id"], "change-17")
        _, headers, _ = self.ask("GET", "/v1/jobs", None, {"X-Request-ID": "a\"b"})
        self.assertRegex(headers["X-Request-ID"], r"^[0-9a-f]{32}$")

    def test_calls_over_grpc_are_in_the_access_log_too(self):
        self.start("--log-format", "json", "--access-log")
        self.weirctl("log-level", "info")
        access = self.until(lambda line: line["part"] == "access")
        self.assertEqual(access["message"], "grpc SetLogLevel: OK")
        self.assertEqual((access["peer"], access["principal"]), ("127.0.0.1", "local"))
        audit = self.until(lambda line: line["part"] == "audit")
        self.assertEqual(audit["request_id"], access["request_id"])

    def test_a_state_file_that_a_store_replaces_is_named(self):
        state = pathlib.Path(self.directory) / "state.db"
        state.touch()
        self.start("--store", "etcd://127.0.0.1:1", state=str(state))
        self.assertIn(f"'{state}' (--state) is not read: the state is in --store etcd://127.0.0.1:1", self.said())


class LevelTest(unittest.TestCase):
    def test_two_signals_change_the_level_of_every_program(self):
        with tempfile.TemporaryDirectory(prefix="weir-logs-") as directory:
            place = pathlib.Path(directory)
            programs = {
                PROGRAMS["weir-controller"]: ["--listen-grpc", "127.0.0.1:0", "--listen-http", "127.0.0.1:0", "--state",
                                              ":memory:"],
                PROGRAMS["weir-agent"]: ["--node", "n", "--probe-port", "0", "--socket", place / "agent.sock",
                                         "--nvml", ""],
                AGGREGATOR: ["--http", "127.0.0.1:0", "--port", "0"]}
            for program, flags in programs.items():
                with self.subTest(program=program):
                    self.change(program, flags, place / f"{pathlib.Path(program).name}.log")

    def change(self, program, flags, path):
        with open(path, "wb") as log:
            child = subprocess.Popen([program, *flags, "--log-format", "json", "--log-level", "warning"], stderr=log,
                                     stdout=subprocess.DEVNULL)
        self.addCleanup(child.wait, 20)
        self.addCleanup(child.kill)
        # Until the program holds its signals, they would end it.
        end = time.monotonic() + PATIENCE_S
        while not self.handles(child.pid):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        for number, level in ((signal.SIGUSR1, "debug"), (signal.SIGUSR2, "warning")):
            os.kill(child.pid, number)
            while not any(line["message"].endswith(f"by a signal: {level}") for line in lines_of(path)):
                self.assertIsNone(child.poll(), path.read_text())
                self.assertLess(time.monotonic(), end, path.read_text())
                time.sleep(0.02)
        child.terminate()
        self.assertIn(child.wait(10), (0, -signal.SIGTERM))

    @staticmethod
    def handles(pid):
        """Whether the process has a handler for SIGUSR1. It holds the signal back before, but while it waits for one
        that does not show."""
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        mask = int(re.search(r"SigCgt:\s+([0-9a-f]+)", status)[1], 16)
        return bool(mask >> (signal.SIGUSR1 - 1) & 1)


if __name__ == "__main__":
    unittest.main()
