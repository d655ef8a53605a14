# SPDX-License-Identifier: Apache-2.0
"""Completes futures of operations that libweir carries out, in the order in which they began.

What is attached to a future runs on the thread that completes it, and may wait for a later
operation, as PyTorch's PowerSGD hook does. So one thread waits for the next operation, and before it
completes that one's future it leaves the waiting to another thread.
"""
import collections
import threading
from typing import Callable, Deque, Optional, Protocol

THREADS_MAX = 256


class Entry(Protocol):
    """An operation that a Completer completes. Neither method raises."""

    def settle(self) -> None:
        """Waits for the operation."""

    def complete(self) -> None:
        """Completes what waits for the operation."""


class Launch:
    """An operation that has to begin behind those before it, as an entry of a Completer."""

    def __init__(self, begin: Callable[[], None]):
        self.settle = begin

    def complete(self) -> None:
        """Nothing waits for the beginning."""


class Completer:
    """Thread-safe. Has no thread before the first put(), and then mostly one or two."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: Deque[Entry] = collections.deque()
        self._waits = False  # a thread waits for an operation
        self._idle = self._threads = 0
        self._closed = False

    def put(self, entry: Entry) -> None:
        """Calls entry.settle(), which waits for its operation, behind those of earlier entries, and
        then entry.complete(), which completes its future."""
        with self._changed:
            self._entries.append(entry)
            if not self._waits:
                self._rouse()

    def settled(self) -> bool:
        """Whether settle() of every entry so far has returned."""
        with self._changed:
            return not self._entries and not self._waits

    def close(self) -> None:
        """Ends the threads when the entries that there are were completed. Never waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _rouse(self) -> None:
        if self._idle:
            self._changed.notify()
        elif self._threads < THREADS_MAX:
            self._threads += 1
            threading.Thread(target=self._run, name="weir-futures", daemon=True).start()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            try:
                entry.settle()
            finally:
                with self._changed:
                    self._waits = False
                    if self._entries:
                        self._rouse()
                entry.complete()
            del entry  # and with it what it holds, before the next one comes

    def _next(self) -> Optional[Entry]:
        with self._changed:
            while self._waits or not self._entries:
                if self._closed and not self._entries:
                    self._threads -= 1
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._waits = True
            return self._entries.popleft()
