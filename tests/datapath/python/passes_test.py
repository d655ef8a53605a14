# SPDX-License-Identifier: Apache-2.0
"""A step ends with its backward pass: one that has passes within it, and one that raises an error."""
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ranks
import weir
from fsdp_test import WIDTH, batch, make_fsdp1, make_fsdp2, make_model, meshes, needs

BAD_STEP = 4
dist._DEFAULT_FIRST_BUCKET_BYTES = 1024


class Nested(nn.Module):
    """Three reentrant checkpoints, of which one is in another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.last = (nn.Linear(WIDTH, WIDTH) for _ in "abc")

    def inner(self, x):
        return self.second(checkpoint(self.first, x, use_reentrant=True))

    def forward(self, x, offset):
        """offset: infinity makes the gradient of last.weight, and no other, infinite."""
        hidden = checkpoint(self.inner, x, use_reentrant=True)
        return checkpoint(self.last, hidden + offset, use_reentrant=True)


class Failing(torch.autograd.Function):
    """Raises an error in the backward pass of one step."""

    fails = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Failing.fails:
            raise MemoryError("out of memory")
        return gradient


class FailingLayer(nn.Module):

    def forward(self, x):
        return Failing.apply(x)


def make_ddp(module):
    return DistributedDataParallel(module, bucket_cap_mb=0.002)


def make_static(module):
    return DistributedDataParallel(module, bucket_cap_mb=0.002, static_graph=True)


def make_sharded(module):
    return make_fsdp1(module, "FULL_SHARD")


def make_fully_sharded(module):
    return make_fsdp2(module, meshes(2))


def nested_passes(rank, world, make):
    """(the session's step, whether it was skipped) after each step."""
    model = make(Nested())
    state, seen = weir.attach(model), []
    for step in range(BAD_STEP + 2):
        model.zero_grad()
        offset = float("inf") if (step, rank) == (BAD_STEP, 1) else 0.0
        model(batch(step, rank).requires_grad_(), offset).sum().backward()
        seen.append((state.stats().step, bool(state.last_step_skipped)))
    state.close()
    return seen


def after_error(model, rank, fails_at, state=None):
    """(the session's step, whether it was skipped, gradients) of each step after one that fails."""
    seen = []
    for step in range(fails_at + 4):
        model.zero_grad()
        inputs = batch(step, rank)
        if (step, rank) == (fails_at + 2, 1):
            inputs[0, 0] = float("nan")
        Failing.fails = step == fails_at
        failed = False
        try:
            model(inputs).square().sum().backward()
        except MemoryError:
            failed = True
        if failed != Failing.fails:
            raise AssertionError(f"step {step}: failed is {failed}")
        if step > fails_at:
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            seen.append((state.stats().step if state else step,
                         bool(state.last_step_skipped) if state else step == fails_at + 2, gradients))
    return seen


def broken_pass(rank, world, fails_at):
    """(steps, skipped, the largest difference from the wrapper without Weir, gradients) after an error."""
    models = []
    for _ in range(2):
        parts = list(make_model())
        models.append(make_sharded(nn.Sequential(*parts[:2], FailingLayer(), *parts[2:])))
    alone = after_error(models[0], rank, fails_at)
    state = weir.attach(models[1])
    found = after_error(models[1], rank, fails_at, state)
    state.close()
    worst = max(float((a - b).abs().max()) for (_, bad, ours), (_, _, theirs) in zip(found, alone)
                if not bad for a, b in zip(ours, theirs) if a.numel())
    return [s[0] for s in found], [s[1] for s in found], worst, sum(len(s[2]) for s in found)


class PassesTest(unittest.TestCase):

    def _ends_once(self, make):
        expected = [(step, step == BAD_STEP) for step in range(BAD_STEP + 2)]
        for seen, _ in ranks.run(2, nested_passes, make):
            self.assertEqual(seen, expected)

    def test_reentrant_checkpoints_end_a_step_once(self):
        self._ends_once(make_ddp)
        self._ends_once(make_static)

    @needs("FullyShardedDataParallel")
    def test_reentrant_checkpoints_in_fsdp1_end_a_step_once(self):
        self._ends_once(make_sharded)

    @needs("FSDPModule.set_custom_reduce_scatter")
    def test_reentrant_checkpoints_in_fsdp2_end_a_step_once(self):
        self._ends_once(make_fully_sharded)

    # DDP refuses the forward pass after one, and FSDP2 no longer reduces, with Weir and without.
    @needs("FullyShardedDataParallel")
    def test_fsdp1_goes_on_after_an_error_in_a_pass(self):
        for fails_at in (1, 4):
            for (steps, skipped, worst, gradients), _ in ranks.run(2, broken_pass, fails_at):
                with self.subTest(fails_at=fails_at):
                    self.assertEqual(steps, [fails_at + n for n in (1, 2, 3)])
                    self.assertEqual(skipped, [False, True, False])
                    self.assertGreater(gradients, 0)
                    self.assertLess(worst, 1e-5)


if __name__ == "__main__":
    unittest.main()
