# SPDX-License-Identifier: Apache-2.0
"""Lets the ranks of a job find each other again after some of them were lost.

The store may be any that has add, set and get as in torch.distributed.Store and that outlives
the ranks: that of torchrun's agent, or a TCPStore in a separate process. (A store in rank 0's
process is lost with rank 0.)

Every regrouping has a number, its epoch. Participants sign a list. The first one to sign closes the
list when as many have signed as were expected, or when nobody has signed for a while. Processes
that sign later try the next epoch. The new rank numbers follow from the list, by the same rule
everywhere: if all survivors' numbers fit into the new world, survivors keep them and newcomers fill
the gaps; otherwise survivors are renumbered in their order, followed by the newcomers.
"""
import collections
import json
import os
import socket
import time
import uuid

from weir import _lib
from weir import keys
from weir._lib import WeirError
from weir.session import Session

ATTEMPTS = 3
LOOK_S = 0.02  # between two looks at the store
Regrouped = collections.namedtuple("Regrouped", "epoch rank world next_step model_source former")


def seats(members):
    """Returns {name: rank} for a closed list. members: its [(name, former rank or None)]."""
    world = len(members)
    survivors = sorted((rank, name) for name, rank in members if rank is not None)
    newcomers = [name for name, rank in members if rank is None]
    if survivors and survivors[-1][0] < world:
        numbers = {name: rank for rank, name in survivors}
    else:
        numbers = {name: rank for rank, (_, name) in enumerate(survivors)}
    free = iter(sorted(set(range(world)) - set(numbers.values())))
    numbers.update((name, next(free)) for name in newcomers)
    return numbers


class _Missing(Exception):
    """A word was not in the store in time."""


def _put(store, key, text):
    store.set(key, text)
    store.add(f"{key}/there", 1)


def _take(store, key, timeout_s):
    """Returns what _put wrote. It looks again and again, since a store of torch 1.13 is out of step
    after a wait that ended by its timeout, and get() waits for as long as the store likes."""
    end = time.monotonic() + timeout_s
    while store.add(f"{key}/there", 0) == 0:
        if time.monotonic() >= end:
            raise _Missing
        time.sleep(LOOK_S)
    return store.get(key).decode()


def _close_list(store, key, expected, settle_s, timeout_s):
    """Publishes the list once `expected` have signed, or nobody has for settle_s."""
    signed, since, end = 1, time.monotonic(), time.monotonic() + timeout_s
    while (expected is None or signed < expected) and time.monotonic() < end:
        count = store.add(f"{key}/signed", 0)
        if count > signed:
            signed, since = count, time.monotonic()
        elif time.monotonic() - since >= settle_s:
            break
        else:
            time.sleep(LOOK_S)
    members = []
    for ticket in range(1, signed + 1):
        try:
            members.append(json.loads(_take(store, f"{key}/member/{ticket}", settle_s)))
        except _Missing:
            continue  # the process ended between taking a number and signing
    _put(store, f"{key}/list", json.dumps(members))


def meet(store, prefix, epoch, rank, *, expected=None, settle_s=5.0, timeout_s=60.0):
    """Signs the list of `epoch`; returns (own new rank, new world, {new rank: former rank}).

    rank: the former rank, None for a newcomer. WeirError: the list was closed before, or the
    process that had to close it has ended; the caller may try the next epoch.
    """
    key = f"{prefix}/{epoch}"
    name = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
    ticket = store.add(f"{key}/signed", 1)
    _put(store, f"{key}/member/{ticket}", json.dumps([name, rank]))
    if ticket == 1:
        _close_list(store, key, expected, settle_s, timeout_s)
    try:
        closed = _take(store, f"{key}/list", timeout_s + settle_s)
    except _Missing:
        raise WeirError(f"epoch {epoch}: the list of ranks was not closed within "
                        f"{timeout_s + settle_s:g} s", _lib.DEADLINE_EXCEEDED, rank) from None
    members = [tuple(member) for member in json.loads(closed)]
    numbers = seats(members)
    if name not in numbers:
        raise WeirError(f"epoch {epoch}: this rank came too late, {len(members)} ranks have gone "
                        "on without it", _lib.FAILED_PRECONDITION, rank)
    return numbers[name], len(members), {numbers[n]: former for n, former in members}


def exchange(store, key, rank, world, address, timeout_s=60.0):
    """Exchanges the addresses of all ranks through the store."""
    _put(store, f"{key}/{rank}", address)
    end, found = time.monotonic() + timeout_s, []
    try:
        for other in range(world):
            found.append(_take(store, f"{key}/{other}", end - time.monotonic()))
    except _Missing:
        raise WeirError(f"rank {len(found)} of {world} gave no address within {timeout_s:g} s",
                        _lib.DEADLINE_EXCEEDED, rank) from None
    return found


def _attempts(first, attempt):
    """Calls attempt(epoch) for the next epochs until one succeeds, or raises the last error."""
    for epoch in range(first, first + ATTEMPTS):
        try:
            return attempt(epoch)
        except WeirError as error:
            last = error
    raise last


def reform(session, store, *, expected=None, settle_s=5.0, timeout_s=60.0):
    """Regroups a survivor with the other survivors and with replacements.

    expected: the list is closed as soon as so many ranks have signed. Without it, or if fewer sign,
    it is closed when nobody has signed for settle_s. Returns a Regrouped: every rank must then take
    the model and optimiser of rank model_source and repeat step next_step.
    """
    prefix = f"weir/regroup/{session.job}"
    rank = session.rank
    # Replacements have no other source of the key. Every survivor sets the same value.
    _put(store, f"{prefix}/key", (session.security["job_key"] or b"").hex() or "none")

    def attempt(epoch):
        new_rank, world, former = meet(store, prefix, epoch, rank, expected=expected,
                                       settle_s=settle_s, timeout_s=timeout_s)
        session.reform(epoch, new_rank, world)
        session.connect(exchange(store, f"{prefix}/{epoch}/address", new_rank, world,
                                 session.address, timeout_s))
        if new_rank == 0:
            store.add(f"{prefix}/epoch", epoch - store.add(f"{prefix}/epoch", 0))
        stats = session.stats()
        return Regrouped(epoch, new_rank, world, stats.next_step, stats.model_source, former)

    return _attempts(session.stats().epoch + 1, attempt)


def _with_key(store, prefix, options, timeout_s):
    """The options of a replacement. Survivors put the key into the store before they sign."""
    given = {**keys.settings(), **options}
    if not keys.wants_key(given):
        return given
    try:
        key = _take(store, f"{prefix}/key", timeout_s)
    except _Missing:
        raise WeirError(f"no surviving rank has put the job's key into the store within {timeout_s:g} s: "
                        "survivors must call reform() with the same job and store",
                        _lib.DEADLINE_EXCEEDED) from None
    return {**given, "job_key": None if key == "none" else bytes.fromhex(key)}


def rejoin(job, store, *, epoch=None, expected=None, settle_s=5.0, timeout_s=60.0, **options):
    """Joins a job whose ranks regroup as a replacement. Returns (session, Regrouped).

    epoch: that of the regrouping, 1 for the first of a job; None: the one after the last that
    succeeded. options: those of Session. Before the first step, the caller must define buckets as
    on the other ranks, and take the model and optimiser of rank model_source.
    """
    prefix = f"weir/regroup/{job}"
    if epoch is None:
        epoch = store.add(f"{prefix}/epoch", 0) + 1

    def attempt(number):
        rank, world, former = meet(store, prefix, number, None, expected=expected,
                                   settle_s=settle_s, timeout_s=timeout_s)
        session = Session(job, rank, world, epoch=number, **_with_key(store, prefix, options, timeout_s))
        try:
            session.connect(exchange(store, f"{prefix}/{number}/address", rank, world,
                                     session.address, timeout_s))
        except BaseException:
            session.close()
            raise
        stats = session.stats()
        return session, Regrouped(number, rank, world, stats.next_step, stats.model_source, former)

    return _attempts(epoch, attempt)
