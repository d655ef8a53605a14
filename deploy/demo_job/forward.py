# SPDX-License-Identifier: Apache-2.0
"""Makes a port inside a network namespace reachable on this machine's loopback.

The controller listens on the control host, outside whose namespace an operator's shell and browser
are.
"""
import ctypes
import os
import queue
import socket
import threading

CLONE_NEWNET = 0x40000000
CONNECT_TIMEOUT_S = 5.0
_libc = ctypes.CDLL(None, use_errno=True)


class Forwarder:
    """Listens on 127.0.0.1 and forwards each connection to `address` inside `namespace`."""

    def __init__(self, namespace, address, port=0):
        self._namespace = namespace
        self._address = address
        self._requests = queue.Queue()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._threads = [
            threading.Thread(target=self._connect_inside, name="forward-connect", daemon=True),
            threading.Thread(target=self._accept, name="forward-accept", daemon=True)]
        for thread in self._threads:
            thread.start()

    def _connect_inside(self):
        """Only this thread is in the namespace; sockets it makes stay there."""
        with open(f"/var/run/netns/{self._namespace}", "rb") as handle:
            refused = _libc.setns(handle.fileno(), CLONE_NEWNET) != 0
            problem = os.strerror(ctypes.get_errno()) if refused else ""
        while True:
            client = self._requests.get()
            if client is None:
                return
            try:
                if refused:
                    raise OSError(f"cannot enter {self._namespace}: {problem}")
                server = socket.create_connection(self._address, CONNECT_TIMEOUT_S)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            threading.Thread(target=_join, args=(client, server), name="forward-join",
                             daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._requests.put(client)

    def close(self):
        """Stops accepting; established connections end with their peers."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._requests.put(None)
        for thread in self._threads:
            thread.join(timeout=CONNECT_TIMEOUT_S + 1)


def _join(client, server):
    """Passes bytes both ways until both have ended."""
    with client, server:
        back = threading.Thread(target=_pump, args=(server, client), name="forward-pump",
                                daemon=True)
        back.start()
        _pump(client, server)
        back.join()


def _pump(source, sink):
    try:
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk)
    except OSError:
        pass
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            end.shutdown(how)
        except OSError:
            pass
