#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training on a CUDA device, step by step: prints a line of JSON for each figure.

    WEIR_LIBRARY=.../libweir.so PYTHONPATH=datapath/python python3 tests/device/training.py --measure overhead

Two ranks share the device, in processes of their own, as if on two hosts: NCCL takes them for hosts (NCCL_HOSTID), and
all of them exchange by TCP over loopback. A connection is paced to the rate of a network by the kernel, for NCCL and
gloo by paced_sockets.c, for Weir by its transport. A row `network` says what gloo got of the rate. Without a C
compiler, which makes that file a library, there is no pacing, and rows have the rate 0.

  overhead  step times of two models at each rate: DDP over gloo and over NCCL, with PyTorch's hooks (bfloat16,
            PowerSGD), and with Weir dense and compressed. `over_plain`: of the faster plain one. Goal for
            `weir_dense`: 1.01. `floor_us`: the largest of the compute time, of the payload at the paced rate and,
            for Weir, of its copies at the measured rate of pinned memory.
  backward  time of the backward pass on the compute stream, until the last gradient is computed, with hooks that
            exchange nothing and with hooks that encode beside it. Goal for `over_nothing`: 1.03.
  training  time until the loss of dense bfloat16 training after --steps steps, and the loss there.

`weir_best` is the fastest of Weir's rows, which an adaptive job would have to find. In a training, `weir_adaptive` is
one whose controller decides: it runs on loopback, with an agent for each rank, if weir-controller and weir-agent are
found and start (WEIR_BIN, a directory, or see weir.run). It decides before the clock starts, because these trainings
are much shorter than real ones: in passes that leave the parameters as they are, until its first plan came, after
`first_plan_s`, and for --decide seconds more. `is` names the codecs in use at the end, and `plan` is the plan's
version. Without the programs it is a row with `left_out`.

A variant that fails is a row with `error`, and the others go on. --device cpu rehearses with small models, where
the figures mean nothing. Exit status: 0, 1 a variant of Weir failed, 77 there is no CUDA device.
"""
import argparse
import contextlib
import ctypes
import datetime
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.run

WORLD = 2
OPERATION_S = 30.0
WARM_UP_STEPS = 4
STEPS_MIN = 5
PLAN_S = 30.0  # for the first plan of a controller
GOALS = {"weir_dense": 1.01}
PLANS = {"weir_dense": None,
         "weir_bf16": {"codec": "bf16", "collective": "ring"},
         "weir_qsgd": {"codec": "qsgd", "collective": "ring", "bits": 8},
         "weir_top_k": {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.01, "bits": 8},
         "weir_power_sgd": {"codec": "power_sgd", "collective": "ring", "ratio": 0.01}}
PACED_SOURCE = pathlib.Path(__file__).resolve().parent / "paced_sockets.c"


class Gpt(nn.Module):
    """A decoder of the GPT family; about 29 million parameters on a device."""

    def __init__(self, small):
        super().__init__()
        width, layers, self.words, self.length, self.batch = ((32, 2, 64, 16, 2) if small
                                                              else (512, 8, 4096, 256, 8))
        self.words_in = nn.Embedding(self.words, width)
        self.places = nn.Parameter(torch.zeros(self.length, width))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True) for _ in range(layers))
        self.words_out = nn.Linear(width, self.words)

    def forward(self, given):
        text, mask = given
        values = self.words_in(text) + self.places
        for block in self.blocks:
            values = block(values, src_mask=mask)
        return nn.functional.cross_entropy(self.words_out(values[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def inputs(self, device, seed):
        """Words that often follow from the one before, so that there is something to learn."""
        made = torch.Generator().manual_seed(seed)
        text = torch.randint(self.words, (self.batch, self.length), generator=made)
        follows = torch.rand(text.shape, generator=made) < 0.8
        for place in range(1, self.length):
            text[:, place] = torch.where(follows[:, place], text[:, place - 1] * 5 % self.words, text[:, place])
        mask = torch.triu(torch.full((self.length, self.length), float("-inf")), diagonal=1)
        return text.to(device), mask.to(device)


class Convolutions(nn.Module):
    """A residual network of the ResNet family; about 22 million parameters on a device."""

    def __init__(self, small):
        super().__init__()
        widths, self.side, self.batch, blocks = ((8, 16), 16, 2, 1) if small else ((64, 128, 256, 512), 64, 32, 3)
        layers, before = [], 3
        for width in widths:
            for block in range(blocks):
                layers.append(nn.Sequential(
                    nn.Conv2d(before, width, 3, stride=2 if block == 0 else 1, padding=1, bias=False),
                    nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width), nn.ReLU()))
                before = width
        self.layers, self.last = nn.ModuleList(layers), nn.Linear(before, 100)

    def forward(self, given):
        values, classes = given
        for layer in self.layers:
            values = layer(values)
        return nn.functional.cross_entropy(self.last(values.mean((2, 3))), classes)

    def inputs(self, device, seed):
        made = torch.Generator().manual_seed(seed)
        classes = torch.randint(100, (self.batch,), generator=made)
        values = torch.randn(self.batch, 3, self.side, self.side, generator=made) + classes.view(-1, 1, 1, 1) / 50
        return values.to(device), classes.to(device)


MODELS = {"gpt": Gpt, "resnet": Convolutions}


def say(options, **row):
    if options.rank == 0:
        print(json.dumps({"benchmark": options.measure, **row}), flush=True)


class Clock:
    """Times on the device's stream, or of the CPU."""

    def __init__(self, device):
        self.on_device = device.type == "cuda"

    def mark(self):
        if not self.on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin, end):
        if not self.on_device:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def set_rate(bytes_per_s):
    """Paces the connections that this process makes from now on. NCCL makes them at a first collective."""
    found = getattr(ctypes.CDLL(None), "paced_sockets_rate", None)
    if found is not None:
        found(ctypes.c_ulonglong(bytes_per_s))
    return found is not None


def plan_file(folder, name, choice):
    path = pathlib.Path(folder, f"{name}.json")
    path.write_text(json.dumps({"job": name, "version": 1, "buckets": [], "fallback": choice}), encoding="ascii")
    return str(path)


class Variant:
    """A model in DDP with one way to exchange, made on all ranks at once."""

    def __init__(self, options, name, model, rate_mbps=0, agent=""):
        self.name, self.state, self.agent = name, None, agent
        bytes_per_s = round(rate_mbps * 1e6 / 8)
        set_rate(bytes_per_s)
        group = dist.new_group(backend=options.dense if name.startswith("weir") or name == "nothing" else
                               "nccl" if name.endswith("nccl") else "gloo",
                               timeout=datetime.timedelta(seconds=OPERATION_S))
        torch.manual_seed(7)
        module = MODELS[model](options.device == "cpu").to(options.place)
        self.parameters = sum(p.numel() for p in module.parameters())
        self.inputs = [module.inputs(options.place, 10 * i + options.rank) for i in range(4)]
        self.first = next(module.parameters())
        self.model = DistributedDataParallel(module, process_group=group)
        self._hook(options, group, bytes_per_s)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.steps = 0

    def _hook(self, options, group, bytes_per_s):
        if self.name == "nothing":
            def nothing(_, bucket):
                future = torch.futures.Future(devices=[options.place] if options.device == "cuda" else [])
                future.set_result(bucket.buffer() if hasattr(bucket, "buffer") else bucket.get_tensor())
                return future
            self.model.register_comm_hook(None, nothing)
        elif self.name.startswith("bf16"):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            self.model.register_comm_hook(group, default_hooks.bf16_compress_hook)
        elif self.name.startswith("power_sgd"):
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
            self.model.register_comm_hook(powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=4, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
        elif self.name.startswith("weir"):
            choice, transport = PLANS.get(self.name), "tcp:connections=1"
            if bytes_per_s:
                transport += f",pacing={bytes_per_s}"
            self.state = weir.attach(
                self.model, job=f"{self.name}-{bytes_per_s}", agent=self.agent, transport=transport,
                operation_timeout_s=OPERATION_S,
                plan_file=plan_file(options.folder, f"{self.name}-{bytes_per_s}", choice) if choice else "")

    def passes(self):
        """Forward and backward without the optimizer's step."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.inputs[self.steps % len(self.inputs)])
        self.steps += 1
        loss.backward()
        return loss

    def step(self):
        loss = self.passes()
        self.optimizer.step()
        if self.agent:
            self.state.report_loss(loss.detach())
        return loss

    def codecs(self):
        """Those in use."""
        return sorted({choice.get("codec", "identity") for _, choice in self.state.choices()})

    def close(self):
        if self.state is not None:
            self.state.close()


def agree(options, value):
    """The largest of a number over the ranks."""
    agreed = torch.tensor([float(value)])
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=options.control)
    return float(agreed)


def attempt(options, row, work):
    """The result of work(), or None after a failure on any rank, which is then a row."""
    result, words = None, ""
    try:
        result = work()
    except Exception as error:  # pylint: disable=broad-except
        words = f"{type(error).__name__}: {error}"[:400]
    if agree(options, bool(words)):
        say(options, **row, error=words or "on another rank")
        options.failed |= row.get("variant", "").startswith("weir")
        return None
    return result


def timed_steps(options, variant):
    """The median seconds of a step, at least STEPS_MIN of them and as many as take --seconds."""
    clock = Clock(options.place)
    for _ in range(WARM_UP_STEPS):
        variant.step()
    taken = []
    while True:
        dist.barrier(group=options.control)
        begin = clock.mark()
        variant.step()
        taken.append(agree(options, clock.seconds(begin, clock.mark())))
        if len(taken) >= STEPS_MIN and sum(taken) >= options.seconds:
            return statistics.median(taken)


def copy_rates(options):
    """Bytes per second from and to pinned memory."""
    if options.place.type != "cuda":
        return None
    data, clock, rates = torch.empty(1 << 26, device=options.place), Clock(options.place), []
    pinned = torch.empty(1 << 26, pin_memory=True)
    for to, source in ((pinned, data), (data, pinned)):
        times = []
        for _ in range(5):
            begin = clock.mark()
            to.copy_(source, non_blocking=True)
            times.append(clock.seconds(begin, clock.mark()))
        rates.append(data.numel() * 4 / statistics.median(times))
    say(options, part="copies", to_host_gigabytes_per_s=rates[0] / 1e9, to_device_gigabytes_per_s=rates[1] / 1e9)
    return rates


def measure_network(options, rate_mbps):
    """Says how much of the rate gloo gets, because rows of this rate mislead where nothing is paced."""
    set_rate(round(rate_mbps * 1e6 / 8))
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=OPERATION_S))
    data = torch.zeros(round(rate_mbps * 1e6 / 32 * 0.2))  # a fifth of a second
    dist.all_reduce(data[:1000], group=group)
    begin = time.perf_counter()
    dist.all_reduce(data, group=group)  # each of two ranks sends as much as it has
    got = data.numel() * 32 / agree(options, time.perf_counter() - begin) / 1e6
    say(options, part="network", rate_mbps=rate_mbps, gloo_mbps=round(got, 1))


def overhead(options):
    copies = copy_rates(options)
    plain = list(dict.fromkeys(("gloo", options.dense)))
    peers = [f"{hook}_{plain[-1]}" for hook in ("bf16", "power_sgd")]
    for rate in options.rates:
        if rate:
            attempt(options, {"part": "network", "rate_mbps": rate}, lambda: measure_network(options, rate))
        for model in options.models:
            found, rows = {}, {}
            for name in ["nothing", *plain, *peers, *PLANS]:
                row = {"part": "step", "model": model, "rate_mbps": rate, "variant": name}

                def work(name=name, row=row):
                    variant = Variant(options, name, model, rate)
                    try:
                        row["parameters"] = variant.parameters
                        seconds = timed_steps(options, variant)
                        if variant.state is not None:
                            row["sent_bytes_a_step"] = round(variant.state.stats().bytes_sent / variant.steps)
                        return seconds
                    finally:
                        variant.close()
                seconds = attempt(options, row, work)
                if seconds is None:
                    continue
                found[name], rows[name] = seconds, row
                step_row(row, found, copies, GOALS.get(name))
                say(options, **row)
            ours = {name: seconds for name, seconds in found.items() if name.startswith("weir")}
            if ours:
                best = min(ours, key=ours.get)
                say(options, **{**rows[best], "variant": "weir_best", "is": best})


def step_row(row, found, copies, goal):
    """Completes a row by its times and floor; those found before are the ones to compare with."""
    name, seconds, dense = row["variant"], found[row["variant"]], 4 * row["parameters"]
    # Each of two ranks sends what it has. What Weir leaves to the framework does not count as sent.
    sent = row.get("sent_bytes_a_step") or (0 if name.startswith(("nothing", "power_sgd")) else
                                            dense / 2 if name.startswith("bf16") else dense)
    floors = [found.get("nothing", 0.0)]
    if row["rate_mbps"]:
        floors.append(sent * 8 / (row["rate_mbps"] * 1e6))
    if copies and row.get("sent_bytes_a_step"):
        floors += [sent / rate for rate in copies]
    row.update(us=round(seconds * 1e6), floor_us=round(max(floors) * 1e6))
    plain = [found[each] for each in ("gloo", "nccl") if each in found]
    if plain and name not in ("nothing", "gloo", "nccl"):
        row["over_plain"] = round(seconds / min(plain), 4)
    if goal is not None:
        row["goal"] = goal


def backward(options):
    clock = Clock(options.place)
    for model in options.models:
        nothing = None
        for name in ["nothing", *PLANS]:
            def work(name=name):
                variant = Variant(options, name, model)
                ends = []
                variant.first.register_hook(lambda _: ends.append(clock.mark()))
                taken = []
                try:
                    for turn in range(WARM_UP_STEPS + options.turns):
                        dist.barrier(group=options.control)
                        variant.optimizer.zero_grad(set_to_none=True)
                        loss = variant.model(variant.inputs[turn % 4])
                        begin = clock.mark()
                        loss.backward()
                        if turn >= WARM_UP_STEPS:
                            taken.append(agree(options, clock.seconds(begin, ends[-1])))
                    return statistics.median(taken)
                finally:
                    variant.close()
            row = {"part": "backward", "model": model, "variant": name}
            seconds = attempt(options, row, work)
            if seconds is None:
                continue
            nothing = seconds if name == "nothing" else nothing
            row["us"] = round(seconds * 1e6)
            if nothing and name != "nothing":
                row.update(over_nothing=round(seconds / nothing, 4), goal=1.03)
            say(options, **row)


def start_control_plane(options, stack, row):
    """A controller, and an agent for each rank, which is then a node of its own. They end with the stack. Returns the
    agent's address; None, with a row that says why, where one of them does not start."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    port = int(agree(options, port if options.rank == 0 else 0))
    words, agent = "", None
    try:
        folder = weir.run.private_directory(pathlib.Path(options.folder, f"{row['variant']}-{port}-{options.rank}"))
        given = weir.run.parser().parse_args(
            ["--insecure", "--rendezvous" if options.rank == 0 else "--controller", f"127.0.0.1:{port}"])
        agent = f"unix:{stack.enter_context(weir.run.ControlPlane(folder, given)).socket}"
    except (weir.run.RunError, OSError) as error:
        words = f"{error}"[:400]
    if agree(options, bool(words)):
        say(options, **row, left_out=words or "on another rank")
        return None
    return agent


def train(options, row, agent):
    """The losses of a training and the seconds until each. Adds to the row what a controller decided."""
    variant, losses = Variant(options, row["variant"], "gpt", row["rate_mbps"], agent), []
    try:
        if agent:
            row["first_plan_s"] = decide(options, variant)
        begin = time.perf_counter()
        for _ in range(options.steps):
            losses.append((float(variant.step().detach()), time.perf_counter() - begin))
        if agent:
            row.update({"is": "+".join(variant.codecs()), "plan": variant.state.stats().plan_version})
        return losses
    finally:
        variant.close()


def decide(options, variant):
    """Passes until the controller has sent a plan, and for --decide seconds more, in which it may send better ones.
    Returns the seconds until the first. RuntimeError if none came within PLAN_S."""
    begin, first = time.perf_counter(), None
    while True:
        variant.passes()
        taken = time.perf_counter() - begin
        if first is None and variant.state.stats().plan_version > 0:
            first = round(taken, 3)
        if agree(options, taken >= (PLAN_S if first is None else first + options.decide)):
            break
    if first is None:
        raise RuntimeError(f"no plan of the controller within {PLAN_S:g} s")
    return first


def training(options):
    compressed = [name for name in PLANS if name != "weir_dense"]
    for rate in options.rates:
        target = None
        for name in [f"bf16_{options.dense}", f"power_sgd_{options.dense}", *compressed, "weir_adaptive"]:
            row = {"part": "training", "model": "gpt", "rate_mbps": rate, "variant": name, "steps": options.steps}
            with contextlib.ExitStack() as stack:
                agent = start_control_plane(options, stack, row) if name == "weir_adaptive" else ""
                losses = None if agent is None else attempt(options, row, lambda: train(options, row, agent))
            if losses is None:
                continue
            means = [sum(l for l, _ in losses[max(0, i - 7):i + 1]) / min(8, i + 1) for i in range(len(losses))]
            target = means[-1] if target is None else target
            reached = next((t for mean, (_, t) in zip(means, losses) if mean <= target), None)
            say(options, **row, loss=round(means[-1], 4), target=round(target, 4), seconds=round(losses[-1][1], 3),
                seconds_to_target=None if reached is None else round(reached, 3))


def reach_nccl(options):
    """Whether NCCL sums between two processes on this device, which it does for processes of different hosts."""
    data = torch.ones(1000, device=options.place)
    dist.all_reduce(data, group=dist.new_group(backend="nccl", timeout=datetime.timedelta(seconds=OPERATION_S)))
    return bool((data == WORLD).all())


def rank_main(options):
    options.place = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    options.failed = False
    os.environ.pop("LD_PRELOAD", None)  # is loaded, and is not for the programs that this one starts
    dist.init_process_group("gloo", init_method=f"file://{options.folder}/store", rank=options.rank,
                            world_size=WORLD, timeout=datetime.timedelta(seconds=OPERATION_S))
    options.control = dist.group.WORLD
    options.dense = "gloo"
    if options.device == "cuda" and attempt(options, {"part": "nccl"}, lambda: reach_nccl(options)):
        options.dense = "nccl"
    paced = set_rate(0)
    if not paced:
        options.rates = [0.0]
    say(options, part="device", torch=torch.__version__, paced=paced,
        name=torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu")
    {"overhead": overhead, "backward": backward, "training": training}[options.measure](options)
    return 1 if options.failed else 0


def environment(options, folder, rank):
    """That of a rank: each is a host to NCCL, with one connection, as gloo and Weir have one."""
    made = dict(os.environ, GLOO_SOCKET_IFNAME="lo", USE_LIBUV="0", WEIR_INTERFACE="lo",
                NCCL_HOSTID=f"node-{rank}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo", NCCL_P2P_DISABLE="1",
                NCCL_SHM_DISABLE="1", NCCL_SOCKET_NTHREADS="1", NCCL_NSOCKS_PERTHREAD="1", NCCL_MAX_NCHANNELS="1",
                WEIR_FRAMEWORK_DENSE="1")
    paced = pathlib.Path(folder, "paced_sockets.so")
    if rank == 0:
        try:
            subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", str(PACED_SOURCE), "-o", str(paced),
                            "-ldl"], check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"training: no paced connections: {error}", file=sys.stderr)
    if paced.exists():
        made["LD_PRELOAD"] = ":".join(filter(None, (str(paced), os.environ.get("LD_PRELOAD"))))
    return made


def launch(options):
    with tempfile.TemporaryDirectory(prefix="weir-training-") as folder:
        ranks = []
        try:
            for rank in range(WORLD):
                ranks.append(subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--rank", str(rank), "--folder", folder],
                    env=environment(options, folder, rank)))
            end = time.monotonic() + options.deadline
            return max(abs(rank.wait(timeout=max(1.0, end - time.monotonic()))) for rank in ranks)
        except subprocess.TimeoutExpired:
            print(json.dumps({"benchmark": options.measure, "error": f"not done in {options.deadline:g} s"}))
            return 1
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=("overhead", "backward", "training"), required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rates", type=lambda text: [float(rate) for rate in text.split(",")],
                        default=[1000.0, 5000.0, 10000.0], metavar="MBPS,...")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS), metavar="NAME,...")
    parser.add_argument("--seconds", type=float, default=1.0, help="of steps, for each row")
    parser.add_argument("--turns", type=int, default=20, help="measured backward passes")
    parser.add_argument("--steps", type=int, default=60, help="of a training")
    parser.add_argument("--decide", type=float, default=10.0,
                        help="seconds in which a controller finds better plans than its first")
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds for everything")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"benchmark": options.measure, "skipped": "no CUDA device"}))
        return 77
    return launch(options) if options.rank is None else rank_main(options)


if __name__ == "__main__":
    sys.exit(main())
