#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records gradients of the demo's language model for the codec tests.

    tests/data/gradients/generate.py [--directory DIR]

Trains as deploy/demo_job does with four ranks in one process (dense mean, seed 1) and writes, at
several steps, rank 0's own gradient as raw little-endian float32: what a codec meets at the first
encode. "layers" are 65536 consecutive elements from the last block's attention output on (weight,
bias, norm, part of the feed-forward weight); "embedding" the first 65536 of the 2-byte table, of
which a step touches few rows. The bytes depend on torch's kernels: a rerun gives gradients like
these, not the same bits.
"""
import argparse
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "deploy"))

from demo_job import recipe  # noqa: E402
from demo_job.corpus import Corpus  # noqa: E402
from demo_job.model import ByteModel, loss_of  # noqa: E402

WORLD = 4
SEED = 1
MODEL_PARAMS = 2_500_000
STEPS = 301
ELEMENTS = 65536
# The parts that are recorded of each step.
RECORDED = {0: ("layers",), 20: ("layers",), 100: ("layers", "embedding"),
            300: ("layers", "embedding")}
FIRST = {"layers": "blocks.2.attention_out.weight", "embedding": "ngram_embeddings.0.weight"}


def part_of(model, part):
    """ELEMENTS gradients from the parameter FIRST[part] on."""
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())[names.index(FIRST[part]):]
    flat = torch.cat([p.grad.flatten() for p in parameters])
    return flat[:ELEMENTS].clone()


def rank_gradient(model, corpus, step, rank):
    """Backward pass of one rank's batch; the gradients add up in the model."""
    text, target = corpus.batch(step, rank, WORLD, recipe.BATCH, recipe.CONTEXT, SEED)
    loss = loss_of(model(text), target)
    loss.backward()
    return float(loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default=str(HERE))
    directory = pathlib.Path(parser.parse_args().directory)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    corpus = Corpus()
    model = ByteModel(MODEL_PARAMS, recipe.CONTEXT)
    optimizer, rates = recipe.optimizer_for(model, STEPS)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss = rank_gradient(model, corpus, step, 0)
        for part in RECORDED.get(step, ()):
            path = directory / f"step{step:03d}_{part}.f32"
            path.write_bytes(part_of(model, part).numpy().astype("<f4").tobytes())
            print(f"{path.name}: loss {loss:.3f}", flush=True)
        if step == STEPS - 1:
            break
        for rank in range(1, WORLD):
            rank_gradient(model, corpus, step, rank)
        for parameter in model.parameters():
            parameter.grad /= WORLD
        recipe.clip(model)
        optimizer.step()
        rates.step()


if __name__ == "__main__":
    main()
