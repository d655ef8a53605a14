# SPDX-License-Identifier: Apache-2.0
"""Gradients that no hook was called for are noticed; those that are meant to stay local are not."""
import copy
import importlib.util
import io
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir
from ddp_test import BUCKET_MB, batch, difference, make_model


class _WithLoss(torch.nn.Module):
    """A model whose loss is a method, which neither DDP nor a hook of the module sees."""

    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, inputs):
        return self.net(inputs)

    def loss(self, inputs):
        return self.net(inputs).square().sum()


def _penalty(ddp):
    return 0.01 * sum(p.square().sum() for p in ddp.parameters())


def _update_by_hand(ddp):
    with torch.no_grad():
        for parameter in ddp.parameters():
            parameter.sub_(0.01 * parameter.grad)
    ddp.zero_grad(set_to_none=True)


def _one_step(ddp, state, kind, inputs):
    """Gradients of a step, of which some or all stay local, by a mistake or on purpose."""
    if kind == "module called":
        ddp.module(inputs).square().sum().backward()
    elif kind == "method of the module":
        ddp.module.loss(inputs).backward()
    elif kind == "module called before":
        ddp.module(inputs).square().sum().backward()
        ddp(inputs).square().sum().backward()
    elif kind == "penalty before":
        _penalty(ddp).backward()
        ddp(inputs).square().sum().backward()
    elif kind == "method after":
        ddp(inputs).square().sum().backward()
        ddp.module.loss(inputs).backward()
    elif kind == "no_sync alone":
        with ddp.no_sync():
            ddp(inputs).square().sum().backward()
    elif kind == "no_sync":
        with ddp.no_sync():
            ddp(inputs).square().sum().backward()
            loss = ddp(inputs).square().sum()
        loss.backward()
        ddp(inputs).square().sum().backward()
    elif kind == "module under no_sync":
        with ddp.no_sync():
            ddp.module(inputs).square().sum().backward()
        ddp(inputs).square().sum().backward()
    elif kind == "module called after no_sync":
        with ddp.no_sync():
            ddp(inputs).square().sum().backward()
        ddp.module(inputs).square().sum().backward()
    elif kind == "method after no_sync":
        with ddp.no_sync():
            ddp(inputs).square().sum().backward()
        ddp.module.loss(inputs).backward()
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
    elif kind.startswith("zeroed"):
        ddp.module(inputs).square().sum().backward()
        ddp.zero_grad(set_to_none=kind == "zeroed to None")
    elif kind == "closed":
        state.close()
        ddp.module(inputs).square().sum().backward()


def gradients_that_stay_local(rank, world, kinds, steps=1):
    """The errors of training steps of some kinds."""
    return {kind: error_of(rank, kind, steps) for kind in kinds}


def error_of(rank, kind, steps):
    """The error of training steps of one kind behind good ones."""
    ddp = DistributedDataParallel(_WithLoss(), bucket_cap_mb=BUCKET_MB)
    state = weir.attach(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    words = ""
    try:
        for step in range(2):
            optimizer.zero_grad()
            ddp(batch(step, rank)).square().sum().backward()
            optimizer.step()
        for step in range(2, 2 + steps):
            optimizer.zero_grad()
            _one_step(ddp, state, kind, batch(step, rank))
            optimizer.step()
    except weir.WeirError as error:
        words = str(error)
    state.close()
    return words


def updates_by_hand(rank, world, kind):
    """The error of the first forward pass after an update without an optimiser of PyTorch."""
    ddp = DistributedDataParallel(_WithLoss())
    state = weir.attach(ddp)
    _one_step(ddp, state, kind, batch(0, rank))
    _update_by_hand(ddp) if kind != "module called" else torch._foreach_add_(
        [p.detach() for p in ddp.parameters()], 0.01)
    try:
        ddp(batch(1, rank))
        return ""
    except weir.WeirError as error:
        return str(error)
    finally:
        state.close()


def adversaries(rank, world, attaches):
    """Parameters of a generator and a discriminator, whose loss goes through the other's module."""
    generator = DistributedDataParallel(make_model())
    discriminator = DistributedDataParallel(torch.nn.Linear(1, 1))
    states = [weir.attach(model) for model in (generator, discriminator)] if attaches else []
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=0.01)
    for step in range(3):
        made = generator(batch(step, rank))
        of_generator.zero_grad()
        discriminator.module(made).sum().backward()
        of_generator.step()
        of_discriminator.zero_grad()
        discriminator(made.detach()).square().sum().backward()
        of_discriminator.step()
    for state in states:
        state.close()
    return [p.detach().tolist() for p in (*generator.parameters(), *discriminator.parameters())]


def ignored_by_ddp(rank, world, attach):
    """The parameters after steps of a model of which DDP ignores some, which differ between the ranks."""
    model = torch.nn.Sequential(make_model(), torch.nn.Linear(1, 1 + rank))
    model.register_parameter("own", torch.nn.Parameter(torch.full((1 + rank,), float(rank))))
    ignored = ["1.weight", "1.bias", ".own", "own"]  # with and without a dot, as versions of PyTorch want it
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    state = weir.attach(ddp, compare_parameters=True, compare_every_steps=1) if attach else None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        (ddp(batch(step, rank)).square().mean() + model.own.square().sum()).backward()
        optimizer.step()
    if state is not None:
        assert state.stats().step == 2
        state.close()
    return [p.detach().tolist() for p in ddp.parameters()]


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
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    try:
        for step in range(2):
            with enable(torch.compile(backend="eager")):
                ddp(batch(step, rank)).square().sum().backward()
            optimizer.step()
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

    def test_steps_with_gradients_that_no_hook_was_called_for_are_an_error(self):
        kinds = ("module called", "method of the module", "module called after no_sync", "method after no_sync")
        for found, _ in ranks.run(2, gradients_that_stay_local, kinds):
            for kind, words in found.items():
                self.assertIn("not reduced over the ranks", words, kind)
                self.assertIn("not the module inside it", words, kind)
                self.assertIn("'net.", words, kind)

    def test_steps_with_gradients_that_may_be_meant_are_one_warning(self):
        for found, errors in ranks.run(2, gradients_that_stay_local, ("no_sync alone", "method after"), 3):
            self.assertEqual(set(found.values()), {""}, found)
            for said in ("under no_sync() alone", "after they were reduced"):
                self.assertEqual(errors.count(said), 1, errors)

    def test_updates_by_hand_are_noticed_at_the_next_forward_pass(self):
        for words, _ in ranks.run(2, updates_by_hand, "module called"):
            self.assertIn("not reduced over the ranks", words)
        for words, _ in ranks.run(2, updates_by_hand, "module called before"):
            self.assertEqual(words, "")

    def test_a_loss_through_a_model_of_another_optimizer_is_no_error(self):
        expected = ranks.run(2, adversaries, False)
        for (found, _), (plain, _) in zip(ranks.run(2, adversaries, True), expected):
            self.assertLess(difference(*([torch.tensor(p) for p in model] for model in (found, plain))), 1e-6)

    def test_parameters_that_ddp_ignores_may_differ_and_stay_local(self):
        expected = [found for found, _ in ranks.run(2, ignored_by_ddp, False)]
        self.assertNotEqual(*expected)
        self.assertEqual([found for found, _ in ranks.run(2, ignored_by_ddp, True)], expected)

    def test_copies_of_a_model_are_not_attached(self):
        self.assertEqual([made for made, _ in ranks.run(2, copies)], [3, 3])

    def test_gradients_that_are_meant_to_stay_local_are_no_error(self):
        kinds = ("no_sync", "module under no_sync", "module called before", "penalty before", "evaluation",
                 "autograd.grad", "several forwards", "zeroed", "zeroed to None", "closed")
        for found, errors in ranks.run(2, gradients_that_stay_local, kinds, 2):
            self.assertEqual(set(found.values()), {""}, found)
            self.assertEqual(len(found), len(kinds))
            self.assertNotIn("optimiser steps", errors)

    @unittest.skipUnless(importlib.util.find_spec("torch._dynamo"),
                         "this torch has no compiled autograd")
    def test_compiled_autograd_is_never_silent(self):
        for reducer in ("ddp_optimizer", "python_reducer"):
            for words, _ in ranks.run(2, compiled_autograd, reducer):
                self.assertRegex(words.lower(), "compiled autograd", reducer)

    def test_gradients_that_no_hook_was_called_for_are_not_applied(self):
        for (words, changed), _ in ranks.run(2, local_gradients_at_the_optimizer):
            self.assertIn("not reduced over the ranks", words)
            self.assertEqual(changed, 0.0)


if __name__ == "__main__":
    unittest.main()
