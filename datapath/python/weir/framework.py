# SPDX-License-Identifier: Apache-2.0
"""Sums of buckets over the process group that the training job has anyway, such as NCCL's.

Where the plan says "framework", a bucket is summed as it would be without Weir: the hook divides it
and gives it to the group's own all-reduce, on the thread and in the order in which DDP would. What
Weir does around a sum is done all the same (weir_caller_sum_begin in weir.h): the residual goes into
the sum, the time is measured, a step with NaN or infinity is skipped, and plans switch.
"""
import contextlib
import math
import threading
import time
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from weir import _lib
from weir import environment
from weir import staging
from weir import versions
from weir._lib import WeirError
from weir.session import Session

_CHECKS_S = 0.05          # between looks at whether the session has failed meanwhile
_POLL_MAX_S = 1e-3        # between looks at an event of a device


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

    def sum(self, tensor: torch.Tensor, scale: float, needs: int) -> Any:
        """Begins to replace the tensor by the scaled sum over all ranks; returns an object that
        FrameworkDelivery can wait for."""
        accelerator = staging.accelerator_of([tensor])
        if accelerator is None:
            return _HostSum(self, tensor, scale)
        staging.refuse_capture(accelerator)
        accelerator.run(lambda: tensor.mul_(scale))

        def launch(device):
            work = self.all_reduce(tensor)
            with device.on(device.incoming):
                work.wait()
            return device.mark(device.incoming)
        return _DeviceSum(self, launch, tensor, accelerator, needs)

    def scatter(self, scatter: Callable[[], None], shard: torch.Tensor) -> Any:
        """Lets scatter() write this rank's part of a sum; otherwise as sum()."""
        accelerator = staging.accelerator_of([shard])
        if accelerator is None:
            return _HostScatter(self, scatter, shard)
        staging.refuse_capture(accelerator)

        def launch(device):
            scatter()
            end = device.mark(device.current())
            device.follow(device.incoming, end)
            return end
        return _DeviceSum(self, launch, shard, accelerator, 0)

    def end(self, end: Any) -> Any:
        """Notes the end of a sum; returns that of the one before."""
        before, self._last_end = self._last_end, end
        return before


def group_of(group: Any, parameters: Any, timeout_s: float) -> Optional[FrameworkGroup]:
    """The FrameworkGroup of a job whose gradients are where `parameters` are; None: Weir sums.

    By default that is NCCL's group. WEIR_FRAMEWORK_DENSE=1 takes any backend but Weir's, and 0 none.
    """
    wanted = environment.read("WEIR_FRAMEWORK_DENSE", bool)
    if wanted is False:
        return None
    kinds = {parameter.device.type for parameter in parameters}
    backend = versions.backend_of(group, kinds.pop()) if len(kinds) == 1 else ""
    if backend == "nccl" or wanted and backend not in ("", "weir"):
        return FrameworkGroup(group, backend, timeout_s)
    return None


class _HostSum:
    """A sum of a tensor in the host's memory, which a future of the process group ends."""

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
        return dict(finite=_is_finite(self._tensor),
                    network_s=max(0.0, self._end - max(self._begun, before)),
                    since_ready_s=self._end - self._begun, ended_ago_s=time.monotonic() - self._end,
                    pointer=self._tensor.data_ptr() if needs & _lib.NEEDS_SUM else None)


class _HostScatter:
    """A reduce-scatter in the host's memory, which has ended."""

    def __init__(self, group: FrameworkGroup, scatter: Callable[[], None], shard: torch.Tensor):
        self._shard = shard
        self._begun = time.monotonic()
        scatter()
        self._end = time.monotonic()
        group.end(self._end)

    def wait(self, unused_seconds: float) -> bool:
        """It has ended."""
        return True

    def outcome(self, unused_needs: int) -> dict:
        """See _HostSum."""
        took = self._end - self._begun
        return dict(finite=_is_finite(self._shard), network_s=took, since_ready_s=took,
                    ended_ago_s=time.monotonic() - self._end)


class _DeviceSum:
    """A sum that the streams of an accelerator wait for, and no thread before wait().

    launch: begins it on the accelerator, makes its stream `incoming` wait for the end, and returns
    a mark of the end. result: where the sum will be.
    """

    def __init__(self, group: FrameworkGroup, launch: Callable[[Any], Any], result: torch.Tensor,
                 accelerator: staging.Accelerator, needs: int):
        self._group, self._accelerator = group, accelerator
        self._pause_s = 2e-5
        self._begun = accelerator.mark(accelerator.current())
        self._largest = accelerator.pinned(torch.zeros(1))
        self._sum = accelerator.pinned(result) if needs & _lib.NEEDS_SUM else None
        self._end = launch(accelerator)
        with torch.no_grad(), accelerator.on(accelerator.incoming):
            # Here, because the result may be overwritten by the time that a thread looks at it.
            if result.numel() > 0:
                accelerator.run(lambda: self._largest.copy_(
                    torch.linalg.vector_norm(result, math.inf, dtype=torch.float32).reshape(1),
                    non_blocking=True))
            if self._sum is not None:
                accelerator.copy(self._sum, result)
        self._checked = accelerator.record(accelerator.incoming)

    def wait(self, seconds: float) -> bool:
        """See _HostSum."""
        deadline = time.monotonic() + seconds
        while not self._accelerator.done(self._checked):
            if time.monotonic() > deadline:
                return False
            time.sleep(self._pause_s)
            self._pause_s = min(1.5 * self._pause_s, _POLL_MAX_S)
        return True

    def outcome(self, unused_needs: int) -> dict:
        """See _HostSum."""
        before = self._group.end(self._end)
        took = self._accelerator.seconds(self._begun, self._end)
        alone = took if before is None else self._accelerator.seconds(before, self._end)
        return dict(finite=math.isfinite(self._largest.item()), network_s=max(0.0, min(took, alone)), since_ready_s=took,
                    ended_ago_s=max(0.0, self._accelerator.since(self._end)),
                    pointer=None if self._sum is None else self._sum.data_ptr())


class _Failed:
    """A sum that the process group has not even begun."""

    def __init__(self, error: Exception):
        self._error = error

    def wait(self, unused_seconds: float) -> bool:
        """Raises what the group did."""
        raise self._error


def _is_finite(tensor: torch.Tensor) -> bool:
    # A sum that is infinite may have overflowed.
    return math.isfinite(tensor.sum(dtype=torch.float32).item()) \
        or bool(torch.isfinite(tensor).all())


class FrameworkDelivery:
    """A bucket that the framework sums, as an entry of a Completer; see weir.deliveries.Delivery.

    begin() and start() are called in this order unless `later`, where begin() follows when the copy
    of the gradient that it measures has arrived. deferred: whether start() has completed the future,
    as the group's own would be: an accelerator's streams wait for the sum, and no thread does. What
    settle() finds then, is known only after the gradients were used.
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
        self.deferred = False
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

    def arrive(self) -> None:
        """Waits for the copy, if there is one, before begin()."""
        if self._copy is not None:
            self._copy.arrived()

    def begin(self) -> None:
        """Begins the operation of the session, which adds the residual and measures the gradient."""
        assert self._session is not None
        pointer, host = None, self.used
        if self._copy is not None:
            pointer = self._copy.host(self._original).data_ptr()
        elif self._needs & (_lib.NEEDS_RESIDUAL | _lib.NEEDS_SAMPLE):
            host = self.used if self._accelerator is None else self._accelerator.to_host(self.used)
            pointer = host.data_ptr()
        self._request = self._session.caller_sum_begin(self._key, pointer)
        if host is not self.used and self._accelerator is not None:
            self._accelerator.run(lambda: self.used.copy_(host))
        self._copy = self._original = None

    def start(self, launch: Callable[[], Any], result: torch.Tensor) -> None:
        """Begins the sum by launch(), which returns what the methods of FrameworkGroup do.

        result: where the sum, or this rank's part of it, will be.
        """
        try:
            self._sum = launch()
        except Exception as error:  # of the process group; all ranks are told by settle()
            self._sum = _Failed(error)
        self.used = result
        if isinstance(self._sum, _DeviceSum):
            assert self._accelerator is not None
            with self._accelerator.on(self._accelerator.incoming):
                self.future.set_result(result)
            self.deferred = True

    def fail(self, error: Exception) -> None:
        """See weir.deliveries.Delivery."""
        if not isinstance(error, WeirError):
            error = WeirError(f"a bucket could not be delivered: {error}", _lib.INTERNAL)
        self.error = self.error or error

    def _ended(self, session: Session) -> Optional[dict]:
        """The outcome of the sum; None: the session has ended the request before."""
        backend = self._group.backend
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
                outcome = self._ended(self._session)
                if outcome is not None:
                    self._end(self._session, outcome)
                self._session.wait(self._request)
        except WeirError as error:
            self.fail(error)
        self._session = self._sum = None

    def complete(self) -> None:
        """See weir.deliveries.Delivery."""
        if self.deferred:
            self.done.set()
            return
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
