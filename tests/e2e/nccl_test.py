# SPDX-License-Identifier: Apache-2.0
"""A policy's rules for NCCL reach a communicator through the real controller, agent and library. The test plays NCCL: it
makes the calls of a tuner plug-in for both ranks of a communicator."""
import ctypes
import os
import pathlib
import subprocess
import time
import unittest

from controller_program import BUILD, PROGRAMS, ControllerCase

LIBRARY = BUILD / "datapath/nccl/plugin/libnccl-weir.so"
PATIENCE_S = 30.0
ALL_REDUCE = 4
ALGORITHMS, PROTOCOLS = 7, 3
TREE, RING = 0, 1
LL, LL128 = 0, 1
NCCL_PRICE = 9.0  # of every cell
POINTER = ctypes.c_void_p
INIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(POINTER), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t,
                        POINTER, POINTER, POINTER)
ASK = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, POINTER, ctypes.c_int,
                       ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int))
FINALIZE = ctypes.CFUNCTYPE(ctypes.c_int, POINTER)


class Tuner(ctypes.Structure):
    """ncclTunerPlugin_v5, as in datapath/nccl/plugin/interface.h."""
    _fields_ = [("name", ctypes.c_char_p), ("init", INIT), ("get_coll_info", ASK), ("finalize", FINALIZE)]


class Communicator:
    """Two ranks of one communicator, both in this process."""

    def __init__(self, library):
        self.tuner = Tuner.in_dll(library, "ncclTunerPlugin_v5")
        self.ranks = [POINTER() for _ in range(2)]
        for rank in self.ranks:
            assert self.tuner.init(ctypes.byref(rank), 0x5ee1 + os.getpid(), len(self.ranks), 1, None, None, None) == 0

    def call(self, size):
        """Both ranks begin an all-reduce. The cell that the library prefers and the channels; None: NCCL's own. Ranks
        that choose differently would hang."""
        choices = [self.choice_of(rank, size) for rank in self.ranks]
        assert choices[0] == choices[1], choices
        return choices[0]

    def choice_of(self, rank, size):
        table = (ctypes.c_float * (ALGORITHMS * PROTOCOLS))(*[NCCL_PRICE] * (ALGORITHMS * PROTOCOLS))
        channels = ctypes.c_int(0)
        assert self.tuner.get_coll_info(rank, ALL_REDUCE, size, 1, table, ALGORITHMS, PROTOCOLS, 0,
                                        ctypes.byref(channels)) == 0
        best = min(range(len(table)), key=lambda i: table[i])
        return None if table[best] == NCCL_PRICE else (best // PROTOCOLS, best % PROTOCOLS, channels.value)

    def close(self):
        for rank in self.ranks:
            self.tuner.finalize(rank)


class NcclTest(ControllerCase):
    def start_agent(self):
        socket = f"unix:{self.directory}/agent.sock"
        with open(pathlib.Path(self.directory) / "agent.log", "wb") as log:
            child = subprocess.Popen(
                [PROGRAMS["weir-agent"], "--node", "gpu-1", "--controller", self.grpc, "--socket",
                 socket.removeprefix("unix:"), "--metrics", "", "--probe-port", "0", "--iperf-port", "0", "--nvml", ""], stderr=log)
        self.addCleanup(child.wait, 20)
        self.addCleanup(child.kill)
        return socket

    def until(self, wanted, what):
        end = time.monotonic() + PATIENCE_S
        while not wanted():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.002)

    def apply(self, rules):
        text = f"name: nccl\npriority: -1000\nnccl: {{nodes: ['gpu-*'], rules: {rules}}}\n"
        path = pathlib.Path(self.directory) / "nccl.yaml"
        path.write_text(text, encoding="utf-8")
        return self.weirctl("apply", "-f", str(path))

    def test_rules_come_change_and_go_while_calls_go_on(self):
        self.start()
        os.environ["WEIR_AGENT"] = self.start_agent()
        self.addCleanup(os.environ.pop, "WEIR_AGENT")
        communicator = Communicator(ctypes.CDLL(str(LIBRARY)))
        self.addCleanup(communicator.close)
        self.assertIsNone(communicator.call(1 << 20))
        self.until(lambda: "1 comms" in self.weirctl("get", "nodes") or "2 comms" in self.weirctl("get", "nodes"),
                   "the node to report its communicators")

        self.apply("[{algorithm: tree, protocol: ll128, bytes_end: 4096}, "
                   "{algorithm: ring, protocol: ll, bytes_min: 4096, channels: 3}]")
        self.until(lambda: communicator.call(1 << 20) is not None, "the rules to come into use")
        self.assertEqual(communicator.call(1 << 20), (RING, LL, 3))
        self.assertEqual(communicator.call(4095), (TREE, LL128, 0))
        self.until(lambda: "table of the controller" in self.weirctl("get", "nodes"), "the node to say so")

        self.apply("[{algorithm: tree, protocol: ll}]")
        self.until(lambda: communicator.call(1 << 20) != (RING, LL, 3), "the change to come into use")
        self.assertEqual(communicator.call(1 << 20), (TREE, LL, 0))

        self.weirctl("delete", "policy", "nccl")
        self.until(lambda: communicator.call(1 << 20) is None, "NCCL to choose again")


if __name__ == "__main__":
    unittest.main()
