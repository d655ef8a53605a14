# SPDX-License-Identifier: Apache-2.0
"""Whole models in DistributedDataParallel whose buckets are an accelerator's, for a fake one and for CUDA devices.

On the fake of staging_cases, a model computes on the CPU at once. OnFake makes its buckets late: a bucket holds
nothing useful until the stream that computes has written it, and DDP sees what is in it when that stream has come to
the end of the hook's future. So a wait that is missing anywhere between shows in the parameters.

There is no model in FSDP: it flattens, pads and shards gradients by PyTorch around the hook, which the fake cannot
defer, and torch 1.13 cannot import it under Python 3.11. The case `unit` of staging_cases has its hook.
"""
import contextlib
import json
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weir

STEPS = 5
WIDTH = 256
BUCKET_MB = 0.3  # some four buckets
EARLY = 79.0  # what a reader of a bucket finds that does not wait for it


class OnFake(DistributedDataParallel):
    """A model whose buckets, and so its parameters' gradients, are tensors of the fake."""

    def __init__(self, fake, module, **options):
        super().__init__(module, **options)
        self._fake = fake
        for parameter in module.parameters():  # now, because DDP broadcasts them first
            fake.adopt(parameter)

    def register_comm_hook(self, state, hook):
        fake = self._fake

        def on_fake(state, bucket):
            buffer = fake.adopt(bucket.buffer())
            values = buffer.clone()
            buffer.fill_(EARLY)
            fake.kernel(lambda: buffer.copy_(values), fake.copy_s)
            return fake.on_host(hook(state, bucket))
        super().register_comm_hook(state, on_fake)


def wrap(fake, module, **options):
    """`module` in DDP, on the fake if there is one."""
    return DistributedDataParallel(module, **options) if fake is None else OnFake(fake, module, **options)


class LateLinear(nn.Linear):
    """A layer with parameters, and so gradients, of 16 bits that computes in float32, for an old torch, which lacks
    the kernels of float16 on the CPU."""

    def forward(self, data):
        return nn.functional.linear(data.float(), self.weight.float(), self.bias.float())


def computes(device, dtype):
    """Whether this torch has linear layers of the type on the device."""
    try:
        nn.Linear(2, 2).to(device=device, dtype=dtype)(torch.zeros(2, 2, device=device, dtype=dtype))
        return True
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        return False


def make_model(device="cpu", dtype=torch.float32):
    """Layers that are equal on all ranks."""
    torch.manual_seed(7)
    linear = nn.Linear if computes(device, dtype) else LateLinear
    layers = [layer for _ in range(4) for layer in (linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, linear(WIDTH, 1)).to(device=device, dtype=dtype)


def batch(step, rank, like):
    """The input of a rank in a step, of the device and type of `like`."""
    made = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    return made.to(device=like.device, dtype=like.dtype)


class Scaler:
    """Does what torch.cuda.amp.GradScaler does, which an old torch has for CUDA only."""

    def __init__(self, init_scale=1024.0):
        self._scale, self._finite = init_scale, True

    def get_scale(self):
        return self._scale

    def scale(self, loss):
        return loss * self._scale

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        for gradient in gradients:
            gradient.mul_(1.0 / self._scale)
        self._finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if self._finite:
            optimizer.step()

    def update(self):
        self._scale *= 1.0 if self._finite else 0.5


def train(model, rank, steps=range(STEPS), scaler=None, autocast=None):
    """Trains; returns the parameters in float32. With a scaler, infinity on rank 1 spoils step 1."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    like = next(model.parameters())
    for step in steps:
        optimizer.zero_grad()
        with autocast or contextlib.nullcontext():
            loss = model(batch(step, rank, like)).float().square().mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            if scaler.get_scale() and step == 1 and rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [p.detach().float().cpu().clone() for p in model.parameters()]


# ---- the cases: functions of (device, rank, world), as in staging_cases, for a FakeDevice


def _parameters(device, rank, plan=None, dtype=torch.float32, scaled=False, autocast=None, steps=range(STEPS),
                **options):
    """The parameters after training with the hook: on the fake, or, if it is None, on the host. The loss scale is the
    last one of them."""
    model = wrap(device, make_model(dtype=dtype), bucket_cap_mb=BUCKET_MB, **options)
    scaler = Scaler() if scaled else None
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"job": "models", "version": 1, "buckets": [], "fallback": plan}, file)
        file.flush()
        state = weir.attach(model, job="models", scaler=scaler, plan_file=file.name if plan else None)
    cast = torch.autocast("cpu", dtype=autocast) if autocast else None
    found = train(model, rank, steps, scaler, cast)
    codecs = {choice["codec"] for _, choice in state.choices()}
    assert codecs == {plan["codec"] if plan else "identity"}, codecs
    state.close()
    return found + ([torch.tensor([scaler.get_scale()])] if scaled else [])


def _without_weir(rank, dtype=torch.float32, scaled=False, autocast=None, **options):
    """The same by DDP alone."""
    # gloo has no sums of 16 bits here.
    group = dist.new_group(backend="gloo" if dtype == torch.float32 else "weir")
    model = DistributedDataParallel(make_model(dtype=dtype), process_group=group,
                                    bucket_cap_mb=BUCKET_MB, **options)
    scaler = Scaler() if scaled else None
    cast = torch.autocast("cpu", dtype=autocast) if autocast else None
    found = train(model, rank, scaler=scaler, autocast=cast)
    return found + ([torch.tensor([scaler.get_scale()])] if scaled else [])


def _equal(found, expected):
    return len(found) == len(expected) and all(torch.equal(a, b) for a, b in zip(found, expected))


def _as_without_weir(device, rank, **options):
    """Two ranks' sums do not depend on the order, and halves are exact: the numbers are those of DDP."""
    expected = _without_weir(rank, **options)
    return _equal(_parameters(device, rank, **options), expected) and device.took_buckets()


def ddp(device, rank, world):
    return _as_without_weir(device, rank)


def ddp_bucket_views(device, rank, world):
    return _as_without_weir(device, rank, gradient_as_bucket_view=True)


def ddp_static_graph(device, rank, world):
    return _as_without_weir(device, rank, static_graph=True)


def ddp_bfloat16(device, rank, world):
    return _as_without_weir(device, rank, dtype=torch.bfloat16)


def ddp_amp(device, rank, world):
    """Autocast with a loss scaler, which skips a step."""
    return _as_without_weir(device, rank, scaled=True, autocast=torch.bfloat16)


def ddp_float16(device, rank, world):
    """With a loss scaler, without which gradients are so small that DDP, which halves before it adds, loses bits."""
    return _as_without_weir(device, rank, scaled=True, dtype=torch.float16)


def ddp_compressed(device, rank, world):
    """Codecs give the parameters that they give on the host, and not those of dense sums."""
    dense = _without_weir(rank)
    for codec, collective, ratio in (("top_k", "sparse_all_gather", 0.1), ("fp16", "ring", 1), ("qsgd", "mesh", 1)):
        plan = {"codec": codec, "collective": collective, "ratio": ratio}
        expected = _parameters(None, rank, plan)
        if _equal(expected, dense) or not _equal(_parameters(device, rank, plan), expected):
            return False
    return device.took_buckets()


def ddp_compressed_16_bits(device, rank, world):
    """With a loss scaler that skips a step, and so residuals that follow its scale."""
    plan = {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.1}
    for dtype in (torch.float16, torch.bfloat16):
        expected = _parameters(None, rank, plan, dtype, scaled=True)
        if not _equal(_parameters(device, rank, plan, dtype, scaled=True), expected):
            return False
    return device.took_buckets()


MODELS = (ddp, ddp_bucket_views, ddp_static_graph, ddp_bfloat16, ddp_float16, ddp_amp, ddp_compressed,
          ddp_compressed_16_bits)
