# SPDX-License-Identifier: Apache-2.0
"""The parts of SparseLoCo and DeMo in local steps: decay of residuals, a cosine transform, a step by signs."""
import math
import os
import unittest

import torch
import weir
from torch.nn.parallel import DistributedDataParallel
from weir import transforms

import ranks
from local_test import arrays, largest_difference, loss_of, model, plan_file

RATE, STEP = 0.1, 0.003
SPARSE = {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.2}
SIGN = {"every": 1, "outer": "OUTER_STEP_SIGN", "outer_rate": STEP, "residual_decay": 0.999}


def start(net, optimizer, path):
    try:
        return weir.attach(net, plan_file=path, optimizer=optimizer)
    finally:
        os.unlink(path)


def wide():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(6, 700), torch.nn.Tanh(), torch.nn.Linear(700, 2))


def trained(rank, world, make, sync, fallback, steps, rest):
    """Parameters after `steps` steps, and after `rest` more that move nothing by themselves."""
    net = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    state = start(net, optimizer, plan_file(sync=sync, fallback=fallback))
    found = []
    for step in range(steps + rest):
        if step == steps:
            found.append(arrays(net))
            for group in optimizer.param_groups:
                group["lr"] = 0.0
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
    found.append(arrays(net))
    return found, state.stats().next_step


def signs_by_hand(unused_rank, unused_world, world, steps):
    net = model()
    for step in range(steps):
        net.zero_grad()
        sum(loss_of(net, rank, step) / world for rank in range(world)).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= STEP * p.grad.sign()
    return arrays(net)


class TransformsTest(unittest.TestCase):
    def test_it_is_orthonormal_and_undone(self):
        flat = torch.randn(3 * 4096 + 17, generator=torch.Generator().manual_seed(1))
        changed = flat.clone()
        transforms.dct(changed)
        self.assertAlmostEqual(float(changed.norm()), float(flat.norm()), places=3)
        self.assertGreater(float((changed - flat)[:4096].abs().max()), 0.1)
        self.assertTrue(torch.equal(changed[3 * 4096:], flat[3 * 4096:]))
        transforms.inverse_dct(changed)
        self.assertLess(float((changed - flat).abs().max()), 1e-5)

    def test_what_is_smooth_is_in_few_coefficients(self):
        row = torch.arange(64, dtype=torch.float32)
        square = torch.cos(math.pi / 64 * (row[:, None] + 0.5) * 3) * torch.cos(math.pi / 64 * (row + 0.5) * 5)
        flat = square.flatten().clone()
        transforms.dct(flat)
        self.assertEqual(int((flat.abs() > 1e-4).sum()), 1)
        self.assertEqual(int(flat.abs().argmax()), 3 * 64 + 5)


class LocalMethodsTest(unittest.TestCase):
    def test_a_step_by_the_sign_of_the_mean(self):
        wanted, _ = ranks.run(1, signs_by_hand, 2, 6)[0]
        for (found, steps), _ in ranks.run(2, trained, model, SIGN, {"codec": "identity", "collective": "ring"}, 6, 0):
            self.assertEqual(steps, 6)  # each step of the optimiser synchronises
            self.assertLess(largest_difference(found[-1], wanted), 1e-6)

    def test_selected_among_cosine_coefficients(self):
        results = [r for r, _ in ranks.run(2, trained, wide, {**SIGN, "transform": transforms.DCT}, SPARSE, 12, 0)]
        plain = ranks.run(2, trained, wide, SIGN, SPARSE, 12, 0)[0][0]
        for found, _ in results:
            self.assertEqual(largest_difference(found[-1], results[0][0][-1]), 0.0)
        self.assertGreater(largest_difference(results[0][0][-1], plain[0][-1]), STEP)

    def test_residuals_decay(self):
        def second(decay):
            sync = {"every": 2, "residual_decay": decay}
            found = ranks.run(2, trained, model, sync, SPARSE, 2, 2)[0][0][0]
            return [after - before for before, after in zip(*found)]
        whole, half = second(1.0), second(0.5)
        self.assertGreater(max(abs(w).max() for w in whole), 1e-4)
        for w, h in zip(whole, half):
            self.assertLess(abs(w / 2 - h).max(), 1e-6)


if __name__ == "__main__":
    unittest.main()
