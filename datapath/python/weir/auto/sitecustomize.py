# SPDX-License-Identifier: Apache-2.0
"""The module that `weir run --auto` puts first on PYTHONPATH. It attaches Weir to every wrapped model that is trained.

Python imports this module at its start. It waits for the modules that define the wrappers to be imported, and
lets these wrappers call weir.attach() at the first forward pass of training. By then the outermost of several
nested wrappers is known, and whether the script has registered a hook of its own: such a model is left
alone, and so is one that Weir cannot take, which rank 0 says once. A hook that the script registers on DDP
later takes over from Weir. A sitecustomize further along the path,
which this one hides, runs as well.
"""
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import weakref

_waiting: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # wrapped models that were not trained yet
_attached: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # states by model
_with_own_hook: "weakref.WeakSet" = weakref.WeakSet()


class _Waiting:
    """Waits for the first forward pass of training of one model, or of a model around it."""

    def __init__(self, model):
        from weir.steps import ModuleHook
        register = model.register_forward_pre_hook
        # FSDP2 replaces the parameters in a hook of its own.
        first = {"prepend": True} if "prepend" in inspect.signature(register).parameters else {}
        self.handle = register(ModuleHook(self.before_forward), **first)

    def before_forward(self, model, unused_inputs):
        import torch
        if model.training and torch.is_grad_enabled():
            compiler = sys.modules.get("torch._dynamo")
            (compiler.disable(_attach) if compiler else _attach)(model)


def _stop_waiting(model):
    for part in model.modules():
        waiting = _waiting.pop(part, None)
        if waiting is not None:
            waiting.handle.remove()


def _unsuitable(model):
    """Why Weir cannot take the gradients of this model, or None."""
    from weir.steps import DTYPES
    if any(part in _with_own_hook for part in model.modules()):
        return "the script has registered a hook"
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in DTYPES:
            return f"'{name}' is of {parameter.dtype}"
    if any(getattr(part, "sparse", False) is True for part in model.modules()):
        return "it has sparse gradients"
    return None


def _attach(model):
    import torch.distributed as dist
    import weir
    from weir import ddp, fsdp
    _stop_waiting(model)
    why = _unsuitable(model)
    if why is None:
        try:
            state = weir.attach(model)
            _attached[model] = state
            state.before_forward(model, ())
            return
        except fsdp.Unsuitable as error:
            why = error.message
    if dist.get_rank() == 0:
        ddp.say_once(why, f"--auto leaves a model in {type(model).__name__} to PyTorch: {why}")


def _hand_over(model, register, arguments, options):
    """Leaves a model that is attached to the hook that register(model, ...) would register."""
    from weir import ddp
    from weir._lib import FailedPrecondition, FAILED_PRECONDITION
    state = _attached.pop(model)
    if register.__name__ != "register_comm_hook" or not hasattr(model, "require_backward_grad_sync"):
        raise FailedPrecondition(f"{register.__name__}(): `weir run --auto` has set Weir's hook on this "
                                 "model at its first training step: call it before that, or run without "
                                 "--auto", FAILED_PRECONDITION, state.rank)
    state.leave_to(*inspect.signature(register).bind(model, *arguments, **options).args[1:])
    if state.rank == 0:
        ddp.say_once("handed over", "--auto leaves a model to the hook that the script has registered")


def _follow_hooks(wrapper, *names):
    """Notes which models get a hook that is not Weir's."""
    def follow(register):
        @functools.wraps(register)
        def registering(self, *arguments, **options):
            if sys._getframe(1).f_globals.get("__name__", "").startswith("weir."):
                _stop_waiting(self)  # the script has called weir.attach()
            else:
                _with_own_hook.add(self)
                if self in _attached:
                    return _hand_over(self, register, arguments, options)
            return register(self, *arguments, **options)
        return registering
    for name in filter(functools.partial(hasattr, wrapper), names):
        setattr(wrapper, name, follow(getattr(wrapper, name)))


def _follow_class(wrapper):
    construct = wrapper.__init__

    @functools.wraps(construct)
    def __init__(self, *arguments, **options):
        construct(self, *arguments, **options)
        _waiting[self] = _Waiting(self)

    wrapper.__init__ = __init__
    _follow_hooks(wrapper, "register_comm_hook", "_register_builtin_comm_hook")


def _follow_ddp(module):
    _follow_class(module.DistributedDataParallel)


def _follow_fsdp1(module):
    _follow_class(module.FullyShardedDataParallel)


def _follow_fsdp2(module):
    shard = module.fully_shard

    @functools.wraps(shard)
    def fully_shard(wrapped, *arguments, **options):
        result = shard(wrapped, *arguments, **options)
        for model in wrapped if isinstance(wrapped, (list, tuple)) else [wrapped]:
            _waiting[model] = _Waiting(model)
        return result

    module.fully_shard = fully_shard
    _follow_hooks(module.FSDPModule, "set_all_reduce_hook", "set_custom_reduce_scatter")


class _Finder(importlib.abc.MetaPathFinder):
    """Lets modules be found as always, and adds a step to the execution of those of the wrappers."""

    _steps = {"torch.nn.parallel.distributed": _follow_ddp,
              "torch.distributed.fsdp.fully_sharded_data_parallel": _follow_fsdp1,
              "torch.distributed.fsdp._fully_shard._fully_shard": _follow_fsdp2}

    def find_spec(self, name, path=None, target=None):
        if name not in self._steps:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._steps[name](module)

        setattr(spec.loader, "exec_module", exec_module)
        return spec


def _run_the_hidden_one():
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _Finder())
_run_the_hidden_one()
