# SPDX-License-Identifier: Apache-2.0
"""Jobs that lose a rank to SIGKILL in the middle of training and go on: with fewer ranks, or with a
replacement."""
import os
import signal
import time
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir
from weir import regroup

WIDTH = 16
STEPS = 14
LAST_WORDS = 5  # the step in which a rank dies
RATE = 0.1
VICTIM = 1


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
                         nn.Linear(WIDTH, 1))


def loss_of(model, step, rank):
    """Every rank and step has data of its own; what is to be learnt is the same."""
    inputs = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
    return (model(inputs) - 0.3 * inputs.sum(dim=1, keepdim=True)).square().mean()


def descend(model):
    with torch.no_grad():
        for p in model.parameters():
            p -= RATE * p.grad


def train_alone(unused_rank, unused_world, worlds):
    model = make_model()
    for step, world in enumerate(worlds):
        model.zero_grad()
        sum(loss_of(model, step, rank) / world for rank in range(world)).backward()
        descend(model)
    return [p.detach().flatten().tolist() for p in model.parameters()]


def reference(worlds):
    """Parameters after training in one process; worlds[step] ranks in each step.

    A process of its own does it: torch 2 refuses a backward pass after a fork of one that has run another.
    """
    return ranks.run(1, train_alone, worlds)[0][0]


def shrinks(rank, world):
    """Four ranks train under DDP, one dies within its backward pass, three go on."""
    ddp = DistributedDataParallel(make_model(), bucket_cap_mb=0.0005)
    state = weir.attach(ddp, operation_timeout_s=30.0)
    losses, found, words, step = [], None, "", 0
    while step < STEPS:
        if rank == VICTIM and step == LAST_WORDS:
            # The first layer's gradient comes last, when other buckets are under way.
            ddp.module[0].weight.register_hook(lambda g: os.kill(os.getpid(), signal.SIGKILL))
        ddp.zero_grad()
        loss = loss_of(ddp, step, state.rank)
        try:
            loss.backward()
        except weir.WeirError as error:
            words = str(error)
            found = state.reform(expected=3, timeout_s=30.0)
            step = found.next_step
            continue
        descend(ddp.module)
        losses.append(float(loss))
        step += 1
    parameters = [p.detach().flatten().tolist() for p in ddp.module.parameters()]
    stats = state.stats()
    state.close()
    return found._asdict(), words, losses, parameters, stats.epoch, stats.next_step


def _share_of(model, session, key, step):
    """One step of a plain training loop on a session; the loss before it."""
    model.zero_grad()
    loss = loss_of(model, step, session.rank)
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    session.step_begin()
    session.wait(session.all_reduce(key, flat.data_ptr(), 1.0 / session.world))
    session.step_end()
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
    descend(model)
    return float(loss)


def _define(session, model):
    return session.define_bucket([(name, p.numel()) for name, p in model.named_parameters()])


def replaced(rank, world):
    """Three ranks train; a fourth process waits and takes the place of the one that dies."""
    store = dist.distributed_c10d._get_default_store()
    model, found = make_model(), None
    if rank == 3:
        regroup._take(store, "dying", 60.0)
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()  # whatever it begins with
        session, found = weir.rejoin("replaced", store, expected=3, operation_timeout_s=30.0)
        weir.share(store, "replaced", found, list(model.parameters()), security=session.security)
    else:
        session = weir.Session("replaced", rank, 3, operation_timeout_s=30.0,
                               job_key=bytes(range(32)))
        session.connect(regroup.exchange(store, "first", rank, 3, session.address))
    key, losses = _define(session, model), []
    step = found.next_step if found else 0
    while step < STEPS:
        if rank == VICTIM and step == LAST_WORDS:
            regroup._put(store, "dying", "1")
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            losses.append(_share_of(model, session, key, step))
        except weir.WeirError as error:
            words = str(error)
            assert f"rank {VICTIM}" in words, words
            found = weir.reform(session, store, expected=3)
            weir.share(store, "replaced", found, list(model.parameters()),
                       security=session.security)
            step = found.next_step
            continue
        step += 1
    session.close()
    return found._asdict(), losses, [p.detach().flatten().tolist() for p in model.parameters()]


def replaced_under_ddp(rank, world):
    """As `replaced`, under DDP: the survivors' process group has lost a rank, the newcomer's is new."""
    store = dist.distributed_c10d._get_default_store()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3])]
    ddp = DistributedDataParallel(make_model(), bucket_cap_mb=0.0005,
                                  process_group=groups[rank // 3])
    options = {"job": "replaced", "operation_timeout_s": 30.0}
    counted = torch.tensor([float(rank)])  # stands for what an optimiser keeps
    step, found, losses = 0, None, []
    if rank == 3:
        regroup._take(store, "dying", 60.0)
        for _ in range(2):
            loss_of(ddp, 99, rank).backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p.zero_()
        state, found = weir.attach_replacement(ddp, store, expected=3, tensors=[counted], **options)
        step = found.next_step
    else:
        state = weir.attach(ddp, rank=rank, world=3, **options)
    while step < STEPS:
        if rank == VICTIM and step == LAST_WORDS:
            regroup._put(store, "dying", "1")
            os.kill(os.getpid(), signal.SIGKILL)
        ddp.zero_grad()
        loss = loss_of(ddp, step, state.rank)
        try:
            loss.backward()
        except weir.WeirError:
            found = state.reform(store, expected=3, tensors=[counted])
            step = found.next_step
            continue
        descend(ddp.module)
        losses.append(float(loss))
        step += 1
    state.close()
    return (found._asdict(), losses, [p.detach().flatten().tolist() for p in ddp.module.parameters()],
            float(counted))


class SeatsTest(unittest.TestCase):
    """Numbers in the new world."""

    def test_survivors_keep_their_numbers_where_all_fit(self):
        self.assertEqual(regroup.seats([("c", 2), ("new", None), ("a", 0)]),
                         {"a": 0, "new": 1, "c": 2})

    def test_survivors_close_ranks_in_their_order(self):
        self.assertEqual(regroup.seats([("d", 3), ("a", 0), ("c", 2)]), {"a": 0, "c": 1, "d": 2})

    def test_newcomers_alone_are_numbered_as_they_came(self):
        self.assertEqual(regroup.seats([("x", None), ("y", None)]), {"x": 0, "y": 1})


class Store:
    """The part of a store that regroup uses, in memory."""

    def __init__(self):
        self.values = {}

    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def set(self, key, value):
        self.values[key] = str(value).encode()

    def get(self, key):
        return self.values[key]


class MeetTest(unittest.TestCase):

    def test_one_rank_alone_closes_the_list(self):
        self.assertEqual(regroup.meet(Store(), "p", 1, 2, expected=1), (0, 1, {0: 2}))

    def test_late_rank_is_told_so(self):
        store = Store()
        regroup.meet(store, "p", 1, 0, expected=1)
        with self.assertRaisesRegex(weir.WeirError, "too late, 1 ranks have gone on"):
            regroup.meet(store, "p", 1, 1, expected=2)

    def test_list_that_nobody_closes_is_an_error(self):
        store = Store()
        store.add("p/1/signed", 1)  # and died
        with self.assertRaisesRegex(weir.WeirError, "was not closed"):
            regroup.meet(store, "p", 1, 1, timeout_s=0.1, settle_s=0.1)

    def test_a_rank_without_an_address_is_named(self):
        store = Store()
        self.assertEqual(regroup.exchange(store, "k", 0, 1, "x"), ["x"])
        with self.assertRaisesRegex(weir.WeirError, "rank 2 of 3 gave no address within 0.1 s"):
            regroup.exchange(store, "k", 1, 3, "y", 0.1)

    def test_a_replacement_does_not_wait_for_a_key_for_ever(self):
        store = Store()
        with self.assertRaisesRegex(weir.WeirError, "no surviving rank has put the job's key"):
            regroup.rejoin("job", store, expected=1, settle_s=0.01, timeout_s=0.1)


def one_cannot_start(rank, world):
    """The error of attach() if only rank 1 has no plan file, and the time that it waits."""
    ddp = DistributedDataParallel(make_model())
    begin = time.monotonic()
    try:
        weir.attach(ddp, plan_file="/nonexistent/plan.json" if rank == 1 else None).close()
    except weir.WeirError as error:
        return str(error), time.monotonic() - begin
    return "", 0.0


class ReformTest(unittest.TestCase):

    def test_a_rank_that_cannot_start_ends_the_others(self):
        for (words, waited_s), _ in ranks.run(2, one_cannot_start):
            self.assertIn("/nonexistent/plan.json", words)
            self.assertLess(waited_s, 20.0)

    def test_three_of_four_go_on_after_a_kill(self):
        results = ranks.run(4, shrinks, may_die=(VICTIM,))
        self.assertIsNone(results[VICTIM])
        expected = reference([4] * LAST_WORDS + [3] * (STEPS - LAST_WORDS))
        for rank, new_rank in ((0, 0), (2, 1), (3, 2)):
            found, words, losses, parameters, epoch, next_step = results[rank][0]
            self.assertEqual((found["rank"], found["world"], found["next_step"]),
                             (new_rank, 3, LAST_WORDS))
            self.assertIn(f"rank {VICTIM}", words)
            self.assertEqual((epoch, next_step), (1, STEPS))
            self.assertLess(sum(losses[-3:]), 0.8 * sum(losses[LAST_WORDS:LAST_WORDS + 3]))
            for got, want in zip(parameters, expected):
                self.assertTrue(torch.allclose(torch.tensor(got), torch.tensor(want), atol=1e-5))

    def test_replacement_takes_the_place_of_the_dead(self):
        results = ranks.run(4, replaced, may_die=(VICTIM,))
        self.assertIsNone(results[VICTIM])
        expected = reference([3] * STEPS)
        for rank, new_rank in ((0, 0), (2, 2), (3, VICTIM)):
            found, losses, parameters = results[rank][0]
            self.assertEqual((found["rank"], found["world"], found["next_step"]),
                             (new_rank, 3, LAST_WORDS))
            self.assertLess(sum(losses[-3:]), 0.8 * sum(losses[:3]))
            for got, want in zip(parameters, expected):
                self.assertTrue(torch.allclose(torch.tensor(got), torch.tensor(want), atol=1e-5))

    def test_replacement_joins_under_ddp(self):
        results = ranks.run(4, replaced_under_ddp, may_die=(VICTIM,))
        self.assertIsNone(results[VICTIM])
        expected = reference([3] * STEPS)
        for rank, new_rank in ((0, 0), (2, 2), (3, VICTIM)):
            found, losses, parameters, counted = results[rank][0]
            self.assertEqual((found["rank"], found["world"], found["next_step"]),
                             (new_rank, 3, LAST_WORDS))
            self.assertEqual(counted, results[found["model_source"]][0][3])
            self.assertLess(sum(losses[-3:]), 0.8 * sum(losses[:3]))
            for got, want in zip(parameters, expected):
                self.assertTrue(torch.allclose(torch.tensor(got), torch.tensor(want), atol=1e-5))


if __name__ == "__main__":
    unittest.main()
