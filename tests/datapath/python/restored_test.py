# SPDX-License-Identifier: Apache-2.0
"""A hook's state, restored into a new model, continues as the saved one would have."""
import tempfile
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir
from ddp_test import BUCKET_MB, batch, make_model, plan_file

SAVED_AFTER, STEPS = 3, 6


def _steps(ddp, rank, steps):
    """Yields the gradients of each of the steps of SGD."""
    for step in steps:
        ddp.zero_grad()
        ddp(batch(step, rank)).square().sum().backward()
        yield torch.cat([p.grad.flatten() for p in ddp.parameters()])
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.01 * p.grad


def continued(rank, world, static_graph, forget):
    """Per step, the largest difference between gradients of an uninterrupted and a restored run.

    forget: drops the list of buckets from the state, as states of earlier versions lack it.
    """
    def wrapped():
        return DistributedDataParallel(make_model(), bucket_cap_mb=BUCKET_MB,
                                       static_graph=static_graph)

    first = wrapped()
    state = weir.attach(first)
    list(_steps(first, rank, range(SAVED_AFTER)))
    saved = state.state_dict()
    if forget:
        del saved["buckets"]
    model = {name: value.clone() for name, value in first.state_dict().items()}
    expected = list(_steps(first, rank, range(SAVED_AFTER, STEPS)))
    state.close()

    second = wrapped()
    second.load_state_dict(model)
    state = weir.attach(second)
    state.load_state_dict(saved)
    found = list(_steps(second, rank, range(SAVED_AFTER, STEPS)))
    codecs = {choice["codec"] for _, choice in state.choices()}
    state.close()
    return [float((a - b).abs().max()) for a, b in zip(found, expected)], codecs


def other_model(rank, world):
    """Loads the state of a model with other parameters: the mean of its first step is right."""
    first, second = [DistributedDataParallel(torch.nn.Linear(width, 1)) for width in (5, 7)]
    state = weir.attach(first)
    first(torch.ones(5)).backward()
    saved = state.state_dict()
    state.close()
    state = weir.attach(second)
    state.load_state_dict(saved)
    second(torch.full((7,), float(rank))).backward()
    state.close()
    return second.module.weight.grad.tolist()


class RestoredTest(unittest.TestCase):

    def _continued(self, static_graph, forget=False):
        with tempfile.TemporaryDirectory() as directory:
            plan = plan_file(directory, "top_k", "sparse_all_gather", 0.25)
            return ranks.run(2, continued, static_graph, forget,
                             environment={"WEIR_PLAN_FILE": plan})

    def test_continues_exactly_from_the_first_step(self):
        for static_graph in (False, True):
            for (differences, codecs), _ in self._continued(static_graph):
                self.assertEqual(differences, [0.0] * (STEPS - SAVED_AFTER))
                self.assertEqual(codecs, {"top_k"})

    def test_states_without_buckets_are_still_read(self):
        for (differences, _), _ in self._continued(False, forget=True):
            self.assertGreater(differences[0], 0)  # which the list of buckets is there for

    def test_state_of_another_model_does_no_harm(self):
        for gradient, _ in ranks.run(2, other_model):
            self.assertEqual(gradient, [[0.5] * 7])


if __name__ == "__main__":
    unittest.main()
