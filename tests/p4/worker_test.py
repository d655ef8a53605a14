#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The worker of the switch's test, against the aggregator in software: all modes, to the last element."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import urllib.request

WORKER = pathlib.Path(os.environ["WEIR_BUILD"], "tests/p4/switch_worker")
MODES = {"sum": {"lanes": 64}, "max": {"lanes": 64}, "sparse": {"lanes": 16, "columns": 4},
         "table": {"lanes": 256, "sum_bits": 8, "levels": list(range(0, 32, 2))}}


class WorkerTest(unittest.TestCase):
    def test_all_modes(self):
        process = subprocess.Popen([os.environ["WEIR_AGGREGATOR"], "--port", "0", "--http", "127.0.0.1:0"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, 10)
        self.addCleanup(process.terminate)
        place = process.stdout.readline().split()[1]
        for at, (mode, terms) in enumerate(MODES.items()):
            ask = {"job": mode, "mode": mode, "slots": 16, "checked": False, **terms,
                   "workers": [f"127.0.0.1:{41000 + 2 * at + rank}" for rank in range(2)]}
            with urllib.request.urlopen(f"http://{place}/v1/leases", json.dumps(ask).encode(), timeout=10) as answer, \
                    tempfile.NamedTemporaryFile("wb", suffix=".json") as grant:
                grant.write(answer.read())
                grant.flush()
                workers = [subprocess.Popen([WORKER, grant.name, str(rank), "20000", "3"], stdout=subprocess.PIPE,
                                            text=True) for rank in range(2)]
                for worker in workers:
                    found = json.loads(worker.communicate(timeout=60)[0])
                    self.assertTrue(found["ok"], (mode, found))


if __name__ == "__main__":
    unittest.main()
