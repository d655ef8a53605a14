# SPDX-License-Identifier: Apache-2.0
"""A rank that cannot start: all others must learn at once which one and why, not at the store's timeout."""
import datetime
import os
import time
import unittest
from unittest import mock

import torch
import torch.distributed as dist
import weir
from weir import keys

import ranks

DEADLINE_S = 30.0
TOLD_S = 2.0
LATE_S = 4.0
LIMIT_S = 3.0


def start(rank, world, how, prepare, failing, late):
    """Starts Weir on a rank; returns the error and how long it took from the failing rank's on."""
    store = dist.distributed_c10d._get_default_store()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    if rank == failing:
        prepare()
        store.set("begun", str(time.time()))
    elif rank == late:
        time.sleep(LATE_S)
    try:
        if how == "attach":
            weir.attach(model)
        else:
            weir.WeirProcessGroup(dist.PrefixStore("group", store), rank, world, datetime.timedelta(seconds=20))
        return None, 0.0
    except Exception as error:
        return str(error), time.time() - float(store.get("begun"))


def without(rank, world, how, absent):
    """Starts Weir on all ranks but one; returns the error and how long it took."""
    limit = datetime.timedelta(seconds=LIMIT_S)
    store = dist.distributed_c10d._get_default_store()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    if rank == absent:
        return None
    begun = time.monotonic()
    try:
        if how == "attach":
            store.set_timeout(limit)
            weir.attach(model)
        else:
            weir.WeirProcessGroup(dist.PrefixStore("group", store), rank, world, limit)
    except (weir.DeadlineExceeded, weir.RankLost) as error:  # the latter where another rank says it
        return str(error), time.monotonic() - begun, type(error).__name__
    return "no error", 0.0, ""


def misplaced(rank, world, options, peers):
    """The error of weir.attach with these options, and how long it took."""
    os.environ["WEIR_PEERS"] = ",".join(peers)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    begun = time.monotonic()
    try:
        weir.attach(model, **options).close()
    except weir.InvalidArgument as error:
        return str(error), time.monotonic() - begun
    return "no error", 0.0


def no_key_file():
    os.environ["WEIR_JOB_KEY_FILE"] = "/nonexistent/key"


def bad_number():
    os.environ["WEIR_ENCODE_WORKERS"] = "many"


def unknown_transport():
    os.environ["WEIR_TRANSPORT"] = "pigeon"


def another_job():
    os.environ["WEIR_JOB"] = "another"


def own_key(path):
    os.environ["WEIR_JOB_KEY_FILE"] = path


def encrypts():
    os.environ["WEIR_ENCRYPT"] = "1"


def no_library():
    mock.patch.object(weir._lib, "library", side_effect=weir.LibraryNotFound("no libweir.so")).start()


class MeetingTest(unittest.TestCase):
    def expect(self, how, prepare, words, failing=1, world=2, late=None):
        results = ranks.run(world, start, how, prepare, failing, late, deadline_s=DEADLINE_S)
        for rank, ((error, seconds), _) in enumerate(results):
            with self.subTest(how=how, prepare=prepare.__name__, rank=rank):
                self.assertIsNotNone(error)
                for word in words:
                    self.assertIn(word, error)
                if rank != failing:
                    self.assertIn(f"rank {failing} (", error)
                if rank != late:
                    self.assertLess(seconds, TOLD_S)

    def test_a_missing_key_file_of_one_rank(self):
        for how in ("attach", "group"):
            for failing in (0, 1):
                self.expect(how, no_key_file, ["/nonexistent/key", "No such file"], failing)

    def test_other_errors_before_the_addresses(self):
        self.expect("attach", bad_number, ["WEIR_ENCODE_WORKERS", "'many'"])
        self.expect("attach", unknown_transport, ["pigeon"])
        self.expect("attach", no_library, ["no libweir.so"])
        self.expect("attach", another_job, ["'another'", "'training'", "WEIR_JOB"])

    def test_an_error_while_connecting(self):
        for how in ("attach", "group"):
            for failing in (0, 2):
                results = ranks.run(3, start, how, encrypts, failing, None, deadline_s=DEADLINE_S)
                for rank, ((error, seconds), _) in enumerate(results):
                    with self.subTest(how=how, failing=failing, rank=rank):
                        self.assertIn(f"encrypt: rank {failing} does, rank", error or "")
                        self.assertLess(seconds, TOLD_S)

    def test_ranks_do_not_wait_for_a_late_one_to_hear_of_it(self):
        self.expect("attach", no_key_file, ["/nonexistent/key"], failing=2, world=3, late=0)
        self.expect("group", no_key_file, ["/nonexistent/key"], failing=2, world=3, late=1)

    def test_a_start_after_a_failed_one(self):
        def twice(rank, world):
            if rank == 1:
                no_key_file()
            failed = start(rank, world, "attach", lambda: None, 1, None)
            os.environ.pop("WEIR_JOB_KEY_FILE", None)
            return failed[0], start(rank, world, "attach", lambda: None, 1, None)[0]
        for (failed, again), _ in ranks.run(2, twice, deadline_s=DEADLINE_S):
            self.assertIn("/nonexistent/key", failed)
            self.assertIsNone(again)

    def test_a_rank_that_does_not_come_is_named(self):
        for how, absent, world in (("attach", 1, 2), ("attach", 0, 3), ("group", 2, 3)):
            results = ranks.run(world, without, how, absent, deadline_s=DEADLINE_S)
            results = [result for result, _ in results[:absent] + results[absent + 1:]]
            self.assertIn("DeadlineExceeded", [name for _, _, name in results])
            for error, seconds, _ in results:
                with self.subTest(how=how, absent=absent):
                    self.assertIn(f"rank {absent} of {world} did not come within {LIMIT_S:g} s", error)
                    self.assertLess(seconds, LIMIT_S + TOLD_S)

    def test_a_rank_outside_of_the_world_is_refused_at_once(self):
        for world, number in ((1, 5), (1, -1), (2, 2)):
            for (error, seconds), _ in ranks.run(world, misplaced, {"rank": number}, [],
                                                 deadline_s=DEADLINE_S):
                self.assertIn(f"rank {number}, expected one from 0 to {world - 1}", error)
                self.assertLess(seconds, TOLD_S)

    def test_peers_that_are_not_the_world_are_refused_at_once(self):
        peers = [f"127.0.0.1:{ranks.free_port()}" for _ in range(3)]
        for count in (1, 3):
            for options, environment, name in (({}, peers[:count], "WEIR_PEERS"),
                                               ({"peers": peers[:count]}, [], "peers")):
                for (error, seconds), _ in ranks.run(2, misplaced, options, environment,
                                                     deadline_s=DEADLINE_S):
                    self.assertIn(f"{name} lists {count} addresses, expected one of each of 2 ranks", error)
                    self.assertLess(seconds, TOLD_S)

    def test_a_key_file_of_rank_0_alone(self):
        def only_rank_0(rank, world):
            path = f"/tmp/weir-key-{os.getpid()}"
            if rank == 0:
                with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(bytes(range(keys.KEY_BYTES)))
                own_key(path)
            try:
                return start(rank, world, "attach", lambda: None, 0, None)
            finally:
                if rank == 0:
                    os.unlink(path)
        for (error, seconds), _ in ranks.run(2, only_rank_0, deadline_s=DEADLINE_S):
            self.assertIn("WEIR_JOB_KEY_FILE", error)
            self.assertLess(seconds, TOLD_S)


if __name__ == "__main__":
    unittest.main()
