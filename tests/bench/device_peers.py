#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The times of PyTorch's own operations for the purposes of the device codecs, on the same device. Prints JSON lines
like device_bench's. Peers of codecs: top_k: torch.topk and gather; fp16, bf16: a conversion; qsgd: scale, round and
convert to int8; power_sgd: the products and the orthogonalisation of its hook.

    tests/bench/device_peers.py [--device cuda] [--elements N,N]
"""

import argparse
import json
import sys
import time

ROUNDS = 5
STEPS = 20
WARM_UP = 3
RATIO = 0.01


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--elements", default="25000000,250000000")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("device_peers: no torch", file=sys.stderr)
        return 1
    device = torch.device(arguments.device)

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def microseconds(call):
        for _ in range(WARM_UP):
            call()
        wait()
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for _ in range(STEPS):
                call()
            wait()
            times.append((time.perf_counter() - start) / STEPS * 1e6)
        return sorted(times)[ROUNDS // 2]

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(json.dumps({"benchmark": "device", "name": name, "torch": torch.__version__}), flush=True)
    for n in (int(each) for each in arguments.elements.split(",")):
        x = torch.randn(n, device=device) * 0.01
        out = torch.empty_like(x)
        k = max(1, int(RATIO * n))
        side = int(n ** 0.5)
        matrix = x[:side * side].view(side, side)
        right = torch.randn(side, 4, device=device)

        def top_k(x=x, k=k):
            places = torch.topk(x.abs(), k, sorted=False).indices
            return x[places]

        def qsgd(x=x):
            return (x * (127 / x.abs().max())).round_().to(torch.int8)

        def power_sgd(matrix=matrix, right=right):
            left, _ = torch.linalg.qr(matrix @ right)
            return left @ (matrix.t() @ left).t()

        peers = {"copy": lambda x=x, out=out: out.copy_(x), "fp16": lambda x=x: x.half(),
                 "bf16": lambda x=x: x.bfloat16(), "top_k": top_k, "qsgd": qsgd, "power_sgd": power_sgd}
        for codec, call in peers.items():
            print(json.dumps({"benchmark": "peer", "codec": codec, "elements": n, "us": microseconds(call)}),
                  flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
