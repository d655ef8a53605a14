# SPDX-License-Identifier: Apache-2.0
"""Notices an optimiser that steps with gradients that were not reduced over the ranks.

DDP reduces only what a forward pass of its wrapper has announced. After model.module(inputs) or
model.module.loss(inputs), for example, every rank keeps its own gradients, and the replicas drift
apart without a word. FSDP calls no hook of Weir's after somebody has set another one. A watch marks
a gradient when a backward pass accumulates into it, and takes the mark away when the hook gets its
bucket. Before an optimiser steps, its own parameters must have no marks, unless their gradients are
zero or None by then: so a loss may go through a model whose gradients are zeroed afterwards, as in
training of a GAN, and a backward pass before the reducing one counts with it.

An error is a gradient of which nothing was reduced since the optimiser's last step. What may be
meant is one warning: passes under no_sync() alone, and passes after the reducing one, since a term
of the parameters alone has equal gradients on all ranks.
"""
import functools
import sys
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

import torch
from torch.optim import optimizer as optimizers

from weir import _lib
from weir._lib import WeirError
from weir.staging import tensors_in
from weir.steps import ModuleHook, at_end_of_backward, reduced_parameters
from weir.versions import is_compiling

_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()
# Why a gradient is marked; of several passes the highest counts.
_UNDER_NO_SYNC, _AFTER_REDUCTION, _NOT_REDUCED = 1, 2, 3
_WARNINGS = {
    _UNDER_NO_SYNC: "an optimiser steps with gradients of passes under no_sync() alone, which every "
                    "rank keeps for itself: leave no_sync() before the last pass",
    _AFTER_REDUCTION: "an optimiser steps with gradients that a backward pass has added to after they "
                      "were reduced. That is right for a term of the parameters alone; if it depends "
                      "on this rank's inputs, the ranks drift apart: call the "
                      "DistributedDataParallel model, not the module inside it",
}


class Watch:
    """Watches one wrapped model, as long as the model lives. Not thread-safe: passes, steps and hooks
    of one model follow each other."""

    advice = ""

    def __init__(self, rank: int):
        self._rank = rank
        self._marks: Dict[int, int] = {}  # of gradients that stay local, by a key of the subclass
        self._warned: Set[int] = set()
        self._open = True
        _check_at_optimizer_steps()
        _watches.add(self)

    def mark(self, key: int, why: int) -> None:
        """A backward pass has reached a gradient."""
        self._marks[key] = max(why, self._marks.get(key, 0))

    def on_hook(self, parameters: Iterable[torch.Tensor] = ()) -> None:
        """To be called by the hook for every bucket, with its parameters."""
        raise NotImplementedError

    def take(self, owned: Set[int]) -> Dict[int, List[str]]:
        """Takes the marks away that belong to parameters with these ids. Returns what they were on."""
        raise NotImplementedError

    def before_step(self, owned: Set[int]) -> None:
        """An optimiser of the parameters with these ids steps now. WeirError: it should not."""
        if self._open:
            self.judge(self.take(owned))

    def judge(self, found: Dict[int, List[str]]) -> None:
        """Raises a WeirError, or warns once of each kind, for local gradients: names by reason."""
        if _NOT_REDUCED in found:
            names = found[_NOT_REDUCED]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise WeirError(f"an optimiser steps with gradients of {names[0]}{more} that were "
                            f"accumulated, but not reduced over the ranks: {self.advice}",
                            _lib.FAILED_PRECONDITION, self._rank)
        for why, names in found.items():
            if why not in self._warned:
                self._warned.add(why)
                print(f"weir: rank {self._rank}: {_WARNINGS[why]} ({names[0]})", file=sys.stderr,
                      flush=True)

    def close(self) -> None:
        """Ends the watch."""
        self._open = False


class DDPWatch(Watch):
    """Watches a DistributedDataParallel model. One call of a short function per parameter and pass."""

    advice = ("call the DistributedDataParallel model, not the module inside it, use no_sync() to "
              "accumulate gradients of several passes, and leave compiled autograd off (DDP's "
              "reducer is not part of its graph)")

    def __init__(self, wrapper: Any, rank: int):
        super().__init__(rank)
        self._wrapper = weakref.ref(wrapper)
        self._announced = True  # whether the last forward pass was one that will be reduced
        self._is_first = True   # whether no backward pass has come since
        self._passed: Set[int] = set()   # parameters that had a backward pass since
        self._reduced: Set[int] = set()  # parameters that were reduced since their optimiser's step
        self._versions: Dict[int, int] = {}
        self._stepped = False   # whether an optimiser of PyTorch has stepped
        trained = {name: p for name, p in reduced_parameters(wrapper).items() if p.requires_grad}
        self._parameters = {id(p): p for p in trained.values()}
        self._names = {id(p): f"'{name}'" for name, p in trained.items()}
        self._nodes: List[Any] = []  # of the graph; they would lose their hooks if nothing held them
        for parameter in trained.values():
            self._follow(parameter)
        # The hook is the module's, because calling the module instead of the wrapper is the mistake.
        wrapper.module.register_forward_pre_hook(ModuleHook(self._before_module))

    def _follow(self, parameter: torch.Tensor) -> None:
        """Lets _before_accumulation() be called before DDP's reducer knows of the gradient."""
        me, key = weakref.ref(self), id(parameter)

        def before(*unused: Any) -> None:
            watch = me()
            if watch is not None:
                watch._before_accumulation(key)
        with torch.enable_grad():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        if hasattr(node, "register_prehook"):
            node.register_prehook(before)
            self._nodes.append(node)
        else:  # PyTorch 1.13, where autograd.grad() does not call these hooks of a leaf
            parameter.register_hook(before)

    def _before_module(self, module: torch.nn.Module, unused_inputs: Any) -> None:
        if module.training and torch.is_grad_enabled() and not _in_backward():
            if not is_compiling():
                self._check_updates()
            self._announced = self._should_reduce()
            self._is_first = True

    def _should_reduce(self) -> bool:
        wrapper = self._wrapper()
        return wrapper is not None and wrapper.require_backward_grad_sync

    def _before_accumulation(self, key: int) -> None:
        if self._is_first:
            self._is_first = False
            self._passed.clear()
        # A second pass over the parameter has no forward pass of the module to belong to.
        meant = self._should_reduce() if key in self._passed else self._announced
        self._passed.add(key)
        parameter = self._parameters[key]
        if parameter.grad is None:
            self._marks.pop(key, None)
        self._versions[key] = parameter._version
        self.mark(key, _UNDER_NO_SYNC if not meant else
                  _AFTER_REDUCTION if key in self._reduced else _NOT_REDUCED)

    def on_hook(self, parameters: Iterable[torch.Tensor] = ()) -> None:
        keys = [id(p) for p in parameters]
        self._reduced.update(keys)
        for key in keys:
            self._marks.pop(key, None)

    def take(self, owned: Set[int]) -> Dict[int, List[str]]:
        self._reduced.difference_update(owned)
        self._stepped = self._stepped or not owned.isdisjoint(self._parameters)
        return self._take([key for key in self._marks if key in owned]) if self._marks else {}

    def _take(self, keys: List[int]) -> Dict[int, List[str]]:
        found: Dict[int, List[str]] = {}
        for key in keys:
            why, gradient = self._marks.pop(key), self._parameters[key].grad
            if gradient is not None and (gradient.is_sparse or bool((gradient != 0).any())):
                found.setdefault(why, []).append(self._names[key])
        return found

    def _check_updates(self) -> None:
        """Raises for an update of parameters by something else than an optimiser of PyTorch."""
        if self._marks and not self._stepped and self._open:
            self.judge(self._take([key for key in self._marks
                                   if self._parameters[key]._version != self._versions[key]]))


class FSDPWatch(Watch):
    """Watches an FSDP model, whose backward pass it sees at the outputs; nothing under torch.compile."""

    advice = ("leave the hooks as weir.attach sets them, and use no_sync() (fully_shard(): "
              "set_requires_gradient_sync) to accumulate gradients of several passes")
    _MODEL = 0  # the only key

    def __init__(self, model: torch.nn.Module, rank: int, reduces: Callable[[Any], bool]):
        """reduces: whether a backward pass of this model should reduce now."""
        super().__init__(rank)
        self._model = weakref.ref(model)
        self._reduces = reduces
        self._meant = True  # whether the last forward pass was one that will be reduced
        model.register_forward_pre_hook(ModuleHook(self._before))
        model.register_forward_hook(ModuleHook(self._after))

    def _before(self, module: torch.nn.Module, unused_inputs: Any) -> None:
        if (module.training and not is_compiling() and torch.is_grad_enabled()
                and not _in_backward()):
            self._meant = self._reduces(module)

    def _after(self, module: torch.nn.Module, unused_inputs: Any, outputs: Any) -> None:
        if module.training and not is_compiling():
            for tensor in tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(self._before_backward)

    def _before_backward(self, unused_gradient: torch.Tensor) -> None:
        self.mark(self._MODEL, _NOT_REDUCED if self._meant else _UNDER_NO_SYNC)

    def on_hook(self, parameters: Iterable[torch.Tensor] = ()) -> None:
        self._marks.clear()

    def take(self, owned: Set[int]) -> Dict[int, List[str]]:
        model = self._model()
        if not self._marks or model is None:
            return {}
        mine = [p for p in model.parameters() if id(p) in owned]
        if not mine:
            return {}
        why = self._marks.pop(self._MODEL)
        return {why: ["the model"]} if any(p.grad is not None for p in mine) else {}


def _nothing() -> None:
    """At the end of a backward pass."""


def _in_backward() -> bool:
    """Whether a backward pass runs on this thread, which repeats forward passes of checkpoints."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return at_end_of_backward(_nothing) if task is None else task() != -1


@functools.lru_cache(maxsize=None)
def _check_at_optimizer_steps() -> None:
    """Lets every step of an optimiser of PyTorch be judged from now on."""
    register: Optional[Callable] = getattr(optimizers, "register_optimizer_step_pre_hook", None)
    if register is not None:
        register(_before_optimizer)
        return
    # PyTorch 1.13 wraps the step of a class when its first object is made.
    wrap = optimizers.Optimizer._hook_for_profile  # type: ignore[attr-defined]

    @functools.wraps(wrap)
    def wrap_also(self: Any) -> None:
        wrap(self)
        _wrap_step(type(self))
    optimizers.Optimizer._hook_for_profile = wrap_also  # type: ignore[attr-defined]
    kinds = optimizers.Optimizer.__subclasses__()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "step" in vars(kind):
            _wrap_step(kind)


def _wrap_step(kind: Any) -> None:
    step = kind.step
    if not getattr(step, "judged_by_weir", False):
        @functools.wraps(step)
        def judged(self: Any, *arguments: Any, **named: Any) -> Any:
            _before_optimizer(self)
            return step(self, *arguments, **named)
        judged.judged_by_weir = True  # type: ignore[attr-defined]
        kind.step = judged


def _before_optimizer(optimizer: torch.optim.Optimizer, *unused: Any) -> None:
    if _watches and not _in_backward():  # unless it steps as soon as its gradient is there
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for watch in list(_watches):
            watch.before_step(owned)
