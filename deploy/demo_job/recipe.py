# SPDX-License-Identifier: Apache-2.0
"""The training recipe: what the demo's runs and the ratio study have in common."""
import torch

from demo_job.corpus import Corpus
from demo_job.model import ByteModel, loss_of

CONTEXT = 64            # bytes per window
BATCH = 8               # windows per rank and step
VALIDATION_WINDOWS = 64
OPTIMIZER = "adam"
WARMUP_STEPS = 10
CLIP_NORM = 1.0

# Peak learning rate and constructor. The rate falls linearly to a twentieth at the last step, so
# that the end of a run measures convergence and not the noise of the last batches.
OPTIMIZERS = {
    "adam": (2e-3, lambda p, rate: torch.optim.Adam(p, lr=rate, betas=(0.9, 0.98))),
    "sgd": (0.3, lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9)),
}


def optimizer_for(model, steps, name=OPTIMIZER, learning_rate=0.0):
    """Optimiser and learning-rate schedule of a run of `steps` steps."""
    rate, make = OPTIMIZERS[name]
    optimizer = make(model.parameters(), learning_rate or rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    return optimizer, schedule


def rate_at(step, steps):
    """Learning rate relative to its peak."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 1.0 - 0.95 * min(1.0, (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS))


def clip(model):
    """Bounds the norm of the mean gradient."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)


@torch.no_grad()
def validation_loss(model, corpus, rank=0, world=1):
    """(sum of losses, windows) over rank's share of the fixed validation windows."""
    model.eval()
    total, count = 0.0, 0
    batches = corpus.validation_batches(VALIDATION_WINDOWS, CONTEXT, VALIDATION_WINDOWS)
    for text, target in batches:
        text, target = text[rank::world], target[rank::world].contiguous()
        total += float(loss_of(model(text), target)) * len(text)
        count += len(text)
    model.train()
    return total, count


class ByteTask:
    """The task of `demo_job.train`: the model, its data, its optimiser and its validation."""

    def __init__(self, model_params):
        self._model_params = model_params
        self._corpus = Corpus()

    def model(self):
        """A new model, from torch's seed."""
        return ByteModel(self._model_params, CONTEXT)

    def optimizer(self, model, steps):
        """Optimiser and learning-rate schedule."""
        return optimizer_for(model, steps)

    def loss(self, model, step, rank, world, seed):
        """The loss of one rank's batch of one step."""
        text, target = self._corpus.batch(step, rank, world, BATCH, CONTEXT, seed)
        return loss_of(model(text), target)

    def clip(self, model):
        """Applied to the mean gradient before the optimiser's step."""
        clip(model)

    def validation(self, model, rank, world):
        """(sum of losses, number of them) over the rank's share of the validation data."""
        return validation_loss(model, self._corpus, rank, world)
