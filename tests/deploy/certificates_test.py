# SPDX-License-Identifier: Apache-2.0
"""Renewed certificates: what the programs show to connections that begin after their files changed, by a
symbolic link to a directory that is exchanged (as Kubernetes mounts secrets) or by renamed files; and after they
changed to something that is no certificate with its key."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
CONTROLLER = BUILD / "controller" / "server" / "weir-controller"
AGENT = BUILD / "agent" / "weir-agent"
AGGREGATOR = BUILD / "deploy" / "aggregator" / "weir-aggregator"
PATIENCE_S = 20
NAMES = ("first", "second", "third")


def openssl(directory, *arguments):
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, timeout=30, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def make_certificates(directory):
    """An authority, and a directory with tls.crt and tls.key for each of NAMES."""
    key = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(directory, *key, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    (directory / "san").write_text("subjectAltName=IP:127.0.0.1\n", encoding="utf-8")
    for name in NAMES:
        (directory / name).mkdir()
        openssl(directory, *key, "-subj", f"/CN={name}", "-keyout", f"{name}/tls.key", "-out", f"{name}.csr")
        openssl(directory, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-extfile", "san", "-out", f"{name}/tls.crt")


def tls_metrics(url, authority=None):
    """The metrics of certificates in /metrics, by name without weir_tls_."""
    context = ssl.create_default_context(cafile=authority) if authority else None
    with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"(?m)^weir_tls_(\w+) (\S+)$", text)}


def name_in(certificate):
    """The common name of what getpeercert() gave; None without one."""
    return next((value for part in (certificate or {}).get("subject", ()) for key, value in part
                 if key == "commonName"), None)


class CertificatesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.made = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="weir-made-")))
        make_certificates(cls.made)

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weir-tls-")))

    # Programs are given the files of `mounted`; these are links to ..data/FILE, and ..data is a
    # link.

    def mount(self, name):
        """Exchanges what the mounted files are for those of `name`, in one rename."""
        mounted = self.directory / "mounted"
        mounted.mkdir(exist_ok=True)
        for file in ("tls.crt", "tls.key"):
            if not (mounted / file).is_symlink():
                (mounted / file).symlink_to(f"..data/{file}")
        (mounted / "..data_tmp").symlink_to(self.made / name)
        os.replace(mounted / "..data_tmp", mounted / "..data")
        return [mounted / "tls.crt", mounted / "tls.key"]

    def put(self, file, content):
        """Renames a file with this content to `file` of a directory without links."""
        plain = self.directory / "plain"
        plain.mkdir(exist_ok=True)
        (plain / "new").write_bytes(content)
        os.replace(plain / "new", plain / file)
        return plain / file

    def content(self, name, file):
        return (self.made / name / file).read_bytes()

    def start(self, *arguments):
        """A program that ends with the test; its log."""
        log = self.directory / f"{arguments[0].name}.log"
        with open(log, "wb") as output:
            child = subprocess.Popen([str(part) for part in arguments], stdout=output, stderr=output,
                                     stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, child)
        return log

    def end(self, child):
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(timeout=PATIENCE_S), 0)

    def wait_for(self, log, pattern):
        end = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            self.assertLess(time.monotonic(), end, f"no {pattern} in\n{log.read_text(errors='replace')}")
            time.sleep(0.02)
        return found

    def shown(self, address):
        """The name in the certificate that a new connection is shown; it is checked against the authority."""
        context = ssl.create_default_context(cafile=self.made / "ca.crt")
        context.set_alpn_protocols(["h2", "http/1.1"])
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain:
            with context.wrap_socket(plain, server_hostname=host) as connection:
                return name_in(connection.getpeercert())

    def check_server(self, start):
        """start(CERTIFICATE, KEY) gives (addresses, log) of a server."""
        addresses, log = start(*self.mount("first"))
        self.assertEqual([self.shown(a) for a in addresses], ["first"] * len(addresses))
        self.mount("second")   # no waiting: the next connection is the bound
        self.assertEqual([self.shown(a) for a in addresses], ["second"] * len(addresses))
        self.wait_for(log, r" I tls: renewed TLS files are in use: \S+/mounted/tls.crt")
        (self.directory / "mounted" / "..data").unlink()
        self.assertEqual([self.shown(a) for a in addresses], ["second"] * len(addresses))
        self.wait_for(log, r" E tls: .*the previous ones stay.*cannot read TLS file '\S+/tls.crt': No such file")
        self.mount("third")
        self.assertEqual([self.shown(a) for a in addresses], ["third"] * len(addresses))

    def check_renames(self, start):
        addresses, log = start(*[self.put(f, self.content("first", f)) for f in ("tls.crt", "tls.key")])
        kept = ["first"] * len(addresses)
        whole = self.content("second", "tls.crt")
        self.assertEqual(self.reloads(addresses), (True, 0))
        refused = 1
        for broken, cause in ((whole[:len(whole) // 2], r"expected certificates, found 0 and then: \S"),
                              (b"", "expected certificates, found 0 and then: no start line"),
                              (whole + whole[:60], r"expected certificates, found 1 and then: \S"),
                              (whole, r"the key in '\S+/tls.key' is not that of the certificate in '\S+/tls.crt'")):
            self.put("tls.crt", broken)
            for _ in range(2):
                self.assertEqual([self.shown(a) for a in addresses], kept)
            self.wait_for(log, " E tls: renewed TLS files are invalid, the previous ones stay in use: .*" + cause)
            self.assertEqual(self.reloads(addresses), (False, refused))
            refused += 1
        self.put("tls.key", self.content("second", "tls.key")[:80])
        self.assertEqual([self.shown(a) for a in addresses], kept)
        self.wait_for(log, r"TLS file '\S+/tls.key': expected a private key: \S")
        # Each cause is logged once, however many connections and listeners there are.
        said = re.findall(" E tls: .*", log.read_text(encoding="utf-8"))
        self.assertEqual(len(said), refused, said)
        self.assertEqual(self.reloads(addresses), (False, refused))
        self.put("tls.key", self.content("second", "tls.key"))
        self.assertEqual([self.shown(a) for a in addresses], ["second"] * len(addresses))
        self.assertEqual(self.reloads(addresses), (True, refused))

    def reloads(self, addresses):
        """(whether the current files are in use, how often they were invalid), from the HTTP listener."""
        said = tls_metrics(f"https://{addresses[-1]}/metrics", self.made / "ca.crt")
        self.assertAlmostEqual(said["certificate_expiry_timestamp_seconds"], time.time() + 2 * 86400, delta=300)
        return said["last_reload_successful"] == 1, said["reload_failures_total"]

    def start_controller(self, cert, key):
        log = self.start(CONTROLLER, "--state", ":memory:", "--listen-grpc", "127.0.0.1:0", "--listen-http",
                         "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-ca", self.made / "ca.crt")
        return self.wait_for(log, r"gRPC on (\S+), HTTP on ([^,\s]+)").groups(), log

    def start_aggregator(self, cert, key):
        log = self.start(AGGREGATOR, "--http", "127.0.0.1:0", "--port", "0", "--tls-cert", cert, "--tls-key", key)
        return [self.wait_for(log, r"(?m)^https? (\S+)")[1]], log

    def test_the_controllers_listeners_show_an_exchanged_directory(self):
        self.check_server(self.start_controller)

    def test_the_controllers_listeners_keep_valid_files(self):
        self.check_renames(self.start_controller)

    @unittest.skipUnless(AGGREGATOR.exists(), "weir-aggregator is not built")
    def test_the_aggregator_shows_an_exchanged_directory(self):
        self.check_server(self.start_aggregator)

    @unittest.skipUnless(AGGREGATOR.exists(), "weir-aggregator is not built")
    def test_the_aggregator_keeps_valid_files(self):
        self.check_renames(self.start_aggregator)

    @unittest.skipUnless(AGGREGATOR.exists(), "weir-aggregator is not built")
    def test_the_controller_trusts_renewed_authorities_of_aggregators(self):
        url = self.start_aggregator(*self.mount("first"))[0][0]
        other = self.put("ca.crt", self.content("third", "tls.crt"))
        log = self.start(CONTROLLER, "--state", ":memory:", "--listen-grpc", "127.0.0.1:0", "--listen-http",
                         "127.0.0.1:0", "--aggregator", f"sum=https://{url}", "--aggregator-ca", other)
        rest = self.wait_for(log, r"HTTP on ([^,\s]+)")[1]

        def wait_until(found):
            end = time.monotonic() + PATIENCE_S
            while True:
                with urllib.request.urlopen(f"http://{rest}/v1/aggregators", timeout=PATIENCE_S) as answer:
                    aggregator = json.load(answer)["aggregators"][0]
                if found(aggregator):
                    return
                self.assertLess(time.monotonic(), end, aggregator)
                time.sleep(0.1)

        wait_until(lambda aggregator: "not trusted" in aggregator.get("error", ""))
        self.put("ca.crt", (self.made / "ca.crt").read_bytes())
        wait_until(lambda aggregator: aggregator.get("reachable"))

    def test_the_agent_shows_renewed_files_at_its_next_connection(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.made / "first" / "tls.crt", self.made / "first" / "tls.key")
        context.load_verify_locations(self.made / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(PATIENCE_S)

        def presented():
            """Who connects next; it is hung up on. Who gave up while it waited to be accepted does not count."""
            end = time.monotonic() + PATIENCE_S
            while True:
                plain, _ = listener.accept()
                plain.settimeout(PATIENCE_S)
                try:
                    with plain, context.wrap_socket(plain, server_side=True) as connection:
                        return name_in(connection.getpeercert())
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError, ConnectionError) as gone:
                    self.assertLess(time.monotonic(), end, gone)

        def becomes(name):
            end = time.monotonic() + PATIENCE_S
            while presented() != name:   # a connection may have begun before the files changed
                self.assertLess(time.monotonic(), end)
            return True

        cert, key = self.mount("first")
        log = self.start(AGENT, "--node", "here", "--controller", f"127.0.0.1:{listener.getsockname()[1]}",
                         "--socket", self.directory / "agent.sock", "--probe-port", "0", "--iperf-port", "0",
                         "--ca", self.made / "ca.crt", "--cert", cert, "--key", key)
        self.assertTrue(becomes("first"))
        self.mount("second")
        self.assertTrue(becomes("second"))
        (self.directory / "mounted" / "..data").unlink()
        self.wait_for_while(log, r" E tls: .*cannot read TLS file '\S+/tls.crt'", presented)
        self.assertEqual(presented(), "second")

    def test_the_agent_says_why_it_cannot_connect(self):
        openssl(self.directory, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-x509",
                "-subj", "/CN=other", "-keyout", "other.key", "-out", "other.crt")
        cert, key = self.mount("first")
        (address, _), _ = self.start_controller(cert, key)
        common = ("--node", "here", "--probe-port", "0", "--cert", cert, "--key", key, "--socket")
        log = self.start(AGENT, "--controller", address, "--ca", self.directory / "other.crt", *common,
                         self.directory / "agent.sock")
        self.wait_for(log, r"no connection within \S+ s \(.*(?i:certificate|handshake)")
        with socket.create_server(("127.0.0.1", 0)) as free:
            closed = "127.0.0.1:{}".format(free.getsockname()[1])
        log = self.start(AGENT, "--controller", closed, "--ca", self.made / "ca.crt", *common,
                         self.directory / "other.sock")
        self.wait_for(log, r"no connection within \S+ s \(.*Connection refused")

    def test_the_agent_reports_renewals(self):
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))   # accepts nobody
        cert, key = self.mount("first")
        with socket.create_server(("127.0.0.1", 0)) as free:
            metrics = "127.0.0.1:{}".format(free.getsockname()[1])
        self.start(AGENT, "--node", "here", "--controller", f"127.0.0.1:{listener.getsockname()[1]}", "--socket",
                   self.directory / "agent.sock", "--probe-port", "0", "--iperf-port", "0", "--metrics", metrics,
                   "--unprotected", "metrics",
                   "--ca", self.made / "ca.crt", "--cert", cert, "--key", key)

        def wait_until(successful, refused):
            end = time.monotonic() + PATIENCE_S
            while True:
                said = {}
                with contextlib.suppress(OSError):
                    said = tls_metrics(f"http://{metrics}/metrics")
                if (said.get("last_reload_successful"), said.get("reload_failures_total")) == (successful, refused):
                    return said["certificate_expiry_timestamp_seconds"]
                self.assertLess(time.monotonic(), end, said)
                time.sleep(0.1)

        self.assertAlmostEqual(wait_until(1, 0), time.time() + 2 * 86400, delta=300)
        (self.directory / "mounted" / "..data").unlink()
        wait_until(0, 1)
        self.mount("second")
        wait_until(1, 1)

    def test_the_agents_metrics_are_served_by_tls_with_a_token(self):
        cert, key = self.mount("first")
        token = self.directory / "token"
        token.write_text("0123456789abcdef\n", encoding="ascii")
        with socket.create_server(("127.0.0.1", 0)) as free:
            metrics = "127.0.0.1:{}".format(free.getsockname()[1])
        log = self.start(AGENT, "--node", "here", "--socket", self.directory / "agent.sock", "--probe-port", "0",
                         "--metrics", metrics, "--metrics-token-file", token, "--cert", cert, "--key", key)
        self.wait_for(log, "serves ranks at")
        context = ssl.create_default_context(cafile=self.made / "ca.crt")

        def ask(path, **headers):
            request = urllib.request.Request(f"https://{metrics}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, ""

        self.assertEqual(ask("/healthz"), (200, "ok\n"))
        self.assertEqual(ask("/metrics")[0], 401)
        status, text = ask("/metrics", Authorization="Bearer 0123456789abcdef")
        self.assertEqual(status, 200)
        self.assertIn("weir_agent_info", text)
        with self.assertRaises(OSError):
            urllib.request.urlopen(f"http://{metrics}/healthz", timeout=PATIENCE_S)

    def wait_for_while(self, log, pattern, serve):
        end = time.monotonic() + PATIENCE_S
        while not re.search(pattern, log.read_text(errors="replace")):
            self.assertLess(time.monotonic(), end, log.read_text(errors="replace"))
            serve()


if __name__ == "__main__":
    unittest.main()
