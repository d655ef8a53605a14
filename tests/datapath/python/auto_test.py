# SPDX-License-Identifier: Apache-2.0
"""`weir run --auto`: which models of a script without a line of Weir's are attached, and which are left alone.

Without an agent, as the choice of models does not need one.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

import torch

import ranks

SCRIPT = pathlib.Path(__file__).resolve()
AUTO = SCRIPT.parents[3] / "datapath" / "python" / "weir" / "auto"
DEADLINE_S = 90.0


def train(model, inputs, steps=2):
    for _ in range(steps):
        model.zero_grad()
        model(inputs).sum().backward()
    return model


def plain(ddp):
    return ddp(torch.nn.Linear(4, 1, bias=False))


def evaluated_first(ddp):
    model = ddp(torch.nn.Linear(4, 1, bias=False)).eval()
    with torch.no_grad():
        model(torch.ones(1, 4))
    return model.train()


def subclass(ddp):
    class Own(ddp):
        """A wrapper that is complete only after the constructor of its base."""

        def __init__(self, module):
            super().__init__(module)
            self.own = True
    return Own(torch.nn.Linear(4, 1, bias=False))


def float64(ddp):
    return ddp(torch.nn.Linear(4, 1, bias=False).double())


def own_hook(ddp):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = ddp(torch.nn.Linear(4, 1, bias=False))
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return model


def own_hook_after_a_step(ddp):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = train(ddp(torch.nn.Linear(4, 1, bias=False)), torch.ones(1, 4))
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return model


def builtin_hook_after_a_step(ddp):
    model = train(ddp(torch.nn.Linear(4, 1, bias=False)), torch.ones(1, 4))
    try:
        model._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.ALLREDUCE)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
    return model


def builtin_hook(ddp):
    model = ddp(torch.nn.Linear(4, 1, bias=False))
    model._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.ALLREDUCE)
    return model


def attached_by_the_script(ddp):
    import weir
    model = ddp(torch.nn.Linear(4, 1, bias=False))
    weir.attach(model)
    return model


def copied(ddp):
    import pickle
    model = ddp(torch.nn.Linear(4, 1, bias=False))
    pickle.dumps(model.module)
    return model


def compiled(ddp):
    return torch.compile(ddp(torch.nn.Linear(4, 1, bias=False)), backend="eager")


def fsdp1(unused_ddp):
    from torch.distributed.fsdp import FullyShardedDataParallel
    inner = FullyShardedDataParallel(torch.nn.Linear(4, 4, bias=False), device_id=torch.device("cpu"))
    return FullyShardedDataParallel(torch.nn.Sequential(inner, torch.nn.Linear(4, 1, bias=False)),
                                    device_id=torch.device("cpu"))


def fsdp2(unused_ddp):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 1, bias=False))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2_of_two_dimensions(unused_ddp):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    return fully_shard(torch.nn.Linear(4, 1, bias=False), mesh=mesh)


def offered():
    """The cases of this torch: whether Weir is attached, and what rank 0 says."""
    cases = {plain: (True, ""), evaluated_first: (True, ""), subclass: (True, ""),
             float64: (False, "'module.weight' is of torch.float64"),
             own_hook: (False, "the script has registered a hook"),
             builtin_hook: (False, ""),  # the same is said once
             own_hook_after_a_step: (False, "the hook that the script has registered"),
             builtin_hook_after_a_step: (True, ""),
             attached_by_the_script: (True, ""), copied: (True, "")}
    if hasattr(torch, "compile"):
        cases[compiled] = (True, "")
    if torch.__version__ >= "2":
        cases[fsdp1] = (True, "")
        from torch.distributed import fsdp
        # Earlier versions of it need a GPU.
        if hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_reduce_scatter"):
            cases[fsdp2] = (True, "")
            cases[fsdp2_of_two_dimensions] = (False, "a mesh of several dimensions")
    return cases


def run(case):
    """Returns the number of models that were attached, of steps of the last one, and the sum of the gradients."""
    from torch.nn.parallel import DistributedDataParallel
    known = set(getattr(sys.modules.get("weir.steps"), "attached", ()))
    torch.manual_seed(0)
    model = case(DistributedDataParallel)
    dtype = next(model.parameters()).dtype
    train(model, torch.full((1, 4), torch.distributed.get_rank() + 1.0, dtype=dtype))
    attached = set(getattr(sys.modules.get("weir.steps"), "attached", ())) - known
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    gradients = [getattr(g, "full_tensor", lambda g=g: g)() for g in gradients]
    return {"case": case.__name__, "attached": len(attached), "steps": [s.stats().step for s in attached],
            "sum": sum(float(g.sum()) for g in gradients), "model": model}


def as_rank():
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    models = []  # kept, so that what one of them has attached is not closed meanwhile
    for case in offered():
        found = run(case)
        models.append(found.pop("model"))
        print(json.dumps(found), flush=True)
    torch.distributed.barrier()


class AutoTest(unittest.TestCase):
    def run_ranks(self, auto):
        """[{case: what was found, with what was said meanwhile}] by rank."""
        path, port = [str(AUTO)] if auto else [], str(ranks.free_port())
        started = [subprocess.Popen(
            [sys.executable, str(SCRIPT), "--rank"], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={
                **os.environ, "PYTHONPATH": os.pathsep.join(path + [os.environ["PYTHONPATH"]]),
                "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "lo"}) for rank in range(2)]
        try:
            outputs = [rank.communicate(timeout=DEADLINE_S)[0] for rank in started]
        finally:
            for rank in started:
                rank.kill()
                rank.wait()
        self.assertEqual([rank.returncode for rank in started], [0, 0], outputs)
        by_rank = []
        for output in outputs:
            found, said = {}, ""
            for line in output.splitlines():
                if line.startswith("{"):
                    one = json.loads(line)
                    found[one["case"]], said = {**one, "said": said}, ""
                else:
                    said += line
            by_rank.append(found)
        return by_rank

    def test_models_that_weir_takes_are_attached_and_others_are_left_alone(self):
        first, second = by_rank = self.run_ranks(auto=True)
        control = self.run_ranks(auto=False)
        for case, (taken, words) in offered().items():
            name = case.__name__
            with self.subTest(name):
                for found, plainly in ((one[name], other[name]) for one, other in zip(by_rank, control)):
                    # Where wrappers are nested, only the outermost is attached.
                    self.assertEqual(found["attached"], 1 if taken else 0, found)
                    self.assertTrue(all(steps >= 1 for steps in found["steps"]), found)
                    self.assertAlmostEqual(found["sum"], plainly["sum"], places=5)
                self.assertIn(words, first[name]["said"])
                self.assertEqual(first[name]["said"].count("--auto leaves a model"), 1 if words else 0, first)
                self.assertNotIn("--auto leaves", second[name]["said"])
        for found in by_rank:
            self.assertIn("FailedPrecondition: weir: ", found["builtin_hook_after_a_step"]["said"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        as_rank()
    else:
        unittest.main()
