# SPDX-License-Identifier: Apache-2.0
"""Finds the rank and the parameter whose gradient held NaN or infinity.

Good steps cost nothing: gradients are searched only after libweir has said that a step is skipped.
By then a bucket's local gradients are overwritten. DDP still has them in the parameters, unless it
was made with gradient_as_bucket_view or static_graph. In all other cases, also under FSDP, the
first such step has no name, and the gradients of the SEARCHED_STEPS after it are searched before
they leave.
"""
import datetime
import time
from typing import Optional

import torch

SEARCHED_STEPS = 100
_AGREEMENT_S = 5.0


class SkippedStep(int):
    """The value of `last_step_skipped` after a step that was skipped; equal to True.

    step: its number. rank, parameter: where NaN or infinity was met first; None where nobody knows,
    as for a sum of finite numbers that is too large for the type of the gradients.
    """

    step: int
    rank: Optional[int]
    parameter: Optional[str]

    def __new__(cls, step: int, rank: Optional[int] = None, parameter: Optional[str] = None):
        made = super().__new__(cls, 1)
        made.step, made.rank, made.parameter = step, rank, parameter
        return made

    def __repr__(self):
        return f"SkippedStep(step={self.step}, rank={self.rank}, parameter={self.parameter!r})"

    def __str__(self):
        if self.rank is None:
            return f"step {self.step} was skipped: a gradient held NaN or infinity"
        return (f"step {self.step} was skipped: the gradient of '{self.parameter}' on rank "
                f"{self.rank} held NaN or infinity")


def first_non_finite(named):
    """The name of the first of the (name, tensor or None) pairs with NaN or infinity, or None."""
    for name, tensor in named:
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            return name
    return None


class Agreement:
    """Lets the ranks of a job tell each other, through a store, where a step went wrong.

    Three short requests per rank, in skipped steps only.
    """

    def __init__(self, store, prefix):
        self._store, self._prefix = store, prefix

    def reach(self, step, rank, world, found):
        """(rank, parameter) as one rank has found it, the same everywhere, or (None, None).

        found: the parameter that this rank has found, or None. Every rank must call it; it waits
        until one has found something or all have found nothing, at most 5 s. (None, None), too, if
        the store fails: a name is not worth the step.
        """
        try:
            return self._reach(step, rank, world, found)
        except RuntimeError:  # of which a store's errors are subclasses
            return None, None

    def _reach(self, step, rank, world, found):
        key = f"{self._prefix}/non_finite/{step}"
        deadline = time.monotonic() + _AGREEMENT_S
        if found is not None and self._store.add(f"{key}/found", 1) == 1:
            self._store.set(key, f"{rank} {found}")
        self._store.add(f"{key}/searched", 1)
        while time.monotonic() < deadline:
            all_searched = self._store.add(f"{key}/searched", 0) >= world
            if self._store.add(f"{key}/found", 0) > 0:
                self._store.wait([key], datetime.timedelta(seconds=_AGREEMENT_S))
                number, name = self._store.get(key).decode().split(" ", 1)
                return int(number), name
            if all_searched:
                break
            time.sleep(0.005)
        return None, None
