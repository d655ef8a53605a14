# SPDX-License-Identifier: Apache-2.0
"""Step time of Gloo and of Weir on one network, alternating within one process group.

    python3 -m demo_job.compare --steps 20 --rounds 5     (environment as demo_job.train)

Both models start alike and train on the same text; blocks of steps alternate, so that whatever else
the machine does falls on both. Rank 0 prints a JSON line after each block and one with the medians.
"""
import argparse
import datetime
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from demo_job import recipe
from demo_job.corpus import Corpus
from demo_job.model import ByteModel, loss_of
from demo_job.train import BUCKET_MB, COLLECTIVE_TIMEOUT_S


class Contender:
    """One model with its optimiser and the step times that were measured."""

    def __init__(self, options, attach):
        torch.manual_seed(options.seed)
        model = ByteModel(options.model_params, recipe.CONTEXT)
        self.ddp = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb,
                                           broadcast_buffers=False)
        self.weir = None
        if attach:
            import weir
            self.weir = weir.attach(self.ddp)
        self.optimizer, _ = recipe.optimizer_for(model, options.steps * (options.rounds + 1))
        self.times = []
        self.step = 0

    def train_step(self, corpus, seed):
        """One optimiser step; returns its duration."""
        began = time.monotonic()
        text, target = corpus.batch(self.step, dist.get_rank(), dist.get_world_size(),
                                    recipe.BATCH, recipe.CONTEXT, seed)
        self.optimizer.zero_grad(set_to_none=False)
        loss_of(self.ddp(text), target).backward()
        recipe.clip(self.ddp.module)
        self.optimizer.step()
        self.step += 1
        return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="of one block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=20, help="steps of each before measuring")
    parser.add_argument("--model-params", type=int, default=2_500_000)
    parser.add_argument("--bucket-mb", type=float, default=BUCKET_MB)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    corpus = Corpus()
    gloo, weir = Contender(options, False), Contender(options, True)
    for contender in (gloo, weir):
        for _ in range(options.warm_up):
            contender.train_step(corpus, options.seed)
        if dist.get_rank() == 0:
            print(json.dumps({"kind": "warm", "name": "weir" if contender.weir else "gloo"}), flush=True)
    for turn in range(options.rounds):
        for contender in (gloo, weir) if turn % 2 == 0 else (weir, gloo):
            dist.barrier()
            contender.train_step(corpus, options.seed)  # the first after a change warms caches
            contender.times += [contender.train_step(corpus, options.seed)
                                for _ in range(options.steps)]
            if dist.get_rank() == 0:
                print(json.dumps({"kind": "block", "round": turn + 1, "of": options.rounds,
                                  "name": "weir" if contender.weir else "gloo",
                                  "median_step_s": statistics.median(contender.times[-options.steps:])}),
                      flush=True)
    if dist.get_rank() == 0:
        medians = {"gloo": statistics.median(gloo.times), "weir": statistics.median(weir.times)}
        print(json.dumps({"kind": "compare", "steps": len(gloo.times), "median_step_s": medians,
                          "ratio": medians["weir"] / medians["gloo"],
                          "plan": weir.weir.plan()}), flush=True)
    dist.barrier()
    weir.weir.close()
    os._exit(0)


if __name__ == "__main__":
    main()
