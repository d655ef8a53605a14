# SPDX-License-Identifier: Apache-2.0
"""Finding and describing the library, sessions without torch, and `python3 -m weir check`."""
import contextlib
import ctypes
import ctypes.util
import inspect
import io
import os
import pathlib
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
from unittest import mock

import weir
from weir import __main__
from weir import _lib
from weir import keys
from weir import run

HEADER = pathlib.Path(__file__).resolve().parents[3] / "datapath" / "api" / "weir.h"


def check(**environment):
    """Exit status and output of `weir check`, in this process: another one imports torch, which takes seconds."""
    words = io.StringIO()
    _lib.library.cache_clear()
    with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(words):
        code = __main__.check(os.environ.get("WEIR_AGENT"))
    _lib.library.cache_clear()
    return code, words.getvalue()


class LibraryTest(unittest.TestCase):

    def test_every_function_of_the_header_is_declared(self):
        declared = set(re.findall(r"WEIR_EXPORT\s[^;(]*?(weir_\w+)\(", HEADER.read_text()))
        self.assertGreater(len(declared), 10)
        self.assertEqual(declared, set(_lib._FUNCTIONS))

    def test_structures_have_the_fields_of_the_header(self):
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
        for name, structure in (("weir_options", _lib.Options), ("weir_parameter", _lib.Parameter),
                                ("weir_communicator_options", _lib.CommunicatorOptions),
                                ("weir_stats", _lib.StatsStruct), ("weir_mesh", _lib.Mesh),
                                ("weir_device_data", _lib.DeviceData)):
            body = re.search(r"typedef struct " + name + r" \{(.*?)\}", text, re.S).group(1)
            fields = re.findall(r"(\w+);", body)
            self.assertEqual(fields, [f for f, _ in structure._fields_], name)

    def test_capabilities_name_codecs_and_collectives(self):
        found = weir.capabilities()
        self.assertIn("top_k", [c["name"] for c in found["codecs"]])
        self.assertTrue(found["collectives"])

    def test_missing_library_names_the_file_and_the_variable(self):
        code, words = check(WEIR_LIBRARY="/nonexistent/libweir.so")
        self.assertEqual(code, 1)
        self.assertIn("missing  library", words)
        self.assertIn("/nonexistent/libweir.so", words)
        self.assertIn("WEIR_LIBRARY", words)

    def test_other_library_is_refused(self):
        libc = ctypes.util.find_library("m")
        path = next(p for p in ("/lib/x86_64-linux-gnu/" + libc, "/usr/lib/" + libc)
                    if os.path.exists(p))
        code, words = check(WEIR_LIBRARY=path)
        self.assertEqual(code, 1)
        self.assertIn("cannot be used", words)

    def test_check_without_agent_is_a_warning(self):
        done = subprocess.run([sys.executable, "-m", "weir", "check"], capture_output=True, text=True,
                              env={**os.environ, "WEIR_AGENT": ""}, timeout=60, check=False)
        words = done.stdout
        self.assertEqual(done.returncode, 0, words)
        self.assertIn("ok       library", words)
        self.assertIn("ok       torch", words)
        self.assertIn("ok       transport: ranks of this machine share memory", words)
        words = check(WEIR_AGENT="", WEIR_TRANSPORT="tcp")[1]
        self.assertIn("ok       transport: ranks of this machine use TCP", words)
        self.assertIn("warning  agent: WEIR_AGENT is not set", words)

    def test_check_says_where_the_plug_in_for_nccl_is(self):
        with tempfile.TemporaryDirectory(prefix="weir-lib-test-") as folder:
            library = pathlib.Path(folder, "libweir.so")
            library.symlink_to(_lib.library_path())
            plugin = pathlib.Path(folder, "weir", "libnccl-weir.so")
            words = check(WEIR_LIBRARY=str(library))[1]
            self.assertRegex(words, f"warning  nccl_plugin: .*{plugin}")
            plugin.parent.mkdir()
            plugin.touch()
            words = check(WEIR_LIBRARY=str(library), NCCL_ENV_PLUGIN="")[1]
            self.assertIn(f"ok       nccl_plugin: {plugin}; NCCL uses it if NCCL_ENV_PLUGIN names it", words)
            words = check(WEIR_LIBRARY=str(library), NCCL_ENV_PLUGIN=str(plugin))[1]
            self.assertIn(f"ok       nccl_plugin: {plugin}; used by NCCL_ENV_PLUGIN", words)

    def test_check_names_an_agent_that_does_not_answer(self):
        code, words = check(WEIR_AGENT="unix:/nonexistent/agent.sock")
        self.assertEqual(code, 0)
        self.assertIn("warning  agent: unix:/nonexistent/agent.sock: no such file", words)

    def test_check_fails_where_attach_would_refuse_the_agent(self):
        code, words = check(WEIR_AGENT="agent.example")
        self.assertEqual(code, 1, words)
        self.assertIn("missing  agent: WEIR_AGENT is agent.example: expected unix:/path or tcp:host:port", words)
        for agent in ("tcp:agent.example:7000", "tcp:127.0.0.1", "unix:", "unix:/" + 107 * "a"):
            with self.assertRaisesRegex(__main__.Wrong, agent):
                __main__.check_agent(agent)
            with self.assertRaisesRegex(weir.InvalidArgument, agent):
                weir.Session("wrong", 0, 1, agent=agent)

    def test_check_fails_where_attach_would_refuse_a_setting(self):
        for name, value, expected in (
                ("WEIR_LISTEN", "203.0.113.7:0", "is not an address of this host"), ("WEIR_INTERFACE", "no0", "no0"),
                ("WEIR_TIMEOUT_S", "soon", "a number of seconds"), ("WEIR_ENCODE_WORKERS", "77", "1..16"),
                ("WEIR_COMPARE_EVERY_STEPS", "x", "a whole number"), ("WEIR_COMPARE_PARAMETERS", "x", "0 or 1"),
                ("WEIR_FRAMEWORK_DENSE", "x", "0 or 1"), ("WEIR_LABELS", "x", "KEY=VALUE"),
                ("WEIR_PLAN_FILE", "/nonexistent", "cannot be opened")):
            with mock.patch.dict(os.environ, {name: value}), self.assertRaisesRegex(weir.WeirError, expected):
                __main__.check_settings()
        code, words = check(WEIR_TIMEOUT_S="soon")
        self.assertEqual(code, 1, words)
        self.assertIn("missing  settings: weir: WEIR_TIMEOUT_S: expected a number of seconds", words)
        with mock.patch.dict(os.environ, {"WEIR_LABELS": "team=a", "WEIR_TIMEOUT_S": "5"}):
            self.assertRegex(__main__.check_settings(), "WEIR_LABELS, .*WEIR_TIMEOUT_S")


class SessionTest(unittest.TestCase):

    def test_world_of_one_reduces_in_place(self):
        with weir.Session("alone", 0, 1) as session:
            session.connect([session.address])
            key = session.define_bucket([("a", 3), ("b", 1)])
            data = (ctypes.c_float * 4)(1, 2, 3, 4)
            session.step_begin()
            session.wait(session.all_reduce(key, ctypes.addressof(data), 0.5))
            self.assertFalse(session.step_end())
            self.assertEqual(list(data), [0.5, 1.0, 1.5, 2.0])
            self.assertEqual(session.stats().steps_skipped, 0)
            session.import_state(session.export_state())
            session.scale_state(0.5)
            with self.assertRaises(weir.WeirError) as caught:
                session.scale_state(0.0)
            self.assertEqual(caught.exception.status, _lib.INVALID_ARGUMENT)

    def test_wrong_rank_says_why(self):
        with self.assertRaises(weir.WeirError) as caught:
            weir.Session("wrong", 3, 2)
        self.assertEqual(caught.exception.status, _lib.INVALID_ARGUMENT)
        self.assertIn("rank", str(caught.exception))

    def test_a_name_that_agents_refuse_is_refused_at_once(self):
        for job, why in (("", "found 0"), (201 * "a", "found 201"), (101 * "ü", "found 202"),
                         ("a\nb", "control characters"), ("a\0b", "control characters")):
            with self.assertRaisesRegex(weir.InvalidArgument, f"job: expected a name .*{why}"):
                weir.Session(job, 0, 1)
            with contextlib.redirect_stderr(io.StringIO()) as words, self.assertRaises(SystemExit):
                run.main(["--job", job, "--", "true"])
            self.assertRegex(words.getvalue(), f"argument --job: expected a name .*{why}")
        weir.Session(198 * "a" + "ü", 0, 1).close()

    def test_bad_plan_file_says_why(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as plan:
            plan.write('{"fallback": {"codec": "zip", "collective": "ring", "ratio": 1}}')
            plan.flush()
            with self.assertRaises(weir.WeirError) as caught:
                weir.Session("plan", 0, 1, plan_file=plan.name)
        self.assertIn("zip", str(caught.exception))
        self.assertIn("top_k", str(caught.exception))  # the valid names

    def test_closed_session_is_an_error_not_a_crash(self):
        session = weir.Session("closed", 0, 1)
        session.close()
        session.close()
        with self.assertRaises(weir.WeirError):
            session.step_begin()
        with self.assertRaises(weir.WeirError):
            session.stats()

    def test_what_nothing_refers_to_is_closed(self):
        for kind in (weir.Session, weir.Communicator):
            made = kind("left", 0, 1)
            host, port = made.address.split(",")[-1].rsplit(":", 1)  # a communicator has two
            socket.create_connection((host, int(port)), timeout=5).close()
            del made
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), timeout=5).close()

    def test_fork_does_not_close_what_its_parent_has(self):
        for kind in (weir.Session, weir.Communicator):
            made = kind("forked", 0, 1)
            made.connect([made.address])
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                made.close()
                os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0, kind)
            made.close()


class KeyTest(unittest.TestCase):

    def read(self, content, mode=0o600):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            os.chmod(file.name, mode)
            return keys.read_file(file.name)

    def test_a_file_holds_bytes_or_digits(self):
        key = bytes(range(32))
        self.assertEqual(self.read(key), key)
        self.assertEqual(self.read(key.hex().encode() + b"\n"), key)
        self.assertEqual(self.read(key, 0o440), key)

    def test_other_files_are_refused_with_the_reason(self):
        for content, mode, why in ((bytes(31), 0o600, "found 31 bytes"), (b"", 0o600, "found 0 bytes"),
                                   (b"g" * 64, 0o600, "64 hexadecimal digits"),
                                   (bytes(range(32)), 0o604, "others may use it")):
            with self.assertRaisesRegex(weir.WeirError, why):
                self.read(content, mode)
        with self.assertRaisesRegex(weir.WeirError, "No such file"):
            keys.read_file("/nonexistent/key")

    def test_the_store_hands_out_what_rank_0_makes_unless_something_else_is_said(self):
        store = {}
        store_of_ranks = mock.Mock(set=lambda k, v: store.update({k: v.encode()}), get=store.get)
        with mock.patch.dict(os.environ, clear=True):
            first, second = (keys.from_store(store_of_ranks, "k", rank, keys.settings())
                             for rank in range(2))
            self.assertEqual(first, second)
            self.assertEqual(len(first["job_key"]), 32)
            given = keys.settings(bytes(range(32)), True)
            self.assertEqual(keys.from_store(store_of_ranks, "k", 0, given), given)
            with self.assertRaisesRegex(weir.WeirError, "WEIR_JOB_KEY_FILE"):
                keys.from_store(store_of_ranks, "k", 1, keys.settings())
            os.environ["WEIR_UNAUTHENTICATED"] = "1"
            self.assertIsNone(keys.from_store(store_of_ranks, "k", 0, keys.settings())["job_key"])

    def test_attach_has_the_options_of_the_state_and_names_every_variable(self):
        options = set(inspect.signature(weir.attach).parameters)
        state = set(inspect.signature(weir.DDPState).parameters)
        self.assertEqual(options, state - {"join"})
        text = inspect.getdoc(weir.attach)
        for option in options - {"model"}:
            self.assertIn(option, text)
        sources = "".join(inspect.getsource(sys.modules[f"weir.{module}"])
                          for module in ("ddp", "framework", "keys", "addresses"))
        read = set(re.findall('"(WEIR_[A-Z_]+)"', sources))
        self.assertGreater(len(read), 10)
        self.assertEqual(read, set(re.findall("WEIR_[A-Z_]+", text)))

    def test_errors_have_the_class_of_their_status(self):
        for status, kind in ((_lib.INVALID_ARGUMENT, weir.InvalidArgument),
                             (_lib.FAILED_PRECONDITION, weir.FailedPrecondition),
                             (_lib.DATA_LOSS, weir.DataLoss),
                             (_lib.PEER_UNAVAILABLE, weir.RankLost),
                             (_lib.DEADLINE_EXCEEDED, weir.DeadlineExceeded),
                             (_lib.INTERNAL, weir.WeirError)):
            error = weir.WeirError("rank 3 is gone", status, 1)
            self.assertIs(type(error), kind)
            self.assertIsInstance(error, weir.WeirError)
            again = pickle.loads(pickle.dumps(error))  # as launchers and pools pass them on
            self.assertEqual((type(again), str(again), again.status, again.rank),
                             (kind, "weir: rank 1: rank 3 is gone", status, 1))
        with self.assertRaises(weir.InvalidArgument):
            weir.Session("job", 2, 2)
        self.assertIs(type(weir.LibraryNotFound("nowhere")), weir.LibraryNotFound)

    def test_tracebacks_name_classes_as_they_are_imported(self):
        words = traceback.format_exception_only(weir.WeirError("gone", _lib.PEER_UNAVAILABLE))
        self.assertEqual("".join(words), "weir.RankLost: weir: gone\n")
        kinds = [getattr(weir, name) for name in weir.__all__]
        for kind in filter(inspect.isclass, kinds):
            self.assertEqual(kind.__module__, "weir", kind)

    def test_unlike_keys_do_not_meet(self):
        wrong, right = bytes(31) + b"1", bytes(31) + b"2"
        with weir.Session("keys", 0, 2, transport="tcp", job_key=right, connect_timeout_s=2) as one, \
                weir.Session("keys", 1, 2, transport="tcp", job_key=wrong, connect_timeout_s=2) as two:
            addresses = [one.address, two.address]
            waiting = threading.Thread(target=self.assertRaises,
                                       args=(weir.WeirError, one.connect, addresses))
            waiting.start()
            with self.assertRaisesRegex(weir.WeirError, "does not hold the job's key"):
                two.connect(addresses)
            waiting.join()


if __name__ == "__main__":
    unittest.main()
