#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Times what a PyTorch user would call instead of a codec: the peer process of codec_table and
codec_bench.

    codec_peers.py ELEMENTS

Reads requests from standard input, one a line: codec, error model, ratio, bits, bits per element,
rounds, separated by tabs. Answers each at once with "PEER<tab>SECONDS", both empty and 0 where
PyTorch has nothing alike. One thread; the result of the first call of a kind is warm-up and not
reported. Peers compress only: no error feedback, no payload coding, no unpacking of what they sent.
"""
import sys
import time

import torch

MATRIX = 1024  # rows and columns of codec_table's tensors


def power_sgd_orthogonalize():
    """PyTorch's own, where this build has torch.distributed."""
    try:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        return powerSGD_hook._orthogonalize
    except (ImportError, AttributeError):
        return None


class Peers:
    """One gradient and the calls on it."""

    def __init__(self, elements):
        torch.set_num_threads(1)
        torch.manual_seed(1)
        period = (torch.randn(1_000_003) * 0.01)
        self.x = period.repeat(elements // period.numel() + 1)[:elements].clone()
        self.orthogonalize = power_sgd_orthogonalize()
        self.factors = {}

    def top_k(self, request):
        """Magnitude selection as the usual compressors write it."""
        k = max(1, int(request["ratio"] * self.x.numel()))
        _, indices = torch.topk(self.x.abs(), k, sorted=False)
        return self.x[indices]

    def random_k(self, request):
        k = max(1, int(request["ratio"] * self.x.numel()))
        return self.x[torch.randint(0, self.x.numel(), (k,))]

    def half(self, _):
        return self.x.half()

    def bfloat16(self, _):
        return self.x.bfloat16()

    def clone(self, _):
        return self.x.clone()

    def quantize_per_tensor(self, _):
        low, high = torch.aminmax(self.x)
        scale = max(float(high - low) / 255, 1e-30)
        return torch.quantize_per_tensor(self.x, scale, 128, torch.quint8)

    def sign(self, _):
        return torch.sign(self.x), self.x.abs().mean()

    def power_sgd(self, request):
        """The maths of PyTorch's hook in a world of one: P = MQ, orthogonal P, Q = M'P, M - PQ'."""
        # As many numbers as the ratio allows, in two factors.
        rank = request["bits"] or max(1, round(request["ratio"] * MATRIX / 2))
        count = self.x.numel() // (MATRIX * MATRIX)
        matrices = self.x[:count * MATRIX * MATRIX].view(count, MATRIX, MATRIX)
        if rank not in self.factors:
            self.factors[rank] = torch.randn(count, MATRIX, rank)
        p = torch.bmm(matrices, self.factors[rank])
        self.orthogonalize(p)
        q = torch.bmm(matrices.transpose(1, 2), p)
        return matrices - torch.bmm(p, q.transpose(1, 2))

    def choose(self, request):
        """(what the peer is called, its function) or None: by name, then by what the codec does."""
        named = {"fp16": ("tensor.half()", self.half),
                 "bf16": ("tensor.bfloat16()", self.bfloat16),
                 "identity": ("tensor.clone()", self.clone)}
        if request["codec"] in named:
            return named[request["codec"]]
        if request["codec"].startswith("power_sgd"):
            return ("powerSGD_hook's maths", self.power_sgd) if self.orthogonalize else None
        if request["codec"].startswith("random"):
            return "torch.randint and gather", self.random_k
        if request["ratio"] < 1:
            return "torch.topk and gather", self.top_k
        if request["rounds"] > 1:
            return None
        if request["bits_per_element"] <= 1.25:
            return "torch.sign and mean", self.sign
        if request["bits_per_element"] <= 9.5:
            return "torch.quantize_per_tensor", self.quantize_per_tensor
        return None


def main():
    peers = Peers(int(sys.argv[1]))
    warm = set()
    print("ready", flush=True)
    for line in sys.stdin:
        codec, model, ratio, bits, bits_per_element, rounds = line.rstrip("\n").split("\t")
        request = {"codec": codec, "model": model, "ratio": float(ratio), "bits": int(bits),
                   "bits_per_element": float(bits_per_element), "rounds": int(rounds)}
        chosen = peers.choose(request)
        if chosen is None:
            print("\t0", flush=True)
            continue
        name, function = chosen
        if (name, ratio, bits) not in warm:
            function(request)
            warm.add((name, ratio, bits))
        began = time.perf_counter()
        function(request)
        print(f"{name}\t{time.perf_counter() - began:.9f}", flush=True)


if __name__ == "__main__":
    main()
