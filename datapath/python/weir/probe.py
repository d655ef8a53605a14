# SPDX-License-Identifier: Apache-2.0
"""Finds out by short connections which addresses of a peer answer, and how fast.

A probe connects, sends one byte and awaits one; sends BURST_BYTES and awaits one byte as soon as some of
them arrive, and then a line of JSON with the peer's token and the address that the peer sees. So it tells
apart a port that is closed, a host that is late, a route that loses full-size packets (MTU), another host with
the same address (the token) and a NAT (the address seen). Every probe ends at its deadline. Knows nothing
of torch.
"""
import errno
import json
import socket
import threading
import time

BURST_BYTES = 1 << 16
PROBE_S = 1.5
PATIENT_S = 3.0  # where nothing has answered within PROBE_S
TRIES = 3
LINE_BYTES_MAX = 512
CLIENTS_MAX = 64
_ARRIVING = b"+"
_STRANGER = "something other than a rank of this job is listening there"


class Unreachable(Exception):
    """Why an address cannot be used, in words. late: whether a longer probe may find that it can be."""

    def __init__(self, why, late=False):
        super().__init__(why)
        self.late = late


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
        end = time.monotonic() + 2 * PATIENT_S
        try:
            with client:
                arrived = 0
                while arrived < 1 + BURST_BYTES:
                    client.settimeout(max(end - time.monotonic(), 1e-3))
                    more = len(client.recv(1 + BURST_BYTES - arrived))
                    if not more:
                        return
                    if arrived < 2:  # the small packet, and the first of the burst
                        client.sendall(_ARRIVING)
                    arrived += more
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
                          "no route leads there", late=True) from None
    except OSError as error:
        raise Unreachable(_words(error)) from None
    with connection:
        local, mtu = connection.getsockname()[0], _mtu(connection)
        received = b""
        try:
            connection.sendall(_ARRIVING)
            while not received.endswith(b"\n") and len(received) < LINE_BYTES_MAX:
                connection.settimeout(max(deadline - time.monotonic(), 1e-3))
                more = connection.recv(LINE_BYTES_MAX)
                if not more:
                    raise Unreachable(_STRANGER)
                received += more
                if received == more:  # the small packet was answered
                    connection.sendall(bytes(BURST_BYTES))
        except socket.timeout:
            if len(received) > len(_ARRIVING):
                return time.monotonic() - began, {}, local, mtu
            if received:
                raise Unreachable(f"small packets arrive, but full-size packets (MTU {mtu}) do not: a link "
                                  "on the way has a smaller MTU; set that of this interface to it",
                                  late=True) from None
            raise Unreachable(f"it accepts connections, but did not answer within {budget_s:.1f} s; its host "
                              "is overloaded, or something else is listening there", late=True) from None
        except OSError as error:
            raise Unreachable(_words(error)) from None
        mtu = _mtu(connection)  # packets that did not fit may have told the kernel of a smaller one
    try:
        answer = json.loads(received[2 * len(_ARRIVING):])
        return time.monotonic() - began, {k: str(answer[k]) for k in ("token", "seen")}, local, mtu
    except (ValueError, KeyError, TypeError):
        raise Unreachable(_STRANGER) from None


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


def fastest(host, port, token, limit_s):
    """Probes an address up to TRIES times within limit_s. Returns the seconds of the fastest probe.
    Unreachable: why the address cannot be used."""
    deadline, best = time.monotonic() + limit_s, None
    for _ in range(TRIES):
        try:
            seconds, answer, _, _ = once(host, port, deadline)
        except Unreachable:
            if best is None:
                raise
            break
        if answer and answer["token"] != token:
            raise Unreachable("another host has this address, too")
        best = min(best or seconds, seconds)
        if deadline - time.monotonic() < 2 * seconds:
            break
    return best


def all_at_once(targets, limit_s=PROBE_S):
    """Calls fastest() for every (key, host, port, token) at the same time. Returns {key: its result,
    or the Unreachable}, after at most limit_s and a little."""
    results = {}

    def run(key, host, port, token):
        try:
            results[key] = fastest(host, port, token, limit_s)
        except Unreachable as error:
            results[key] = error

    threads = [threading.Thread(target=run, args=target, name="weir-probe", daemon=True)
               for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
