#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package on a CUDA device: prints a line of JSON with what passes.

    WEIR_LIBRARY=.../libweir.so PYTHONPATH=datapath/python python3 tests/device/python_cuda.py

Two ranks share the device (NCCL cannot do that, so models are compared with DDP over gloo): the cases of
tests/datapath/python/staging_cases.py, and models in DDP and FSDP. Exit status: 0 all pass, 1 some do not, 77 there is
no CUDA device. --device cpu runs the same without one, with the fake device of staging_cases.py: the cases there, and
the models in DDP whose hook is all that touches their buckets. The others (ddp_over_the_process_group, ddp_restored,
fsdp) do arithmetic on buckets by PyTorch, which the fake cannot defer, so they run with tensors of the CPU.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "datapath" / "python"))
import staging_cases  # noqa: E402
from staging_models import BUCKET_MB, STEPS, Scaler, make_model, train, wrap  # noqa: E402
import weir  # noqa: E402
import weir.process_group  # noqa: E402
import weir.steps  # noqa: E402
from weir import staging  # noqa: E402

WORLD = 2
OPERATION_S = 30.0
NOT_OFFERED = "not offered"  # what a case returns that this version of torch cannot run


def equal(found, expected):
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(found, expected))


def scaler_of(device, dtype):
    """A GradScaler for the device, or what stands in for it: for gradients of float16, which it refuses, and where
    this torch has none."""
    if dtype == torch.float16:
        return Scaler()
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, init_scale=1024.0)
    return torch.cuda.amp.GradScaler(init_scale=1024.0) if device.type == "cuda" else Scaler()


def in_ddp(device, rank, dtype=torch.float32, scaled=False, autocast=None, **options):
    """Whether DDP with the hook ends with the same parameters as DDP over gloo."""
    results, fake = [], None if device.type == "cuda" else staging_cases.FakeDevice()
    for attached in (False, True):
        scaler = scaler_of(device, dtype) if scaled else None
        # gloo may not support sums of 16 bits.
        group = dist.new_group(backend="gloo" if dtype == torch.float32 else "weir")
        model = wrap(fake if attached else None, make_model(device, dtype), bucket_cap_mb=BUCKET_MB,
                        process_group=group, **options)
        state = weir.attach(model, scaler=scaler) if attached else None
        with_cast = torch.autocast(device.type, dtype=autocast) if autocast else None
        results.append(train(model, rank, scaler=scaler, autocast=with_cast))
        if scaler is not None:
            results[-1].append(torch.tensor([scaler.get_scale()]))
        if state is not None:
            state.close()
    return equal(results[1], results[0]) and (fake is None or fake.took_buckets())


def ddp(device, rank):
    return in_ddp(device, rank)


def ddp_bucket_views(device, rank):
    return in_ddp(device, rank, gradient_as_bucket_view=True)


def ddp_static_graph(device, rank):
    return in_ddp(device, rank, static_graph=True)


def ddp_bfloat16(device, rank):
    return in_ddp(device, rank, dtype=torch.bfloat16)


def ddp_float16(device, rank):
    """With a loss scale, without which gradients are so small that DDP, which halves before it adds, loses bits."""
    return in_ddp(device, rank, dtype=torch.float16, scaled=True)


def ddp_autocast(device, rank):
    return in_ddp(device, rank, autocast=torch.bfloat16)


def ddp_scaler_that_skips(device, rank):
    return in_ddp(device, rank, scaled=True)


def ddp_amp(device, rank):
    """Autocast to 16 bits with a loss scaler, as torch.cuda.amp is used."""
    cast = torch.float16 if device.type == "cuda" else torch.bfloat16
    return in_ddp(device, rank, scaled=True, autocast=cast)


def ddp_over_the_process_group(device, rank):
    """DDP without a hook, over the backend "weir"."""
    expected = train(DistributedDataParallel(make_model(device), process_group=dist.new_group(
        backend="gloo")), rank)
    return equal(train(DistributedDataParallel(make_model(device)), rank), expected)


def ddp_restored(device, rank):
    """A checkpoint of a compressing job continues as the job itself does."""
    plan = {"job": "restored", "version": 1, "buckets": [], "fallback": {
        "codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.1}}
    path = f"/tmp/weir-python-cuda-{os.getpid()}.json"
    pathlib.Path(path).write_text(json.dumps(plan), encoding="ascii")
    try:
        model = make_model(device)
        wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
        state = weir.attach(wrapped, job="restored", plan_file=path)
        train(wrapped, rank)
        saved, weights = state.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
        expected = train(wrapped, rank, range(STEPS, 2 * STEPS))
        codecs = {choice["codec"] for _, choice in state.choices()}
        state.close()
        again = make_model(device)
        again.load_state_dict(weights)
        wrapped = DistributedDataParallel(again, bucket_cap_mb=BUCKET_MB)
        state = weir.attach(wrapped, job="restored", plan_file=path)
        state.load_state_dict(saved)
        found = train(wrapped, rank, range(STEPS, 2 * STEPS))
        state.close()
        return codecs == {"top_k"} and equal(found, expected)
    finally:
        os.unlink(path)


def fsdp1(device, rank):
    """In the last steps, dense units are reduce-scattered by FSDP's own process group."""
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    except (ImportError, ValueError):  # torch 1.13 has a dataclass that Python 3.11 refuses
        return NOT_OFFERED
    expected = train(DistributedDataParallel(make_model(device)), rank)
    model = FullyShardedDataParallel(
        make_model(device), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True,
        device_id=device if device.type == "cuda" else None)
    try:
        state = weir.attach(model)
    except weir.InvalidArgument as error:
        return NOT_OFFERED if "from PyTorch 2.1 on" in str(error) else str(error)
    train(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        found = [p.detach().cpu().clone() for p in model.parameters()]
    state.close()
    return equal(found, expected)


def fsdp2(device, rank):
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return NOT_OFFERED
    expected = train(DistributedDataParallel(make_model(device)), rank)
    mesh, model = init_device_mesh(device.type, (WORLD,)), make_model(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    try:
        state = weir.attach(model)
    except weir.InvalidArgument as error:
        return NOT_OFFERED if "has no set_custom_reduce_scatter()" in str(error) else str(error)
    train(model, rank)
    found = [p.full_tensor().detach().cpu() for p in model.parameters()]
    state.close()
    return equal(found, expected)


def in_a_graph(device, rank):
    """In a CUDA graph that is captured, the process group and the hook refuse."""
    data, words = torch.ones(1000, device=device), []
    state = weir.DDPState(nn.Linear(4, 4), job="graph")
    key = state.define([("weight", 1000, 0)], torch.float32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for use in (lambda: dist.all_reduce(data), lambda: state.submit(key, data)):
            try:
                use()
            except weir.FailedPrecondition as error:
                words.append(str(error))
        data.mul_(2)
    state.close()
    return len(words) == 2 and all("graph" in word for word in words)


MODELS = (ddp, ddp_bucket_views, ddp_static_graph, ddp_bfloat16, ddp_float16, ddp_autocast,
          ddp_scaler_that_skips, ddp_amp, ddp_over_the_process_group, ddp_restored, fsdp1, fsdp2)


def mixed_backends(rank, store):
    """cpu:weir,cuda:nccl keeps both; or torch takes no backends in Python, and an error says so."""
    try:
        dist.init_process_group("cpu:weir,cuda:nccl", rank=0, world_size=1,
                                store=dist.PrefixStore(f"mixed/{rank}", store))
    except ValueError as error:
        return "loses cuda:nccl" in str(error)
    both = torch.ones(3), torch.ones(3, device="cuda")
    for data in both:
        dist.all_reduce(data)
    names = [dist.group.WORLD._get_backend(torch.device(kind)).name() for kind in ("cpu", "cuda")]
    dist.destroy_process_group()
    return names == ["weir", "nccl"] and all(bool((data == 1).all()) for data in both)


def cases_of(kind):
    cases = [(case.__name__, case) for case in staging_cases.CASES]
    cases += [(model.__name__, model) for model in MODELS]
    return cases + ([("in_a_graph", in_a_graph)] if kind == "cuda" else [])


def run_case(case, kind, rank, store):
    began, accelerator_of = time.monotonic(), staging.accelerator_of
    try:
        dist.init_process_group("weir", store=store, rank=rank, world_size=WORLD,
                                timeout=datetime.timedelta(seconds=OPERATION_S))
        if case in MODELS or case is in_a_graph:
            passed = case(torch.device(kind, 0) if kind == "cuda" else torch.device("cpu"), rank)
        else:
            made = staging_cases.CudaDevice() if kind == "cuda" else staging_cases.FakeDevice()
            passed = case(made, rank, WORLD)
        words = "" if passed in (True, NOT_OFFERED) else f"returned {passed!r}"
    except BaseException:
        passed, words = False, traceback.format_exc()
    staging.accelerator_of = accelerator_of  # without the fake
    for module in (weir.steps, weir.process_group):
        module._close_all()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    return {"passed": not words, "offered": passed != NOT_OFFERED,
            "seconds": round(time.monotonic() - began, 3), "words": words}


def rank_main(options):
    store = dist.FileStore(options.store, WORLD)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for name, case in cases_of(options.device):
        if options.only and options.only not in name:
            continue
        found = run_case(case, options.device, options.rank, dist.PrefixStore(name, store))
        print(json.dumps({"case": name, **found}), flush=True)
        store.add(f"after/{name}", 1)  # the next case begins when all have ended this one
        end = time.monotonic() + 2 * OPERATION_S
        while store.add(f"after/{name}", 0) < WORLD and time.monotonic() < end:
            time.sleep(0.01)
    if options.device == "cuda" and options.only in "mixed_backends":
        passed = mixed_backends(options.rank, store)
        print(json.dumps({"case": "mixed_backends", "passed": passed, "words": ""}), flush=True)


def launch(options):
    """Runs the ranks; returns the rows {case: {"passed", "words"}} of what all of them say."""
    directory = tempfile.TemporaryDirectory()
    command = [sys.executable, os.path.abspath(__file__), "--device", options.device, "--only",
               options.only, "--store", os.path.join(directory.name, "store")]
    ranks = [subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
             for rank in range(WORLD)]
    end, rows = time.monotonic() + options.deadline, {}
    try:
        for number, process in enumerate(ranks):
            try:
                text, _ = process.communicate(timeout=max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                text, _ = process.communicate()
            for line in filter(lambda line: line.startswith("{"), text.splitlines()):
                said = json.loads(line)
                row = rows.setdefault(said["case"], {"passed": True, "offered": True, "ranks": 0,
                                               "words": ""})
                row["ranks"] += 1
                row["passed"] &= bool(said["passed"])
                row["offered"] &= said.get("offered", True)
                row["words"] += f"rank {number}: {said['words']}\n" if said["words"] else ""
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        directory.cleanup()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose names contain it")
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds for all cases")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"torch": torch.__version__, "skipped": "no CUDA device"}))
        return 77
    if options.rank is not None:
        rank_main(options)
        return 0
    began, rows = time.monotonic(), launch(options)
    wanted = [name for name, _ in cases_of(options.device) if options.only in name]
    if options.device == "cuda" and options.only in "mixed_backends":
        wanted.append("mixed_backends")
    failed = {name: rows.get(name, {}).get("words", "") or "did not run on all ranks"
              for name in wanted
              if not rows.get(name, {}).get("passed") or rows[name]["ranks"] < WORLD}
    print(json.dumps({
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu, fake",
        "passed": [name for name in wanted if name not in failed and rows[name]["offered"]],
        "not_offered": [name for name in wanted
                        if name not in failed and not rows[name]["offered"]],
        "failed": failed,
        "seconds": round(time.monotonic() - began, 1)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
