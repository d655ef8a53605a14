# SPDX-License-Identifier: Apache-2.0
"""Local steps when something breaks: a rank dies within an overlap, another one before the replacement of the
first has synchronised, the agent goes away."""
import os
import signal
import threading
import time
import unittest

import torch
import torch.distributed as dist
import weir
from weir import regroup
from torch.nn.parallel import DistributedDataParallel

import ranks
from local_test import NESTEROV, arrays, largest_difference, loss_of, model, optimizer_of, plan_file, plan_of
from stub_agent import StubAgent

PERIOD = 8


def die(store, name):
    regroup._put(store, name, "1")
    os.kill(os.getpid(), signal.SIGKILL)


def attached(rank, store, options, first):
    """The model of this rank and its state: of the first three, or of a replacement that waits to be needed.

    first: the number of ranks that begin."""
    groups = [dist.new_group(list(range(first)))] + [dist.new_group([r]) for r in range(first, dist.get_world_size())]
    net = DistributedDataParallel(model(), process_group=groups[max(0, rank - first + 1)])
    optimizer = optimizer_of(net, "sgd")
    options = {**options, "optimizer": optimizer}
    if rank < first:
        return net, optimizer, weir.attach(net, rank=rank, world=first, **options), None
    regroup._take(store, f"dying {rank}", 50.0)
    for _ in range(2):
        loss_of(net, 0, 99).backward()
    state, found = weir.attach_replacement(net, store, expected=first, **options)
    return net, optimizer, state, found


def with_losses(rank, world, sync, deaths, steps):
    """Ranks 1 and, if there is a second death, 2 are replaced by 3 and 4. deaths: of each, (reforms seen before,
    steps of the optimiser since the last of them or the begin). Parameters and what was found at the last reform."""
    store = dist.distributed_c10d._get_default_store()
    path = plan_file(sync=sync)
    options = {"job": "faults", "operation_timeout_s": 20.0, "plan_file": path}
    net, optimizer, state, found = attached(rank, store, options, 3)
    reforms, since = (1 if found is None else 2) - 1, 0
    sources = []
    while state.stats().next_step < steps:
        for victim, (seen, at) in enumerate(deaths, 1):
            if rank == victim and reforms == seen and since == at:
                die(store, f"dying {victim + 2}")
        optimizer.zero_grad()
        try:
            loss_of(net, state.rank, since).backward()
            optimizer.step()
            since += 1
        except weir.WeirError:
            found = state.reform(store, expected=3)
            sources.append(found.model_source)
            reforms, since = reforms + 1, 0
    state.synchronise(now=True)
    os.unlink(path)
    return arrays(net), sources, state.stats().epoch


def without_agent(rank, world, agent):
    """Steps until every rank has had the plan and lost its agent, and then through three more periods."""
    net = DistributedDataParallel(model())
    optimizer = optimizer_of(net, "sgd")
    state = weir.attach(net, agent=agent, optimizer=optimizer, compare_parameters=True, compare_every_steps=1)
    left = 3 * PERIOD + 2
    for step in range(3000):
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
        stats = state.stats()
        alone = torch.tensor(float(stats.plan_version == 2 and not stats.agent_connected))
        dist.all_reduce(alone, dist.ReduceOp.MIN)
        left -= int(alone)
        if left == 0:
            break
        time.sleep(0.001)
    state.synchronise(now=True)
    stats = state.stats()
    return arrays(net), stats.plan_version, stats.agent_connected, stats.replicas_compared


class LocalFaultsTest(unittest.TestCase):
    def expect_equal(self, results, epoch):
        self.assertEqual(len(results), 3)
        for found, sources, own_epoch in results:
            self.assertEqual(largest_difference(found, results[0][0]), 0.0)
            self.assertEqual(own_epoch, epoch)
        return [source for _, sources, _ in results for source in sources]

    def test_a_rank_that_dies_within_an_overlap(self):
        sync = {"every": PERIOD, "overlap_steps": 4, "mix": 0.5, **NESTEROV}
        deaths = [(0, PERIOD + 6)]  # the second synchronisation began two steps before
        results = [r[0] for r in ranks.run(4, with_losses, sync, deaths, 6, may_die=(1,)) if r is not None]
        self.assertNotIn(1, self.expect_equal(results, 1))

    def test_a_second_rank_dies_before_the_replacement_of_the_first_has_synchronised(self):
        sync = {"every": PERIOD, **NESTEROV}
        deaths = [(0, PERIOD + 3), (1, 3)]
        results = [r[0] for r in ranks.run(5, with_losses, sync, deaths, 6, may_die=(1, 2)) if r is not None]
        sources = self.expect_equal(results, 2)
        self.assertEqual(set(sources), {0}, "a rank that has just joined gives no model")

    def test_ranks_go_on_when_the_agent_is_gone(self):
        with StubAgent(2) as agent:
            agent.offer(plan_of(2, PERIOD))

            def leave():
                agent.wait_until_active(2, deadline_s=40.0)
                for connection in list(agent._ranks.values()):
                    connection.close()
                agent.__exit__()
            threading.Thread(target=leave, daemon=True).start()
            results = [r for r, _ in ranks.run(2, without_agent, agent.address)]
        for found, version, connected, compared in results:
            self.assertEqual(version, 2)
            self.assertFalse(connected)
            self.assertGreaterEqual(compared, 2)
            self.assertEqual(largest_difference(found, results[0][0]), 0.0)


if __name__ == "__main__":
    unittest.main()
