# SPDX-License-Identifier: Apache-2.0
"""Ways to wrap a model whose parameters, layers or batches are spread over a mesh of ranks."""
import inspect
import os

import torch
import torch.distributed as dist
from torch import nn

from way_registry import HOOK, needs, offered, way
from ways_ddp import STEPS, WIDTH, batch, make_model, train, wrap


def mesh_of(*shape, names=None):
    """A DeviceMesh on the CPU."""
    with offered("DeviceMesh"):
        from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def whole(tensors):
    """DTensors, gathered."""
    return [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]


# ---- FSDP


def _fsdp1(run, **options):
    with offered("FSDP"):
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    model = FullyShardedDataParallel(
        make_model(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"), use_orig_params=True, **options)
    train(run, run.attach(model))
    with FullyShardedDataParallel.summon_full_params(model):
        return [p.detach().clone() for p in model.parameters()]


def _needs_mesh():
    with offered("DeviceMesh"):
        import torch.distributed.device_mesh  # noqa: F401


@way("FSDP1", hook=True)
def fsdp1(run):
    _needs_mesh()  # without it, this torch's FSDP needs an accelerator
    return _fsdp1(run)


@way("FSDP1, HYBRID_SHARD on a mesh", world=4, hook=True, refused={HOOK: "hybrid strategy"})
def fsdp1_hybrid(run):
    mesh = mesh_of(2, 2, names=("replicate", "shard"))
    from torch.distributed.fsdp import ShardingStrategy
    return _fsdp1(run, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


def _fully_sharded():
    """fully_shard(), where it works on CPUs."""
    with offered("fully_shard"):
        from torch.distributed.fsdp import fully_shard
    needs(hasattr(torch.cpu.Stream(), "record_event"), "fully_shard on CPUs")
    return fully_shard


def _fully_shard(run, mesh, replicas=None, **options):
    """replicas: the process group over which Weir sums, where it is attached; None: the mesh."""
    fully_shard = _fully_sharded()
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    train(run, run.attach(model, process_group=replicas))
    return whole(model.parameters())


@way("FSDP2 (fully_shard)", hook=True)
def fsdp2(run):
    return _fully_shard(run, mesh_of(run.world))


# Gloo does not gather bfloat16, so this is compared to the whole in float32.
@way("FSDP2, bfloat16 parameters", reference=fsdp2, tolerance=0.02)
def fsdp2_mixed_precision(run):
    _fully_sharded()
    from torch.distributed.fsdp import MixedPrecisionPolicy
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _fully_shard(run, mesh_of(run.world), mp_policy=policy)


@way("FSDP2, torch.compile", hook=True, deadline_s=120.0)
def fsdp2_compiled(run):
    mesh, fully_shard = mesh_of(run.world), _fully_sharded()
    model = run.attach(fully_shard(make_model(), mesh=mesh))
    forward = torch.compile(model, backend="aot_eager")
    train(run, model, lambda step: forward(batch(step, run.rank)).square().mean())
    return whole(model.parameters())


@way("HSDP (fully_shard on a 2 x 2 mesh; attached over its replicas)", world=4, hook=True)
def hsdp(run):
    mesh = mesh_of(2, 2, names=("replicate", "shard"))
    if run.variant != HOOK:
        return _fully_shard(run, mesh)
    return _fully_shard(run, mesh["shard"], mesh["replicate"].get_group())


@way("HSDP, attached without a process group", world=4, hook=True, refused={HOOK: "several dimensions"})
def hsdp_whole(run):
    return _fully_shard(run, mesh_of(2, 2, names=("replicate", "shard")))


# ---- meshes and tensors on them


@way("DeviceMesh", world=4)
def device_mesh(run):
    mesh = mesh_of(2, 2, names=("rows", "columns"))
    found = []
    for name in ("rows", "columns"):
        own = torch.arange(6.0) + run.rank
        dist.all_reduce(own, group=mesh[name].get_group())
        parts = torch.zeros(12)
        dist.all_gather_into_tensor(parts, own, group=mesh[name].get_group())
        found += [own, parts, torch.tensor([mesh[name].get_local_rank()])]
    return found


@way("functional collectives")
def functional_collectives(run):
    with offered("functional collectives"):
        from torch.distributed import _functional_collectives as functional
    group = mesh_of(run.world)
    own = torch.arange(8.0) * (run.rank + 1)
    found = [functional.all_reduce(own, "sum", group), functional.all_reduce(own, "max", group),
             functional.all_gather_tensor(own, 0, group),
             functional.reduce_scatter_tensor(own, "sum", 0, group),
             functional.broadcast(own, 1, group),
             functional.all_to_all_single(own, None, None, group),
             functional.all_gather_tensor_autograd(own, 0, group)]
    found += functional.all_reduce_coalesced([own, own + 1], "sum", group)
    found += functional.all_gather_into_tensor_coalesced([own, own + 1], group)
    found += functional.reduce_scatter_tensor_coalesced([own, own + 1], "sum", [0, 0], group)
    return [functional.wait_tensor(t) for t in found]


@way("functional collectives, torch.compile", deadline_s=120.0)
def compiled_collectives(run):
    needs(hasattr(torch, "compile"), "torch.compile")
    with offered("functional collectives"):
        from torch.distributed import _functional_collectives as functional
    group = mesh_of(run.world)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compute(inputs):
        total = functional.all_reduce(inputs * 2, "sum", group)
        return functional.all_gather_tensor(total + 1, 0, group).square()
    return [compute(torch.arange(8.0) + run.rank), compute(torch.arange(8.0) - run.rank)]


@way("DTensor")
def dtensor(run):
    with offered("DTensor"):
        from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    mesh = mesh_of(run.world)
    left = distribute_tensor(torch.arange(48.0).reshape(6, 8), mesh, [Shard(0)])
    right = distribute_tensor(torch.arange(32.0).reshape(8, 4), mesh, [Replicate()])
    product = left @ right
    turned = product.redistribute(mesh, [Shard(1)])
    contracted = left.redistribute(mesh, [Shard(1)]) @ right.redistribute(mesh, [Shard(0)])
    assert contracted.placements == (Partial(),), contracted.placements
    spread = contracted.redistribute(mesh, [Shard(0)])
    return [product.full_tensor(), turned.to_local(), contracted.full_tensor(),
            spread.to_local(), turned.sum().full_tensor()]


@way("DDP on a DeviceMesh", hook=True)
def ddp_on_mesh(run):
    mesh = mesh_of(run.world)
    parameters = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    needs("device_mesh" in parameters, "DDP on a DeviceMesh")
    return train(run, wrap(run, device_mesh=mesh))


class Pair(nn.Module):
    """Two layers, the first of which is split by columns and the second one by rows."""

    def __init__(self):
        super().__init__()
        parts = make_model()
        self.first, self.second = parts[0], parts[2]

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


def _parallel_pair(mesh):
    with offered("tensor parallelism"):
        from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                       parallelize_module)
    return parallelize_module(Pair(), mesh, {"first": ColwiseParallel(),
                                             "second": RowwiseParallel()})


@way("tensor parallelism")
def tensor_parallelism(run):
    mesh = mesh_of(run.world)
    model = _parallel_pair(mesh)
    train(run, model, lambda step: model(batch(step, 0)).square().mean())
    return whole(model.parameters())


@way("tensor parallelism within FSDP2", world=4, hook=True, refused={HOOK: "tensor parallelism"})
def two_dimensions(run):
    mesh = mesh_of(2, 2, names=("data", "tensor"))
    fully_shard = _fully_sharded()
    model = fully_shard(_parallel_pair(mesh["tensor"]), mesh=mesh["data"])
    run.attach(model)
    train(run, model, lambda step: model(batch(step, run.rank // 2)).square().mean())
    return whole(model.parameters())


def _pipeline(run, name):
    with offered("pipelining"):
        from torch.distributed import pipelining
        schedule = getattr(pipelining, name)
    parts = make_model()
    stage_model = nn.Sequential(*(parts[:4] if run.rank == 0 else parts[4:]))
    stage = pipelining.PipelineStage(stage_model, run.rank, run.world, torch.device("cpu"))
    steps = schedule(stage, n_microbatches=4, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(stage_model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        if run.rank == 0:
            steps.step(batch(step, 0, rows=8))
        else:
            steps.step(target=torch.ones(8, 1), losses=[])
        optimizer.step()
    return list(stage_model.parameters())


@way("pipelining, GPipe")
def gpipe(run):
    return _pipeline(run, "ScheduleGPipe")


@way("pipelining, 1F1B", reference=gpipe, tolerance=1e-6)  # torch 2.6 hangs over gloo
def one_forward_one_backward(run):
    return _pipeline(run, "Schedule1F1B")


# ---- checkpoints


def _saved_and_loaded(run, made):
    """made(): a model and its optimizer. Trains them, then goes on with copies from checkpoints."""
    with offered("distributed checkpoint"):
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    model, optimizer = made()
    train(run, model, optimizer=optimizer)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    checkpoint.save(parts, checkpoint_id=os.path.join(run.folder, "saved"))
    checkpoint.async_save(parts, checkpoint_id=os.path.join(run.folder, "behind")).result()
    found = []
    for name in ("saved", "behind"):
        model, optimizer = made()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        read = {"model": model_state, "optimizer": optimizer_state}
        checkpoint.load(read, checkpoint_id=os.path.join(run.folder, name))
        set_state_dict(model, optimizer, model_state_dict=read["model"],
                       optim_state_dict=read["optimizer"])
        train(run, model, optimizer=optimizer, steps=1)
        found += whole(model.parameters())
    return found


@way("distributed checkpoint, tensor parallelism")
def checkpoint_of_tensors(run):
    mesh = mesh_of(run.world)

    def made():
        model = _parallel_pair(mesh)
        return model, torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    return _saved_and_loaded(run, made)


@way("distributed checkpoint, FSDP2")
def checkpoint_of_shards(run):
    mesh, fully_shard = mesh_of(run.world), _fully_sharded()

    def made():
        model = fully_shard(make_model(), mesh=mesh)
        return model, torch.optim.Adam(model.parameters(), lr=0.01)
    return _saved_and_loaded(run, made)


# ---- messages


@way("batch_isend_irecv")
def batched_messages(run):
    other = 1 - run.rank
    out, back = torch.arange(WIDTH * 1.0) + run.rank, torch.zeros(WIDTH)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, other),
                                        dist.P2POp(dist.irecv, back, other)]):
        work.wait()
    return [back]
