# SPDX-License-Identifier: Apache-2.0
"""One rank of convergence_bench: the demo's trainer with another task or another way to reduce gradients.

    python3 -m convergence.train --backend BACKEND --steps N ...   (environment as demo_job.train; CONVERGENCE_TASK names the task)
"""
import argparse
import os
import sys

import torch

from convergence.tasks import TASKS
from demo_job import train


def attach_power_sgd(ddp, unused_optimizer):
    """PyTorch's own hook with its usual settings for so short a run."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def attach_post_local_sgd(ddp, optimizer):
    """PyTorch's own local SGD: the mean of parameters over Gloo every POST_LOCAL_EVERY steps, from the first one on."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from weir.local import call_after_steps
    alone = [torch.distributed.new_group([rank]) for rank in range(torch.distributed.get_world_size())]
    ddp.register_comm_hook(post_localSGD_hook.PostLocalSGDState(None, alone[torch.distributed.get_rank()], 0),
                           post_localSGD_hook.post_localSGD_hook)
    averager = Averaged(PeriodicModelAverager(int(os.environ["POST_LOCAL_EVERY"]), warmup_steps=0), ddp)
    ddp.averager = averager
    call_after_steps(optimizer, averager.average)


class Averaged:
    """A model's averager, to be called after every step of the optimiser."""

    def __init__(self, averager, ddp):
        self._averager, self._parameters = averager, list(ddp.parameters())

    def average(self):
        """Averages the parameters where it is their turn."""
        self._averager.average_parameters(self._parameters)


BACKENDS = {"gloo": lambda ddp, optimizer: None, "power_sgd": attach_power_sgd, "post_local": attach_post_local_sgd,
            "weir": train.attach_weir}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    options = train.options_of(parser, sys.argv[1:])
    if options.backend == "power_sgd":
        # Its hook starts collectives from callbacks, whose order differs between ranks if there are several
        # buckets. Gloo would then mix them up.
        options.bucket_mb = 1024
        torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    train.train(options, TASKS[os.environ["CONVERGENCE_TASK"]](), BACKENDS[options.backend])


if __name__ == "__main__":
    main()
