# SPDX-License-Identifier: Apache-2.0
"""Local steps against the same arithmetic done by hand, on three ranks."""
import json
import os
import signal
import tempfile
import time
import unittest
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.optim
import weir
from weir import regroup
from torch.nn.parallel import DistributedDataParallel

import ranks
from stub_agent import StubAgent

EVERY, STEPS, WORLD = 4, 12, 3
RATE = 0.1
BUCKET_MB = 0.0001  # a bucket for each parameter


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 2))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(5, 6, generator=generator)
    return inputs, inputs[:, :2] * (rank + 1)


def arrays(net):
    return [p.detach().numpy().copy() for p in net.parameters()]


def loss_of(net, rank, step):
    inputs, wanted = batch(rank, step)
    return torch.nn.functional.mse_loss(net(inputs), wanted)


def plan_file(**keys):
    """The name of a plan with `sync`; the rank removes it."""
    sync = {"every": EVERY, **keys.pop("sync", {})}
    plan = {"fallback": {"codec": "identity", "collective": "ring"}, "sync": sync, **keys}
    file = tempfile.NamedTemporaryFile("w", suffix=".json", delete=False)
    json.dump(plan, file)
    file.close()
    return file.name


def optimizer_of(net, kind):
    if kind == "adam":
        return torch.optim.Adam(net.parameters(), lr=0.01)
    return torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)


def train(rank, world, plan, kind, steps=STEPS, check=lambda *_: None, wrap=lambda _: None):
    """Parameters after so many steps, as arrays, and the stats."""
    path = plan_file(**plan)
    try:
        net = DistributedDataParallel(model())
        optimizer = optimizer_of(net, kind)
        state = weir.attach(net, plan_file=path, optimizer=optimizer)
    finally:
        os.unlink(path)
    wrap(optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
        check(state, net, step)
    dist.barrier()  # a rank that leaves within a period ends the others' last synchronisation
    return arrays(net), state.stats()


def by_hand(world, kind, outer, steps=STEPS, every=EVERY, fragments=None, overlap=0, mix=0.0):
    """The same on one process: a model for each rank, and the outer step as DiLoCo's paper has it.

    fragments: the names of each one's parameters; None: one of all parameters."""
    modules = [model() for _ in range(world)]
    nets = [dict(m.named_parameters()) for m in modules]
    optimizers = [optimizer_of(m, kind) for m in modules]
    anchor = {name: p.detach().clone() for name, p in nets[0].items()}
    velocity = {name: torch.zeros_like(a) for name, a in anchor.items()}
    fragments = fragments or [list(anchor)]
    period, moved = every // len(fragments), {}
    for step in range(steps):
        for rank, (net, optimizer) in enumerate(zip(modules, optimizers)):
            optimizer.zero_grad()
            loss_of(net, rank, step).backward()
            optimizer.step()
        names = fragments[step // period % len(fragments)]
        if (step + 1) % period == (period - overlap) % period:
            moved = {name: sum(anchor[name] - net[name].detach() for net in nets) / world for name in names}
        if (step + 1) % period:
            continue
        for name in names:
            if outer is None:
                anchor[name] = anchor[name] - moved[name]
            else:
                rate, momentum = outer
                velocity[name] = momentum * velocity[name] + moved[name]
                anchor[name] = anchor[name] - rate * (moved[name] + momentum * velocity[name])
            for net in nets:
                net[name].data.copy_(anchor[name] * (1 - mix) + net[name].data * mix)
    return [arrays(m) for m in modules]


def wanted_of(*arguments):
    """by_hand() in a process of its own, since ranks cannot be forked after a backward pass."""
    return ranks.run(1, lambda *_: by_hand(WORLD, *arguments))[0][0]


def largest_difference(left, right):
    return max(float(abs(a - b).max()) for a, b in zip(left, right))


def plan_of(version, every, **keys):
    return {"version": version, "fallback": {"codec": "identity", "collective": "ring"},
            "sync": {"every": every}, **keys}


def switched(rank, world, agent, kind, last):
    """Trains until plan `last` is active and some steps more; the parameters and versions of all steps."""
    net = DistributedDataParallel(model())
    optimizer = optimizer_of(net, kind)
    state = weir.attach(net, agent=agent, optimizer=optimizer, compare_parameters=True,
                        compare_every_steps=1)
    versions, left = [], 10
    for step in range(2000):
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
        versions.append(state.stats().plan_version)
        left -= versions[-1] == last
        if left == 0:
            break
        time.sleep(0.002)
    state.close()
    return arrays(net), versions


def one_rank_skips(rank, world):
    """Rank 1's optimiser makes no step where the ranks should synchronise, as with a loss scaler."""
    path = plan_file()
    net = DistributedDataParallel(model())
    optimizer = optimizer_of(net, "sgd")
    state = weir.attach(net, plan_file=path, optimizer=optimizer)
    for step in range(2 * EVERY + 1):
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        if rank != 1 or (step + 1) % EVERY:
            optimizer.step()
    with torch.no_grad():  # since the last synchronisation, in step 2 * EVERY
        state.synchronise(now=True)
    os.unlink(path)
    return arrays(net), state.stats().next_step


def with_nan(rank, world):
    """Rank 1's parameters become NaN once. Parameters, and whether and where a period was skipped."""
    path = plan_file()
    net = DistributedDataParallel(model())
    optimizer = optimizer_of(net, "adam")
    state = weir.attach(net, plan_file=path, optimizer=optimizer)
    skipped, steps = [], 0
    for step in range(5 * EVERY):
        optimizer.zero_grad()
        loss = loss_of(net, rank, step)
        (loss * float("nan") if rank == 1 and step in (EVERY + 1, 3 * EVERY + 1) else loss).backward()
        if not state.last_step_skipped:
            optimizer.step()
            steps += 1
        if (step + 1) % EVERY == 0:
            skipped.append((bool(state.last_step_skipped), getattr(state.last_step_skipped, "rank", None),
                            getattr(state.last_step_skipped, "parameter", None)))
    os.unlink(path)
    return arrays(net), skipped, steps


def compressed(rank, world, plan):
    """As train(), with what the ranks have after each synchronisation."""
    seen = []
    _, stats = train(rank, world, plan, "sgd", 10 * EVERY,
                     lambda state, net, step: seen.append(arrays(net)) if (step + 1) % EVERY == 0 else None)
    return seen, stats


def restored(rank, world):
    """The largest difference between an uninterrupted run and one that is saved within a period."""
    plan = {"sync": NESTEROV, "fallback": {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.2}}
    path, half, results = plan_file(**plan), 2 * EVERY + 2, []
    for stop in (None, half):
        net = DistributedDataParallel(model())
        optimizer = optimizer_of(net, "adam")
        state = weir.attach(net, plan_file=path, optimizer=optimizer)
        for step in range(4 * EVERY):
            if step == stop:
                saved = {"weir": state.state_dict(), "optimizer": optimizer.state_dict(),
                         "model": {k: v.clone() for k, v in net.state_dict().items()}}
                state.close()
                net = DistributedDataParallel(model())
                net.load_state_dict(saved["model"])
                optimizer = optimizer_of(net, "adam")
                optimizer.load_state_dict(saved["optimizer"])
                state = weir.attach(net, plan_file=path, optimizer=optimizer)
                state.load_state_dict(saved["weir"])
            optimizer.zero_grad()
            loss_of(net, rank, step).backward()
            optimizer.step()
        state.close()
        results.append(arrays(net))
    os.unlink(path)
    return largest_difference(*results)


def restored_without(rank, world):
    """A checkpoint of a period goes on with a sum of gradients in every step; the ranks' parameters."""
    path = plan_file()
    net = DistributedDataParallel(model())
    optimizer = optimizer_of(net, "adam")
    state = weir.attach(net, plan_file=path, optimizer=optimizer)
    for step in range(10):
        if step == EVERY + 2:
            saved = state.state_dict()
            state.close()
            kept = arrays(net)
            net = DistributedDataParallel(model())
            with torch.no_grad():
                for p, value in zip(net.parameters(), kept):
                    p.copy_(torch.from_numpy(value))
            optimizer = optimizer_of(net, "adam")
            state = weir.attach(net, optimizer=optimizer)
            state.load_state_dict(saved)
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
    os.unlink(path)
    return arrays(net)


def replaced(rank, world):
    """Rank 1 of three dies within a period; a fourth process takes its place. The parameters at the end."""
    store = dist.distributed_c10d._get_default_store()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3])]
    net = DistributedDataParallel(model(), process_group=groups[rank // 3])
    optimizer = optimizer_of(net, "sgd")
    path, step = plan_file(sync=NESTEROV), 0
    options = {"job": "local", "operation_timeout_s": 20.0, "plan_file": path, "optimizer": optimizer}
    if rank == 3:
        regroup._take(store, "dying", 40.0)
        for _ in range(2):
            loss_of(net, 0, 99).backward()
        state, found = weir.attach_replacement(net, store, expected=3, **options)
    else:
        state = weir.attach(net, rank=rank, world=3, **options)
        found = None
    while state.stats().next_step < 6:
        if rank == 1 and step == 2 * EVERY + 2:
            regroup._put(store, "dying", "1")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        try:
            loss_of(net, state.rank, step).backward()
            optimizer.step()
        except weir.WeirError:
            found = state.reform(store, expected=3)
        step += 1
    state.synchronise(now=True)
    os.unlink(path)
    return arrays(net), found and found._asdict(), [v.tolist() for v in state._local.tensors()]


def slower(rank, world):
    """Rank 1 needs four times the time that the others need, which is longer than an operation may take."""
    path = plan_file()
    net = DistributedDataParallel(model())
    optimizer = optimizer_of(net, "sgd")
    state = weir.attach(net, plan_file=path, optimizer=optimizer, operation_timeout_s=1.0)
    for step in range(2 * EVERY):
        optimizer.zero_grad()
        time.sleep(0.6 if rank == 1 else 0.15)
        loss_of(net, rank, step).backward()
        optimizer.step()
    os.unlink(path)
    return state.stats().next_step


def streamed(rank, world, plan, kind, steps, save_at=None):
    """Parameters after so many steps with several buckets; the fragments; parameters at the end."""
    path = plan_file(**plan)
    with mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 8):
        net = DistributedDataParallel(model(), bucket_cap_mb=BUCKET_MB)
    optimizer = optimizer_of(net, kind)
    state = weir.attach(net, plan_file=path, optimizer=optimizer, compare_parameters=True)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
        if step == save_at and rank == 0:
            state.state_dict()
    found = arrays(net)
    fragments = [[name for names in each for name in names] for each in state._local.fragments()]
    buckets = sum(len(each) for each in state._local.fragments())
    state.synchronise(now=True)
    os.unlink(path)
    return found, fragments, arrays(net), state.stats().replicas_compared, buckets


def refusals(rank, world):
    """Returns how attach() refuses models and optimisers that cannot take local steps."""
    def words(net, optimizer, **options):
        try:
            weir.attach(net, optimizer=optimizer, **options).close()
        except weir.WeirError as error:
            return str(error)
        return ""
    batch_norm = DistributedDataParallel(torch.nn.BatchNorm1d(3))
    net = DistributedDataParallel(model())
    zero = torch.distributed.optim.ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    return [words(batch_norm, optimizer_of(batch_norm, "sgd")),
            words(net, torch.optim.SGD(list(net.parameters())[1:], lr=1)), words(net, zero)]


def loss_with(parameters):
    """The mean over ranks and some batches of the loss."""
    net = model()
    for p, value in zip(net.parameters(), parameters):
        p.data.copy_(torch.from_numpy(value))
    with torch.no_grad():
        return sum(float(loss_of(net, rank, step)) for rank in range(WORLD) for step in range(20)) / WORLD / 20


NESTEROV = {"outer": "OUTER_STEP_SGD_NESTEROV", "outer_rate": 0.7, "outer_momentum": 0.9}


class LocalTest(unittest.TestCase):
    def expect(self, plan, kind, outer, steps=STEPS):
        wanted = wanted_of(kind, outer, steps)
        for rank, ((found, stats), _) in enumerate(ranks.run(WORLD, train, plan, kind, steps)):
            self.assertLess(largest_difference(found, wanted[rank]), 2e-6, f"rank {rank}")
            self.assertEqual(stats.steps_skipped, 0)
        return stats

    def test_the_mean_of_parameters(self):
        stats = self.expect({}, "sgd", None)
        self.assertEqual(stats.next_step, STEPS // EVERY)
        self.assertGreater(stats.replicas_compared, 0)

    def test_an_outer_step_with_momentum(self):
        self.expect({"sync": NESTEROV}, "adam", (0.7, 0.9))

    def test_ranks_differ_between_synchronisations(self):
        found = ranks.run(WORLD, train, {}, "sgd", EVERY + 1)
        self.assertGreater(largest_difference(found[0][0][0], found[1][0][0]), 1e-4)
        self.expect({}, "sgd", None, EVERY + 1)

    def test_fragments_and_overlap(self):
        for kind, fragments, overlap, mix in (("sgd", 2, 0, 0.0), ("adam", 1, 3, 0.5), ("sgd", 2, 2, 0.25),
                                              ("adam", 4, 0, 0.0)):
            plan = {"sync": {"every": 8, "fragments": fragments, "overlap_steps": overlap, "mix": mix,
                             **NESTEROV}}
            with self.subTest(kind=kind, fragments=fragments, overlap=overlap):
                results = [r for r, _ in ranks.run(WORLD, streamed, plan, kind, 24)]
                names = results[0][1]
                self.assertEqual(len(names), min(fragments, results[0][4]))
                wanted = wanted_of(kind, (0.7, 0.9), 24, 8, names, overlap, mix if overlap else 0.0)
                for rank, (found, own, end, compared, _) in enumerate(results):
                    self.assertEqual(own, names)
                    self.assertLess(largest_difference(found, wanted[rank]), 2e-5)
                    self.assertGreaterEqual(compared, 24 // (8 // len(names)) - 1)
                    if mix == 0:
                        self.assertEqual(largest_difference(end, results[0][2]), 0.0)

    def test_saving_while_a_synchronisation_is_on_its_way(self):
        plan = {"sync": {"every": 8, "fragments": 2, "overlap_steps": 2, **NESTEROV}}
        for save_at in (1, 2, 3, 5, 10):
            results = [r for r, _ in ranks.run(2, streamed, plan, "sgd", 16, save_at)]
            self.assertEqual(largest_difference(results[0][2], results[1][2]), 0.0, save_at)

    def test_plans_switch_it_on_and_off(self):
        for kind in ("sgd", "adam"):
            with StubAgent(WORLD) as agent:
                agent.offer_when_active = {2: plan_of(3, 1), 3: plan_of(4, 3, sync={"every": 3, **NESTEROV}),
                                           4: plan_of(5, 1)}
                agent.offer(plan_of(2, 5))
                results = [r for r, _ in ranks.run(WORLD, switched, agent.address, kind, 5)]
            for found, versions in results:
                self.assertEqual(versions, results[0][1])
                self.assertLessEqual({2, 3, 4, 5}, set(versions))
                for a, b in zip(found, results[0][0]):
                    self.assertEqual(a.tolist(), b.tolist())  # every step's gradients are summed again

    def test_a_rank_whose_optimiser_makes_no_step_holds_nobody_up(self):
        results = [r for r, _ in ranks.run(WORLD, one_rank_skips)]
        for found, steps in results:
            self.assertEqual(steps, 3)
            self.assertEqual(largest_difference(found, results[0][0]), 0.0)

    def test_nan_on_one_rank_costs_one_period(self):
        results = ranks.run(WORLD, with_nan)
        for (found, skipped, steps), _ in results:
            self.assertEqual(steps, 5 * EVERY)  # none is taken for one that must be skipped
            self.assertEqual([s for s, *_ in skipped], [False, True, False, True, False])
            self.assertEqual(skipped[3][1], 1)  # known from the second time on
            self.assertEqual(largest_difference(found, results[0][0][0]), 0.0)
            self.assertTrue(all(abs(a).max() < 10 for a in found))
        self.assertIn("the optimiser's state of", results[1][1])

    def test_compressed_with_what_was_left_out_kept(self):
        plan = {"fallback": {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.2}}
        results = [r for r, _ in ranks.run(WORLD, compressed, plan)]
        dense = loss_with(wanted_of("sgd", None, 10 * EVERY)[0])
        before = loss_with(wanted_of("sgd", None, 0)[0])
        for seen, stats in results:
            self.assertEqual(stats.replicas_compared, 9)
            for own, other in zip(seen, results[0][0]):
                self.assertEqual(largest_difference(own, other), 0.0)
            # Most of the way is gone, though each synchronisation carries a fifth of it.
            self.assertLess(loss_with(seen[-1]) - dense, 0.25 * (before - dense))

    def test_a_checkpoint_within_a_period_continues_exactly(self):
        for difference, _ in ranks.run(WORLD, restored):
            self.assertEqual(difference, 0.0)

    def test_a_checkpoint_within_a_period_continues_without_local_steps(self):
        results = [r for r, _ in ranks.run(WORLD, restored_without)]
        for found in results:
            self.assertEqual(largest_difference(found, results[0]), 0.0)

    def test_a_replacement_takes_parameters_and_velocity(self):
        results = [r[0] for r in ranks.run(4, replaced, may_die=(1,)) if r is not None]
        self.assertEqual(len(results), 3)
        for found, regrouped, velocity in results:
            self.assertNotEqual(regrouped["model_source"], 1)
            self.assertEqual(largest_difference(found, results[0][0]), 0.0)
            self.assertEqual(velocity, results[0][2])
            self.assertNotEqual(velocity[0][0][0], 0.0)

    def test_a_rank_that_is_four_times_slower_is_waited_for(self):
        self.assertEqual([steps for steps, _ in ranks.run(2, slower)], [2, 2])

    def test_models_that_cannot(self):
        for words, _ in ranks.run(2, refusals):
            self.assertRegex(words[0], "broadcast_buffers=False")
            self.assertRegex(words[1], "expected the optimiser of this model, found one without '0.weight'")
            self.assertRegex(words[2], "ZeroRedundancyOptimizer")

    def test_without_the_optimiser_such_a_plan_is_refused(self):
        def refused(rank, world):
            path = plan_file()
            try:
                weir.attach(DistributedDataParallel(model()), plan_file=path)
            except weir.WeirError as error:
                return str(error)
            finally:
                os.unlink(path)
            return ""
        for words, _ in ranks.run(2, refused):
            self.assertRegex(words, r"a sum of gradients in every step, since this rank was attached without its optimiser")


if __name__ == "__main__":
    unittest.main()
