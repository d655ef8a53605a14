# SPDX-License-Identifier: Apache-2.0
"""weir.attach on FullyShardedDataParallel and fully_shard(), compared with their own reductions."""
import contextlib
import importlib
import json
import os
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir
import weir.fsdp
from stub_agent import StubAgent

WIDTH = 24
STEPS = 4
RATE = 0.01


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH + 1), nn.Tanh(),
                         nn.Linear(WIDTH + 1, 1))


def batch(step, rank):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model, rank, steps=STEPS):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step, rank)).square().sum().backward()
        optimizer.step()


def plain(rank):
    """The parameters after the same steps under DDP over Gloo."""
    model = DistributedDataParallel(make_model())
    train(model, rank)
    return [p.detach().clone() for p in model.parameters()]


def difference(found, expected):
    return max(float((a - b).abs().max()) for a, b in zip(found, expected))


def plan_file(directory, job="training"):
    """A plan of top-k for every bucket of the job."""
    path = os.path.join(directory, f"{job}.json")
    choice = {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.25}
    with open(path, "w", encoding="ascii") as out:
        json.dump({"job": job, "version": 1, "buckets": [], "fallback": choice}, out)
    return path


class Scaled(nn.Module):
    """A parameter whose gradient is the input, so that the sum of all updates is known."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(40, 25))

    def forward(self, x):
        return (self.weight * x).sum()


def drained(model, rank, weight_of):
    """Feeds random gradients, then zeros until the residuals have drained; the largest relative
    difference of the weight from what plain SGD would have made of the ranks' mean gradients."""
    world = dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fed = torch.zeros(40, 25)
    for step in range(24):
        inputs = [torch.randn(40, 25, generator=torch.Generator().manual_seed(10 * step + r))
                  * (step < 4) for r in range(world)]
        fed += sum(inputs) / world
        optimizer.zero_grad()
        model(inputs[rank]).backward()
        optimizer.step()
    return float((weight_of(model) + fed).abs().max() / fed.abs().max())


def result(model, state, rank, parameters_of):
    """(difference from plain DDP, buckets' names, steps) after training `model`."""
    train(model, rank)
    worst = difference(parameters_of(model), plain(rank))
    found = worst, sorted(str(key[0]) for key in state._keys), state.stats().step
    state.close()
    return found


def words_of(function):
    try:
        function()
    except weir.WeirError as error:
        return str(error)
    return ""


# ---- FSDP1


def make_fsdp1(module, strategy, **options):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    return FullyShardedDataParallel(
        module, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy[strategy], **{"use_orig_params": True, **options})


def gathered(model):
    from torch.distributed.fsdp import FullyShardedDataParallel
    with FullyShardedDataParallel.summon_full_params(model):
        return [p.detach().clone() for p in model.parameters()]


def drained_and_codecs(model, rank, parameters):
    """Attaches to the model; see drained(). Returns the codecs that ran, too."""
    state = weir.attach(model)
    worst = drained(model, rank, lambda m: parameters(m)[0])
    codecs = {choice["codec"] for _, choice in state.choices()}
    state.close()
    return worst, codecs


def fsdp1(rank, world, strategy, original):
    model = make_fsdp1(make_model(), strategy, use_orig_params=original)
    state = weir.attach(model)
    return result(model, state, rank, gathered)


def fsdp1_drained(rank, world, strategy):
    return drained_and_codecs(make_fsdp1(Scaled(), strategy), rank, gathered)


def fsdp1_hybrid(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return words_of(lambda: weir.attach(make_fsdp1(make_model(), "HYBRID_SHARD", device_mesh=mesh)))


# ---- FSDP2


def make_fsdp2(model, mesh):
    from torch.distributed.fsdp import fully_shard
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model):
    return [p.full_tensor().detach() for p in model.parameters()]


def meshes(*shape):
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])


def fsdp2(rank, world):
    model = make_fsdp2(make_model(), meshes(world))
    return result(model, weir.attach(model), rank, whole)


def fsdp2_drained(rank, world):
    return drained_and_codecs(make_fsdp2(Scaled(), meshes(world)), rank, whole)


def hsdp(rank, world):
    mesh = meshes(2, 2)
    model = make_fsdp2(make_model(), mesh["shard"])
    state = weir.attach(model, process_group=mesh["replicate"].get_group())
    job = state.session.job
    return (*result(model, state, rank, whole), job)


def hsdp_drained(rank, world, plans):
    mesh = meshes(2, 2)
    model = make_fsdp2(Scaled(), mesh["shard"])
    state = weir.attach(model, process_group=mesh["replicate"].get_group(),
                        plan_file=plans[rank % 2])
    worst = drained(model, rank, lambda m: whole(m)[0])
    codecs = {choice["codec"] for _, choice in state.choices()}
    state.close()
    return worst, codecs


def fsdp2_refusals(rank, world):
    """The errors for a mesh of two dimensions, and for a PyTorch without the hooks."""
    return words_of(lambda: weir.attach(make_fsdp2(make_model(), meshes(2, 2)))), words_of(
        lambda: weir.attach(make_fsdp2(make_model(), meshes(4))).close())


def lost_rank(rank, world, make):
    model = make()
    state = weir.attach(model, operation_timeout_s=5.0)
    for step in range(3):
        if rank == 1 and step == 2:
            os._exit(9)
        try:
            model(batch(step, rank)).square().sum().backward()
        except weir.WeirError as error:
            return step, str(error), words_of(lambda: state.reform())
    return None


MAKE = {"FSDP1": (lambda world: make_fsdp1(make_model(), "FULL_SHARD"), gathered),
        "FSDP2": (lambda world: make_fsdp2(make_model(), meshes(world)), whole)}


def dense_steps(rank, world, kind, agent, plans):
    """(difference from plain DDP, bytes that libweir sent by step)."""
    make, parameters_of = MAKE[kind]
    model, sent = make(world), []
    state = weir.attach(model, agent=agent, plan_file=plans)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(7):
        optimizer.zero_grad()
        model(batch(step, rank)).square().sum().backward()
        optimizer.step()
        sent.append(state.stats().bytes_sent)
    found = parameters_of(model)
    state.close()
    reference = DistributedDataParallel(make_model())
    train(reference, rank, 7)
    expected = [p.detach() for p in reference.parameters()]
    return difference(found, expected), [b - a for a, b in zip([0, *sent], sent)]


def scaled(kind, world):
    model = make_fsdp1(Scaled(), "FULL_SHARD") if kind == "FSDP1" else make_fsdp2(Scaled(),
                                                                                meshes(world))
    return model, (gathered if kind == "FSDP1" else whole)


def turns_dense(rank, world, kind):
    """Top-k until the agent's plan turns all dense: (the largest difference of what was delivered
    from what was fed, collectives)."""
    model, parameters_of = scaled(kind, world)
    state = weir.attach(model)
    optimizer, fed, dense = torch.optim.SGD(model.parameters(), lr=1.0), torch.zeros(40, 25), 0
    for step in range(400):
        inputs = [torch.randn(40, 25, generator=torch.Generator().manual_seed(10 * step + r))
                  * (dense == 0) for r in range(world)]
        fed += sum(inputs) / world
        optimizer.zero_grad()
        model(inputs[rank]).backward()
        optimizer.step()
        dense += state.stats().plan_version == 2
        if dense == 3:
            break
        time.sleep(0.005)  # the plan comes from another process
    collectives = {choice["collective"] for _, choice in state.choices()}
    worst = float((parameters_of(model)[0] + fed).abs().max() / fed.abs().max())
    state.close()
    return worst, collectives


def infinite_in_a_dense_step(rank, world, kind):
    model, _ = scaled(kind, world)
    state, seen = weir.attach(model), []
    for step in range(4):
        inputs = torch.ones(40, 25)
        if rank == 1 and step in (1, 2):
            inputs[0, 3] = float("inf")  # of rank 0's shard
        model.zero_grad()
        model(inputs).backward()
        skipped = state.last_step_skipped
        seen.append(skipped and (skipped.step, skipped.rank, skipped.parameter))
    state.close()
    return seen


def steps_with(model, rank, steps, under=None):
    """The results of the optimiser's step after each backward pass."""
    optimizer, said = torch.optim.SGD(model.parameters(), lr=RATE), []
    for step in range(steps):
        with under() if under else contextlib.nullcontext():
            model(batch(step, rank)).square().sum().backward()
        said.append(words_of(optimizer.step))
    return said


def fsdp1_hook_replaced(rank, world):
    """Meant and not meant: steps under no_sync(), steps with, and steps without the hook."""
    model = make_fsdp1(make_model(), "SHARD_GRAD_OP")
    state = weir.attach(model)
    with model.no_sync():
        model(batch(0, rank)).square().sum().backward()
    said = steps_with(model, rank, 2)
    for unit in model.fsdp_modules(model):
        unit._comm_hook = None
    said += steps_with(model, rank, 2)
    state.close()
    return said + steps_with(model, rank, 1)


def fsdp2_hook_replaced(rank, world):
    model = make_fsdp2(make_model(), meshes(world))
    state = weir.attach(model)
    model.set_requires_gradient_sync(False)
    model(batch(0, rank)).square().sum().backward()
    model.set_requires_gradient_sync(True)
    said = steps_with(model, rank, 2)
    for group in (g for m in model.modules() if hasattr(m, "_get_fsdp_state")
                  for g in m._get_fsdp_state()._fsdp_param_groups):
        group._reduce_scatter_comm = _default_reduce_scatter()
    said += steps_with(model, rank, 2)
    state.close()
    return said + steps_with(model, rank, 1)


def _default_reduce_scatter():
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives
    return _fsdp_collectives.DefaultReduceScatter()


def fsdp1_other_group(rank, world):
    from torch.distributed.fsdp import FullyShardedDataParallel
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = make_model()
    model[2] = FullyShardedDataParallel(model[2], process_group=pairs[rank // 2],
                                        device_id=torch.device("cpu"))
    return words_of(lambda: weir.attach(FullyShardedDataParallel(
        model, device_id=torch.device("cpu"))))


def misuse(rank, world):
    ddp = DistributedDataParallel(make_model())
    return (words_of(lambda: weir.attach(make_model())),
            words_of(lambda: weir.attach(DistributedDataParallel(ddp))))


def has(name):
    """Whether torch.distributed.fsdp has it and works on CPUs."""
    try:
        importlib.import_module("torch.distributed.device_mesh")  # came with FSDP on CPUs
        fsdp = importlib.import_module("torch.distributed.fsdp")
    except (ImportError, ValueError):
        return False
    found = fsdp
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None


def needs(name):
    return unittest.skipUnless(has(name), f"torch {torch.__version__} has no {name} on CPUs")


class FsdpTest(unittest.TestCase):

    def _drains(self, world, function, *arguments):
        with tempfile.TemporaryDirectory() as directory:
            plan = plan_file(directory)
            results = ranks.run(world, function, *arguments, environment={"WEIR_PLAN_FILE": plan})
        self._have_drained(results)

    def _have_drained(self, results):
        for (worst, codecs), _ in results:
            self.assertEqual(codecs, {"top_k"})
            self.assertLess(worst, 1e-2)

    def test_models_that_cannot_be_attached_are_named(self):
        for (bare, twice), _ in ranks.run(2, misuse):
            self.assertIn("found Sequential: wrap it first", bare)
            self.assertIn("wrap it once", twice)

    @needs("FullyShardedDataParallel")
    def test_fsdp1_equals_plain_ddp(self):
        for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
            for original in (True, False):
                results = ranks.run(3, fsdp1, strategy, original)
                for (worst, units, steps), _ in results:
                    self.assertLess(worst, 1e-5)
                    self.assertEqual(units, ["0.", "2.", "4."])
                    self.assertEqual(steps, STEPS - 1)  # counted from 0
                self.assertEqual(results[0][1].count("may be compressed"), 1)

    @needs("FullyShardedDataParallel")
    def test_fsdp1_compresses_and_keeps_residuals(self):
        for strategy in ("FULL_SHARD", "NO_SHARD"):
            self._drains(2, fsdp1_drained, strategy)

    @needs("FullyShardedDataParallel")
    def test_fsdp1_with_a_hybrid_strategy_is_refused(self):
        for words, _ in ranks.run(4, fsdp1_hybrid):
            self.assertIn("takes no hook with a hybrid strategy", words)

    @needs("FullyShardedDataParallel")
    def test_fsdp1_with_a_unit_of_other_ranks_is_refused(self):
        for rank, (words, _) in enumerate(ranks.run(4, fsdp1_other_group)):
            pair = [0, 1] if rank < 2 else [2, 3]
            self.assertIn(f"the unit '2' is sharded over the ranks {pair}", words)

    def _dense_units_are_reduce_scattered(self, kind):
        whole_bytes = 2 * 4 * sum(p.numel() for p in make_model().parameters()) * 2 / 3
        with StubAgent() as agent:
            for (worst, sent), _ in ranks.run(3, dense_steps, kind, agent.address, None):
                self.assertLess(worst, 1e-5)
                self.assertLess(max(sent), 0.2 * whole_bytes, sent)
            samples, tables = list(agent.samples), dict(agent.tables)
        self.assertEqual({b["collective"] for _, _, b in samples}, {"framework"})
        self.assertTrue(all(b["network_s"] > 0 for _, _, b in samples))
        for rank in range(3):
            self.assertEqual([b["sharded"] for b in tables[rank]], [True] * 3)
        with tempfile.TemporaryDirectory() as directory:  # Weir's own sums are of whole units
            plans = os.path.join(directory, "plan.json")
            with open(plans, "w", encoding="ascii") as out:
                json.dump({"fallback": {"codec": "identity", "collective": "ring"}}, out)
            for (worst, sent), _ in ranks.run(3, dense_steps, kind, None, plans):
                self.assertLess(worst, 1e-5)
                self.assertGreater(min(sent), 0.9 * whole_bytes, sent)

    def _residuals_arrive_when_a_plan_turns_dense(self, kind):
        for collective in ("framework", "ring"):
            with tempfile.TemporaryDirectory() as directory, StubAgent(world=2) as agent:
                dense = {"codec": "identity", "collective": collective}
                agent.offer({"job": "training", "version": 2, "buckets": [], "fallback": dense})
                results = ranks.run(2, turns_dense, kind, environment={
                    "WEIR_PLAN_FILE": plan_file(directory), "WEIR_AGENT": agent.address})
            for (worst, collectives), _ in results:
                self.assertEqual(collectives, {collective})
                self.assertLess(worst, 1e-5)

    def _infinity_in_a_dense_step_is_named(self, kind, name):
        for seen, _ in ranks.run(2, infinite_in_a_dense_step, kind):
            self.assertEqual(seen, [False, (1, None, None), (2, 1, name), False])

    @needs("FullyShardedDataParallel")
    def test_fsdp1_reduce_scatters_dense_units(self):
        self._dense_units_are_reduce_scattered("FSDP1")
        self._residuals_arrive_when_a_plan_turns_dense("FSDP1")
        self._infinity_in_a_dense_step_is_named("FSDP1", "weight")

    @needs("FSDPModule.set_custom_reduce_scatter")
    def test_fsdp2_reduce_scatters_dense_units(self):
        self._dense_units_are_reduce_scattered("FSDP2")
        self._residuals_arrive_when_a_plan_turns_dense("FSDP2")
        self._infinity_in_a_dense_step_is_named("FSDP2", "weight[0/2]")

    def _is_noticed(self, function):
        for said, _ in ranks.run(2, function):
            self.assertEqual([bool(words) for words in said], [False, False, True, True, False])
            self.assertIn("leave the hooks as weir.attach sets them", said[2])

    @needs("FullyShardedDataParallel")
    def test_fsdp1_without_its_hook_is_noticed(self):
        self._is_noticed(fsdp1_hook_replaced)

    @needs("FSDPModule.set_custom_reduce_scatter")
    def test_fsdp2_without_its_hook_is_noticed(self):
        self._is_noticed(fsdp2_hook_replaced)

    @needs("FullyShardedDataParallel")
    def test_fsdp1_names_a_lost_rank(self):
        results = ranks.run(3, lost_rank, lambda: make_fsdp1(make_model(), "NO_SHARD"),
                            may_die=(1,))
        for rank in (0, 2):
            step, words, refused = results[rank][0]
            self.assertEqual(step, 2)
            self.assertIn("rank 1", words)
            self.assertIn("restart from a checkpoint", refused)

    @needs("FSDPModule.set_custom_reduce_scatter")
    def test_fsdp2_equals_plain_ddp(self):
        results = ranks.run(3, fsdp2)
        for (worst, units, steps), _ in results:
            self.assertLess(worst, 1e-5)
            self.assertEqual(units, ["0", "2", "4"])
            self.assertEqual(steps, STEPS - 1)
        self.assertEqual(results[0][1].count("may be compressed"), 1)

    @needs("FSDPModule.set_all_reduce_hook")
    def test_hsdp_equals_plain_ddp(self):
        results = ranks.run(4, hsdp)
        self.assertEqual([job for (_, _, _, job), _ in results],
                         ["training.0-2by2", "training.1-3by2"] * 2)
        for (worst, units, steps, _), _ in results:
            self.assertLess(worst, 1e-5)
            self.assertEqual(units, ["0", "2", "4"])
            self.assertEqual(steps, STEPS - 1)

    @needs("FSDPModule.set_all_reduce_hook")
    def test_fsdp2_and_hsdp_compress_and_keep_residuals(self):
        self._drains(2, fsdp2_drained)
        with tempfile.TemporaryDirectory() as directory:
            plans = [plan_file(directory, f"training.{job}") for job in ("0-2by2", "1-3by2")]
            self._have_drained(ranks.run(4, hsdp_drained, plans))

    @needs("FSDPModule")
    def test_fsdp2_that_cannot_be_attached_is_refused(self):
        for (dimensions, hooks), _ in ranks.run(4, fsdp2_refusals):
            self.assertIn("mesh=mesh['shard']", dimensions)
            if not has("FSDPModule.set_custom_reduce_scatter"):
                self.assertIn("has no set_custom_reduce_scatter()", hooks)
                self.assertIn("update", hooks)


if __name__ == "__main__":
    unittest.main()
