# SPDX-License-Identifier: Apache-2.0
"""libweir-pace.so: the kernel paces what a preloaded process sends, and follows the file."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LIBRARY = os.environ["WEIR_PACE_LIBRARY"]

SCRIPT = """
import os, socket, sys, threading, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
def drain():
    while peer.recv(1 << 18): pass
threading.Thread(target=drain, daemon=True).start()
def send_for(seconds):
    sent, begin = 0, time.monotonic()
    while time.monotonic() - begin < seconds:
        sent += client.send(bytes(1 << 14))
    return sent / (time.monotonic() - begin)
print(send_for(1.0))
with open(os.environ["WEIR_PACE_FILE"] + ".next", "w") as out: out.write(sys.argv[1])
os.rename(os.environ["WEIR_PACE_FILE"] + ".next", os.environ["WEIR_PACE_FILE"])
time.sleep(0.5)
print(send_for(1.0))
"""


def rates(first, second):
    """Bytes per second of a paced sender at two rates."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "pace"
        file.write_text(str(first))
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(second)], capture_output=True,
                              text=True, timeout=60, check=True,
                              env={**os.environ, "LD_PRELOAD": LIBRARY,
                                   "WEIR_PACE_FILE": str(file)})
    return [float(line) for line in done.stdout.split()]


class PaceTest(unittest.TestCase):

    def test_rate_follows_the_file(self):
        slow, fast = rates(5_000_000, 40_000_000)
        # Socket buffers take a few megabytes at once, whatever the pace.
        self.assertLess(slow, 11_000_000)
        self.assertGreater(slow, 3_500_000)
        self.assertGreater(fast, 25_000_000)
        self.assertLess(fast, 50_000_000)

    def test_zero_is_unlimited(self):
        self.assertGreater(min(rates(0, 0)), 100_000_000)


if __name__ == "__main__":
    unittest.main()
