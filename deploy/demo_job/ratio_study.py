# SPDX-License-Identifier: Apache-2.0
"""How many steps to the target loss a kept fraction costs, with no network and no Weir.

Four workers are simulated in one process: each computes its own gradient, selects its largest
entries bucket by bucket with error feedback, and the mean is applied. Prints one JSON line per
validation and one summary line per ratio. The solver's progress model is judged against this.

    PYTHONPATH=deploy /usr/bin/python3 -m demo_job.ratio_study --ratios 1,0.1,0.01 --steps 300
"""
import argparse
import json

import torch

from demo_job import recipe
from demo_job.corpus import Corpus
from demo_job.model import ByteModel, loss_of

BUCKET_ELEMENTS = 1 << 20


def buckets_of(model):
    """Parameters in the order their gradients become ready, cut at BUCKET_ELEMENTS."""
    buckets, current = [], []
    for parameter in reversed(list(model.parameters())):
        current.append(parameter)
        if sum(p.numel() for p in current) >= BUCKET_ELEMENTS:
            buckets.append(current)
            current = []
    return buckets + [current] if current else buckets


def compress(flat, residual, ratio):
    """The kept part of flat + residual; the rest becomes the residual. Returns it and the gain."""
    if ratio >= 1.0:
        kept = flat + residual
        residual.zero_()
        return kept, 1.0
    total = flat + residual
    count = max(1, int(ratio * total.numel()))
    magnitude = total.abs()
    threshold = magnitude.kthvalue(total.numel() - count + 1).values
    kept = torch.where(magnitude >= threshold, total, torch.zeros(()))
    torch.sub(total, kept, out=residual)
    energy = float(total.square().sum())
    return kept, float(kept.square().sum()) / energy if energy > 0 else 1.0


def ratio_at(spec, step):
    """A ratio, or step:ratio pairs such as 0:1;40:0.01;120:1."""
    current = 1.0
    for part in spec.split(";"):
        first, _, ratio = part.rpartition(":")
        if not first or step >= int(first):
            current = float(ratio)
    return current


def run(spec, options, corpus):
    """Trains once with the given ratio and prints the course of the validation loss."""
    torch.manual_seed(options.seed)
    model = ByteModel(options.model_params, recipe.CONTEXT)
    optimizer, schedule = recipe.optimizer_for(model, options.steps, options.optimizer,
                                               options.learning_rate)
    buckets = buckets_of(model)
    residuals = [[torch.zeros(sum(p.numel() for p in b)) for b in buckets]
                 for _ in range(options.workers)]
    course, gains = [], []
    for step in range(options.steps):
        ratio = ratio_at(spec, step)
        mean = [torch.zeros_like(r) for r in residuals[0]]
        for worker in range(options.workers):
            text, target = corpus.batch(step, worker, options.workers, recipe.BATCH,
                                        recipe.CONTEXT, options.seed)
            model.zero_grad()
            loss_of(model(text), target).backward()
            for i, bucket in enumerate(buckets):
                flat = torch.cat([p.grad.view(-1) for p in bucket])
                kept, gain = compress(flat, residuals[worker][i], ratio)
                mean[i] += kept / options.workers
                gains.append(gain)
        for flat, bucket in zip(mean, buckets):
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.view_as(p).clone()
        recipe.clip(model)
        optimizer.step()
        schedule.step()
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            total, windows = recipe.validation_loss(model, corpus)
            loss = total / windows
            course.append((step + 1, loss))
            print(json.dumps({"ratio": spec, "step": step + 1, "val_loss": round(loss, 4),
                              "gain": round(sum(gains[-64:]) / len(gains[-64:]), 4)}), flush=True)
    reached = {t: next((s for s, loss in course if loss <= t), None) for t in options.targets}
    print(json.dumps({"ratio": spec, "final": round(course[-1][1], 4),
                      "mean_gain": round(sum(gains) / len(gains), 4), "steps_to": reached,
                      "optimizer": options.optimizer}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratios", default="1,0.1,0.03,0.01,0.003,0.001")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--model-params", type=int, default=2_500_000)
    parser.add_argument("--optimizer", choices=sorted(recipe.OPTIMIZERS), default=recipe.OPTIMIZER)
    parser.add_argument("--learning-rate", type=float, default=0.0, help="0: the recipe's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", default="2.6,2.4,2.2")
    options = parser.parse_args()
    options.targets = [float(t) for t in options.targets.split(",")]
    torch.set_num_threads(1)
    corpus = Corpus()
    for spec in options.ratios.split(","):
        run(spec, options, corpus)


if __name__ == "__main__":
    main()
