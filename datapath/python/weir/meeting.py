# SPDX-License-Identifier: Apache-2.0
"""How ranks that start together exchange words through a store, and hear of one that cannot start.

    with Meeting(store, prefix, rank, world) as meeting:
        meeting.set(f"entry/{rank}", text)
        texts = meeting.get_all("entry")

        meeting.connect(session, addresses)

An error in the block of one rank ends the others' get() and connect() at once with a RankLost that
names the rank and the cause: that rank writes it wherever others may wait. (Waiting for a short time, again and
again, would need no list of keys, but a store of torch 1.13 is out of step after a wait that ended
by its timeout.) For the same reason a rank waits for another one's word by looking at a counter first.
Then it can say which ranks have not come. Knows nothing of torch.
"""
import contextlib
import socket
import sys
import threading
import time

from weir import _lib
from weir._lib import RankLost, WeirError

TIMEOUT_S = 60.0  # of a store that does not tell its own
WARN_S = 10.0     # after which a rank says for whom it waits
LOOK_S_MAX = 0.1  # between looks at whether a rank has come
SHOWN_MAX = 8     # ranks that a message lists
LISTEN_S = 0.2  # between two looks at the store while a rank connects
LINGER_S = 1.0  # for which rank 0, whose process may serve the store, waits until all know of a failure
_OF_RANK_0 = ("job", "key")
_OF_EACH_RANK = ("entry", "votes", "address")
_FAILED = b"\0"  # how a failure begins; no other word does


class Meeting:
    """A store of one start of `world` ranks. All must use the same `prefix`, which was never used."""

    def __init__(self, store, prefix, rank, world, timeout_s=None):
        """timeout_s: for which this rank waits for the others; None: the store's timeout."""
        self.store, self.prefix, self.rank, self.world = store, prefix, rank, world
        self._told = None  # the error of another rank that cannot start
        if timeout_s is None:
            timeout = getattr(store, "timeout", None)
            timeout_s = TIMEOUT_S if timeout is None else timeout.total_seconds()
        self._timeout_s = timeout_s
        self._begun = time.monotonic()
        self._here = {rank}  # ranks that have come

    def set(self, name, text):
        """Writes a word: "job" and "key" are of rank 0, "entry/R", "votes/R" and "address/R" of rank R."""
        self.store.set(f"{self.prefix}/{name}", text)

    def get(self, name):
        """Returns a word as bytes; waits for it. RankLost: a rank cannot start; the message says why.
        DeadlineExceeded: ranks have not come, and the message names them, or one has written nothing."""
        owner = 0 if name in _OF_RANK_0 else int(name.rpartition("/")[2])
        try:
            self._await(owner)
            word = self.store.get(f"{self.prefix}/{name}")
        except WeirError:
            raise
        except RuntimeError as error:  # of the store
            late = time.monotonic() - self._begun > self._timeout_s
            raise WeirError(f"rank {owner} has not said its '{name}': {error}", _lib.DEADLINE_EXCEEDED
                            if late else _lib.PEER_UNAVAILABLE, self.rank) from None
        if word.startswith(_FAILED):
            self._told = RankLost(word[len(_FAILED):].decode(), _lib.PEER_UNAVAILABLE, self.rank)
            raise self._told
        return word

    def get_all(self, kind):
        """Returns the words of all ranks as texts."""
        return [self.get(f"{kind}/{r}").decode() for r in range(self.world)]

    def _await(self, rank):
        """Waits until a rank has come, or one that cannot start has written everything."""
        pause_s, warn_s = 0.001, WARN_S
        while not self._came(rank) and not self._failed():
            waited_s = time.monotonic() - self._begun
            if waited_s > self._timeout_s:
                raise WeirError(f"{self._absent()} of {self.world} did not come within "
                                f"{self._timeout_s:g} s: all ranks must attach the same models and make "
                                "the same groups, in one order", _lib.DEADLINE_EXCEEDED, self.rank)
            if waited_s > warn_s:
                warn_s = self._timeout_s
                print(f"weir: rank {self.rank} waits for {self._absent()} of {self.world}",
                      file=sys.stderr, flush=True)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S_MAX)

    def _came(self, rank):
        if rank not in self._here and self.store.add(f"{self.prefix}/came/{rank}", 0) > 0:
            self._here.add(rank)
        return rank in self._here

    def _absent(self):
        """Names the ranks that have not come."""
        absent = [r for r in range(self.world) if not self._came(r)]
        more = f" and {len(absent) - SHOWN_MAX} more" if len(absent) > SHOWN_MAX else ""
        return f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent[:SHOWN_MAX]))}{more}"

    def connect(self, end, addresses):
        """Connects `end`, a Session or Communicator, to all ranks. Errors: those of end.connect() and of get()."""
        done = threading.Event()

        def listen():
            while not done.wait(LISTEN_S):
                if self._failed():
                    end.interrupt_connect()
                    return

        listener = threading.Thread(target=listen, name="weir-meeting", daemon=True)
        listener.start()
        try:
            end.connect(addresses)
        finally:
            done.set()
            listener.join(LINGER_S)
            # An interrupted rank tells its peers only that it was interrupted, and they may hear that first: the
            # store knows the cause.
            if self._failed():
                self.get(f"address/{self.rank}")

    def _failed(self):
        try:
            return self.store.add(f"{self.prefix}/know", 0) > 0
        except RuntimeError:  # the store is gone
            return False

    def __enter__(self):
        self.store.add(f"{self.prefix}/came/{self.rank}", 1)
        return self

    def __exit__(self, unused_kind, error, unused_trace):
        if error is None:
            return
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            if error is not self._told:
                self._tell(error)
            known = self.store.add(f"{self.prefix}/know", 1)
            end = time.monotonic() + LINGER_S
            while self.rank == 0 and known < self.world and time.monotonic() < end:
                time.sleep(0.02)
                known = self.store.add(f"{self.prefix}/know", 0)

    def _tell(self, error):
        why = getattr(error, "message", str(error)) or type(error).__name__
        word = _FAILED + f"rank {self.rank} ({socket.gethostname()}) cannot start: {why}".encode()
        for name in [*_OF_RANK_0, *(f"{kind}/{r}" for kind in _OF_EACH_RANK for r in range(self.world))]:
            self.set(name, word)
