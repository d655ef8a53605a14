# SPDX-License-Identifier: Apache-2.0
"""Runs a function as several ranks in forked processes, with a deadline for all of them."""
import contextlib
import datetime
import gc
import importlib
import multiprocessing
import os
import socket
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
import weir
import weir.process_group
import weir.steps

# DistributedDataParallel's constructor and fully_shard() import these: 2 to 4 s of processor time in every rank,
# unless the process that they are forked from has done so. An old torch lacks them, or fails at them.
for _late in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint"):
    with contextlib.suppress(Exception):
        importlib.import_module(_late)
gc.collect()
gc.freeze()  # otherwise a rank's garbage collection writes to, and so copies, every page that it was forked with

DEADLINE_S = 60.0
_fork = multiprocessing.get_context("fork")


def free_port():
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank_main(pipe, function, rank, world, port, environment, arguments, backend, enter):
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", **environment})
    enter(rank)
    torch.set_num_threads(1)
    words = tempfile.TemporaryFile()
    os.dup2(words.fileno(), 2)  # libweir writes there too
    try:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=DEADLINE_S))
        kind, value = "ok", function(rank, world, *arguments)
    except BaseException:
        kind, value = "error", traceback.format_exc()
    words.seek(0)
    pipe.send((kind, value, words.read().decode(errors="replace")))
    pipe.close()
    if kind == "ok":
        # Ranks that are still exchanging would take an end without a shutdown notice for a death.
        for module in (weir.steps, weir.process_group):
            module._close_all()  # pylint: disable=protected-access
    if rank == 0:  # the default group's store is served from here, and others may still ask it
        time.sleep(DEADLINE_S)  # until `run` has everyone's result and kills
    os._exit(0)  # no teardown of Gloo's threads


def _other_errors(ranks, first):
    """The errors of ranks after `first` within seconds: the cause is often another rank's."""
    text = ""
    for rank, (_, receive) in list(enumerate(ranks))[first + 1:]:
        try:
            if receive.poll(2.0):
                kind, value, words = receive.recv()
                text += f"\nrank {rank}:\n{value}{words}" if kind == "error" else ""
        except EOFError:
            text += f"\nrank {rank} died"
    return text


def run(world, function, *arguments, environment=None, may_die=(), backend="gloo",
        deadline_s=DEADLINE_S, enter=lambda rank: None):
    """[(result, stderr)] by rank. Raises AssertionError with a rank's traceback, or at the
    deadline. Ranks in `may_die` give None when their process ended without a result.
    `backend` is that of the default process group. `enter` is the first thing that a rank calls.
    """
    port, ranks = free_port(), []
    for rank in range(world):
        receive, send = _fork.Pipe(duplex=False)
        child = _fork.Process(target=_rank_main, args=(send, function, rank, world, port,
                                                       environment or {}, arguments, backend, enter))
        child.start()
        send.close()
        ranks.append((child, receive))
    deadline, results = time.monotonic() + deadline_s, []
    try:
        for rank, (child, receive) in enumerate(ranks):
            if not receive.poll(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"rank {rank} gave no result within {deadline_s:g} s")
            try:
                kind, value, words = receive.recv()
            except EOFError:
                if rank not in may_die:
                    raise AssertionError(f"rank {rank} died") from None
                results.append(None)
                continue
            if kind == "error":
                raise AssertionError(f"rank {rank}:\n{value}{words}" + _other_errors(ranks, rank))
            results.append((value, words))
    finally:
        for child, receive in ranks:
            child.kill()
            child.join()
            receive.close()
    return results
