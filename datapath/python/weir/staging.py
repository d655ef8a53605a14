# SPDX-License-Identifier: Apache-2.0
"""How libweir gets at an accelerator's tensors: where they are, or copied to host memory and back.

A libweir that was built with CUDA takes buckets of gradients where they are (InPlace): it is told the
memory, and a stream whose work so far fills it. It compresses on the device where it can, and copies
to the host itself where it cannot.

Otherwise, and for the process group, tensors are copied here. The path of a tensor, in terms of a
Transfer:

  the calling thread   The side stream `outgoing` copies the tensor into pinned memory, behind the
                       work that the caller's stream has been given by then.
  a worker             arrived() waits for that copy. Then libweir may use it.
  another worker       send_back() lets the side stream `incoming` copy the result to the tensor.
  its user             join() lets its stream wait for that, as waiting for the future does.

Only arrived() blocks its thread, and no stream waits for anything but these copies. Pinned memory
is from PyTorch's pool, which lends no block again while a copy from or to it is under way.
"""
import contextlib
import threading
import time
from typing import (Any, Callable, ContextManager, Dict, List, Mapping, Optional, Protocol, Sequence,
                    Union)

import torch

from weir import _lib
from weir._lib import WeirError

_SINCE_MAX_S = 0.01  # a busy device is not worth waiting for


class Accelerator(Protocol):
    """The device that staging needs. Streams and events are the device's own objects."""

    outgoing: Any  # the stream of copies to the host
    incoming: Any  # the stream of copies from the host

    def current(self) -> Any:
        """The stream of the calling thread."""

    def on(self, stream: Any) -> ContextManager[Any]:
        """Makes it the stream of the calling thread."""

    def record(self, stream: Any) -> Any:
        """An event that is done when all work is that the stream has been given by now."""

    def follow(self, stream: Any, event: Any) -> None:
        """Work that the stream is given from now on begins when the event is done."""

    def block(self, event: Any) -> None:
        """Waits for the event."""

    def done(self, event: Any) -> bool:
        """Whether the event is done."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Gives a copy to the current stream. Both memories stay reserved until it is done."""

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor in host memory that the device can copy from and to."""

    def run(self, work: Callable[[], Any]) -> None:
        """Gives what `work` computes on tensors of the device to the current stream."""

    def duplicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device of what the current stream leaves in the tensor."""

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Waits for the current stream; returns a copy in host memory."""

    def mark(self, stream: Any) -> Any:
        """As record(), and the event knows its time."""

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two events of mark() that are done."""

    def since(self, end: Any) -> float:
        """The seconds that have passed since an event of mark() that is done; 0 if the device is too busy to tell."""

    def capturing(self) -> bool:
        """Whether the current stream records a graph."""

    def future(self) -> torch.futures.Future:
        """A future whose waiters' streams wait for what the completer's stream has been given."""

    def number(self) -> Optional[int]:
        """libweir's number of the device; None if it cannot work there."""

    def handle(self, stream: Any) -> int:
        """libweir's handle of a stream."""


class Cuda:
    """A CUDA device; see Accelerator."""

    def __init__(self, device: torch.device):
        self.device = device
        self.outgoing = torch.cuda.Stream(device)
        self.incoming = torch.cuda.Stream(device)
        self._idle = torch.cuda.Stream(device)  # is given events only, so they are done at once

    def current(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def on(self, stream: Any) -> ContextManager[Any]:
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        event = torch.cuda.Event(blocking=True)  # a thread that waits for it sleeps
        event.record(stream)
        return event

    def follow(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def block(self, event: Any) -> None:
        event.synchronize()

    def done(self, event: Any) -> bool:
        return event.query()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        ours = source if source.device.type == "cuda" else target
        ours.record_stream(self.current())

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def run(self, work: Callable[[], Any]) -> None:
        work()

    def duplicate(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu()

    def mark(self, stream: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1e3

    def since(self, end: Any) -> float:
        now = self.mark(self._idle)
        # Streams can share one hardware queue, in which a kernel that waits for a lost rank may come first.
        deadline = time.monotonic() + _SINCE_MAX_S
        while not now.query():
            if time.monotonic() > deadline:
                return 0.0
            time.sleep(2e-5)
        return self.seconds(end, now)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def future(self) -> torch.futures.Future:
        return torch.futures.Future(devices=[self.device])

    def number(self) -> Optional[int]:
        index = self.device.index if self.device.index is not None else torch.cuda.current_device()
        return index if index < _lib.device_count() else None

    def handle(self, stream: Any) -> int:
        return stream.cuda_stream


_lock = threading.Lock()
_accelerators: Dict[torch.device, Cuda] = {}


def accelerator_of(tensors: Sequence[torch.Tensor]) -> Optional[Accelerator]:
    """The accelerator that holds the tensors, or None for tensors on the CPU.

    InvalidArgument: they are on several devices, or on one that is neither a CPU nor CUDA's.
    """
    devices = {tensor.device for tensor in tensors}
    if all(device.type == "cpu" for device in devices):
        return None
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        raise WeirError("expected tensors on the CPU, or on one CUDA device, found some on "
                        f"{', '.join(sorted(map(str, devices)))}", _lib.INVALID_ARGUMENT)
    device = devices.pop()
    with _lock:
        if device not in _accelerators:
            _accelerators[device] = Cuda(device)
        return _accelerators[device]


def refuse_capture(accelerator: Accelerator) -> None:
    """Raises FailedPrecondition if the current stream records a CUDA graph."""
    if accelerator.capturing():
        raise WeirError("a CUDA graph is being captured, which cannot hold an exchange with "
                        "other hosts: end the capture before gradients are reduced (DDP: "
                        "capture under no_sync(), or leave the backward pass out of the graph)",
                        _lib.FAILED_PRECONDITION)


class InPlace:
    """A tensor that libweir uses where it is, until its request has ended.

    number, stream: what libweir calls the device, and a stream that fills the tensor.
    FailedPrecondition: the stream records a CUDA graph.
    """

    def __init__(self, accelerator: Accelerator, number: int):
        refuse_capture(accelerator)
        self._accelerator = accelerator
        # The current stream may be given more work before libweir looks at it.
        accelerator.follow(accelerator.outgoing, accelerator.record(accelerator.current()))
        self.number, self.stream = number, accelerator.handle(accelerator.outgoing)

    def future(self) -> torch.futures.Future:
        """A future of the device."""
        return self._accelerator.future()

    def on_incoming(self) -> ContextManager[Any]:
        """Orders what the thread does in it, such as completing a future, behind the results."""
        return self._accelerator.on(self._accelerator.incoming)


class Transfer:
    """Brings tensors of an accelerator to the host and results back.

    Methods are called in the order of the module docstring. Its tensors live as long as it does, at
    most until send_back().
    """

    def __init__(self, accelerator: Accelerator, reads: Sequence[torch.Tensor],
                 writes: Sequence[torch.Tensor]):
        """Begins to copy `reads` to the host. `writes` are what send_back() copies back.

        FailedPrecondition: the stream records a CUDA graph.
        """
        refuse_capture(accelerator)
        self._accelerator = accelerator
        self._writes = list(writes)
        tensors = {id(t): t for t in (*reads, *writes)}
        self._hosts = {key: accelerator.pinned(t) for key, t in tensors.items()}
        self._origins = {id(self._hosts[key]): t for key, t in tensors.items()}
        self._before = accelerator.record(accelerator.current())
        self._arrived: Any = None
        self._returned: Any = None
        if reads:
            accelerator.follow(accelerator.outgoing, self._before)
            with torch.no_grad(), accelerator.on(accelerator.outgoing):
                for tensor in reads:
                    accelerator.copy(self.host(tensor), tensor)
            self._arrived = accelerator.record(accelerator.outgoing)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of the tensor."""
        return self._hosts[id(tensor)]

    def origin(self, host: torch.Tensor) -> torch.Tensor:
        """The tensor of the copy; other tensors are their own."""
        return self._origins.get(id(host), host)

    def arrived(self) -> None:
        """Waits until the copies are there."""
        if self._arrived is not None:
            self._accelerator.block(self._arrived)

    def send_back(self) -> None:
        """Copies the results behind whatever used the tensors before the operation."""
        accelerator = self._accelerator
        accelerator.follow(accelerator.incoming, self._before)
        with torch.no_grad(), accelerator.on(accelerator.incoming):
            for tensor in self._writes:
                accelerator.copy(tensor, self.host(tensor))
        self._returned = accelerator.record(accelerator.incoming)
        self._hosts, self._origins, self._writes = {}, {}, []

    def returned(self) -> bool:
        """Whether the results are back."""
        return self._returned is not None and self._accelerator.done(self._returned)

    def join(self) -> None:
        """Lets the current stream wait for the results."""
        self._accelerator.follow(self._accelerator.current(), self._returned)

    def future(self) -> torch.futures.Future:
        """A future of the device."""
        return self._accelerator.future()

    def on_incoming(self) -> ContextManager[Any]:
        """A context in which work, such as completing a future, is ordered after the results."""
        return self._accelerator.on(self._accelerator.incoming)


def transfer_of(tensors: Sequence[torch.Tensor]) -> Optional[Transfer]:
    """Begins to bring tensors to the host, to be sent back later; None for those that are there."""
    accelerator = accelerator_of(tensors)
    return None if accelerator is None else Transfer(accelerator, tensors, tensors)


def way_of(tensor: torch.Tensor, to_host: bool) -> Union[None, InPlace, Transfer]:
    """The way in which libweir gets at a bucket, begun; None for one on the host.

    to_host: whether the bucket is needed on the host in any case.
    """
    accelerator = accelerator_of([tensor])
    if accelerator is None:
        return None
    number = None if to_host else accelerator.number()
    if number is None:
        return Transfer(accelerator, [tensor], [tensor])
    return InPlace(accelerator, number)


def device_of(parameters: Sequence[torch.Tensor]) -> Optional[int]:
    """libweir's number of the device where gradients of these will be; None for the host, or where
    libweir does not work on the device."""
    try:
        accelerator = accelerator_of(parameters)
    except WeirError:  # some are elsewhere; their hooks say so
        return None
    return None if accelerator is None else accelerator.number()


def future_of(tensor: torch.Tensor) -> torch.futures.Future:
    """A future for a result on the tensor's device."""
    accelerator = accelerator_of([tensor])
    return torch.futures.Future() if accelerator is None else accelerator.future()


def on_incoming(transfer: Union[None, InPlace, Transfer]) -> ContextManager[Any]:
    """transfer.on_incoming(), or nothing."""
    return contextlib.nullcontext() if transfer is None else transfer.on_incoming()


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """`value` with each tensor replaced, in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [map_tensors(function, part) for part in value]
    return value


def tensors_in(value: Any) -> List[torch.Tensor]:
    """The tensors in nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []
