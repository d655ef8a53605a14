# SPDX-License-Identifier: Apache-2.0
"""Local steps: the ranks synchronise every `every` steps of the optimiser, as the plan's `sync` says.

In between, each rank steps with its own gradients: the hook returns buckets as they are. A
synchronisation averages how far the ranks have moved since the last one, in the same buckets, with
the plan's codecs and residuals, and an outer step makes the next common parameters of it. With
several fragments, which are groups of buckets, one of them synchronises every `every` / fragments
steps. With overlap a synchronisation begins so many steps before the ranks wait for it; then `mix` is
the share of a rank's own parameters in what it goes on with. A step of the session spans the time
between two synchronisations, so plans change at synchronisations only.

Sources: Stich, "Local SGD converges fast and communicates little", 2018 (average); Douillard et al.,
"DiLoCo", 2023 (an outer step of SGD with Nesterov momentum); Douillard et al., "Streaming DiLoCo with
overlapping communication", 2025 (fragments, overlap, mix). Two more need no code but this: SparseLoCo (Sarfi
et al., 2025) is codec chunk_top_k with residual_decay 0.95 and an outer step of rate near 1 without momentum;
DeMo (Peng et al., 2024) is a period of one step of plain SGD, transform DCT, codec chunk_top_k, residual_decay
0.999 and OUTER_STEP_SIGN. Both differ from their papers in the mean: it is over all ranks, and not over those
that sent a coordinate.
"""
import sys
import time
import types
import weakref
import zlib
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Tuple

import torch

from weir import _lib, transforms
from weir._lib import InvalidArgument, WeirError
from weir.communicator import Communicator
from weir.steps import reduced_parameters

AVERAGE, SGD_NESTEROV, SIGN = "OUTER_STEP_AVERAGE", "OUTER_STEP_SGD_NESTEROV", "OUTER_STEP_SIGN"
_RATE_MIN = 1e-12  # residuals cannot be scaled by the zero of a warm-up


class Sync(NamedTuple):
    """weir.v1.Sync of a plan."""
    every: int = 1
    outer: str = AVERAGE
    rate: float = 1.0
    momentum: float = 0.0
    fragments: int = 1
    overlap: int = 0
    mix: float = 0.0
    residual_decay: float = 1.0
    transform: str = ""

    @classmethod
    def of(cls, plan: Dict[str, Any]) -> "Sync":
        """Returns the Sync of a plan."""
        found = plan.get("sync") or {}
        return cls(found.get("every", 1), found.get("outer", AVERAGE),
                   found.get("outer_rate", 1.0), found.get("outer_momentum", 0.0),
                   found.get("fragments", 1), found.get("overlap_steps", 0), found.get("mix", 0.0),
                   found.get("residual_decay", 1.0), found.get("transform", ""))

    @property
    def mixes(self) -> bool:
        """Whether ranks keep a share of their own parameters at a synchronisation."""
        return self.overlap > 0 and self.mix > 0

    @property
    def local(self) -> bool:
        """Whether ranks keep their gradients, and sum movements instead."""
        return self.every > 1 or self.outer == SIGN


def check(ddp_model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgument for a model or optimiser that cannot take local steps."""
    def refuse(text):
        raise InvalidArgument(f"weir.attach(optimizer=...): {text}", _lib.INVALID_ARGUMENT)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in reduced_parameters(ddp_model).items()
               if p.requires_grad and id(p) not in trained]
    if missing:
        refuse(f"expected the optimiser of this model, found one without '{missing[0]}'")
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        refuse("ZeroRedundancyOptimizer sends parameters in every step: use one that is not sharded")
    if ddp_model.broadcast_buffers and any(True for _ in ddp_model.module.buffers()):
        refuse("DistributedDataParallel sends the model's buffers in every forward pass: make it "
               "with broadcast_buffers=False")


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The mean over parameters, since residuals of a bucket are scaled by one factor."""
    groups = [(float(g["lr"]), sum(p.numel() for p in g["params"])) for g in optimizer.param_groups]
    total = sum(count for _, count in groups) or 1
    return max(sum(rate * count for rate, count in groups) / total, _RATE_MIN)


class _Flight(NamedTuple):
    """A synchronisation that is on its way."""
    buckets: List[List[str]]
    flats: List[torch.Tensor]
    deliveries: List[Any]
    steps: int           # of the period when it began
    moved_square: torch.Tensor  # of this rank


class LocalSteps:
    """Local steps of one model on one rank. Idle while the plan's `every` is 1.

    named: the parameters. meet: a function of no arguments whose result, as a context, is a
    Communicator of all ranks, or None where they cannot meet.
    """

    def __init__(self, named: Dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer,
                 meet: Callable[[], ContextManager[Optional[Communicator]]], rank: int):
        self._named, self._optimizer, self._meet, self._rank = named, optimizer, meet, rank
        self.sync = Sync()
        self.steps = 0  # backward passes since the last synchronisation
        self._buckets: List[List[str]] = []  # of the last backward pass
        self._anchor: Dict[str, torch.Tensor] = {}    # parameters of the last synchronisation
        self._velocity: Dict[str, torch.Tensor] = {}  # of SGD_NESTEROV
        self._restored: Optional[Dict[str, Any]] = None
        self._fragment = 0  # which of them is next
        self._flight: Optional[_Flight] = None

    @property
    def active(self) -> bool:
        """Whether gradients stay where they are."""
        return self.sync.local

    @property
    def unsettled(self) -> bool:
        """Whether follow() must be called, whatever the plan is."""
        return self._restored is not None

    @property
    def resting(self) -> bool:
        """Whether the session's next step begins later, since its last one ended early (settle())."""
        return self.steps < 0

    def follow(self, sync: Sync, scale_state: Any, loss_scale: Optional[float]) -> None:
        """Takes what a new plan says. All ranks call it at the same step, with equal parameters.

        scale_state: that of the session."""
        before, self.sync = self.sync, sync
        was = before.local or self._restored is not None
        if self._restored is not None or self.active and not was:
            self._start()
        if self.active and not was:
            scale_state(learning_rate(self._optimizer) / (loss_scale or 1.0))
        elif was and not self.active:
            self._leave(before)
            scale_state((loss_scale or 1.0) / learning_rate(self._optimizer))
        if sync.outer == SGD_NESTEROV and self.active:
            for name, tensor in self._anchor.items():
                self._velocity.setdefault(name, torch.zeros_like(tensor))
        else:
            self._velocity = {}

    def _start(self):
        self.steps, self._fragment, self._flight = 0, 0, None
        self._anchor = {name: p.detach().to(torch.float32, copy=True)
                        for name, p in self._named.items() if p.requires_grad}
        restored, self._restored = self._restored, None
        if restored is not None:
            self.steps, self._fragment = restored["steps"], restored["fragment"]
            for kept, own in ((restored["anchor"], self._anchor),
                              (restored["velocity"], self._velocity)):
                for name, tensor in kept.items():
                    own[name] = tensor.to(self._named[name].device, copy=True)

    # Equal gradients keep the ranks equal only where parameters and optimisers are.
    def _leave(self, before):
        with self._meet() as group:
            if group is None or before.fragments == 1 and before.overlap == 0:
                self._take(self._anchor)
            else:
                for parameter in self._named.values():
                    _average(group, parameter)
            self._share_optimizer(group)
        self._anchor, self._velocity, self.steps, self._flight = {}, {}, 0, None

    def hold(self, names: List[str], first: bool, at_end_of_backward: Any) -> None:
        """To be called by the hook for each bucket, which it returns as it is."""
        if first:
            self._buckets = []
            if not at_end_of_backward(self._count):
                raise WeirError("DistributedDataParallel.join() does not work with local steps: give "
                                "all ranks the same number of batches", _lib.FAILED_PRECONDITION,
                                self._rank)
        self._buckets.append(names)

    def _count(self):
        self.steps += 1

    def fragments(self) -> List[List[List[str]]]:
        """The buckets of each fragment, as the names of their parameters; about equal in elements."""
        sizes = [sum(self._anchor[name].numel() for name in names) for names in self._buckets]
        count = max(1, min(self.sync.fragments, len(sizes)))
        found: List[List[List[str]]] = [[] for _ in range(count)]
        before = 0
        for index, (names, size) in enumerate(zip(self._buckets, sizes)):
            wanted = (2 * before + size) * count // (2 * max(1, sum(sizes)))
            # None stays empty, whatever the sizes are.
            wanted = max(wanted, count - (len(sizes) - index))
            last = max((i for i, each in enumerate(found) if each), default=-1)
            found[min(max(wanted, last, 0), last + 1)].append(names)
            before += size
        return found

    def advance(self, session: Any, now: bool = False) -> None:
        """Synchronises what is due, or the next fragment `now`. WeirError: a rank is lost.

        session.submit_named(names, flat) queues the mean over ranks of a flat tensor, in place, and returns
        a Delivery; session.tell_period(...) reports as weir_report_period does; session.end_period() ends the
        session's step and returns whether it must be skipped, since some rank met NaN."""
        if not self._buckets:
            return
        fragments = self.fragments()
        period = max(1, self.sync.every // len(fragments))
        if self._flight is None and (now or self.steps >= max(1, period - self.sync.overlap)):
            self._depart(fragments[self._fragment % len(fragments)], session)
        if self._flight is not None and (now or self.steps >= period):
            self.settle(session, now)
            self.steps = 0

    def left(self) -> int:
        """How many fragments differ between ranks."""
        if not self.active or not self._buckets:
            return 0
        fragments = len(self.fragments())
        differ = fragments > 1 or self.steps > 0 or self.sync.mixes
        return fragments if differ else 0

    def settle(self, session: Any, equal: bool = False) -> None:
        """Ends the synchronisation that is on its way, if any, whether it is due or not.

        equal: ranks take the common parameters as they are, without a share of their own."""
        if self._flight is None:
            return
        flight, self._flight = self._flight, None
        buckets, flats, deliveries = flight.buckets, flight.flats, flight.deliveries
        fragments = len(self.fragments())
        begin = time.monotonic()
        for delivery in deliveries:
            delivery.done.wait()  # as long as its operation's deadline allows
            if delivery.error is None:
                delivery.future.wait()  # lets the stream of an accelerator wait for the result
        error = next((d.error for d in deliveries if d.error is not None), None)
        if error is None:
            # The rank makes its report where it waits, since the squares need the results.
            session.tell_period(max(1, self.steps), self.steps - flight.steps, time.monotonic() - begin,
                                float(flight.moved_square), float(_square(flats)))
        skipped = session.end_period()
        if self.sync.residual_decay != 1 and error is None and not skipped:
            session.scale_state(self.sync.residual_decay)
        if error is not None:
            raise error
        self.steps -= max(1, self.sync.every // fragments)
        self._fragment = (self._fragment + 1) % fragments
        if skipped:
            self._drop_non_finite()
            self._take(self._anchor)
            return
        for names, flat in zip(buckets, flats):
            self._undo(flat)
            sizes = [self._anchor[name].numel() for name in names]
            for name, moved in zip(names, flat.split(sizes)):
                self._outer_step(name, moved.view_as(self._anchor[name]))
                self._take([name], self.sync.mix if self.sync.mixes and not equal else 0.0)

    def _depart(self, buckets, session):
        flats = [torch.cat([(self._anchor[name] - self._named[name].detach()).flatten()
                            for name in names]) for names in buckets]
        moved = _square(flats)  # before the means replace them
        for flat in flats:
            self._transform(flat)
        self._flight = _Flight(buckets, flats,
                               [session.submit_named(n, flat) for n, flat in zip(buckets, flats)],
                               self.steps, moved)

    def _transform(self, flat):
        if self.sync.transform == transforms.DCT:
            transforms.dct(flat)

    def _undo(self, flat):
        if self.sync.transform == transforms.DCT:
            transforms.inverse_dct(flat)

    # Products and sums are separate calls, since a fused one rounds otherwise on other processors.
    def _outer_step(self, name, moved):
        if self.sync.outer == SGD_NESTEROV:
            velocity = self._velocity[name].mul_(self.sync.momentum).add_(moved)
            moved = velocity.mul(self.sync.momentum).add_(moved).mul_(self.sync.rate)
        elif self.sync.outer == SIGN:
            moved = moved.sign().mul_(self.sync.rate)
        self._anchor[name].sub_(moved)

    def _take(self, names, mix=0.0):
        with torch.no_grad():
            for name in names:
                parameter, anchor = self._named[name], self._anchor[name]
                parameter.copy_(anchor if mix == 0 else anchor.mul(1 - mix).add_(parameter.mul(mix)))

    def anchors(self) -> List[torch.Tensor]:
        """The parameters of the last synchronisation, which are equal on all ranks."""
        return list(self._anchor.values())

    def retreat(self) -> None:
        """Goes back to the last synchronisation, and forgets one that is on its way."""
        self._flight, self.steps = None, 0
        self._take(self._anchor)

    def _drop_non_finite(self):
        state = self._optimizer.state
        broken = [p for p, entries in state.items() if not all(
            bool(torch.isfinite(t).all()) for t in entries.values()
            if isinstance(t, torch.Tensor) and t.is_floating_point())]
        for parameter in broken:
            del state[parameter]
        if broken:
            print(f"weir: rank {self._rank}: the optimiser's state of {len(broken)} parameters held NaN or "
                  "infinity and is dropped", file=sys.stderr, flush=True)

    # All ranks get the mean of their optimisers' entries, or start without any where these differ in kind.
    def _share_optimizer(self, group):
        state = self._optimizer.state
        kept = [(f"{name}.{key}", entries[key]) for name, p in self._named.items()
                for entries in [state.get(p, {})] for key in sorted(entries, key=str)
                if isinstance(entries[key], torch.Tensor)]
        described = zlib.crc32(repr([(name, tuple(t.shape)) for name, t in kept]).encode())
        if group is None or not _all_equal(group, described):
            state.clear()
            return
        for _, tensor in kept:
            _average(group, tensor)

    def tensors(self) -> List[torch.Tensor]:
        """Returns the tensors, besides the parameters, that a replacement of a lost rank must take over."""
        return list(self._velocity.values())

    def restart(self) -> None:
        """After parameters and tensors() were taken from another rank."""
        if self.active:
            velocity = self._velocity
            self._start()
            self._velocity = velocity

    def state_dict(self) -> Dict[str, Any]:
        """For a checkpoint; empty while idle."""
        if not self.active:
            return {}
        return {"steps": self.steps, "fragment": self._fragment, "anchor": dict(self._anchor), "velocity": dict(self._velocity)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restores state_dict(), before the next step."""
        self._restored = state or None


def _square(tensors):
    return sum((torch.dot(t, t) for t in tensors), torch.zeros((), device=tensors[0].device))


def _average(group, tensor):
    mean = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
    group.finish(group.all_reduce(mean.data_ptr(), mean.numel(), _lib.FLOAT32, _lib.AVERAGE))
    tensor.detach().copy_(mean)


def _all_equal(group, number):
    """Whether all ranks have this number."""
    own = torch.tensor([number, -number], dtype=torch.int64)
    least = own.clone()
    group.finish(group.all_reduce(least.data_ptr(), least.numel(), _lib.INT64, _lib.MIN))
    return bool((own == least).all())


def call_after_steps(optimizer: torch.optim.Optimizer, function: Any) -> None:
    """Lets every step of the optimiser call `function`, a bound method, as long as its object lives."""
    weak = weakref.WeakMethod(function)

    def after(*unused, **unused_named):
        method = weak()
        if method is not None:
            method()

    if hasattr(optimizer, "register_step_post_hook"):
        optimizer.register_step_post_hook(after)
        return
    step = optimizer.step  # PyTorch 1.13

    def stepped(unused_self, *arguments, **named):
        result = step(*arguments, **named)
        after()
        return result
    if hasattr(step, "_with_counter"):  # of a scheduler, which looks for it
        stepped._with_counter = True  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(stepped, optimizer)
