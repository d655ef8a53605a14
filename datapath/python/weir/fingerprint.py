# SPDX-License-Identifier: Apache-2.0
"""A short text on a model, by which ranks find that they attach different ones, in unlike order say.

It has a checksum of the parameters' names, types and shapes, and sums of a sample of their values.
DDP has made these equal on all ranks, and by them two models of one shape are told apart. The sums
may differ by rounding. Two models whose parameters are of one shape and equal, too, look the same,
so such models must be attached in one order by the script itself. Of sharded models (FSDP) only
the names and types are compared.
"""
import math
import zlib
from typing import Dict, List

import torch

from weir import _lib
from weir._lib import WeirError

_SUMS = 4
_SAMPLE = 16       # elements of a parameter
_TOLERANCE = 1e-3  # of the sum of magnitudes
_SHOWN_MAX = 8


def of(parameters: Dict[str, torch.Tensor], whole: bool, equal: bool = True) -> str:
    """Returns the text on a model with these parameters by name. O(parameters).

    whole: whether every rank has all of each parameter. equal: whether the values are those of all
    ranks, which they are not within a period of local steps.
    """
    named = list(parameters.items())
    shapes = [f"{name}:{p.dtype}" + (f":{tuple(p.shape)}" if whole else "") for name, p in named]
    text = f"{len(named)}:{zlib.crc32(';'.join(shapes).encode()):08x}"
    if not whole or not equal or not named:
        return text
    pieces = [p.detach().flatten()[:_SAMPLE].float() for _, p in named]
    values = torch.cat([torch.stack([piece.sum(), piece.abs().sum()]) for piece in pieces]).cpu().double()
    sums = [values[0::2][offset::_SUMS].sum() for offset in range(_SUMS)] + [values[1::2].sum()]
    return ":".join([text, *(f"{float(value):.9g}" for value in sums)])


def _are_equal(one: str, other: str) -> bool:
    (*names, sums), (*other_names, other_sums) = (_parts(text) for text in (one, other))
    if names != other_names or len(sums) != len(other_sums):
        return False
    if not all(map(math.isfinite, [*sums, *other_sums])):
        return True
    scale = max([*sums[-1:], *other_sums[-1:], 0.0])
    return all(abs(a - b) <= _TOLERANCE * scale for a, b in zip(sums, other_sums))


def _parts(text):
    count, names, *sums = text.split(":")
    return count, names, [float(value) for value in sums]


def check(texts: List[str], rank: int) -> None:
    """Raises InvalidArgument unless the texts of all ranks are of one model."""
    unlike = [r for r, text in enumerate(texts) if not _are_equal(texts[0], text)]
    if not unlike:
        return
    shown = ", ".join(map(str, unlike[:_SHOWN_MAX])) + (" and others" if len(unlike) > _SHOWN_MAX else "")
    first, other = _parts(texts[0]), _parts(texts[unlike[0]])
    what = (f"{other[0]} parameters, rank 0 has {first[0]}" if first[0] != other[0] else
            "parameters of other names, types or shapes" if first[1] != other[1] else
            "parameters of other values")
    raise WeirError(f"the ranks attach different models: rank{'s' * (len(unlike) > 1)} {shown} has one with "
                    f"{what}; call weir.attach for the same models in the same order on all ranks, and load "
                    "checkpoints on all of them", _lib.INVALID_ARGUMENT, rank)
