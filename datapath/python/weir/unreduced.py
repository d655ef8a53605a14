# SPDX-License-Identifier: Apache-2.0
"""Notices gradients that stay local: a backward pass after which no hook was called.

DDP reduces only what a forward pass of its wrapper has announced. After model.module(inputs), for
example, every rank keeps its own gradients, and the replicas drift apart without a word. FSDP calls
no hook of Weir's after somebody has set another one. A watch sees when parameters accumulate
gradients and whether the hook was called, and raises a WeirError at the next forward pass or, from
PyTorch 2.0 on, already at the optimiser's step. Gradients under no_sync() and of
torch.autograd.grad() are not meant to be reduced, so they are no error.
"""
import weakref
from typing import Any, Callable

import torch
from torch.optim import optimizer

from weir import _lib
from weir._lib import WeirError
from weir.staging import tensors_in
from weir.steps import ModuleHook
from weir.versions import is_compiling

_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()


class Watch:
    """Watches one wrapped model, as long as the model lives.

    A subclass calls before_forward() and on_accumulated(), and knows what to do about a mistake.
    """

    advice = ""

    def __init__(self, rank: int):
        self._rank = rank
        self._meant = True         # whether the next backward pass should reduce
        self._accumulated = False  # since the last check
        self._reduced = False
        self._open = True
        if not _watches:
            _check_at_optimizer_steps()
        _watches.add(self)

    def on_accumulated(self, *unused: Any) -> None:
        """A backward pass has reached the model."""
        if self._meant:
            self._accumulated = True

    def before_forward(self, module: torch.nn.Module) -> None:
        """A forward pass begins."""
        if module.training and torch.is_grad_enabled() and not _in_backward():
            self.check()
            self._meant = self.should_reduce()

    def should_reduce(self) -> bool:
        """Whether a backward pass of what runs forward now should reduce."""
        return True

    def has_gradients(self) -> bool:
        """Whether a backward pass that reached the model has made gradients of parameters."""
        return True

    def on_hook(self) -> None:
        """To be called by the hook for every bucket."""
        self._reduced = True

    def check(self) -> None:
        """Raises a WeirError when gradients should have been reduced since the last check."""
        local = self._accumulated and not self._reduced and self._open
        self._accumulated = self._reduced = False
        if local and self.has_gradients():
            raise WeirError("a backward pass has accumulated gradients, but none were reduced over "
                            f"the ranks: {self.advice}", _lib.FAILED_PRECONDITION, self._rank)

    def close(self) -> None:
        """Ends the watch."""
        self._open = False


class DDPWatch(Watch):
    """Watches a DistributedDataParallel model. One call of an empty function per parameter and pass."""

    advice = ("call the DistributedDataParallel model, not the module inside it, use no_sync() to "
              "accumulate gradients of several passes, and leave compiled autograd off (DDP's "
              "reducer is not part of its graph)")

    def __init__(self, wrapper: Any, rank: int):
        super().__init__(rank)
        self._wrapper = weakref.ref(wrapper)
        self._nodes = []  # of the graph; they would lose their hooks if nothing held them
        with torch.enable_grad():
            # Without the parameters that DDP was told to ignore.
            for parameter in getattr(wrapper, "_module_parameters", None) or wrapper.parameters():
                if parameter.requires_grad:
                    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                    node.register_hook(self.on_accumulated)
                    self._nodes.append(node)
        # The hook is the module's, because calling the module instead of the wrapper is the mistake.
        wrapper.module.register_forward_pre_hook(ModuleHook(self._before_module))

    def _before_module(self, module: torch.nn.Module, unused_inputs: Any) -> None:
        self.before_forward(module)

    def should_reduce(self) -> bool:
        wrapper = self._wrapper()
        return wrapper is not None and wrapper.require_backward_grad_sync


class FSDPWatch(Watch):
    """Watches an FSDP model, whose backward pass it sees at the outputs; nothing under torch.compile."""

    advice = ("leave the hooks as weir.attach sets them, and use no_sync() (fully_shard(): "
              "set_requires_gradient_sync) to accumulate gradients of several passes")

    def __init__(self, model: torch.nn.Module, rank: int, reduces: Callable[[Any], bool]):
        """reduces: whether a backward pass of this model should reduce now."""
        super().__init__(rank)
        self._model = weakref.ref(model)
        self._reduces = reduces
        model.register_forward_pre_hook(ModuleHook(self._before))
        model.register_forward_hook(ModuleHook(self._after))

    def _before(self, module: torch.nn.Module, unused_inputs: Any) -> None:
        if not is_compiling():
            self.before_forward(module)

    def _after(self, module: torch.nn.Module, unused_inputs: Any, outputs: Any) -> None:
        if module.training and not is_compiling():
            for tensor in tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(self.on_accumulated)

    def should_reduce(self) -> bool:
        model = self._model()
        return model is not None and self._reduces(model)

    def has_gradients(self) -> bool:
        model = self._model()
        return model is not None and any(p.grad is not None for p in model.parameters())


def _in_backward():
    """Whether a backward pass runs on this thread, which repeats forward passes of checkpoints."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


_optimizer_hook = None


def _check_at_optimizer_steps():
    global _optimizer_hook
    register = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    if register is not None and _optimizer_hook is None:
        _optimizer_hook = register(_before_optimizer)


def _before_optimizer(*unused):
    if _in_backward():  # an optimiser that steps as soon as its gradient is there
        return
    for watch in list(_watches):
        watch.check()
