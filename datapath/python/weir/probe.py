# SPDX-License-Identifier: Apache-2.0
"""Finds out by short connections which addresses of a peer answer, and how fast.

A probe connects, sends BURST_BYTES and awaits an answer: one byte as soon as data arrives, then a
line of JSON with the peer's token and the address that the peer sees. So it tells apart a port that is
closed, a route that loses full-size packets (MTU), another host with the same address (the token) and
a NAT (the address seen). Every probe ends at its deadline. Knows nothing of torch.
"""
import errno
import json
import socket
import threading
import time

BURST_BYTES = 1 << 16
PROBE_S = 1.5
TRIES = 3
LINE_BYTES_MAX = 512
CLIENTS_MAX = 64
_ARRIVING = b"+"


class Unreachable(Exception):
    """Why an address cannot be used, in words."""


class Responder:
    """Answers probes at a port of all of this host's addresses, or of `host`, until closed.

    port: 0 for any. OSError: the port is in use, or the address is not this host's."""

    def __init__(self, token, port=0, host=None):
        self._token = token
        self.answered = set()  # the addresses of those that got an answer
        self._socket = _listen(host, port)
        self.port = self._socket.getsockname()[1]
        self._slots = threading.BoundedSemaphore(CLIENTS_MAX)
        self._thread = threading.Thread(target=self._run, name="weir-probe", daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            try:
                client, address = self._socket.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._answer, args=(client, address), name="weir-probe",
                             daemon=True).start()

    def _answer(self, client, address):
        seen = address[0][7:] if address[0].startswith("::ffff:") else address[0]
        end = time.monotonic() + 2 * PROBE_S
        try:
            with client:
                left = BURST_BYTES
                while left:
                    client.settimeout(max(end - time.monotonic(), 1e-3))
                    arrived = len(client.recv(left))
                    if not arrived:
                        return
                    if left == BURST_BYTES:
                        client.sendall(_ARRIVING)
                    left -= arrived
                client.sendall(json.dumps({"token": self._token, "seen": seen}).encode() + b"\n")
                self.answered.add(seen)
        except OSError:
            pass  # the prober reports it
        finally:
            self._slots.release()

    def close(self):
        """Stops accepting. Probes that have begun end within seconds."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # ends accept() in the other thread
        except OSError:
            pass
        self._socket.close()
        self._thread.join()


def _listen(host, port):
    if host is None and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True,
                                        backlog=CLIENTS_MAX)
        except OSError:
            pass  # IPv6 may be switched off; a port in use fails again
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    return socket.create_server((host or "", port), family=family, backlog=CLIENTS_MAX)


def once(host, port, deadline):
    """Probes once, until `deadline` (time.monotonic). Returns (seconds, answer, local address, MTU);
    the answer is empty where the deadline came while data was arriving. Unreachable: why not."""
    began = time.monotonic()
    budget_s = max(deadline - began, 1e-3)
    try:
        connection = socket.create_connection((host, port), timeout=budget_s)
    except socket.timeout:
        raise Unreachable(f"no answer within {budget_s:.1f} s; a firewall drops what is sent to it, or "
                          "no route leads there") from None
    except OSError as error:
        raise Unreachable(_words(error)) from None
    with connection:
        local, mtu = connection.getsockname()[0], _mtu(connection)
        received = b""
        try:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            connection.sendall(bytes(BURST_BYTES))
            while not received.endswith(b"\n") and len(received) < LINE_BYTES_MAX:
                connection.settimeout(max(deadline - time.monotonic(), 1e-3))
                more = connection.recv(LINE_BYTES_MAX)
                if not more:
                    raise Unreachable("something other than a rank of this job is listening there")
                received += more
        except socket.timeout:
            if received:
                return time.monotonic() - began, {}, local, mtu
            raise Unreachable(f"it accepts connections, but full-size packets (MTU {mtu}) do not "
                              "arrive: a link on the way has a smaller MTU; set that of this interface "
                              "to it") from None
        except OSError as error:
            raise Unreachable(_words(error)) from None
        mtu = _mtu(connection)  # packets that did not fit may have told the kernel of a smaller one
    try:
        answer = json.loads(received[len(_ARRIVING):])
        return time.monotonic() - began, {k: str(answer[k]) for k in ("token", "seen")}, local, mtu
    except (ValueError, KeyError, TypeError):
        raise Unreachable("something other than a rank of this job is listening there") from None


def _words(error):
    if error.errno == errno.ECONNREFUSED:
        return "connection refused; the port is closed there"
    return (error.strerror or str(error)).lower()


def _mtu(connection):
    option = (socket.IPPROTO_IPV6, 24) if connection.family == socket.AF_INET6 else (
        socket.IPPROTO_IP, 14)  # IPV6_MTU, IP_MTU of linux/in.h
    try:
        return connection.getsockopt(*option)
    except OSError:
        return 0


def fastest(host, port, token):
    """Probes an address up to TRIES times within PROBE_S. Returns (seconds of the fastest, address that
    the peer saw, own address). Unreachable: why it cannot be used."""
    deadline, best = time.monotonic() + PROBE_S, None
    for _ in range(TRIES):
        try:
            seconds, answer, local, _ = once(host, port, deadline)
        except Unreachable:
            if best is None:
                raise
            break
        if answer and answer["token"] != token:
            raise Unreachable("another host has this address, too")
        best = min(best or (seconds, answer.get("seen", local), local),
                   (seconds, answer.get("seen", local), local))
        if deadline - time.monotonic() < 2 * seconds:
            break
    return best


def all_at_once(targets):
    """Calls fastest() for every (key, host, port, token) at the same time. Returns {key: its result,
    or the Unreachable}, after at most PROBE_S and a little."""
    results = {}

    def run(key, *target):
        try:
            results[key] = fastest(*target)
        except Unreachable as error:
            results[key] = error

    threads = [threading.Thread(target=run, args=target, name="weir-probe", daemon=True)
               for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
