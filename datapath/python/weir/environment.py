# SPDX-License-Identifier: Apache-2.0
"""Reads settings from the environment, all in one way, and checks names. Knows nothing of torch."""
import math
import os
from typing import Any, Callable, Dict, Optional, Tuple

from weir import _lib
from weir._lib import WeirError


JOB_BYTES_MAX = 200  # that an agent takes


def check_job(name: str, rank: Optional[int] = None) -> str:
    """Returns the name of a job. InvalidArgument: agents would refuse it, and ranks run dense for that."""
    size = len(name.encode(errors="surrogateescape"))
    if not 0 < size <= JOB_BYTES_MAX:
        raise WeirError(f"job: expected a name of 1 to {JOB_BYTES_MAX} bytes, found {size}",
                        _lib.INVALID_ARGUMENT, rank)
    if any(ord(sign) < 0x20 or ord(sign) == 0x7f for sign in name):
        raise WeirError(f"job: expected a name without control characters, found {name!r}",
                        _lib.INVALID_ARGUMENT, rank)
    return name


def _flag(value: str) -> bool:
    return {"0": False, "1": True}[value]


def _seconds(value: str) -> float:
    seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError
    return seconds


_KINDS: Dict[type, Tuple[Callable[[str], Any], str]] = {
    str: (str, "a text"),
    bool: (_flag, "0 or 1"),
    int: (int, "a whole number"),
    float: (_seconds, "a number of seconds, 0 or more"),
}


def read(name: str, kind: type = str, default: Any = None, rank: Optional[int] = None) -> Any:
    """Returns the value of a variable as a `kind`: str, bool, int or float (seconds).

    `default` stands for a variable that is not set or empty. InvalidArgument: the value is not of
    this kind; the message names the variable, what is expected and what was found.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    convert, expected = _KINDS[kind]
    try:
        return convert(text)
    except (ValueError, KeyError):
        raise WeirError(f"{name}: expected {expected}, found '{text}'", _lib.INVALID_ARGUMENT,
                        rank) from None
