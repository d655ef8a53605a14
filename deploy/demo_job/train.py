# SPDX-License-Identifier: Apache-2.0
"""One rank of the demo's training job.

    python3 -m demo_job.train --backend gloo|weir --steps N ... with RANK, WORLD_SIZE, MASTER_ADDR
    and MASTER_PORT in the environment, as torchrun sets them.

Rank 0 writes JSON lines to standard output: one "ready", one "step" per optimiser step, one
"validation" every --validate-every steps, one "end". The clock counts training only: it stands
still while validating. A run ends with the schedule (--steps); if --target is not reached by then
it goes on at the last learning rate until it is, or until --steps-max.
"""
import argparse
import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from demo_job import recipe

COLLECTIVE_TIMEOUT_S = 120
BUCKET_MB = 4


def sent_bytes():
    """Bytes that left this host's network device; None on loopback, which all ranks share.

    Counted at the device, so that every library is measured alike, headers and control included.
    """
    device = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    with open("/proc/self/net/dev", encoding="ascii") as table:
        for line in table:
            name, _, numbers = line.partition(":")
            if name.strip() == device != "lo":
                return int(numbers.split()[8])
    return None


class Validation:
    """Validates on all ranks at once, each its share, so that no rank waits for another's turn."""

    def __init__(self, task, rank, world):
        self._task, self._rank, self._world = task, rank, world
        self._store = dist.distributed_c10d._get_default_store()

    def __call__(self, model, step):
        """(validation loss, whatever rank 0 decides from it): the same on all ranks."""
        share = self._task.validation(model, self._rank, self._world)
        self._store.set(f"validation/{step}/{self._rank}", json.dumps(share))
        shares = [json.loads(self._store.get(f"validation/{step}/{r}")) for r in range(self._world)]
        return sum(total for total, _ in shares) / sum(count for _, count in shares)


def choice_of(choices):
    """One line for the choice that most of the gradient travels by."""
    elements = {}
    for count, choice in choices:
        ratio = float(choice.get("ratio") or 1.0)
        kept = f" {ratio:.3g}" if ratio < 1.0 else ""
        codec = choice.get("codec") or "identity"
        name = (f"{'dense' if codec == 'identity' else codec}{kept} over "
                f"{choice.get('collective') or 'ring'}")
        elements[name] = elements.get(name, 0) + count
    return max(elements, key=elements.get) if elements else "nothing yet"


class Trainer:
    """The loop of one rank. attach(ddp, optimizer) registers what reduces gradients, and returns Weir's state or None."""

    def __init__(self, options, task, attach):
        self.options = options
        self.task = task
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(options.seed)
        self.model = task.model()
        # The only buffer is a constant mask, which DDP would otherwise send by Gloo before every
        # step.
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=options.bucket_mb,
                                           broadcast_buffers=False)
        self.optimizer, self.rates = task.optimizer(self.model, options.steps)
        self.weir = attach(self.ddp, self.optimizer)
        self.validate = Validation(task, self.rank, self.world)
        self.plan_version = None
        self.choice = "gloo all-reduce" if self.weir is None else ""

    def emit(self, kind, **fields):
        """Writes one line; rank 0 only."""
        if self.rank == 0:
            print(json.dumps({"kind": kind, **fields}), flush=True)

    def train_step(self, step):
        """One optimiser step. Returns the local loss."""
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.task.loss(self.ddp, step, self.rank, self.world, self.options.seed)
        loss.backward()
        if self.weir is None or not self.weir.last_step_skipped:
            self.task.clip(self.model)
            self.optimizer.step()
        self.rates.step()
        return float(loss)

    def notice_plan(self):
        """Follows the active plan for the progress lines."""
        if self.weir is None:
            return 0
        version = self.weir.stats().plan_version
        if version != self.plan_version:
            self.plan_version = version
            self.choice = choice_of(self.weir.choices())
        return version

    def run(self):
        """Trains to the end of the schedule and, if need be, to the target."""
        options, clock, reached = self.options, 0.0, None
        sent = sent_bytes()
        self.emit("ready", parameters=sum(p.numel() for p in self.model.parameters()),
                  torch=torch.__version__, world=self.world)
        step, loss = 0, None
        while step < options.steps_max and (step < options.steps or reached is None):
            began = time.monotonic()
            local = self.train_step(step)
            took = time.monotonic() - began
            clock += took
            step += 1
            if self.weir is not None:
                self.weir.report_loss(local)
            self.emit("step", step=step, time_s=clock, step_s=took, loss=local,
                      plan_version=self.notice_plan(), choice=self.choice,
                      skipped=bool(self.weir and self.weir.last_step_skipped))
            if step == options.steps and self.weir is not None:
                began = time.monotonic()
                self.weir.synchronise(now=True)  # where a plan lets the ranks step on their own
                clock += time.monotonic() - began
            if step % options.validate_every == 0 or step == options.steps:
                loss = self.validate(self.model, step)
                if reached is None and loss <= options.target:
                    reached = clock
                self.emit("validation", step=step, time_s=clock, loss=loss, reached=reached)
        self.emit("end", steps=step, time_s=clock, final_validation_loss=loss,
                  time_to_target_s=reached,
                  bytes_sent=None if sent is None else sent_bytes() - sent,
                  steps_skipped=self.weir.stats().steps_skipped if self.weir else 0)


def options_of(parser, arguments):
    """Adds what every training needs to a parser and parses."""
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--steps-max", type=int, default=0, help="0: as --steps")
    parser.add_argument("--target", type=float, default=0.0)
    parser.add_argument("--validate-every", type=int, default=20)
    parser.add_argument("--model-params", type=int, default=2_500_000)
    parser.add_argument("--bucket-mb", type=float, default=BUCKET_MB)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.steps_max = max(options.steps_max, options.steps)
    return options


def train(options, task, attach):
    """Joins the other ranks, trains and ends the process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    trainer = Trainer(options, task, attach)
    trainer.run()
    # All ranks leave together, because a rank that ends early would look like a failed one.
    dist.barrier()
    if trainer.weir is not None:
        trainer.weir.close()
    sys.stdout.flush()
    os._exit(0)  # Gloo's own threads may outlive the interpreter's teardown


def attach_weir(ddp, optimizer):
    """Gradients go by Weir."""
    import weir
    return weir.attach(ddp, optimizer=optimizer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["gloo", "weir"], required=True)
    options = options_of(parser, sys.argv[1:])
    train(options, recipe.ByteTask(options.model_params),
          attach_weir if options.backend == "weir" else lambda ddp, optimizer: None)


if __name__ == "__main__":
    main()
