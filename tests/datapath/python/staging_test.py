# SPDX-License-Identifier: Apache-2.0
"""Tensors of an accelerator in the process group and in the hooks, on a fake that defers its work.

With a libweir that takes the host's memory for a device's, the hooks pass it the tensors themselves.
"""
import unittest

import torch
import torch.distributed as dist

import ranks
import staging_cases as cases
import staging_models as models
import weir
from weir import staging

WORLD = 2


def on_a_fake(rank, world, case, forgotten=None):
    try:
        return case(cases.FakeDevice(forgotten), rank, world)
    except weir.WeirError as error:
        return str(error)


def on_several_devices(rank, world):
    try:
        staging.accelerator_of([torch.zeros(1), torch.zeros(1, device="meta")])
    except weir.InvalidArgument as error:
        return str(error)


def in_a_graph(rank, world):
    fake = cases.FakeDevice()
    fake.captures = True
    state = cases._state()
    key = state.define([("a", 4, 0)], torch.float32)
    words = []
    for use in (lambda: state.submit(key, fake.tensor(torch.zeros(4))),
                lambda: dist.all_reduce(fake.tensor(torch.zeros(4)))):
        try:
            use()
        except weir.FailedPrecondition as error:
            words.append(str(error))
    state.close()
    return words


class StagingTest(unittest.TestCase):

    def _run(self, case, forgotten=None):
        return [found for found, _ in ranks.run(WORLD, on_a_fake, case, forgotten, backend="weir")]

    def test_every_case_is_right(self):
        for case in cases.CASES:
            with self.subTest(case.__name__):
                self.assertEqual(self._run(case), [True] * WORLD)

    def test_every_model_ends_with_the_right_parameters(self):
        for case in models.MODELS:
            with self.subTest(case.__name__):
                self.assertEqual(self._run(case), [True] * WORLD)

    def test_a_missing_wait_shows(self):
        # In place, libweir itself waits for the device, and ends when the result is there.
        hooks = () if cases.in_place() else (cases.hook, cases.unit, models.ddp)
        for forgotten, which in (("follow outgoing", (cases.all_reduce, cases.hook, models.ddp)),
                                 ("block", (cases.all_reduce, *hooks[::2])),
                                 ("follow incoming", (cases.receive,)),
                                 ("follow computing", (cases.all_reduce, cases.future, *hooks))):
            for case in which:
                with self.subTest(f"{case.__name__} without {forgotten}"):
                    self.assertTrue(any(False in self._run(case, forgotten) for _ in range(3)))

    def test_a_graph_that_is_captured_is_refused(self):
        for words, _ in ranks.run(WORLD, in_a_graph, backend="weir"):
            self.assertEqual(len(words), 2)
            for word in words:
                self.assertIn("a CUDA graph is being captured", word)

    def test_tensors_of_several_devices_are_refused(self):
        (words, _), = ranks.run(1, on_several_devices)
        self.assertIn("found some on cpu, meta", words)


if __name__ == "__main__":
    unittest.main()
