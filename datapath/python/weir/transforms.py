# SPDX-License-Identifier: Apache-2.0
"""Orthonormal transforms of flat tensors, in place, before a codec selects what is sent.

Energy that gradients have in patches is in few coefficients of a cosine transform. Orthonormal, since
then the codec's errors and residuals are as large as those of the elements themselves.

Source: Peng et al., "DeMo: Decoupled momentum optimization", 2024, section 3; deviates: squares of 64 x 64
are cut from the flat tensor, not from each parameter by its shape, and what is left over stays as it is.
"""
import functools
import math

import torch

DCT = "SYNC_TRANSFORM_DCT"  # weir.v1.SyncTransform
SIDE = 64


@functools.lru_cache(maxsize=8)
def _matrix(device: torch.device) -> torch.Tensor:
    """The orthonormal DCT-II of SIDE numbers: row k holds the k-th cosine."""
    k, n = torch.meshgrid(torch.arange(SIDE, dtype=torch.float64),
                          torch.arange(SIDE, dtype=torch.float64), indexing="ij")
    rows = torch.cos(math.pi / SIDE * (n + 0.5) * k) * math.sqrt(2 / SIDE)
    rows[0] /= math.sqrt(2)
    return rows.to(device, torch.float32)


def _squares(flat: torch.Tensor) -> torch.Tensor:
    count = flat.numel() // (SIDE * SIDE)
    return flat[:count * SIDE * SIDE].view(count, SIDE, SIDE)


def dct(flat: torch.Tensor) -> None:
    """Transforms a flat float32 tensor. O(64 n)."""
    squares, rows = _squares(flat), _matrix(flat.device)
    squares.copy_(rows @ squares @ rows.T)


def inverse_dct(flat: torch.Tensor) -> None:
    """Undoes dct()."""
    squares, rows = _squares(flat), _matrix(flat.device)
    squares.copy_(rows.T @ squares @ rows)
