# SPDX-License-Identifier: Apache-2.0
"""The control interface of an aggregator for one switch: a controller takes leases on it as on a weir-aggregator.

    weir-controller --aggregator tor-1=http://127.0.0.1:9466

Paths, bodies and errors are those of deploy/aggregator/README.md. Differences: a lease must be asked for with
"checked": false (a policy's `aggregation: {checksums: false}`), and without `quorum` and `parent`. The switch is asked
for its counters at most every few seconds; an answer may be as old as that.
"""
import hmac
import http.server
import ipaddress
import json
import pathlib
import re
import secrets
import signal
import ssl
import sys
import threading
import time
import urllib.parse

import weir_p4_control as switch_control

BODY_MAX = 16384
CONNECTIONS_MAX = 16
CONNECTION_S = 10  # for a whole request
COUNTERS_S = 5
LANES_MAX = switch_control.WORDS_PER_GROUP * switch_control.GROUPS_MAX
LEASE_NUMBERS = range(1, 1 << 16)


class Refused(Exception):
    """An answer other than 200: HTTP status, gRPC code and words."""

    def __init__(self, status, code, words):
        super().__init__(words)
        self.status, self.code = status, code


class Leases:
    """Grants on one switch. Thread-safe."""

    def __init__(self, control, hosts, address, slots_per_job, goodput, idle_s):
        self.control, self.hosts, self.address = control, hosts, address
        self.slots_per_job, self.goodput, self.idle_s = slots_per_job, goodput, idle_s
        self.lock = threading.Lock()
        self.counted_at, self.counters = 0.0, {"leases": {}, "switch": {}}
        self.changed_at = {}  # by job: when a packet was last seen

    def switch(self, call, *arguments):
        """Calls something that talks to the switch."""
        try:
            if words := self.control.recover():
                print(f"weir_p4: {words}", file=sys.stderr, flush=True)
                self.counted_at = 0.0
            return call(*arguments)
        except switch_control.SwitchError as error:
            raise Refused(503, 14, str(error)) from error
        except switch_control.ControlError as error:
            raise Refused(400, 3, str(error)) from error

    def count(self):
        if time.monotonic() - self.counted_at < COUNTERS_S:
            return
        found = self.switch(self.control.statistics)
        for job, counts in found["leases"].items():
            if counts != self.counters["leases"].get(job):
                self.changed_at[job] = time.monotonic()
        self.counters, self.counted_at = found, time.monotonic()

    def record_of(self, job, owner):
        record = self.control.state["leases"].get(job)
        if record is not None and not hmac.compare_digest(record["grant"]["owner"].encode(), owner.encode()):
            raise Refused(403, 7, f"the lease of job {job} is another owner's")
        return record

    def free_range(self, slots, but):
        """The first slot of so many that no other job has; None: there are not so many."""
        taken = sorted((record["first_slot"], record["first_slot"] + record["slots"])
                       for job, record in self.control.state["leases"].items() if job != but)
        first = 0
        for begin, end in taken:
            if begin - first >= slots:
                break
            first = max(first, end)
        return first if first + slots <= switch_control.SLOTS else None

    def grant(self, request):
        job, owner = request.get("job"), request.get("owner") or secrets.token_hex(16)
        if not isinstance(job, str) or not re.fullmatch(r"[\w.-]{1,256}", job):
            raise Refused(400, 3, "job: expected 1 to 256 letters, digits, '.', '_' or '-'")
        if not isinstance(owner, str) or not re.fullmatch(r"[\x21-\x7e]{16,128}", owner):
            raise Refused(400, 3, "owner: expected 16 to 128 visible characters")
        for key in ("quorum", "parent"):
            if request.get(key):
                raise Refused(400, 3, f"{key}: a switch has none, found {request[key]}")
        with self.lock:
            earlier = self.record_of(job, owner)
            leases = self.control.state["leases"]
            slots = request.get("slots")
            if not isinstance(slots, int) or slots < 1:
                raise Refused(400, 3, f"slots: expected 1 or more, found {slots}")
            slots = min(slots, self.slots_per_job)
            first = self.free_range(slots, job)
            if first is None:
                raise Refused(429, 8, f"slots: {slots} asked for, and no {slots} of {switch_control.SLOTS} next to each other "
                                      "are free")
            used = {record["id"] for name, record in leases.items() if name != job}
            state = self.control.state
            state["epoch"] = max(state.get("epoch", 0), earlier["epoch"] if earlier else 0) + 1
            grant = {"job": job, "owner": owner, "lease": next(n for n in LEASE_NUMBERS if n not in used),
                     "epoch": state["epoch"], "cookie": secrets.token_hex(8), "mode": request.get("mode"),
                     "address": self.address, "port": int(self.address.rpartition(":")[2]), "shard": 0,
                     "first_slot": first, "slots": slots, "lanes": request.get("lanes", LANES_MAX),
                     "columns": request.get("columns", 0), "sum_bits": request.get("sum_bits", 0),
                     "levels": request.get("levels", []), "quorum": 0, "cutoff_ms": 0, "checked": False,
                     "workers": request.get("workers", []), "plane": "p4"}
            self.switch(self.control.add, self.switch(switch_control.Lease, request, grant, self.hosts))
            self.changed_at[job] = time.monotonic()
            self.counted_at = 0.0
            return grant

    def end(self, job, epoch, owner):
        with self.lock:
            record = self.record_of(job, owner)
            if record is None or epoch not in (0, record["epoch"]):
                raise Refused(404, 5, f"job {job} has no lease" + (f" of epoch {epoch}" if epoch else ""))
            self.switch(self.control.remove, job)
        return {}

    def end_idle(self):
        with self.lock:
            self.count()
            for job in list(self.control.state["leases"]):
                # After a restart of this program, a lease counts as used now.
                if time.monotonic() - self.changed_at.setdefault(job, time.monotonic()) > self.idle_s:
                    print(f"weir_p4: the lease of job {job} ends: no packet for {self.idle_s} s", file=sys.stderr,
                          flush=True)
                    self.switch(self.control.remove, job)

    def list(self):
        with self.lock:
            self.count()
            return {"leases": [
                {**{key: value for key, value in record["grant"].items() if key not in ("cookie", "owner")},
                 "idle_s": round(time.monotonic() - self.changed_at.get(job, time.monotonic()), 3)}
                for job, record in sorted(self.control.state["leases"].items())]}

    def capacity(self):
        with self.lock:
            self.count()  # so that a switch that is gone is not offered
            leases = self.control.state["leases"]
            free = switch_control.SLOTS - sum(record["slots"] for record in leases.values())
            together = next(n for n in range(free, -1, -1) if n == 0 or self.free_range(n, None) is not None)
            return {"shards": 1, "slots": switch_control.SLOTS, "slots_free": free, "slots_free_of_shard": together,
                    "slots_per_job": self.slots_per_job, "leases_free": switch_control.LEASES - len(leases),
                    "lanes_max": LANES_MAX, "workers_max": switch_control.WORKERS_MAX, "goodput_bits_per_s": self.goodput}

    def metrics(self):
        with self.lock:
            self.count()
            lines = ["# HELP weir_p4_packets_total Number of packets of a lease, by what became of them.",
                     "# TYPE weir_p4_packets_total counter"]
            for job, counts in self.counters["leases"].items():
                lines += [f'weir_p4_packets_total{{job="{job}",verdict="{verdict}"}} {count}'
                          for verdict, count in counts.items()]
            lines += ["# HELP weir_p4_refused_packets_total Number of packets to the switch's address that no lease got.",
                      "# TYPE weir_p4_refused_packets_total counter"]
            lines += [f'weir_p4_refused_packets_total{{reason="{reason}"}} {self.counters["switch"][reason]}'
                      for reason in switch_control.REFUSALS]
            lines += ["# HELP weir_p4_lost_replies_total Number of replies that the switch dropped on purpose.",
                      "# TYPE weir_p4_lost_replies_total counter",
                      f'weir_p4_lost_replies_total {self.counters["switch"]["lost"]}',
                      "# HELP weir_p4_leases Number of leases that jobs hold.", "# TYPE weir_p4_leases gauge",
                      f'weir_p4_leases {len(self.control.state["leases"])}', ""]
            return "\n".join(lines)


class Handler(http.server.BaseHTTPRequestHandler):
    """One request a connection."""

    server_version, sys_version = "weir_p4", ""
    timeout = CONNECTION_S

    def log_message(self, format, *arguments):  # noqa: A002: the name is the library's
        """Requests are not logged."""

    def answer(self, status, body, kind="application/json"):
        text = (body if isinstance(body, str) else json.dumps(body, sort_keys=True) + "\n").encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", len(text)), ("Cache-Control", "no-store"),
                            ("Connection", "close")):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = True

    def handle_request(self):
        path, _, query = self.path.partition("?")
        try:
            if path == "/healthz" and self.command == "GET":
                return self.answer(200, "ok\n", "text/plain")
            token = self.server.token
            if token and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), b"Bearer " + token):
                raise Refused(401, 16, "unknown token")
            if path == "/metrics" and self.command == "GET":
                return self.answer(200, self.server.leases.metrics(), "text/plain; version=0.0.4")
            return self.answer(200, self.lease_request(path, query))
        except Refused as error:
            return self.answer(error.status, {"code": error.code, "message": str(error), "details": []})

    def lease_request(self, path, query):
        leases = self.server.leases
        if (self.command, path) == ("GET", "/v1/capacity"):
            return leases.capacity()
        if (self.command, path) == ("GET", "/v1/leases"):
            return leases.list()
        if (self.command, path) == ("POST", "/v1/leases"):
            return leases.grant(self.body())
        if self.command == "DELETE" and path.startswith("/v1/leases/"):
            epoch = urllib.parse.parse_qs(query).get("epoch", ["0"])[0]
            if not re.fullmatch(r"\d{1,10}", epoch):
                raise Refused(400, 3, f"epoch: expected a number, found {epoch[:60]!r}")
            return leases.end(urllib.parse.unquote(path.removeprefix("/v1/leases/")), int(epoch),
                              self.headers.get("Weir-Lease-Owner", ""))
        raise Refused(404, 5, "no such path; there are /healthz, /metrics, /v1/capacity and /v1/leases")

    def body(self):
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > BODY_MAX:
            raise Refused(400, 3, f"body: expected at most {BODY_MAX} bytes and their number in Content-Length")
        try:
            request = json.loads(self.rfile.read(int(size)))
        except ValueError as error:
            raise Refused(400, 3, f"body: {error}") from error
        if not isinstance(request, dict):
            raise Refused(400, 3, "body: expected an object")
        return request

    do_GET = do_POST = do_DELETE = handle_request


class Server(http.server.ThreadingHTTPServer):
    """At most CONNECTIONS_MAX at a time, each for CONNECTION_S; others are closed at once."""

    daemon_threads = True

    def __init__(self, place, leases, token, tls):
        super().__init__(place, Handler)
        self.leases, self.token, self.tls = leases, token, tls
        self.room = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request, client_address):
        if not self.room.acquire(blocking=False):
            return self.shutdown_request(request)
        return super().process_request(request, client_address)

    def process_request_thread(self, request, client_address):
        # A client that sends an octet now and then would keep its place; a socket's own timeout begins again with each.
        end = threading.Timer(CONNECTION_S, self.shutdown_request, [request])
        end.daemon = True
        end.start()
        try:
            request.settimeout(CONNECTION_S)
            if self.tls is not None:
                request = self.tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:
            self.shutdown_request(request)
        finally:
            end.cancel()
            self.room.release()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that has gone
            super().handle_error(request, client_address)


def add_arguments(parser):
    serve_only = parser.add_argument_group("serve")
    serve_only.add_argument("--address", help="IPV4:PORT at which the switch aggregates; no host has it")
    serve_only.add_argument("--http", default="127.0.0.1:9466", help="where to listen (default: %(default)s)")
    serve_only.add_argument("--token-file", help="a bearer token; without one, on loopback only")
    serve_only.add_argument("--tls-cert", help="PEM; off loopback")
    serve_only.add_argument("--tls-key", help="PEM; off loopback")
    serve_only.add_argument("--slots-per-job", type=int, default=switch_control.PORT_QUEUE // 2,
                            help="(default: %(default)s, which the queues of BMv2 hold)")
    serve_only.add_argument("--goodput-gbit-s", type=float, default=0, help="payload that the switch receives; 0: unknown")
    serve_only.add_argument("--idle-s", type=float, default=3600, help="a lease without packets ends (default: %(default)s)")


def serve(control, given):
    """Until SIGTERM or SIGINT."""
    switch_control.need(given.address, "--address", "IPV4:PORT", "nothing")
    switch_control.address_of(given.address)
    hosts = switch_control.load(given.hosts)
    switch_control.check_hosts(hosts)
    host, _, port = given.http.rpartition(":")
    switch_control.need(port.isdigit(), "--http", "HOST:PORT", given.http)
    token = pathlib.Path(given.token_file).read_bytes().strip() if given.token_file else b""
    tls = None
    if given.tls_cert:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(given.tls_cert, given.tls_key)
    if not ipaddress.ip_address(host).is_loopback:
        switch_control.need(token and tls, f"--http {given.http}, which is off loopback", "--token-file, --tls-cert and --tls-key",
                     "not all of them")
    control.add_hosts(hosts)
    leases = Leases(control, hosts, given.address, given.slots_per_job, given.goodput_gbit_s * 1e9, given.idle_s)
    server = Server((host, int(port)), leases, token, tls)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http {server.server_address[0]}:{server.server_address[1]} udp {given.address}", flush=True)
    while not ended.wait(COUNTERS_S):
        try:
            leases.end_idle()
        except Refused as error:
            print(f"weir_p4: {error}", file=sys.stderr, flush=True)
    server.shutdown()
