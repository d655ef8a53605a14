# SPDX-License-Identifier: Apache-2.0
"""An agent for tests: ranks of this machine report to it, and it may offer them a plan."""
import collections
import contextlib
import json
import os
import socket
import struct
import tempfile
import threading


class StubAgent:
    """Listens while it is entered. A plan, once offered, is armed when all ranks have acked it.

    events, nacks: the RankEvents and PlanNacks that ranks have sent. hellos: their RankHellos by rank,
    and tables: their buckets.
    samples: (step, rank, BucketSample) of their reports. offer_when_active: {version: the plan to offer when
    that one is active}.
    """

    def __init__(self, world=0):
        self.events, self.nacks, self.samples = [], [], []
        self.hellos, self.tables = {}, {}
        self.offer_when_active = {}
        self._world, self._acks = world, collections.defaultdict(set)
        self._ranks = {}  # rank -> its connection
        self._plan = None
        self._lock = threading.Lock()
        self._active = {}  # rank -> the version that it said is active
        self._activated = threading.Condition()

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        path = os.path.join(directory, "agent.sock")
        server = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen()
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        self.address = f"unix:{path}"
        return self

    def __exit__(self, *unused):
        self._stack.close()

    def offer(self, plan):
        """Offers the plan to all ranks, also to those that come later."""
        with self._lock:
            self._plan = {"offer": {"nonce": "n", "plan": plan}}
            for connection in self._ranks.values():
                self._send(connection, self._plan)

    def wait_until_active(self, version, deadline_s):
        """Returns whether all ranks said in time that this version, or a later one, is active."""
        with self._activated:
            return self._activated.wait_for(
                lambda: sum(found >= version for found in self._active.values()) == self._world, deadline_s)

    def _accept(self, server):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        rank = None
        with connection, contextlib.suppress(EOFError, OSError):
            self._send(connection, {"challenge": {"node": "n", "challenge": 32 * "0"}})
            while True:
                size, = struct.unpack("<I", self._take(connection, 4))
                message = json.loads(self._take(connection, size))
                with self._lock:
                    if "hello" in message:
                        rank = message["hello"].get("rank", 0)
                        self.hellos[rank] = message["hello"]
                        self._ranks[rank] = connection
                        if self._plan is not None:
                            self._send(connection, self._plan)
                    if "event" in message:
                        self.events.append(message["event"])
                    if "nack" in message:
                        self.nacks.append(message["nack"])
                    if "buckets" in message:
                        self.tables[rank] = message["buckets"]["buckets"]
                    step = message.get("step", {})
                    self.samples += [(int(step["step"]), rank, b) for b in step.get("buckets", [])]
                    if "ack" in message:
                        version = message["ack"]["version"]
                        self._acks[version].add(rank)
                        if len(self._acks[version]) == self._world:
                            self._send(self._ranks[0], {"arm": {"version": version}})
                active = int(message.get("active", {}).get("version", 0))
                with self._activated:
                    self._active[rank] = max(active, self._active.get(rank, 0))
                    self._activated.notify_all()
                if rank == 0 and active in self.offer_when_active:
                    self.offer(self.offer_when_active.pop(active))

    @staticmethod
    def _send(connection, message):
        text = json.dumps(message).encode()
        connection.sendall(struct.pack("<I", len(text)) + text)

    @staticmethod
    def _take(connection, size):
        data = b""
        while len(data) < size:
            part = connection.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data
