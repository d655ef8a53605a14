# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "weir": a process group in Python over libweir's communicator.

    import weir
    torch.distributed.init_process_group("weir")

It runs collectives and messages with exact results: DistributedDataParallel, all-gather and
reduce-scatter as FSDP uses them, sub-groups. Nothing is compiled against torch. Tensors are on the
CPU, or on one CUDA device; these go through host memory (weir.staging).
Collectives of one group run one after another, messages concurrently with them. Every operation
ends within the group's timeout, if not otherwise then with an error that names the rank at fault.

Environment: WEIR_TRANSPORT (auto, shm, tcp), WEIR_INTERFACE and the host of WEIR_LISTEN.
"""
import atexit
import datetime
import functools
import sys
import threading
import uuid
import weakref
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, TypeVar

import torch
import torch.distributed as dist

from weir import _lib
from weir import addresses
from weir import communicator
from weir import environment
from weir import futures
from weir import keys
from weir import staging
from weir import versions
from weir import works
from weir.futures import Completer, Launch
from weir.meeting import Meeting

BACKEND = "weir"
_groups: "weakref.WeakSet[WeirProcessGroup]" = weakref.WeakSet()

_DTYPES = {
    torch.float32: _lib.FLOAT32, torch.float16: _lib.FLOAT16, torch.bfloat16: _lib.BFLOAT16,
    torch.float64: _lib.FLOAT64, torch.int8: _lib.INT8, torch.uint8: _lib.UINT8,
    torch.int32: _lib.INT32, torch.int64: _lib.INT64,
}


def _name_of(op: Any) -> str:
    """The name of a reduce operation, which older versions of torch do not print."""
    names = (name for name in dir(dist.ReduceOp) if name.isupper())
    return next((name for name in names if op == getattr(dist.ReduceOp, name)), str(op))


def _reduction(op: Any, dtype: torch.dtype) -> Tuple[int, int]:
    """Converts torch's (dtype, reduction) to libweir's."""
    names = {dist.ReduceOp.SUM: _lib.SUM, dist.ReduceOp.PRODUCT: _lib.PRODUCT,
             dist.ReduceOp.MIN: _lib.MIN, dist.ReduceOp.MAX: _lib.MAX,
             dist.ReduceOp.AVG: _lib.AVERAGE}
    found = next((value for name, value in names.items() if op == name), None)
    if found is None:
        raise ValueError(f"weir: reduce operation {_name_of(op)}: expected SUM, PRODUCT, MIN, MAX or AVG; "
                         "gather the tensors and combine them, or use a group of another backend")
    if dtype == torch.bool:  # sums are "or", products "and", as in torch
        return _lib.UINT8, {_lib.SUM: _lib.MAX, _lib.PRODUCT: _lib.MIN}.get(found, found)
    if dtype not in _DTYPES:
        raise ValueError(f"weir: cannot reduce {dtype} by {_name_of(op)}: expected one of "
                         f"{', '.join(map(str, _DTYPES))} or torch.bool, or SUM or AVG of complex numbers")
    return _DTYPES[dtype], found


def _numbers(tensor: torch.Tensor, op: Any) -> torch.Tensor:
    """A contiguous tensor as libweir reduces it: complex numbers that are summed by their parts."""
    # `op in (SUM, AVG)` could ask the names, which do not know that torch 2.14's operations equal them.
    if tensor.is_complex() and (op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG):
        return torch.view_as_real(tensor)
    return tensor


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        raise ValueError(f"weir: expected dense tensors, found {tensor.layout}")
    return tensor


def _check(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu":
        raise ValueError(f"weir: expected a tensor on the CPU, found one on {tensor.device}")
    return _dense(tensor)


def _one(tensors: Sequence[Any], what: str) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"weir: {what}: expected one tensor per rank, found {len(tensors)}")
    return tensors[0]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


_Tensors = Sequence[torch.Tensor]
_Method = TypeVar("_Method", bound=Callable[..., works.Work])


def _operation(reads: Sequence[int] = (), writes: Sequence[int] = (), messages: bool = False
               ) -> Callable[[_Method], _Method]:
    """For a method that begins an operation on tensors of the CPU: lets it take those of an
    accelerator, too, and begins it behind those before it.

    reads, writes: which arguments hold the tensors that the operation reads and writes.
    """
    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def run(group: "WeirProcessGroup", *arguments: Any, **options: Any) -> works.Work:
            if getattr(group._inside, "operation", False):  # a part of another operation
                return method(group, *arguments, **options)

            def begin(given: Sequence[Any] = arguments) -> works.Work:
                group._inside.operation = True
                try:
                    return method(group, *given, **options)
                finally:
                    group._inside.operation = False

            def tensors(indices: Sequence[int]) -> List[torch.Tensor]:
                return staging.tensors_in([arguments[i] for i in indices if i < len(arguments)])
            read, written = tensors(reads), tensors(writes)
            accelerator = staging.accelerator_of(read + written)
            if accelerator is None:
                return begin() if group._launches.settled() else group._defer(begin, None, messages)
            transfer = staging.Transfer(accelerator, [_dense(t) for t in read], written)
            given = [staging.map_tensors(transfer.host, value) for value in arguments]
            return group._defer(lambda: begin(given), transfer, messages)
        return run  # type: ignore[return-value]
    return decorate


class WeirProcessGroup(versions.ProcessGroup):
    """A ProcessGroup of torch over one communicator, made by init_process_group and new_group."""

    def __init__(self, store: Any, rank: int, world: int, timeout: datetime.timedelta):
        super().__init__(rank, world)
        self._rank, self._world = rank, world
        self._keeper = works.Keeper()
        self._collectives: List[works.Work] = []  # running works, whose buffers must be kept alive
        self._messages: List[works.Work] = []
        self._completer = Completer()
        self._launches = Completer()
        self._inside = threading.local()  # `operation`: an operation begins on this thread
        self._lock = threading.Lock()
        self._timeout_s = timeout_s = timeout.total_seconds()
        # Later groups reuse the store, so keys are numbered: all ranks make groups in one order.
        generation = store.add(f"weir/made/{rank}", 1)
        try:
            with Meeting(store, f"weir/{generation}", rank, world, timeout_s) as meeting:
                peers = self._listen(meeting, timeout_s)
                meeting.connect(self._communicator, peers)
        except BaseException:
            self.close()
            raise
        _groups.add(self)

    def _listen(self, meeting, timeout_s):
        """Makes the communicator; returns the addresses of all ranks."""
        rank, transport = self._rank, environment.read("WEIR_TRANSPORT", rank=self._rank)
        if rank == 0:
            meeting.set("job", uuid.uuid4().hex)
        job = meeting.get("job").decode()
        options = keys.from_store(meeting, "key", rank, keys.settings())
        listen = addresses.choose(meeting, addresses.any_port(),
                                  probes=not (transport or "").startswith("verbs"))
        self._communicator = communicator.Communicator(
            job, rank, self._world, transport=transport, listen=listen,
            operation_timeout_s=timeout_s, connect_timeout_s=timeout_s, **options)
        meeting.set(f"address/{rank}", self._communicator.address)
        return meeting.get_all("address")

    def getBackendName(self) -> str:
        return BACKEND

    name = getBackendName

    def size(self) -> int:
        return self._world

    def rank(self) -> int:
        return self._rank

    def close(self) -> None:
        """Ends every operation and frees the communicator. Safe to call twice."""
        if hasattr(self, "_communicator"):
            self._communicator.close()
            self._launches.close()
            self._completer.close()
            self._keeper.clear()
            self._collectives, self._messages = [], []

    shutdown = abort = close  # what destroy_process_group calls

    def __del__(self) -> None:
        self.close()

    def _work(self, operations: Sequence[Any], buffers: Any, results: Any,
              finish: Optional[Callable[[], None]] = None, messages: bool = False) -> works.Work:
        work = works.Work(self, operations, buffers, results, finish, messages)
        with self._lock:
            if messages:
                self._messages = [w for w in self._messages if not w.is_completed()] + [work]
            else:
                while self._collectives and self._collectives[0].is_completed():
                    self._collectives.pop(0)
                self._collectives.append(work)
        self._keeper.add(work)
        return work

    def _defer(self, begin: Callable[[], works.Work], transfer: Any, messages: bool) -> works.Work:
        work = works.DeferredWork(self, begin, transfer, messages)
        self._keeper.add(work)
        self._launches.put(Launch(work.launch))
        return work

    # ---- reductions

    def _reduce_all(self, tensors: _Tensors, op: Any) -> works.Work:
        operations, buffers, copies = [], [], []
        for tensor in tensors:
            _check(tensor)
            flat = tensor.contiguous()
            numbers = _numbers(flat, op)
            dtype, reduction = _reduction(op, numbers.dtype)
            operations.append(self._communicator.all_reduce(numbers.data_ptr(), numbers.numel(),
                                                            dtype, reduction))
            buffers.append(numbers)
            if flat.data_ptr() != tensor.data_ptr():
                copies.append((tensor, flat))
        return self._work(operations, buffers, list(tensors), lambda: _copy_all(copies))

    @_operation([0], [0])
    def allreduce(self, tensors: _Tensors, opts: Any = None) -> works.Work:
        return self._reduce_all(tensors, _op(opts))

    @_operation([0], [0])
    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> works.Work:
        return self._reduce_all(tensors, _op(opts))

    @_operation([0], [0])
    def reduce(self, tensors: _Tensors, opts: Any) -> works.Work:
        tensor = _check(_one(tensors, "reduce"))
        flat = tensor.contiguous()
        numbers = _numbers(flat, opts.reduceOp)
        dtype, reduction = _reduction(opts.reduceOp, numbers.dtype)
        operation = self._communicator.reduce(numbers.data_ptr(), numbers.numel(), dtype, reduction,
                                              opts.rootRank)
        copies = [(tensor, flat)] if flat.data_ptr() != tensor.data_ptr() else []
        return self._work([operation], [flat], [tensor], lambda: _copy_all(copies))

    @_operation([1], [0])
    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
                             ) -> works.Work:
        _check(output), _check(source)
        if source.numel() != output.numel() * self._world or source.dtype != output.dtype:
            raise ValueError(f"weir: reduce_scatter: expected {output.numel() * self._world} "
                             f"elements of {output.dtype}, found {source.numel()} of "
                             f"{source.dtype}")
        given, taken = source.contiguous(), output.contiguous()
        numbers = _numbers(taken, _op(opts))
        dtype, reduction = _reduction(_op(opts), numbers.dtype)
        operation = self._communicator.reduce_scatter(given.data_ptr(), numbers.data_ptr(),
                                                      numbers.numel(), dtype, reduction)
        copies = [(output, taken)] if taken.data_ptr() != output.data_ptr() else []
        return self._work([operation], [given, taken], [output], lambda: _copy_all(copies))

    @_operation([1], [0])
    def reduce_scatter(self, outputs: _Tensors, input_lists: Sequence[_Tensors], opts: Any = None
                       ) -> works.Work:
        output, inputs = _one(outputs, "reduce_scatter"), _one(input_lists, "reduce_scatter")
        if len(inputs) != self._world or any(t.numel() != output.numel() for t in inputs):
            raise ValueError(f"weir: reduce_scatter: expected {self._world} tensors of "
                             f"{output.numel()} elements, found {[t.numel() for t in inputs]}")
        flat = torch.cat([_check(t).reshape(-1) for t in inputs])
        work = self._reduce_scatter_base(output, flat, opts)
        work._results = list(outputs)
        return work

    @_operation([1], [0])
    def reduce_scatter_tensor_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
                                        ) -> works.Work:
        return self._together([self._reduce_scatter_base(o, i, opts)
                               for o, i in zip(outputs, inputs)], list(outputs))

    # ---- gathers

    @_operation([1], [0])
    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
                        ) -> works.Work:
        _check(output), _check(source)
        if output.numel() != source.numel() * self._world or output.dtype != source.dtype:
            raise ValueError(f"weir: all_gather: expected {source.numel() * self._world} elements "
                             f"of {source.dtype}, found {output.numel()} of {output.dtype}")
        given, taken = source.contiguous(), output.contiguous()
        operation = self._communicator.all_gather(given.data_ptr(), taken.data_ptr(),
                                                  _bytes(given))
        copies = [(output, taken)] if taken.data_ptr() != output.data_ptr() else []
        return self._work([operation], [given, taken], [output], lambda: _copy_all(copies))

    @_operation([1], [0])
    def allgather(self, output_lists: Sequence[_Tensors], tensors: _Tensors, opts: Any = None
                  ) -> works.Work:
        tensor, outputs = _check(_one(tensors, "all_gather")), _one(output_lists, "all_gather")
        if len(outputs) != self._world or any(
                t.numel() != tensor.numel() or t.dtype != tensor.dtype for t in outputs):
            raise ValueError(f"weir: all_gather: expected {self._world} tensors of "
                             f"{tensor.numel()} elements of {tensor.dtype}, found "
                             f"{[(t.numel(), t.dtype) for t in outputs]}")
        flat = torch.empty((self._world, tensor.numel()), dtype=tensor.dtype)
        work = self._allgather_base(flat, tensor)
        work._finish = lambda: _copy_all(zip(outputs, flat))
        work._results = list(output_lists)
        return work

    @_operation([1], [0])
    def allgather_coalesced(self, output_lists: Sequence[_Tensors], tensors: _Tensors,
                            opts: Any = None) -> works.Work:
        works = [self.allgather([[outputs[i] for outputs in output_lists]], [tensor])
                 for i, tensor in enumerate(tensors)]
        return self._together(works, list(output_lists))

    @_operation([1], [0])
    def allgather_into_tensor_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
                                        ) -> works.Work:
        return self._together([self._allgather_base(o, i, opts)
                               for o, i in zip(outputs, inputs)], list(outputs))

    def _together(self, works: Sequence[works.Work], results: Any) -> works.Work:
        """Combines several works into one that owns their operations."""
        operations: List[Any] = []
        for work in works:
            operations += work._operations
            work._operations = ()
            self._keeper.remove(work)

        def finish() -> None:
            for work in works:
                work._settle()
        return self._work(operations, works, results, finish)

    @_operation([0], [0])
    def broadcast(self, tensors: _Tensors, opts: Any) -> works.Work:
        tensor = _check(_one(tensors, "broadcast"))
        flat = tensor.contiguous()
        operation = self._communicator.broadcast(flat.data_ptr(), _bytes(flat), opts.rootRank)
        copies = [(tensor, flat)] if flat.data_ptr() != tensor.data_ptr() else []
        return self._work([operation], [flat], [tensor], lambda: _copy_all(copies))

    def _exchange(self, outgoing: Sequence[Optional[torch.Tensor]],
                  incoming: Sequence[Optional[torch.Tensor]], results: Any) -> works.Work:
        """Sends outgoing[r] to rank r and receives incoming[r] from it; None for no data."""
        given = [None if t is None else _check(t).contiguous() for t in outgoing]
        taken = [None if t is None else _check(t).contiguous() for t in incoming]

        def runs(tensors: Sequence[Optional[torch.Tensor]]) -> List[Tuple[Optional[int], int]]:
            return [(None, 0) if t is None or t.numel() == 0 else (t.data_ptr(), _bytes(t))
                    for t in tensors]
        operation = self._communicator.all_to_all(runs(given), runs(taken))
        copies = [(to, flat) for to, flat in zip(incoming, taken)
                  if to is not None and flat is not None and flat.data_ptr() != to.data_ptr()]
        return self._work([operation], [given, taken], results, lambda: _copy_all(copies))

    @_operation([1], [0])
    def gather(self, output_lists: Sequence[_Tensors], tensors: _Tensors, opts: Any) -> works.Work:
        tensor = _check(_one(tensors, "gather"))
        outgoing: List[Optional[torch.Tensor]] = [None] * self._world
        incoming: List[Optional[torch.Tensor]] = [None] * self._world
        outgoing[opts.rootRank] = tensor
        if self._rank == opts.rootRank:
            parts = list(_one(output_lists, "gather"))
            if len(parts) != self._world or any(
                    t.numel() != tensor.numel() or t.dtype != tensor.dtype for t in parts):
                raise ValueError(f"weir: gather: expected {self._world} tensors like the input")
            incoming = parts
        return self._exchange(outgoing, incoming, list(output_lists))

    @_operation([1], [0])
    def scatter(self, outputs: _Tensors, input_lists: Sequence[_Tensors], opts: Any) -> works.Work:
        output = _check(_one(outputs, "scatter"))
        outgoing: List[Optional[torch.Tensor]] = [None] * self._world
        incoming: List[Optional[torch.Tensor]] = [None] * self._world
        incoming[opts.rootRank] = output
        if self._rank == opts.rootRank:
            parts = list(_one(input_lists, "scatter"))
            if len(parts) != self._world or any(
                    t.numel() != output.numel() or t.dtype != output.dtype for t in parts):
                raise ValueError(f"weir: scatter: expected {self._world} tensors like the output")
            outgoing = parts
        return self._exchange(outgoing, incoming, [output])

    @_operation([1], [0])
    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> works.Work:
        if len(outputs) != self._world or len(inputs) != self._world:
            raise ValueError(f"weir: all_to_all: expected {self._world} tensors each way, found "
                             f"{len(inputs)} and {len(outputs)}")
        return self._exchange(inputs, outputs, list(outputs))

    @_operation([1], [0])
    def alltoall_base(self, output: torch.Tensor, source: torch.Tensor,
                      output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
                      ) -> works.Work:
        _check(output), _check(source)

        def rows(tensor: torch.Tensor, splits: Sequence[int], what: str) -> _Tensors:
            if not splits:
                if tensor.dim() == 0 or tensor.shape[0] % self._world:
                    raise ValueError(f"weir: all_to_all: {what} does not split into {self._world}")
                splits = [tensor.shape[0] // self._world] * self._world
            if len(splits) != self._world or sum(splits) != tensor.shape[0]:
                raise ValueError(f"weir: all_to_all: {what}: splits {list(splits)} of "
                                 f"{tensor.shape[0]} rows over {self._world} ranks")
            return list(torch.split(tensor, list(splits)))
        given, taken = source.contiguous(), output.contiguous()
        work = self._exchange(rows(given, input_splits, "input"),
                              rows(taken, output_splits, "output"), [output])
        if taken.data_ptr() != output.data_ptr():
            work._finish = lambda: _copy_all([(output, taken)])
        return work

    @_operation()
    def barrier(self, opts: Any = None) -> works.Work:
        return self._work([self._communicator.barrier()], None, [])

    # ---- messages

    @_operation([0], messages=True)
    def send(self, tensors: _Tensors, peer: int, tag: int = 0) -> works.Work:
        flat = _check(_one(tensors, "send")).contiguous()
        operation = self._communicator.send(flat.data_ptr(), _bytes(flat), peer, tag)
        return self._work([operation], [flat], list(tensors), messages=True)

    @_operation(writes=[0], messages=True)
    def recv(self, tensors: _Tensors, peer: int, tag: int = 0) -> works.Work:
        tensor = _check(_one(tensors, "recv"))
        flat = tensor.contiguous()
        operation = self._communicator.receive(flat.data_ptr(), _bytes(flat), peer, tag)
        copies = [(tensor, flat)] if flat.data_ptr() != tensor.data_ptr() else []
        return self._work([operation], [flat], list(tensors), lambda: _copy_all(copies),
                          messages=True)

    @_operation(writes=[0], messages=True)
    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> works.Work:
        return self.recv(tensors, _lib.ANY_RANK, tag)


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _copy_all(pairs: Iterable[Tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source.reshape(target.shape))


def _make(store: Any, rank: int, world: int, timeout: datetime.timedelta) -> Any:
    asked = versions.backends_asked_for()
    elsewhere = sorted(device for device, backend in asked.items()
                       if backend == BACKEND and device not in versions.DEVICES)
    if elsewhere:
        raise ValueError(f"weir: expected cpu:{BACKEND} or cuda:{BACKEND}, found "
                         f"{','.join(f'{device}:{BACKEND}' for device in elsewhere)}")
    if set(asked.values()) <= {BACKEND}:
        return WeirProcessGroup(store, rank, world, timeout)
    if not versions.has_python_backends():
        others = ",".join(f"{d}:{b}" for d, b in asked.items() if b != BACKEND)
        raise ValueError(f"weir: torch {torch.__version__} loses {others} beside a backend in "
                         f'Python: expected "{BACKEND}" alone, and new_group(backend=...) '
                         "for other devices")
    return versions.as_backend(WeirProcessGroup(store, rank, world, timeout))


def register_process_group() -> None:
    """Registers the backend for init_process_group("weir"). `import weir` calls it.
    Repeated calls have no effect."""
    if versions.register(BACKEND, _make):
        for module in (communicator, futures, staging, versions, works, sys.modules[__name__]):
            versions.hide_from_compiler(module)


def _close_all() -> None:
    for group in list(_groups):
        group.close()


atexit.register(_close_all)
