"""The works of the process group: what its calls return, to Python and to PyTorch's C++."""
import datetime
import sys
import threading
import time

import torch

from weir import versions
from weir._lib import WeirError

KEPT_MAX = 1024


class Keeper:
    """Keeps works alive for versions of torch whose C++ keeps a work but not its Python object.

    Without that object, wait() in C++ is that of the base class, which never ends; and C++ may wait
    repeatedly, once for each tensor that a coalesced collective returns. So the last KEPT_MAX works
    stay, but without their results once somebody has waited and only the keeper refers to them.
    Thread-safe.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._works = {}  # by id, oldest first
        self._waited = None

    def add(self, work):
        if versions.keeps_python_works():
            return
        with self._lock:
            self._works[id(work)] = work
            if len(self._works) > KEPT_MAX:
                del self._works[next(iter(self._works))]

    def remove(self, work):
        with self._lock:
            self._works.pop(id(work), None)

    def waited(self, work):
        """Somebody has waited for `work`. Drops the results of the one before."""
        with self._lock:
            if id(work) not in self._works:
                return
            before, self._waited = self._waited, id(work)
            if before in self._works and before != id(work):
                _drop_results(self._works, before)

    def clear(self):
        with self._lock:
            self._works.clear()


def _references(works, key):
    return sys.getrefcount(works[key])


class _Kept:
    """What only a dictionary refers to."""


_ALONE = _references({0: _Kept()}, 0)


def _drop_results(works, key):
    if _references(works, key) <= _ALONE:
        works[key].drop_results()


class Work(versions.WORK):
    """The operations of one call. wait() raises WeirError; any thread may call it, repeatedly."""

    def __init__(self, group, operations, buffers, results, finish=None, messages=False):
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
        self._error = None
        self._settled = False
        self._lock = threading.RLock()
        self._future = None

    def _settle(self, timeout_s=0.0):
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

    def _communicator_done(self, operation):
        try:
            return self._communicator.test(operation)
        except WeirError:
            return True  # closed: no operation continues

    def wait(self, timeout=datetime.timedelta(0)):
        """Returns True when done. timeout: a timedelta; 0 for that of the group."""
        try:
            self._settle(timeout.total_seconds() if timeout else 0.0)
        finally:
            self._keeper.waited(self)
        return True

    synchronize = wait

    def is_completed(self):
        return self._settled or all(map(self._communicator_done, self._operations))

    def exception(self):
        """The failure of a completed work, or None."""
        if not self.is_completed():
            return None
        try:
            self._settle()
        except WeirError as error:
            return error
        return None

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def result(self):
        self.wait()
        return self._results

    def source_rank(self):
        """The sender of a received message."""
        self._settle()
        return self._peer

    _source_rank = source_rank

    def get_future(self):
        """A torch.futures.Future of the results, completed by a thread of the group."""
        with self._lock:
            if self._future is None:
                done = torch.futures.Future()
                # Waiters in C++ see an exception that then() raises, but none of set_exception.
                self._future = done.then(lambda _: self._value())
                completion = _Completion(self, done)
                if self._messages:  # they end in any order
                    threading.Thread(target=lambda: (completion.settle(), completion.complete()),
                                     name="weir-futures", daemon=True).start()
                else:
                    self._completer.put(completion)
        return self._future

    getFuture = get_future

    def drop_results(self):
        """For a work that is done, of which nobody will ask the results."""
        with self._lock:
            if self._settled and self._future is None:
                self._results = None

    def _value(self):
        self._settle()
        return self._results

    def __del__(self):
        for operation in getattr(self, "_operations", ()):
            try:
                self._communicator.release(operation)
            except WeirError:
                pass


class _Completion:
    """A work whose future was requested, as an entry of a Completer."""

    def __init__(self, work, future):
        self._work, self._future = work, future

    def settle(self):
        try:
            self._work._settle()
        except Exception:  # the callback of the future raises it again
            pass

    def complete(self):
        self._future.set_result(None)
