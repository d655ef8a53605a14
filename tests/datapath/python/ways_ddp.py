# SPDX-License-Identifier: Apache-2.0
"""Ways to wrap a model in DistributedDataParallel."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from way_registry import needs, offered, way

WIDTH = 24
STEPS = 5
BUCKET_MB = 0.002  # several buckets for a small model
dist._DEFAULT_FIRST_BUCKET_BYTES = 1024


def make_model():
    """Equal on all ranks."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
                         nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def batch(step, rank, rows=4):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def wrap(run, model=None, **options):
    """A DDP model with Weir's hook where the run wants it."""
    return run.attach(DistributedDataParallel(model or make_model(), bucket_cap_mb=BUCKET_MB,
                                              **options))


def train(run, model, loss_of=None, optimizer=None, steps=STEPS):
    """Trains on this rank's batches. Returns the last gradients and the parameters."""
    loss_of = loss_of or (lambda step: model(batch(step, run.rank)).square().mean())
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()
    return [p.grad for p in model.parameters() if p.grad is not None] + list(model.parameters())


@way("DDP", hook=True)
def plain(run):
    return train(run, wrap(run))


@way("DDP, static graph", hook=True)
def static_graph(run):
    return train(run, wrap(run, static_graph=True))


class Branches(nn.Module):
    """Uses one of two layers, so the parameters of the other one get no gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.others = make_model()[0], nn.ModuleList([make_model()[-1] for _ in "ab"])

    def forward(self, inputs, branch):
        return self.others[branch](torch.tanh(self.first(inputs)))


@way("DDP, unused parameters", hook=True)
def unused_parameters(run):
    model = wrap(run, Branches(), find_unused_parameters=True)
    return train(run, model,
                 lambda step: model(batch(step, run.rank), (step + run.rank) % 2).square().mean())


@way("DDP, gradients as bucket views", hook=True)
def bucket_views(run):
    return train(run, wrap(run, gradient_as_bucket_view=True))


@way("DDP, accumulation under no_sync", hook=True)
def accumulation(run):
    model = wrap(run)

    def loss_of(step):
        for part in range(2):
            with model.no_sync():
                model(batch(100 * part + step, run.rank)).square().mean().backward()
        return model(batch(step, run.rank)).square().mean()
    return train(run, model, loss_of)


@way("DDP over a subgroup", world=3, hook=True, tolerance=0.0)
def subgroup(run):
    members = [0, 2]
    group = dist.new_group(members)
    if run.rank not in members:
        return train(run, make_model())
    return train(run, wrap(run, process_group=group))


@way("DDP, several models", hook=True)
def several_models(run):
    models = [wrap(run), wrap(run, Branches())]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    for step in range(STEPS):
        inputs = batch(step, run.rank)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = models[0](inputs).square().mean()
        loss = loss + sum(models[1](inputs, branch).square().mean() for branch in range(2))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return [p for model in models for p in model.parameters()]


@way("DDP, join() with uneven inputs", hook=True)
def join(run):
    model = wrap(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(3 + 2 * run.rank):
            optimizer.zero_grad()
            model(batch(step, run.rank)).square().mean().backward()
            optimizer.step()
    return list(model.parameters())


@way("DDP, join() that divides by the ranks with input", hook=True)
def join_of_active_ranks(run):
    model = wrap(run)
    seen = []
    with model.join(divide_by_initial_world_size=False):
        for step in range(3 + 2 * run.rank):
            model.zero_grad()
            model(batch(step, run.rank)).square().mean().backward()
            seen += [p.grad.clone() for p in model.parameters()]
    return seen


def half_sums(unused_state, bucket):
    """A hook that does what PyTorch's in C++ does, with a sum of float32, as gloo has lost float16."""
    half = bucket.buffer().to(torch.float16).div_(dist.get_world_size()).float()
    return dist.all_reduce(half, async_op=True).get_future().then(
        lambda done: bucket.buffer().copy_(done.value()[0].to(torch.float16)))


def half_precision_reference(run):
    model = wrap(run)
    model.register_comm_hook(None, half_sums)
    return train(run, model)


@way("DDP, PyTorch's hook in C++ that sends float16", reference=half_precision_reference)
def half_precision(run):
    model = wrap(run)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train(run, model)


@way("DDP, autocast to bfloat16", hook=True)
def autocast(run):
    model = wrap(run)

    def loss_of(step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch(step, run.rank)).float().square().mean()
    return train(run, model, loss_of)


@way("DDP, GradScaler skips on one rank's infinity", hook=True)
def grad_scaler(run):
    with offered("GradScaler on CPUs"):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    model = wrap(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        factor = float("inf") if step == 2 and run.rank == 1 else 1.0
        scaler.scale(model(batch(step, run.rank)).square().mean() * factor).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return list(model.parameters()) + [torch.tensor([scaler.get_scale(), float(skipped)])]


@way("DDP, torch.compile", hook=True, deadline_s=120.0)
def compiled(run):
    needs(hasattr(torch, "compile"), "torch.compile")
    with offered("torch.compile"):
        from torch import _dynamo
    if hasattr(_dynamo, "is_dynamo_supported"):
        needs(_dynamo.is_dynamo_supported(), "torch.compile with this Python")
    model = wrap(run)
    forward = torch.compile(model, backend="aot_eager")
    return train(run, model, lambda step: forward(batch(step, run.rank)).square().mean())


class Checkpointed(nn.Module):
    """Computes its middle again in the backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.parts, self.reentrant = make_model(), reentrant

    def forward(self, inputs):
        hidden = checkpoint(self.parts[:4], inputs, use_reentrant=self.reentrant)
        return self.parts[4:](hidden)


@way("DDP, activation checkpointing", hook=True)
def activation_checkpointing(run):
    return train(run, wrap(run, Checkpointed(False)))


@way("DDP, reentrant activation checkpointing", hook=True)
def reentrant_checkpointing(run):
    model = wrap(run, Checkpointed(True))
    return train(run, model,
                 lambda step: model(batch(step, run.rank).requires_grad_()).square().mean())


@way("DDP, ZeroRedundancyOptimizer", hook=True)
def zero_redundancy(run):
    with offered("ZeroRedundancyOptimizer"):
        from torch.distributed.optim import ZeroRedundancyOptimizer
    model = wrap(run)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return train(run, model, optimizer=optimizer)
