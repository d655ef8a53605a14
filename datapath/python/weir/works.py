# SPDX-License-Identifier: Apache-2.0
"""The works of the process group: what its calls return, to Python and to PyTorch's C++."""
import collections
import datetime
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, Optional, Sequence

import torch

from weir import _lib
from weir import versions
from weir._lib import WeirError
from weir.staging import Transfer, map_tensors

KEPT_MAX = 1024
RETRIED_MAX = 16


class Keeper:
    """Keeps works alive for torch's C++, which may keep a work but not its Python object: before 2.14
    every work that C++ asks for, and later one that Python hands to it, as DDP's join() does.

    Without that object, wait() in C++ is that of the base class, which never ends; and C++ may wait
    repeatedly, once for each tensor that a coalesced collective returns. So the last KEPT_MAX works
    stay, but without their results once somebody has waited and only the keeper refers to them.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: "Dict[int, Work]" = {}  # by id, oldest first
        self._waited: "Deque[int]" = collections.deque(maxlen=RETRIED_MAX)

    def add(self, work: "Work") -> None:
        with self._lock:
            self._works[id(work)] = work
            if len(self._works) > KEPT_MAX:
                del self._works[next(iter(self._works))]

    def remove(self, work: "Work") -> None:
        with self._lock:
            self._works.pop(id(work), None)

    def waited(self, work: "Work") -> None:
        """Somebody has waited for `work` or its future. Drops the results of those before.

        One that a thread still holds, as the one that completes its future, is tried again.
        """
        with self._lock:
            if id(work) not in self._works:
                return
            before = [key for key in self._waited if key != id(work) and key in self._works]
            self._waited.clear()
            self._waited.extend(key for key in before if not _drop_results(self._works, key))
            self._waited.append(id(work))

    def clear(self) -> None:
        with self._lock:
            self._works.clear()


def _references(works: Dict[int, Any], key: int) -> int:
    return sys.getrefcount(works[key])


class _Kept:
    """An object to which only a dictionary refers."""


_ALONE = _references({0: _Kept()}, 0)


def _drop_results(works: "Dict[int, Work]", key: int) -> bool:
    """Drops the results of a work that only the dictionary refers to. Returns whether it did."""
    alone = _references(works, key) <= _ALONE
    if alone:
        works[key].drop_results()
    return alone


def _names_of_caller() -> Sequence[str]:
    """The names in the code that has called the caller of this function, directly or through C++."""
    try:
        return sys._getframe(2).f_code.co_names
    except ValueError:  # a thread of C++
        return ()


def _are_tensors(results: Any, dtype: Optional[torch.dtype] = None) -> bool:
    """Whether these are tensors in the host's memory, and of this type."""
    return isinstance(results, list) and all(
        isinstance(t, torch.Tensor) and t.device.type == "cpu" and dtype in (None, t.dtype)
        for t in results)


class Work(versions.WORK):
    """The operations of one call. wait() raises WeirError; any thread may call it, repeatedly."""

    def __init__(self, group: Any, operations: Sequence[Any], buffers: Any, results: Any,
                 finish: Optional[Callable[[], None]] = None, messages: bool = False):
        super().__init__()
        self._communicator = group._communicator
        self._operations = operations
        self._buffers = buffers  # libweir uses them until the operations end
        self._results = results
        self._finish = finish    # copies results to their destination
        self._messages = messages
        self._completer = group._completer
        self._keeper = group._keeper
        self._peer = -1
        self._error: Optional[Exception] = None
        self._settled = False
        self._lock = threading.RLock()
        self._future: Optional[torch.futures.Future] = None

    def _settle(self, timeout_s: float = 0.0) -> None:
        """Waits for every operation. The first call also runs `finish`."""
        if not self._settled:
            end = time.monotonic() + timeout_s
            error = None
            for operation in self._operations:
                left = max(end - time.monotonic(), 1e-6) if timeout_s else 0.0
                try:
                    self._peer = self._communicator.wait(operation, left)
                except WeirError as failure:
                    if timeout_s and not self._communicator_done(operation):
                        raise
                    error = error or failure
            with self._lock:
                if not self._settled:
                    self._error = error
                    if error is None and self._finish is not None:
                        self._finish()
                    self._settled = True
                    self._buffers = self._finish = None
        if self._error is not None:
            raise self._error

    def _communicator_done(self, operation: Any) -> bool:
        try:
            return self._communicator.test(operation)
        except WeirError:
            return True  # closed: no operation continues

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Returns True when done. timeout: a timedelta; 0 for that of the group."""
        try:
            self._settle(timeout.total_seconds() if timeout else 0.0)
            self._join()
        finally:
            self._keeper.waited(self)
        return True

    synchronize = wait

    def _join(self) -> None:
        """Lets the stream of the calling thread wait for the results."""

    def is_completed(self) -> bool:
        return self._settled or all(map(self._communicator_done, self._operations))

    def exception(self) -> Optional[Exception]:
        """The failure of a completed work, or None."""
        if not self.is_completed():
            return None
        try:
            self._settle()
        except Exception as error:
            return error
        return None

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def result(self) -> Any:
        self.wait()
        return self._results

    def source_rank(self) -> int:
        """The sender of a received message."""
        self._settle()
        return self._peer

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A torch.futures.Future of the results, completed by a thread of the group.

        DDP's own hooks in C++ want tensors where a future of Python has an object. Where DDP compresses to
        float16, and where the work has ended, they get them. (PyTorch's few threads run what is
        attached to such a future. So callers in Python, which may wait there, get the other kind.)
        """
        from_python = "get_future" in _names_of_caller()
        with self._lock:
            if self._future is None:
                done, settled = self._new_future(), self._settled
                # Waiters in C++ see an exception that then() raises, but none of set_exception.
                self._future = done.then(lambda _: self._value())
                if settled:  # C++ may ask at once for the value
                    done.set_result(None)
                    if self._error is None and _are_tensors(self._results):
                        self._future = versions.future_of_tensors(self._results)
                else:
                    if not from_python and _are_tensors(self._results, torch.float16):
                        self._future = versions.future_of_tensors(self._results, self._future)
                    self._complete(done)
            return self._future

    getFuture = get_future

    def _new_future(self) -> torch.futures.Future:
        return torch.futures.Future()

    def _complete(self, future: Optional[torch.futures.Future]) -> None:
        """Lets a thread settle the work, and complete the future."""
        completion = _Completion(self, future)
        if self._messages:  # they end in any order
            threading.Thread(target=completion.run, name="weir-futures", daemon=True).start()
        else:
            self._completer.put(completion)

    def drop_results(self) -> None:
        """For a work that is done, of which nobody will ask the results."""
        with self._lock:
            if self._settled and (self._future is None or self._future.done()):
                self._results = self._future = None

    def _value(self) -> Any:
        self._settle()
        self._join()
        return self._results

    def __del__(self) -> None:
        for operation in getattr(self, "_operations", ()):
            try:
                self._communicator.release(operation)
            except WeirError:
                pass


class DeferredWork(Work):
    """A work that begins on a thread of the group, behind the operations before it.

    begin: a function that begins the operation and returns its Work.
    transfer: brings the tensors to the host and back; None for those that are there.
    """

    def __init__(self, group: Any, begin: Callable[[], Work], transfer: Optional[Transfer],
                 messages: bool):
        super().__init__(group, (), None, None, messages=messages)
        self._begin = begin
        self._transfer = transfer
        self._timeout_s = group._timeout_s
        self._inner: Optional[Work] = None
        self._begun = threading.Event()

    def launch(self) -> None:
        """Begins the operation as soon as its tensors are on the host. Never raises."""
        try:
            if self._transfer is not None:
                self._transfer.arrived()
            inner = self._begin()
            self._keeper.remove(inner)
            self._results = inner._results
            if self._transfer is not None:
                self._results = map_tensors(self._transfer.origin, inner._results)
            self._inner = inner
        except Exception as error:  # a wrong argument, or the device's
            self._error = error
            self._settled = True
        self._begun.set()
        if self._transfer is not None and not self._messages:
            self._complete(None)  # so that results are sent back as soon as they are there

    def _settle(self, timeout_s: float = 0.0) -> None:
        end = time.monotonic() + timeout_s
        if not self._begun.wait(timeout_s or self._timeout_s):
            raise WeirError("the tensors have not arrived on the host within "
                            f"{timeout_s or self._timeout_s:g} s: what their stream was given "
                            "before has not ended", _lib.DEADLINE_EXCEEDED)
        inner = self._inner
        if inner is not None and not self._settled:
            inner._settle(max(end - time.monotonic(), 1e-6) if timeout_s else 0.0)
            with self._lock:
                if not self._settled:
                    self._peer = inner._peer
                    if self._transfer is not None:
                        self._transfer.send_back()
                    self._settled = True
                    self._inner = None
        if self._error is not None:
            raise self._error

    def _join(self) -> None:
        if self._transfer is not None:
            self._transfer.join()

    def is_completed(self) -> bool:
        inner = self._inner
        if not self._begun.is_set() or not (inner is None or inner.is_completed()):
            return False
        try:
            self._settle()
        except Exception:  # exception() raises it again
            return True
        return self._transfer is None or self._transfer.returned()

    def _new_future(self) -> torch.futures.Future:
        return super()._new_future() if self._transfer is None else self._transfer.future()


class _Completion:
    """A work that a thread of the group settles, and its future, as an entry of a Completer."""

    def __init__(self, work: Work, future: Optional[torch.futures.Future]):
        self._work, self._future = work, future

    def settle(self) -> None:
        try:
            self._work._settle()
        except Exception:  # the callback of the future raises it again
            pass

    def run(self) -> None:
        self.settle()
        self.complete()

    def complete(self) -> None:
        if self._future is not None:
            self._future.set_result(None)
            self._work._keeper.waited(self._work)
