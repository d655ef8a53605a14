# SPDX-License-Identifier: Apache-2.0
"""Notices gradients that stay local: a backward pass after which no hook was called.

DDP reduces only what a forward pass of its wrapper has announced. After model.module(inputs), for
example, every rank keeps its own gradients, and the replicas drift apart without a word. A watch
sees when parameters accumulate gradients and whether the hook was called, and raises a WeirError at
the next forward pass or, from PyTorch 2.0 on, already at the optimiser's step. Gradients under
no_sync() and of torch.autograd.grad() are not meant to be reduced, so they are no error.
"""
import weakref

import torch
from torch.optim import optimizer

from weir import _lib
from weir._lib import WeirError
from weir.module_hook import ModuleHook

_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()


class Watch:
    """Watches one DistributedDataParallel model, as long as the model lives.

    One call of an empty function per parameter and backward pass.
    """

    def __init__(self, wrapper, rank):
        self._rank = rank
        self._wrapper = weakref.ref(wrapper)
        self._meant = True         # whether the next backward pass should reduce
        self._accumulated = False  # since the last check
        self._reduced = False
        self._nodes = []  # of the graph; they would lose their hooks if nothing held them
        self._open = True
        with torch.enable_grad():
            # Without the parameters that DDP was told to ignore.
            for parameter in getattr(wrapper, "_module_parameters", None) or wrapper.parameters():
                if parameter.requires_grad:
                    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                    node.register_hook(self._on_accumulated)
                    self._nodes.append(node)
        # The hook is the module's, because calling the module instead of the wrapper is the mistake.
        wrapper.module.register_forward_pre_hook(ModuleHook(self._before_module))
        if not _watches:
            _check_at_optimizer_steps()
        _watches.add(self)

    def _on_accumulated(self, *unused):
        if self._meant:
            self._accumulated = True

    def _before_module(self, module, unused_inputs):
        if module.training and torch.is_grad_enabled() and not _in_backward():
            self.check()
            wrapper = self._wrapper()
            self._meant = wrapper is not None and wrapper.require_backward_grad_sync

    def on_hook(self):
        """To be called by the hook for every bucket."""
        self._reduced = True

    def check(self):
        """Raises a WeirError when gradients should have been reduced since the last check."""
        local = self._accumulated and not self._reduced and self._open
        self._accumulated = self._reduced = False
        if local:
            raise WeirError(
                "a backward pass has accumulated gradients, but none were reduced over the ranks: "
                "call the DistributedDataParallel model, not the module inside it, use no_sync() "
                "to accumulate gradients of several passes, and leave compiled autograd off (DDP's "
                "reducer is not part of its graph)",
                _lib.FAILED_PRECONDITION, self._rank)

    def close(self):
        """Ends the watch."""
        self._open = False


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
