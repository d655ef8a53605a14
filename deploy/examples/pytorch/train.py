# SPDX-License-Identifier: Apache-2.0
"""The smallest data-parallel job that Weir steers: a linear model learns known weights.

    python3 train.py                           two ranks on this machine
    torchrun --nproc_per_node=2 train.py       ranks as the launcher says

Debian 12's torchrun (torch 1.13 under Python 3.11) fails unless it is given --redirects=9:1 --tee=9:1, which
redirects the output of a rank that there is not.

WEIR_AGENT names the node's agent ("unix:/run/weir/agent.sock"); without one training runs dense.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

import weir


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=1000, help="parameters")
    return parser.parse_args()


def train(options):
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    truth = torch.randn(options.width, 1)
    model = DistributedDataParallel(torch.nn.Linear(options.width, 1, bias=False))
    weir.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.width / 200)   # inputs have a norm of 1
    torch.manual_seed(2 + dist.get_rank())   # every rank has its own data
    for step in range(options.steps):
        inputs = torch.randn(64, options.width) / options.width ** 0.5
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weir.report_loss(loss.item())
        if dist.get_rank() == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def start_rank(rank, options):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29400")
    train(options)


if __name__ == "__main__":
    arguments = parse()
    if "RANK" in os.environ:
        train(arguments)
    else:
        torch.multiprocessing.spawn(start_rank, (arguments,), nprocs=2)
