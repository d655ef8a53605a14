# SPDX-License-Identifier: Apache-2.0
"""The differences between versions of torch.distributed, found by their features, not by numbers.

A backend in Python is a subclass of torch's ProcessGroup, and init_process_group() returns that
object itself. Since torch 2 a group must have a name, devices and a backend for each device.
torch's class takes them from backends in C++, so the class ProcessGroup here has its own. Later
versions call some methods by other names, and can also use a Python object as the backend of one
device in a group that has other backends, too.
"""
import functools
import importlib
import inspect
import sys
import types
from typing import List

import torch
import torch.distributed as dist

_c10d = torch._C._distributed_c10d if dist.is_available() else None
WORK = _c10d.Work if _c10d else object
DEVICES = ("cpu", "cuda")  # whose tensors a group takes

# Methods that later versions call by the second name.
_LATER_NAMES = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}
_COLLECTIVES = ("allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather",
                "allgather_coalesced", "gather", "scatter", "reduce_scatter", "alltoall", "barrier",
                "send", "recv", "recv_anysource", *_LATER_NAMES)


class ProcessGroup(dist.ProcessGroup if _c10d else object):  # type: ignore[misc]
    """Base of a process group in Python: all that torch asks of a group apart from operations.

    The group is its own backend, for all devices that it takes.
    """

    _weir_group_name = _weir_group_desc = ""

    def __init_subclass__(cls, **arguments):
        super().__init_subclass__(**arguments)
        for name, later in _LATER_NAMES.items():
            if name in vars(cls):
                setattr(cls, later, vars(cls)[name])

    # C++ calls the methods in camel case.

    def getGroupName(self):
        return self._weir_group_name

    def getGroupDesc(self):
        return self._weir_group_desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _set_group_name(self, name):
        self._weir_group_name = name

    def _set_group_desc(self, text):
        self._weir_group_desc = text

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    @property
    def _device_types(self):
        return [torch.device(kind) for kind in DEVICES
                if kind == "cpu" or torch.cuda.is_available()]

    def _get_backend_name(self):
        return self.getBackendName()

    def _get_backend(self, device):
        if torch.device(device).type not in DEVICES:
            raise RuntimeError(f"{self.getBackendName()}: expected a device of "
                               f"{' or '.join(DEVICES)}, found {device}: copy the tensors, or use "
                               "a group of another backend, as new_group(backend=...) makes")
        return self

    get_backend = _get_backend

    # Capabilities that torch reads from every backend. This one has none of them.
    supports_splitting = supports_coalescing = supports_time_estimate = False
    supports_shrinking = supports_reconfigure = supports_window = False

    def _set_default_timeout(self, timeout):
        raise NotImplementedError(f"{self.getBackendName()}: a group keeps the timeout with which "
                                  "it was made")

    set_timeout = _add_ephemeral_timeout = _set_default_timeout


# Whether torch.compile traces the caller. It knows torch's own function, and takes the result for a
# constant.
is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _frame_skipper():
    """The function that keeps torch.compile out of frames of a code object, or None."""
    try:
        frames = importlib.import_module("torch._C._dynamo.eval_frame")
    except ImportError:
        return None
    if hasattr(frames, "skip_code"):
        return frames.skip_code
    if not hasattr(frames, "set_code_exec_strategy"):
        return None
    action = frames._FrameAction.SKIP
    strategy = frames._FrameExecStrategy(action, action)  # the frame, and what it calls
    return lambda code: frames.set_code_exec_strategy(code, strategy)


def hide_from_compiler(module):
    """Keeps torch.compile out of the functions of a module of this package.

    A compiled model can call a process group through C++, as DDP does when it rebuilds its buckets.
    The compiler would trace those frames, too, and does not know what the group consists of.
    """
    skip_frame = _frame_skipper()
    if skip_frame is None:
        return

    def skip(code):
        skip_frame(code)
        for part in code.co_consts:
            if isinstance(part, types.CodeType):
                skip(part)
    for owner in (module, *filter(inspect.isclass, vars(module).values())):
        for value in vars(owner).values():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            while inspect.isfunction(function) and function.__module__.startswith("weir."):
                skip(function.__code__)
                function = getattr(function, "__wrapped__", None)


# C++ takes the value of Python's future for an object, and that of TorchScript's for tensors.
_AFTER = """
def _after(ready: Future[Tensor], tensors: List[Tensor]) -> List[Tensor]:
    wait(ready)
    return tensors

def after(ready: Future[Tensor], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return fork(_after, ready, tensors)
"""


@functools.lru_cache(maxsize=None)
def _after():
    unit = torch._C.CompilationUnit()
    names = {"fork": torch.jit.fork, "wait": torch.jit.wait, "List": List, "Tensor": torch.Tensor,
             "Future": torch.futures.Future}
    unit.define(_AFTER, lambda name: names.get(name) or unit.find_function(name))
    return unit.find_function("after"), unit


def future_of_tensors(tensors, ready=None):
    """A future whose value is a list of tensors also for C++. It completes after the future `ready`, on a
    thread of PyTorch, and with its error; without `ready`, it is complete."""
    if ready is None:
        return torch._C.fork(lambda: list(tensors))
    return _after()[0](ready, list(tensors))


def backends_asked_for():
    """The backends by device of the process group that torch makes now: its caller must have been
    called by torch as a creator of backends. Empty where torch knows no devices.

    torch tells a creator nothing of the other backends, so this looks into its caller.
    """
    frame = sys._getframe(2)
    asked = frame.f_locals.get("backend_config")
    return {d: str(b) for d, b in asked.get_device_backend_map().items()} if asked else {}


def backend_of(group, kind):
    """The name of the backend that `group` has for tensors of a kind of devices; "": none, or there
    is no such group."""
    try:
        find = getattr(dist, "get_backend_config", dist.get_backend)
        names = str(find(group)).lower()
    except (RuntimeError, ValueError, KeyError, AssertionError):
        return ""
    if ":" not in names:
        return names
    return dict(part.split(":", 1) for part in names.split(",")).get(kind, "")


def has_python_backends():
    """Whether C++ calls the methods of a Python subclass of Backend."""
    try:
        class Probe(_c10d.Backend):  # type: ignore[name-defined]
            def getBackendName(self):
                return "probe"
        return _c10d.Backend.name(Probe(0, 1)) == "probe"
    except (AttributeError, TypeError, RuntimeError):
        return False


def as_backend(group):
    """A Backend for one device that does what `group` does.

    C++ hands out works of its own for those of Python. They can be waited for, and their futures
    used; their is_completed() is False even at the end.
    """
    class PythonBackend(_c10d.Backend):  # type: ignore[name-defined]
        """Owns the group."""

        def __init__(self):
            super().__init__(group.rank(), group.size())

        def getBackendName(self):
            return group.getBackendName()

        def shutdown(self):
            group.close()

        abort = shutdown

    for name in _COLLECTIVES:
        method = getattr(group, name)

        def forward(self, *arguments, call=method):
            return call(*arguments)
        for known in (name, _LATER_NAMES.get(name, name)):
            setattr(PythonBackend, known, forward)
    return PythonBackend()


def register(name, make):
    """Registers a backend that make(store, rank, world, timeout) makes. False: it is there."""
    if not _c10d or name.upper() in getattr(dist.Backend, "_plugins", {}):
        return False
    try:
        dist.Backend.register_backend(name, make, devices=list(DEVICES))
    except TypeError:  # torch knows no devices yet
        dist.Backend.register_backend(name, make)
    return True
