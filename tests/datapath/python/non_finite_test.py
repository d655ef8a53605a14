# SPDX-License-Identifier: Apache-2.0
"""Skipped steps name the rank and the parameter that met NaN or infinity."""
import time
import unittest

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir
import weir.steps
from ddp_test import BUCKET_MB, Scaled, batch, make_model
from fsdp_test import make_fsdp1, needs
from stub_agent import StubAgent
from weir.non_finite import Agreement

GUILTY = {"0.bias": 0, "2.weight": 1, "4.bias": 2}  # parameter -> rank


def where(state):
    skipped = state.last_step_skipped
    return skipped and (skipped.step, skipped.rank, skipped.parameter)


def run_steps(model, state, rank, original):
    """The results of several steps: good, three bad ones, good."""
    searches = []
    search = weir.steps.first_non_finite
    weir.steps.first_non_finite = lambda named: searches.append(1) or search(named)
    seen, searched = [], []
    parameters = dict(original.named_parameters())
    for step, name in enumerate([None, *GUILTY, None]):
        handle = None
        if name is not None and rank == GUILTY[name]:
            handle = parameters[name].register_hook(lambda g: torch.full_like(g, float("inf")))
        model.zero_grad()
        model(batch(step, rank)).square().sum().backward()
        if handle is not None:
            handle.remove()
        seen.append(where(state))
        searched.append(len(searches))
    state.close()
    return seen, searched


def ddp_steps(rank, world, options):
    model = make_model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, **options)
    return run_steps(ddp, weir.attach(ddp), rank, model)


def too_large_sum(rank, world):
    """Each rank's gradient is finite, their sum is not: (where, seconds)."""
    ddp = DistributedDataParallel(Scaled(torch.float32))
    state = weir.attach(ddp)
    began = time.monotonic()
    ddp(torch.full((1000,), 3e38)).backward()
    took = time.monotonic() - began
    found = where(state)
    state.close()
    return found, took


class InfiniteInput(nn.Module):
    """Infinity in the input of a layer becomes infinity in the gradient of its weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.first(x).sum() + self.second(x.sign()).sum()


def fsdp_steps(rank, world, strategy):
    model = make_fsdp1(InfiniteInput(), strategy)
    state = weir.attach(model)
    seen = []
    for step in range(4):
        inputs = torch.ones(3, 4)
        if rank == 1 and step in (1, 2):
            inputs[2, 3] = float("inf")
        model.zero_grad()
        model(inputs).backward()
        seen.append(where(state))
    state.close()
    return seen


class NonFiniteTest(unittest.TestCase):

    def test_rank_and_parameter_are_the_same_on_every_rank(self):
        results = ranks.run(3, ddp_steps, {})
        expected = [(step, rank, name) for step, (name, rank) in enumerate(GUILTY.items(), 1)]
        for (seen, searched), _ in results:
            self.assertEqual(seen, [False, *expected, False])
            self.assertEqual([searched[0], searched[4] - searched[3]], [0, 0])  # in good steps
        words = results[0][1]
        self.assertEqual(words.count("was skipped"), 3)
        self.assertIn("step 2 was skipped: the gradient of '2.weight' on rank 1 held NaN", words)
        self.assertNotIn("was skipped", results[1][1])

    def test_the_agent_learns_rank_and_parameter(self):
        with StubAgent() as agent:
            events = agent.events
            ranks.run(3, ddp_steps, {}, environment={"WEIR_AGENT": agent.address})
            wanted = [(step, rank, name) for step, (name, rank) in enumerate(GUILTY.items(), 1)]
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and len(events) < 2 * len(wanted):
                time.sleep(0.01)  # ranks do not wait until the agent has read
        told = [(int(e["step"]), e["guilty_rank"], e["parameter"]) for e in events
                if e["kind"] == "non_finite"]
        self.assertEqual(sorted(t for t in told if t[1] >= 0), wanted)
        self.assertEqual(sorted(t for t in told if t[1] < 0), [(s, -1, "") for s in (1, 2, 3)])
        self.assertTrue(all(e["bucket"] for e in events if e.get("parameter")))

    def test_steps_after_one_without_a_name_have_one(self):
        for options in ({"gradient_as_bucket_view": True}, {"static_graph": True}):
            results = ranks.run(3, ddp_steps, options)
            expected = [(step, rank, name) for step, (name, rank) in enumerate(GUILTY.items(), 1)]
            for (seen, _), _ in results:
                self.assertEqual(seen, [False, (1, None, None), *expected[1:], False])
            self.assertEqual(results[0][1].count("the next 100 steps are searched"), 1)

    def test_finite_gradients_with_an_infinite_sum_have_no_name(self):
        for (found, took), _ in ranks.run(2, too_large_sum):
            self.assertEqual(found, (0, None, None))
            self.assertLess(took, 4.0)  # nobody waits for a rank that has nothing to say

    @needs("FullyShardedDataParallel")
    def test_fsdp_names_the_parameter_from_the_second_step_on(self):
        for strategy in ("FULL_SHARD", "NO_SHARD"):
            for seen, _ in ranks.run(2, fsdp_steps, strategy):
                self.assertEqual(seen, [False, (1, None, None), (2, 1, "first.weight"), False])

    def test_a_lost_store_costs_the_name_and_not_the_step(self):
        class Lost:
            def add(self, key, amount):
                raise RuntimeError("Connection reset by peer")

        self.assertEqual(Agreement(Lost(), "job").reach(7, 0, 2, "weight"), (None, None))

    def test_it_is_what_it_was(self):
        skipped = weir.SkippedStep(7, 1, "a.b")
        self.assertTrue(skipped)
        self.assertEqual(skipped, True)
        self.assertIn("'a.b' on rank 1", str(skipped))


if __name__ == "__main__":
    unittest.main()
