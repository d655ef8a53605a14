# SPDX-License-Identifier: Apache-2.0
"""The entries that a step puts into a Completer: its buckets on their way, and its end behind the pass."""
import threading
from typing import Any, List, Optional, Union

import torch

from weir import _lib
from weir._lib import WeirError
from weir.session import Session
from weir.staging import InPlace, Transfer, on_incoming


class Delivery:
    """A bucket on its way, as an entry of a Completer.

    way: how libweir gets at the bucket; None for one on the host.
    raises: whether a failure fails the future; otherwise the end of the backward pass raises it.
    deferred: see FrameworkDelivery.
    """

    deferred = False

    def __init__(self, session: Session, buffer: torch.Tensor,
                 way: Union[None, InPlace, Transfer], raises: bool):
        self._session: Optional[Session] = session
        self._buffer, self._way = buffer, way
        self._request: Any = None
        self.used = way.host(buffer) if isinstance(way, Transfer) else buffer  # by libweir
        self.raises = raises
        self.future = torch.futures.Future() if way is None else way.future()
        self.done = threading.Event()
        self.error: Optional[WeirError] = None

    def begin(self, key: int, scale: float) -> None:
        """Queues the all-reduce of the bucket, which a Transfer must have brought to the host."""
        assert self._session is not None
        if isinstance(self._way, InPlace):
            self._request = self._session.all_reduce_device(
                key, self._way.number, self.used.data_ptr(), self._way.stream, scale)
        else:
            self._request = self._session.all_reduce(key, self.used.data_ptr(), scale)

    def fail(self, error: Exception) -> None:
        """Notes a failure, which every waiter for `done` must get."""
        if not isinstance(error, WeirError):
            error = WeirError(f"a bucket could not be delivered: {error}", _lib.INTERNAL)
        self.error = self.error or error

    def settle(self) -> None:
        try:
            if self._request is not None and self._session is not None:
                self._session.wait(self._request)
        except WeirError as error:
            self.fail(error)
        self._session = None  # so that the session closes when the state is dropped

    def complete(self) -> None:
        try:
            if self.error is not None:
                with on_incoming(self._way):
                    self.used.zero_()
            if isinstance(self._way, Transfer):
                self._way.send_back()
        except Exception as error:  # of the device
            self.fail(error)
        try:
            if self.error is not None and self.raises:
                self.future.set_exception(self.error)
            else:
                with on_incoming(self._way):
                    self.future.set_result(self._buffer)
        finally:
            self.done.set()


class StepEnd:
    """The end of a step behind its pass, as an entry of a Completer."""

    def __init__(self, steps: Any, pending: List[Any]):
        self._steps: Any = steps
        self._pending = pending
        self.ended = threading.Event()
        self.failure: Optional[WeirError] = None
        self.begins = False  # whether the next step begins with this end

    def settle(self) -> None:
        """Ends the step, and begins the next one if a forward pass has asked for it."""
        steps, self._steps = self._steps, None
        assert steps is not None
        try:
            self.failure = steps.end_behind(self._pending)
            if self.begins and self.failure is None:
                steps.begin_behind()
        except Exception as error:
            self.failure = error if isinstance(error, WeirError) else WeirError(
                f"a step could not be ended: {error}", _lib.INTERNAL)
        finally:
            self._pending = []
            self.ended.set()

    def complete(self) -> None:
        """Who waits for the end waits for `ended`."""
