# SPDX-License-Identifier: Apache-2.0
"""Sums of buckets over the process group that the training job has anyway, such as NCCL's.

Where the plan says "framework", a bucket is summed as it would be without Weir: the hook divides it
and gives it to the group's own all-reduce, on the thread and in the order in which DDP would. What
Weir does around a sum is done all the same (weir_caller_sum_begin in weir.h): the residual goes into
the sum, the time is measured, a step with NaN or infinity is skipped, and plans switch.
"""
import contextlib
import math
import os
import threading
import time
from typing import Any, Optional

import torch
import torch.distributed as dist

from weir import _lib
from weir import staging
from weir import versions
from weir._lib import WeirError
from weir.session import Session

_CHECKS_S = 0.05          # between looks at whether the session has failed meanwhile
_POLL_MAX_S = 1e-3        # between looks at an event of a device
_ENV = "WEIR_FRAMEWORK_DENSE"


class FrameworkGroup:
    """A process group that sums gradients, and how long its sums may take.

    group: as torch.distributed's functions take it; None: the default group.
    """

    def __init__(self, group: Any, backend: str, timeout_s: float):
        self._group = group
        self.backend = backend
        self.timeout_s = timeout_s
        self._last_end: Any = None  # of the sum before: a group sums one bucket after the other

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Begins to sum; returns the work."""
        return dist.all_reduce(tensor, group=self._group, async_op=True)

    def end(self, end: Any) -> Any:
        """Notes the end of a sum; returns that of the one before."""
        before, self._last_end = self._last_end, end
        return before


def group_of(group: Any, parameters: Any, timeout_s: float) -> Optional[FrameworkGroup]:
    """The FrameworkGroup of a job whose gradients are where `parameters` are; None: Weir sums.

    By default that is NCCL's group. WEIR_FRAMEWORK_DENSE=1 takes any backend but Weir's, and 0 none.
    """
    wanted = os.environ.get(_ENV, "")
    if wanted == "0":
        return None
    kinds = {parameter.device.type for parameter in parameters}
    backend = versions.backend_of(group, kinds.pop()) if len(kinds) == 1 else ""
    if backend == "nccl" or wanted and backend not in ("", "weir"):
        return FrameworkGroup(group, backend, timeout_s)
    return None


class _HostSum:
    """A sum of a tensor in the host's memory."""

    def __init__(self, group: FrameworkGroup, tensor: torch.Tensor, scale: float):
        self._group, self._tensor = group, tensor
        self._ended = threading.Event()
        self._end = 0.0
        tensor.mul_(scale)
        self._begun = time.monotonic()
        self._future = group.all_reduce(tensor).get_future()
        self._future.add_done_callback(self._on_end)

    def _on_end(self, unused_future):
        self._end = time.monotonic()
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Waits for so long; returns whether the sum has ended. Raises what the group did."""
        if not self._ended.wait(seconds):
            return False
        self._future.value()
        return True

    def outcome(self, needs: int) -> dict:
        """A sum that has ended, as arguments of caller_sum_end()."""
        before = self._group.end(self._end) or 0.0
        # An infinite sum of many numbers says less than one that is NaN, or finite.
        finite = math.isfinite(self._tensor.sum(dtype=torch.float32).item()) \
            or bool(torch.isfinite(self._tensor).all())
        return dict(finite=finite, network_s=max(0.0, self._end - max(self._begun, before)),
                    since_ready_s=time.monotonic() - self._begun,
                    pointer=self._tensor.data_ptr() if needs & _lib.NEEDS_SUM else None)


class _DeviceSum:
    """A sum of a tensor of an accelerator. The streams wait for each other, and no thread for them
    before wait()."""

    def __init__(self, group: FrameworkGroup, tensor: torch.Tensor, scale: float,
                 accelerator: staging.Accelerator, needs: int):
        self._group, self._accelerator, self._tensor = group, accelerator, tensor
        self._pause_s = 2e-5
        accelerator.run(lambda: tensor.mul_(scale))
        self._begun = accelerator.mark(accelerator.current())
        work = group.all_reduce(tensor)
        self._total = accelerator.pinned(torch.empty(1))
        self._sum = accelerator.pinned(tensor) if needs & _lib.NEEDS_SUM else None
        with torch.no_grad(), accelerator.on(accelerator.incoming):
            work.wait()
            accelerator.run(lambda: self._total.copy_(
                tensor.sum(dtype=torch.float32).reshape(1), non_blocking=True))
            if self._sum is not None:
                accelerator.copy(self._sum, tensor)
        self._end = accelerator.mark(accelerator.incoming)

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._accelerator.done(self._end):
            if time.monotonic() > deadline:
                return False
            time.sleep(self._pause_s)
            self._pause_s = min(1.5 * self._pause_s, _POLL_MAX_S)
        return True

    def outcome(self, needs: int) -> dict:
        before = self._group.end(self._end)
        took = self._accelerator.seconds(self._begun, self._end)
        alone = took if before is None else self._accelerator.seconds(before, self._end)
        finite = math.isfinite(self._total.item()) or bool(torch.isfinite(self._tensor).all())
        return dict(finite=finite, network_s=min(took, max(alone, 0.0)),
                    since_ready_s=took,
                    pointer=None if self._sum is None else self._sum.data_ptr())


class FrameworkDelivery:
    """A bucket that the framework sums, as an entry of a Completer; see weir.steps.Delivery.

    begin() and start() are called in this order unless `later`, where begin() follows when the copy
    of the gradient that it measures has arrived.
    """

    def __init__(self, session: Session, group: FrameworkGroup, key: int, buffer: torch.Tensor,
                 needs: int, raises: bool):
        self._session: Optional[Session] = session
        self._group, self._key, self._needs = group, key, needs
        self._accelerator = staging.accelerator_of([buffer])
        self._request: Any = None
        self._sum: Any = None
        self._copy: Optional[staging.Transfer] = None  # of the gradient, to be measured
        self.used, self.raises = buffer, raises
        self.future = staging.future_of(buffer)
        self.done = threading.Event()
        self.error: Optional[WeirError] = None
        if needs & _lib.NEEDS_SAMPLE and not needs & _lib.NEEDS_RESIDUAL and self._accelerator:
            self._original = self._accelerator.duplicate(buffer)
            self._copy = staging.Transfer(self._accelerator, [self._original], [])

    @property
    def later(self) -> bool:
        """Whether begin() may be called after start()."""
        return not self._needs & _lib.NEEDS_RESIDUAL and (
            self._copy is not None or not self._needs & _lib.NEEDS_SAMPLE)

    @property
    def copying(self) -> bool:
        """Whether begin() waits for a copy."""
        return self._copy is not None

    def begin(self) -> None:
        """Begins the operation of the session, which adds the residual and measures the gradient."""
        assert self._session is not None
        pointer, host = None, self.used
        if self._copy is not None:
            self._copy.arrived()
            pointer = self._copy.host(self._original).data_ptr()
        elif self._needs & (_lib.NEEDS_RESIDUAL | _lib.NEEDS_SAMPLE):
            host = self.used if self._accelerator is None else self._accelerator.to_host(self.used)
            pointer = host.data_ptr()
        self._request = self._session.caller_sum_begin(self._key, pointer)
        if host is not self.used:
            self._accelerator.run(lambda: self.used.copy_(host))
        self._copy = self._original = None

    def start(self, scale: float) -> None:
        """Gives the bucket to the process group."""
        if self._accelerator is None:
            self._sum = _HostSum(self._group, self.used, scale)
        else:
            self._sum = _DeviceSum(self._group, self.used, scale, self._accelerator, self._needs)

    def fail(self, error: Exception) -> None:
        """See weir.steps.Delivery."""
        if not isinstance(error, WeirError):
            error = WeirError(f"a bucket could not be delivered: {error}", _lib.INTERNAL)
        self.error = self.error or error

    def _ended(self) -> Optional[dict]:
        """The outcome of the sum; None: the session has ended the request before."""
        backend, session = self._group.backend, self._session
        deadline = time.monotonic() + self._group.timeout_s
        try:
            while not self._sum.wait(_CHECKS_S):
                if session.test(self._request):
                    return None
                if time.monotonic() > deadline:
                    return dict(error=f"{backend} has not summed it after "
                                f"{self._group.timeout_s:g} s")
            return self._sum.outcome(self._needs)
        except Exception as error:  # of the process group, or of the device
            return dict(error=f"{backend}: {error}")

    def _end(self, session, outcome):
        try:
            session.caller_sum_end(self._key, **outcome)
        except WeirError:
            if not session.test(self._request):
                raise
            # Otherwise the request says why the session has failed.

    def settle(self) -> None:
        try:
            if self._request is not None and self._session is not None:
                outcome = self._ended()
                if outcome is not None:
                    self._end(self._session, outcome)
                self._session.wait(self._request)
        except WeirError as error:
            self.fail(error)
        self._session = self._sum = None

    def complete(self) -> None:
        """See weir.steps.Delivery."""
        context = contextlib.nullcontext() if self._accelerator is None else \
            self._accelerator.on(self._accelerator.incoming)
        try:
            if self.error is not None and self.raises:
                self.future.set_exception(self.error)
                return
            with context:
                if self.error is not None:
                    self.used.zero_()
                self.future.set_result(self.used)
        finally:
            self.done.set()
