# SPDX-License-Identifier: Apache-2.0
"""NCCL and its device as tests/device/nccl_plugin needs them, on a machine without a GPU.

FakeWorld loads the real libnccl-weir.so as NCCL 2.28 does (tuner and profiler of version 5, from the variables
NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN), asks it at every call, reports the events of a transfer, and writes the
choices of rank 0 to NCCL_DEBUG_FILE in the form of NCCL's own log. Sums go through rank 0 over a Unix socket. Time is
computed, not measured.

FAKE_NCCL_FAULT makes it misbehave, so that tests see who notices: "slow" (a tenth, where a profiler is loaded), "deaf"
(it does not ask the tuner), "wrong" (rank 1 gets another sum, once).
"""
import ctypes
import os
import pathlib
import socket
import struct
import time

ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
ALL_REDUCE = 4
OWN_CHOICE, OWN_CHANNELS = (1, 1), 2  # without a plug-in: ring, LL128
COLLECTIVE, PROXY_OPERATION, PROXY_STEP = 1 << 1, 1 << 3, 1 << 4
SENT_STATES, RECEIVED_STATES = (8, 20, 9), (10, 11, 12)  # of a proxy step, in the order in which they come
CONNECT_S = 30.0
CALL_S, BYTE_S = 2e-3, 1e-9
SLOWER = 1.1
WRONG_CALL = 100


class Tuner(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.c_size_t,
                                  ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_coll_info", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int,
                                           ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                                           ctypes.POINTER(ctypes.c_int))),
        ("finalize", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p))]


class CollectiveDescriptor(ctypes.Structure):
    _fields_ = [("sequence", ctypes.c_uint64), ("function", ctypes.c_char_p), ("send_buffer", ctypes.c_void_p),
                ("receive_buffer", ctypes.c_void_p), ("count", ctypes.c_size_t), ("root", ctypes.c_int),
                ("type", ctypes.c_char_p), ("channels", ctypes.c_uint8), ("warps", ctypes.c_uint8),
                ("algorithm", ctypes.c_char_p), ("protocol", ctypes.c_char_p), ("more", ctypes.c_void_p)]


class ProxyOperationDescriptor(ctypes.Structure):
    _fields_ = [("process", ctypes.c_int), ("channel", ctypes.c_uint8), ("peer", ctypes.c_int), ("steps", ctypes.c_int),
                ("chunk_bytes", ctypes.c_int), ("is_send", ctypes.c_int)]


class Kinds(ctypes.Union):
    _fields_ = [("collective", CollectiveDescriptor), ("proxy_operation", ProxyOperationDescriptor),
                ("proxy_step", ctypes.c_int)]


class EventDescriptor(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint64), ("parent", ctypes.c_void_p), ("rank", ctypes.c_int), ("kind", Kinds)]


class Profiler(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64,
                                  ctypes.POINTER(ctypes.c_int), ctypes.c_char_p, ctypes.c_int, ctypes.c_int,
                                  ctypes.c_int, ctypes.c_void_p)),
        ("start_event", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
                                         ctypes.POINTER(EventDescriptor))),
        ("stop_event", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
        ("record_event_state", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
                                                ctypes.POINTER(ctypes.c_size_t))),
        ("finalize", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p))]


def succeed(status):
    if status != 0:
        raise RuntimeError(f"the plug-in returned {status}")


class FakeWorld:
    """One rank of a communicator whose ranks are on one machine each. Not thread-safe."""

    def __init__(self, rank, ranks, rendezvous):
        self.rank, self.ranks = rank, ranks
        self.now = 0.0
        self.calls = 0
        self.fault = os.environ.get("FAKE_NCCL_FAULT")
        self.tuner = self.profiler = None
        self._load(os.stat(pathlib.Path(rendezvous).parent).st_ino)  # a number that all ranks know, and no others have
        self._connect(f"{rendezvous}.sock")
        log = os.environ.get("NCCL_DEBUG_FILE") if os.environ.get("NCCL_DEBUG_SUBSYS") == "TUNING" else None
        self.log = open(log, "w", encoding="ascii") if log and rank == 0 else None

    def _load(self, identity):
        path = os.environ.get("NCCL_TUNER_PLUGIN")
        if path:
            self.tuner = Tuner.in_dll(ctypes.CDLL(path), "ncclTunerPlugin_v5")
            self.tuner_context = ctypes.c_void_p()
            succeed(self.tuner.init(ctypes.byref(self.tuner_context), identity, self.ranks, self.ranks, None, None,
                                    None))
        path = os.environ.get("NCCL_PROFILER_PLUGIN")
        if path:
            self.profiler = Profiler.in_dll(ctypes.CDLL(path), "ncclProfiler_v5")
            self.profiler_context, mask = ctypes.c_void_p(), ctypes.c_int(-1)
            succeed(self.profiler.init(ctypes.byref(self.profiler_context), identity, ctypes.byref(mask), b"fake",
                                       self.ranks, self.ranks, self.rank, None))
            self.mask = mask.value

    def _connect(self, path):
        """Connections of rank 0 with all others, in their order."""
        self.peers = []
        if self.rank == 0:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.settimeout(CONNECT_S)
                listener.bind(path)
                listener.listen(self.ranks)
                self.peers = [listener.accept()[0] for _ in range(self.ranks - 1)]
            return
        end = time.monotonic() + CONNECT_S
        while True:
            peer = socket.socket(socket.AF_UNIX)
            try:
                peer.connect(path)
                self.peers = [peer]
                return
            except OSError:
                peer.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def clock(self):
        return self.now

    @staticmethod
    def make(count, value=0.0):
        """A buffer of `count` numbers that are all the same."""
        return [count, value]

    def all_reduce(self, buffer):
        count, value = buffer
        algorithm, protocol, channels = self._choose(4 * count)
        if self.log:
            self.log.write(f"host:1:2 [0] NCCL INFO AllReduce: {4 * count} Bytes -> Algo {ALGORITHMS[algorithm]} proto "
                           f"{PROTOCOLS[protocol]} channel{{Lo..Hi}}={{0..{channels - 1}}}\n")
            self.log.flush()
        if self.profiler and self.mask:
            self._profile(count)
        if self.rank == 0:
            value += sum(struct.unpack("<d", self._receive(peer))[0] for peer in self.peers)
            for peer in self.peers:
                peer.sendall(struct.pack("<d", value))
        else:
            self.peers[0].sendall(struct.pack("<d", value))
            value, = struct.unpack("<d", self._receive(self.peers[0]))
        self.calls += 1
        if self.fault == "wrong" and self.rank == 1 and self.calls == WRONG_CALL:
            value += 1
        buffer[1] = value
        self.now += (CALL_S + BYTE_S * 4 * count) * (SLOWER if self.fault == "slow" and self.profiler else 1)

    @staticmethod
    def _receive(peer):
        data = peer.recv(8, socket.MSG_WAITALL)
        if len(data) != 8:
            raise RuntimeError("a rank has left")
        return data

    def _choose(self, size):
        """Algorithm, protocol and channels of a call, as NCCL finds them: the cheapest cell that the tuner leaves."""
        costs = [[10.0 + 3 * algorithm + protocol for protocol in range(3)] for algorithm in range(7)]
        costs[OWN_CHOICE[0]][OWN_CHOICE[1]] = 5.0
        cells = (ctypes.c_float * 21)(*(cost for row in costs for cost in row))
        channels = ctypes.c_int(0)
        if self.tuner and self.fault != "deaf":
            succeed(self.tuner.get_coll_info(self.tuner_context, ALL_REDUCE, size, 1, cells, 7, 3, 0,
                                             ctypes.byref(channels)))
        best = min((cell for cell in range(21) if cells[cell] >= 0), key=lambda cell: cells[cell])
        return best // 3, best % 3, channels.value or OWN_CHANNELS

    def _start(self, kind, parent=None, **values):
        descriptor = EventDescriptor(type=kind, parent=parent, rank=self.rank)
        for name, value in values.items():
            setattr(descriptor.kind, name, value)
        event = ctypes.c_void_p()
        succeed(self.profiler.start_event(self.profiler_context, ctypes.byref(event), ctypes.byref(descriptor)))
        return event

    def _profile(self, count):
        """A call whose data are sent and received in one step each."""
        collective = self._start(COLLECTIVE, collective=CollectiveDescriptor(
            function=b"AllReduce", count=count, type=b"ncclFloat32"))
        self.profiler.stop_event(collective)
        for states, is_send in ((SENT_STATES, 1), (RECEIVED_STATES, 0)):
            operation = self._start(PROXY_OPERATION, collective, proxy_operation=ProxyOperationDescriptor(
                process=os.getpid(), is_send=is_send, steps=1))
            step = self._start(PROXY_STEP, operation, proxy_step=0)
            if step:  # NCCL leaves the rest out for an event that the plug-in did not take
                for state in states:
                    succeed(self.profiler.record_event_state(step, state, ctypes.byref(ctypes.c_size_t(4 * count))))
                self.profiler.stop_event(step)
            if operation:
                self.profiler.stop_event(operation)

    def wait(self):
        """All calls are done at once."""

    @staticmethod
    def value(buffer):
        return buffer[1]

    @staticmethod
    def is_all(buffer, value):
        return buffer[1] == value

    def close(self):
        if self.profiler:
            succeed(self.profiler.finalize(self.profiler_context))
        if self.tuner:
            succeed(self.tuner.finalize(self.tuner_context))
        for peer in self.peers:
            peer.close()
        if self.log:
            self.log.close()
