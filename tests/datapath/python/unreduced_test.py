# SPDX-License-Identifier: Apache-2.0
"""Gradients that no hook was called for are noticed; those that are meant to stay local are not."""
import copy
import importlib.util
import io
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

import ranks
import weir
from ddp_test import BUCKET_MB, batch, difference, make_model


def _reduces_nothing(models, kind, inputs):
    """Gradients of the first model that stay local, by a mistake or on purpose."""
    ddp = models[0]
    if kind == "module called":
        ddp.module(inputs).square().sum().backward()
    elif kind == "no_sync":
        with ddp.no_sync():
            ddp(inputs).square().sum().backward()
            loss = ddp(inputs).square().sum()
        loss.backward()
    elif kind == "module under no_sync":
        with ddp.no_sync():
            ddp.module(inputs).square().sum().backward()
    elif kind == "module called after no_sync":
        with ddp.no_sync():
            ddp(inputs).square().sum().backward()
        ddp.module(inputs).square().sum().backward()
    elif kind == "evaluation":
        with torch.no_grad():
            ddp(inputs)
        ddp.eval()
        ddp.module(inputs.clone())
        ddp.train()
    elif kind == "autograd.grad":
        inputs = inputs.clone().requires_grad_()
        torch.autograd.grad(ddp.module(inputs).square().sum(), [inputs, *ddp.parameters()])
    elif kind == "several forwards":
        (ddp(inputs).square().sum() + ddp(inputs + 1).square().sum()).backward()
    elif kind == "closed":
        models[1].close()


def gradients_that_stay_local(rank, world, kind):
    """The error of the first training step after `kind`."""
    ddp = DistributedDataParallel(make_model(), bucket_cap_mb=BUCKET_MB)
    state = weir.attach(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    words = ""
    try:
        for step in range(2):
            ddp(batch(step, rank)).square().sum().backward()
            optimizer.step()
        _reduces_nothing((ddp, state), kind, batch(3, rank))
        if kind != "closed":
            for step in range(2):
                ddp(batch(step, rank)).square().sum().backward()
                optimizer.step()
    except weir.WeirError as error:
        words = str(error)
    state.close()
    return words


def copies(rank, world):
    """Parameters of copies of an attached model that trained alone, without any rank's hearing of it."""
    ddp = DistributedDataParallel(make_model())
    state = weir.attach(ddp)
    file = io.BytesIO()
    torch.save(ddp.module, file)
    file.seek(0)
    loaded = {} if "weights_only" not in torch.load.__code__.co_varnames else {"weights_only": False}
    made = [copy.deepcopy(ddp.module), copy.deepcopy(ddp).module, torch.load(file, **loaded)]
    for model in made:
        for step in range(2):
            model(batch(step, rank)).square().sum().backward()
    ddp(batch(0, rank)).square().sum().backward()
    state.close()
    return len(made)


def compiled_autograd(rank, world, reducer):
    """The errors of two steps under compiled autograd, of PyTorch or Weir."""
    from torch._dynamo import compiled_autograd as compiled
    enable = getattr(compiled, "_enable", None) or compiled.enable
    torch._dynamo.config.optimize_ddp = reducer
    ddp = DistributedDataParallel(make_model())
    state = weir.attach(ddp)
    try:
        for step in range(2):
            with enable(torch.compile(backend="eager")):
                ddp(batch(step, rank)).square().sum().backward()
    except Exception as error:
        return str(error)
    finally:
        state.close()
    return ""


def local_gradients_at_the_optimizer(rank, world):
    """Whether the optimiser's step raises, before any parameter changes."""
    ddp = DistributedDataParallel(make_model())
    state = weir.attach(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    before = [p.detach().clone() for p in ddp.parameters()]
    ddp.module(batch(0, rank)).square().sum().backward()
    try:
        optimizer.step()
        words = ""
    except weir.WeirError as error:
        words = str(error)
    state.close()
    return words, difference(before, list(ddp.parameters()))


class UnreducedTest(unittest.TestCase):

    def test_gradients_that_no_hook_was_called_for_are_an_error(self):
        for words, _ in ranks.run(2, gradients_that_stay_local, "module called"):
            self.assertIn("none were reduced over the ranks", words)
            self.assertIn("not the module inside it", words)

    def test_no_sync_of_an_earlier_pass_excuses_nothing(self):
        for words, _ in ranks.run(2, gradients_that_stay_local, "module called after no_sync"):
            self.assertIn("none were reduced over the ranks", words)

    def test_copies_of_a_model_are_not_attached(self):
        self.assertEqual([made for made, _ in ranks.run(2, copies)], [3, 3])

    def test_gradients_that_are_meant_to_stay_local_are_no_error(self):
        for kind in ("no_sync", "module under no_sync", "evaluation", "autograd.grad", "several forwards", "closed"):
            for words, _ in ranks.run(2, gradients_that_stay_local, kind):
                self.assertEqual(words, "", kind)

    @unittest.skipUnless(importlib.util.find_spec("torch._dynamo"),
                         "this torch has no compiled autograd")
    def test_compiled_autograd_is_never_silent(self):
        for reducer in ("ddp_optimizer", "python_reducer"):
            for words, _ in ranks.run(2, compiled_autograd, reducer):
                self.assertRegex(words.lower(), "compiled autograd", reducer)

    @unittest.skipUnless(hasattr(optimizers, "register_optimizer_step_pre_hook"),
                         "this torch has no hook before optimiser steps")
    def test_gradients_that_no_hook_was_called_for_are_not_applied(self):
        for (words, changed), _ in ranks.run(2, local_gradients_at_the_optimizer):
            self.assertIn("none were reduced over the ranks", words)
            self.assertEqual(changed, 0.0)


if __name__ == "__main__":
    unittest.main()
