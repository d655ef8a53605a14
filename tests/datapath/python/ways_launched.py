# SPDX-License-Identifier: Apache-2.0
"""Ways that start their ranks with PyTorch's own launcher."""
import os
import subprocess
import sys

import torch
import torch.distributed as dist

from way_registry import way

HERE = os.path.dirname(os.path.abspath(__file__))
WORLD = 2

# Every life of a rank begins with the model that rank 0 saved. In the first life rank 1 ends in the
# middle.
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import weir
from way_registry import GROUP, Run
from ways_ddp import STEPS, train, wrap
from torch.nn.parallel import DistributedDataParallel

variant, folder = sys.argv[1:]
dist.init_process_group("weir" if variant == GROUP else "gloo")
run = Run(dist.get_rank(), dist.get_world_size(), variant, folder)
torch.set_num_threads(1)
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = wrap(run)
saved = os.path.join(folder, "saved.pt")
done = 0
if os.path.exists(saved):
    state = torch.load(saved)
    done = state.pop("done")
    model.module.load_state_dict(state)
train(run, model, steps=2)
if run.rank == 0 and not done:
    torch.save({**model.module.state_dict(), "done": 2}, saved + ".part")
    os.rename(saved + ".part", saved)
dist.barrier()
if life == 0 and run.rank == 1:
    os._exit(3)
found = train(run, model, steps=STEPS)
torch.save([t.detach() for t in found] + [torch.tensor([life])],
           os.path.join(folder, f"result{run.rank}.pt"))
dist.barrier()
run.close()
dist.destroy_process_group()
"""


def _launcher_has_its_store():
    """Whether the launcher can serve a store: it wants libuv, which some builds of torch lack."""
    try:
        dist.TCPStore("127.0.0.1", 0, 1, True)
    except RuntimeError:
        return False
    return True


@way("torchrun, restarted after a rank died", hook=True, deadline_s=150.0, launched=True)
def torchrun(variant, folder, port, deadline_s):
    """Returns a list of tensors for each rank."""
    script = os.path.join(folder, "train.py")
    with open(script, "w", encoding="ascii") as out:
        out.write(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]), "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo"}
    # --redirects and --tee name a rank that does not exist: without any, torch 1.13 fails under
    # Python 3.11.
    rendezvous = []
    if not _launcher_has_its_store():
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        rendezvous = ["--rdzv_backend=c10d", "--rdzv_conf=store_type=file",
                      f"--rdzv_endpoint={os.path.join(folder, 'rendezvous')}"]
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={WORLD}",
              "--max_restarts=1", "--redirects=9:1", "--tee=9:1", "--monitor_interval=0.2",
              "--master_addr=127.0.0.1", f"--master_port={port}", *rendezvous, script, variant,
              folder]
    with subprocess.Popen(launch, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
        try:
            words, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher ends its ranks
            words, _ = process.communicate(timeout=30.0)
            raise AssertionError(f"not done within {deadline_s:g} s:\n{words}") from None
        finally:
            process.kill()
    if process.returncode != 0:
        raise AssertionError(f"torchrun ended with {process.returncode}:\n{words}")
    return [torch.load(os.path.join(folder, f"result{rank}.pt")) for rank in range(WORLD)]
