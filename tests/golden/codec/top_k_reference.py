#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes top_k_reference.csv: ratio, k-th largest magnitude, gain of exact selection, by NumPy."""

import pathlib

import numpy as np

ELEMENTS = 20000

state = 12345
values = []
for _ in range(ELEMENTS):
    state = (state * 1664525 + 1013904223) % 2**32
    u = (state >> 8) / 16777216.0 - 0.5
    values.append(np.float32(u * u * u))
magnitudes = np.sort(np.abs(np.array(values, dtype=np.float64)))[::-1]
energy = np.cumsum(magnitudes**2)
with open(pathlib.Path(__file__).with_suffix(".csv"), "w") as out:
    for ratio in (0.5, 0.1, 0.03, 0.01, 0.003):
        k = int(ratio * ELEMENTS)
        out.write(f"{ratio},{magnitudes[k - 1]:.9g},{energy[k - 1] / energy[-1]:.9g}\n")
