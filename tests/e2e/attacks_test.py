# SPDX-License-Identifier: Apache-2.0
"""Attacks on a controller over HTTP, each as somebody would try it: raw sockets against the real program."""
import http.client
import json
import os
import pathlib
import re
import selectors
import shutil
import socket
import subprocess
import time
import unittest

from controller_program import ANSWER_S, JSON, WEIRCTL, ControllerCase, bearer, token_file

FORGED = "x\n2026-01-01T00:00:00.000Z I audit: root (token) from 10.0.0.1: ApplyPolicy forged: OK"
OTHER = 64123   # the number of no user


class AttackTest(ControllerCase):
    def slow_connections(self, count, begin):
        """Connections that have sent `begin` and could go on for ever."""
        made = []
        for _ in range(count):
            made.append(socket.create_connection(("127.0.0.1", self.port), timeout=10))
            made[-1].sendall(begin)
            self.addCleanup(made[-1].close)
        return made

    def test_slow_clients_do_not_stop_answers(self):
        """Twenty-four connections that send a byte now and then stopped every answer, /healthz too."""
        self.start()
        for begin in (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
                      b"POST /v1:simulate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                      b"Content-Length: 1000000\r\n\r\n{", b""):
            slow = self.slow_connections(100, begin)
            end = time.monotonic() + 4
            while time.monotonic() < end:
                for each in slow:
                    try:
                        each.send(b"a")
                    except OSError:
                        pass  # the controller has closed it
                for path in ("/healthz", "/readyz", "/v1/jobs", "/"):
                    asked = time.monotonic()
                    self.assertEqual(self.ask("GET", path)[0], 200)
                    self.assertLess(time.monotonic() - asked, ANSWER_S, path)
                time.sleep(0.5)
            for each in slow:
                each.close()

    def test_a_request_has_one_deadline(self):
        self.start()
        slow = self.slow_connections(3, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        end = time.monotonic() + 20
        while slow:
            self.assertLess(time.monotonic(), end, "connections are open although no request came")
            with selectors.DefaultSelector() as waiting:
                for each in slow:
                    waiting.register(each, selectors.EVENT_READ)
                ended = [key.fileobj for key, _ in waiting.select(timeout=1)]
            for each in slow:
                try:
                    each.send(b"a")
                except OSError:
                    ended.append(each)
            slow = [each for each in slow if each not in ended]

    def test_pages_of_other_sites_cannot_use_a_browser_against_it(self):
        """A DNS name that points to 127.0.0.1, scripts of another origin, and forms."""
        self.start("--local-role", "admin")
        policy = {"source": "name: p\n"}
        here = f"127.0.0.1:{self.port}"
        for headers in ({"Host": "evil.example"}, {"Host": f"127.evil.example:{self.port}"},
                        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"https://{here}x"},
                        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            for method, path, body in (("GET", "/v1/jobs", None), ("PUT", "/v1/policies/p", policy)):
                self.assertEqual(self.ask(method, path, body, {**JSON, **headers})[0], 403, (headers, path))
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", ""):
            self.assertIn(self.ask("PUT", "/v1/policies/p", policy, {"Content-Type": kind})[0], (415, 400), kind)
        self.assertEqual(self.ask("GET", "/v1/jobs", None, {"Host": "evil.example"})[0], 403)
        own = {**JSON, "Origin": f"http://{here}", "Sec-Fetch-Site": "same-origin"}
        self.assertEqual(self.ask("PUT", "/v1/policies/p", policy, own)[0], 200)
        self.assertEqual(self.ask("GET", "/healthz", None, {"Host": "10.0.0.1"})[0], 200)

    def test_the_page_has_rights_by_its_session_not_by_being_local(self):
        self.start()
        policy = {"source": "name: p\n"}
        self.assertEqual(self.ask("GET", "/v1/policies")[0], 200, "looking is free on this machine")
        self.assertEqual(self.ask("PUT", "/v1/policies/p", policy, JSON)[0], 401)
        url = self.weirctl("page").strip()
        self.assertRegex(url, rf"^http://127\.0\.0\.1:{self.port}/#code=[0-9a-f]{{64}}$")
        code = {"code": url.partition("#code=")[2]}
        status, headers, text = self.ask("POST", "/v1/session", code, JSON)
        self.assertEqual(status, 200, text)
        cookie = headers["Set-Cookie"]
        self.assertRegex(cookie, r"^weir_session_\d+=[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200$")
        self.assertEqual(self.ask("POST", "/v1/session", code, JSON)[0], 401, "a code counts once")
        known = {**JSON, "Cookie": "other=1; " + cookie.partition(";")[0]}
        self.assertEqual(self.ask("PUT", "/v1/policies/p", policy, known)[0], 403, "the cookie alone")
        whole = {**known, "Weir-CSRF": json.loads(text)["csrf"]}
        self.assertEqual(self.ask("PUT", "/v1/policies/p", policy, whole)[0], 200)
        self.assertEqual(json.loads(self.ask("GET", "/v1/session", None, known)[2]),
                         {"name": "local", "role": "admin", "proof": "session"})
        self.assertEqual(self.ask("DELETE", "/v1/session", None, whole)[0], 200)
        self.assertEqual(self.ask("PUT", "/v1/policies/p", policy, whole)[0], 401, "the session has ended")

    @unittest.skipIf(os.getuid(), "only root can be another user")
    def test_another_user_of_the_machine_changes_nothing_over_loopback(self):
        copy = pathlib.Path(self.directory) / "weirctl"
        shutil.copy(WEIRCTL, copy)
        copy.chmod(0o755)
        copy.parent.chmod(0o755)

        def as_other(*words):
            return subprocess.run([copy, "--controller", self.grpc, *words], capture_output=True, text=True, timeout=20,
                                  check=False, user=OTHER, group=OTHER, extra_groups=[], cwd="/")

        self.start()
        self.weirctl("log-level", "info")   # the controller's own user needs nothing
        self.assertEqual(as_other("get", "jobs").returncode, 0, "looking is free on this machine")
        refused = as_other("log-level", "debug")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"user {OTHER}", refused.stderr)
        self.assertRegex(self.weirctl("get", "audit", "--limit", "1"), rf"user {OTHER} .*SetLogLevel")
        self.child.kill()
        self.child.wait()
        self.start("--trust-loopback")
        self.assertEqual(as_other("log-level", "debug").returncode, 0)

    def test_health_is_answered_on_a_listener_of_its_own(self):
        """Even where every thread of the main listener is taken by somebody who has begun a whole request."""
        self.start("--listen-health", "127.0.0.1:0")
        own = int(re.search(r"health on port (\d+)", self.said())[1])
        self.slow_connections(200, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        self.port = own
        for path in ("/healthz", "/readyz"):
            self.assertEqual(self.ask("GET", path)[::2], (200, "ok\n"))
        self.assertEqual(self.ask("GET", "/v1/jobs")[0], 404, "nothing else is there")

    def test_a_session_ends_with_the_token_that_began_it(self):
        flags = token_file(self.directory, ann="admin", eve="viewer")
        self.start(*flags)
        status, headers, text = self.ask("POST", "/v1/session", {"token": "annannann"}, JSON)
        self.assertEqual(status, 200, text)
        session = {**JSON, "Cookie": headers["Set-Cookie"].partition(";")[0], "Weir-CSRF": json.loads(text)["csrf"]}
        self.assertEqual(self.ask("PUT", "/v1/policies/p", {"source": "name: p\n"}, session)[0], 200)
        token_file(self.directory, eve="viewer")
        self.assertEqual(self.ask("PUT", "/v1/policies/p", {"source": "name: p\n"}, session)[0], 401)

    def test_wrong_tokens_are_throttled_and_neither_they_nor_refusals_fill_the_disk(self):
        self.start(*token_file(self.directory, ann="admin", eve="viewer"))
        self.assertEqual(self.ask("GET", "/v1/jobs", None, bearer("ann"))[0], 200)
        before = len(self.said())
        wrong = [self.ask("PUT", "/v1/policies/p", {"source": "name: p\n"},
                          {**JSON, "Authorization": f"Bearer {number}"})[0] for number in range(300)]
        self.assertEqual(wrong[0], 401)
        self.assertEqual(wrong[-1], 429)
        for _ in range(300):
            self.assertEqual(self.ask("PUT", "/v1/policies/p", {"source": "name: p\n"}, {**JSON, **bearer("ann")})[0],
                             200) if _ == 0 else None
            self.assertIn(self.ask("PUT", "/v1/policies/p", {"source": "name: p\n"}, {**JSON, **bearer("eve")})[0],
                          (403, 429))
        self.assertLess(len(self.said()) - before, 8000, self.said()[before:])
        records = json.loads(self.ask("GET", "/v1/audit?page_size=1000", None, bearer("ann"))[2])["records"]
        refused = [record for record in records if record["refused"]]
        self.assertTrue(refused)
        self.assertLess(len(refused), 60)

    def test_one_caller_does_not_take_the_time_of_all(self):
        self.start(*token_file(self.directory, ann="admin", eve="viewer"))
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(connection.close)
        answers = []
        while not answers or answers[-1][0] == 200:
            self.assertLess(len(answers), 20000, "never refused")
            connection.request("GET", "/v1/jobs", headers=bearer("eve"))
            answer = connection.getresponse()
            answers.append((answer.status, answer.read().decode()))
        self.assertGreaterEqual(len(answers), 2000)
        self.assertEqual(answers[-1][0], 429)
        self.assertIn("eve at 127.0.0.1 calls more often than 200 times a second; try again in", answers[-1][1])
        self.assertEqual(self.ask("GET", "/v1/jobs", None, bearer("ann"))[0], 200)
        end = time.monotonic() + 10
        while self.ask("GET", "/v1/jobs", None, bearer("eve"))[0] != 200:  # who was refused gets the rate
            self.assertLess(time.monotonic(), end)

    def test_the_trail_says_who_by_the_credential_and_nobody_can_forge_lines(self):
        self.start(*token_file(self.directory, ann="admin", eve="viewer"))
        for name, status in (("ann", 200), ("eve", 403)):
            answer = self.ask("PUT", "/v1/policies/p", {"source": "name: p\n", "actor": FORGED}, {**JSON, **bearer(name)})
            self.assertEqual(answer[0], status)
        self.assertEqual(self.ask("PUT", "/v1/policies/p%1b%5b2Kforged", {"source": "name: p\n"},
                                  {**JSON, **bearer("eve")})[0], 403)
        self.assertEqual(self.ask("PUT", "/v1/policies/p", {"source": "name: p\nbounds:\n  gain_min: 0.5\n"},
                                  {**JSON, **bearer("ann")})[0], 200)
        self.assertEqual(self.ask("PUT", "/v1/policies/p", {"source": "nonsense"}, {**JSON, **bearer("ann")})[0], 400)
        self.assertNotIn("\x1b", self.said())
        for line in self.said().splitlines():
            self.assertRegex(line, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [DIWE] [a-z]+: ")
            self.assertFalse(line.startswith("2026-01-01T00:00:00.000Z"), line)
        self.assertEqual(self.ask("GET", "/v1/audit", None, bearer("eve"))[0], 403)
        answer = json.loads(self.ask("GET", "/v1/audit", None, bearer("ann"))[2])["records"]
        kept = [(r["principal"], r["proof"], r["peer"], r["method"], r["outcome"], r["refused"]) for r in answer]
        ours = ("token", "127.0.0.1", "ApplyPolicy")
        self.assertEqual([k for k in kept if k[3] == "ApplyPolicy"],
                         [("ann", *ours, "INVALID_ARGUMENT", False), ("ann", *ours, "OK", False),
                          ("eve", *ours, "PERMISSION_DENIED", True), ("eve", *ours, "PERMISSION_DENIED", True),
                          ("ann", *ours, "OK", False)])
        secret = pathlib.Path(self.directory) / "token"
        secret.write_text("annannann\n", encoding="ascii")
        table = self.weirctl("get", "audit", "--token-file", str(secret), "--limit", "3")
        self.assertRegex(table, r"ann +token +127\.0\.0\.1 +ApplyPolicy +p +INVALID_ARGUMENT")
        changed = next(r for r in answer if r["outcome"] == "OK")
        self.assertIn("name: p\n", changed["before"])
        self.assertIn("gain_min: 0.5", changed["after"])


if __name__ == "__main__":
    unittest.main()
