"""torch.distributed's backend "weir": a process group in Python over libweir's communicator.

    import weir
    torch.distributed.init_process_group("weir")

It runs collectives and messages on CPU tensors with exact results: DistributedDataParallel,
all-gather and reduce-scatter as FSDP uses them, sub-groups. Nothing is compiled against torch.
Collectives of one group run one after another, messages concurrently with them. Every operation
ends within the group's timeout, if not otherwise then with an error that names the rank at fault.

Environment: WEIR_TRANSPORT (auto, shm, tcp), WEIR_INTERFACE and the host of WEIR_LISTEN.
"""
import atexit
import os
import sys
import threading
import uuid
import weakref

import torch
import torch.distributed as dist

from weir import _lib
from weir import addresses
from weir import communicator
from weir import keys
from weir import versions
from weir import works
from weir.futures import Completer
from weir.meeting import Meeting

BACKEND = "weir"
_groups = weakref.WeakSet()

_DTYPES = {
    torch.float32: _lib.FLOAT32, torch.float16: _lib.FLOAT16, torch.bfloat16: _lib.BFLOAT16,
    torch.float64: _lib.FLOAT64, torch.int8: _lib.INT8, torch.uint8: _lib.UINT8,
    torch.int32: _lib.INT32, torch.int64: _lib.INT64,
}


def _reduction(op, dtype):
    """Converts torch's (dtype, reduction) to libweir's."""
    names = {dist.ReduceOp.SUM: _lib.SUM, dist.ReduceOp.PRODUCT: _lib.PRODUCT,
             dist.ReduceOp.MIN: _lib.MIN, dist.ReduceOp.MAX: _lib.MAX,
             dist.ReduceOp.AVG: _lib.AVERAGE}
    found = next((value for name, value in names.items() if op == name), None)
    if found is None:
        raise ValueError(f"weir: reduce operation {op}: expected SUM, PRODUCT, MIN, MAX or AVG")
    if dtype == torch.bool:  # sums are "or", products "and", as in torch
        return _lib.UINT8, {_lib.SUM: _lib.MAX, _lib.PRODUCT: _lib.MIN}.get(found, found)
    if dtype not in _DTYPES:
        raise ValueError(f"weir: cannot reduce {dtype}: expected one of "
                         f"{', '.join(map(str, _DTYPES))}, complex sums or torch.bool")
    return _DTYPES[dtype], found


def _check(tensor):
    if tensor.layout != torch.strided:
        raise ValueError(f"weir: expected dense tensors, found {tensor.layout}")
    if tensor.device.type != "cpu":
        raise ValueError(versions.not_on_cpu(BACKEND, tensor.device))
    return tensor


def _one(tensors, what):
    if len(tensors) != 1:
        raise ValueError(f"weir: {what}: expected one tensor per rank, found {len(tensors)}")
    return tensors[0]


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


class WeirProcessGroup(versions.ProcessGroup):
    """A ProcessGroup of torch over one communicator, made by init_process_group and new_group."""

    def __init__(self, store, rank, world, timeout):
        super().__init__(rank, world)
        self._rank, self._world = rank, world
        self._keeper = works.Keeper()
        self._collectives = []  # running works, whose buffers must be kept alive
        self._messages = []
        self._completer = Completer()
        self._lock = threading.Lock()
        timeout_s = timeout.total_seconds()
        # Later groups reuse the store, so keys are numbered: all ranks make groups in one order.
        generation = store.add(f"weir/made/{rank}", 1)
        try:
            with Meeting(store, f"weir/{generation}", rank, world) as meeting:
                peers = self._listen(meeting, timeout_s)
            self._communicator.connect(peers)
        except BaseException:
            self.close()
            raise
        _groups.add(self)

    def _listen(self, meeting, timeout_s):
        """Makes the communicator; returns the addresses of all ranks."""
        rank, transport = self._rank, os.environ.get("WEIR_TRANSPORT") or None
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

    def getBackendName(self):
        return BACKEND

    name = getBackendName

    def size(self):
        return self._world

    def rank(self):
        return self._rank

    def close(self):
        """Ends every operation and frees the communicator. Safe to call twice."""
        if hasattr(self, "_communicator"):
            self._communicator.close()
            self._completer.close()
            self._keeper.clear()
            self._collectives, self._messages = [], []

    shutdown = abort = close  # what destroy_process_group calls

    def __del__(self):
        self.close()

    def _work(self, operations, buffers, results, finish=None, messages=False):
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

    # ---- reductions

    def _reduce_all(self, tensors, op):
        operations, buffers, copies = [], [], []
        for tensor in tensors:
            _check(tensor)
            flat = tensor.contiguous()
            numbers = flat
            if flat.is_complex() and op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                numbers = torch.view_as_real(flat)
            dtype, reduction = _reduction(op, numbers.dtype)
            operations.append(self._communicator.all_reduce(numbers.data_ptr(), numbers.numel(),
                                                            dtype, reduction))
            buffers.append(numbers)
            if flat.data_ptr() != tensor.data_ptr():
                copies.append((tensor, flat))
        return self._work(operations, buffers, list(tensors), lambda: _copy_all(copies))

    def allreduce(self, tensors, opts=None):
        return self._reduce_all(tensors, _op(opts))

    def allreduce_coalesced(self, tensors, opts=None):
        return self._reduce_all(tensors, _op(opts))

    def reduce(self, tensors, opts):
        tensor = _check(_one(tensors, "reduce"))
        flat = tensor.contiguous()
        dtype, reduction = _reduction(opts.reduceOp, flat.dtype)
        operation = self._communicator.reduce(flat.data_ptr(), flat.numel(), dtype, reduction,
                                              opts.rootRank)
        copies = [(tensor, flat)] if flat.data_ptr() != tensor.data_ptr() else []
        return self._work([operation], [flat], [tensor], lambda: _copy_all(copies))

    def _reduce_scatter_base(self, output, source, opts=None):
        _check(output), _check(source)
        if source.numel() != output.numel() * self._world or source.dtype != output.dtype:
            raise ValueError(f"weir: reduce_scatter: expected {output.numel() * self._world} "
                             f"elements of {output.dtype}, found {source.numel()} of "
                             f"{source.dtype}")
        given, taken = source.contiguous(), output.contiguous()
        dtype, reduction = _reduction(_op(opts), taken.dtype)
        operation = self._communicator.reduce_scatter(given.data_ptr(), taken.data_ptr(),
                                                      taken.numel(), dtype, reduction)
        copies = [(output, taken)] if taken.data_ptr() != output.data_ptr() else []
        return self._work([operation], [given, taken], [output], lambda: _copy_all(copies))

    def reduce_scatter(self, outputs, input_lists, opts=None):
        output, inputs = _one(outputs, "reduce_scatter"), _one(input_lists, "reduce_scatter")
        if len(inputs) != self._world or any(t.numel() != output.numel() for t in inputs):
            raise ValueError(f"weir: reduce_scatter: expected {self._world} tensors of "
                             f"{output.numel()} elements, found {[t.numel() for t in inputs]}")
        flat = torch.cat([_check(t).reshape(-1) for t in inputs])
        work = self._reduce_scatter_base(output, flat, opts)
        work._results = list(outputs)
        return work

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._together([self._reduce_scatter_base(o, i, opts)
                               for o, i in zip(outputs, inputs)], list(outputs))

    # ---- gathers

    def _allgather_base(self, output, source, opts=None):
        _check(output), _check(source)
        if output.numel() != source.numel() * self._world or output.dtype != source.dtype:
            raise ValueError(f"weir: all_gather: expected {source.numel() * self._world} elements "
                             f"of {source.dtype}, found {output.numel()} of {output.dtype}")
        given, taken = source.contiguous(), output.contiguous()
        operation = self._communicator.all_gather(given.data_ptr(), taken.data_ptr(),
                                                  _bytes(given))
        copies = [(output, taken)] if taken.data_ptr() != output.data_ptr() else []
        return self._work([operation], [given, taken], [output], lambda: _copy_all(copies))

    def allgather(self, output_lists, tensors, opts=None):
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

    def allgather_coalesced(self, output_lists, tensors, opts=None):
        works = [self.allgather([[outputs[i] for outputs in output_lists]], [tensor])
                 for i, tensor in enumerate(tensors)]
        return self._together(works, list(output_lists))

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._together([self._allgather_base(o, i, opts)
                               for o, i in zip(outputs, inputs)], list(outputs))

    def _together(self, works, results):
        """Combines several works into one that owns their operations."""
        operations = []
        for work in works:
            operations += work._operations
            work._operations = ()
            self._keeper.remove(work)

        def finish():
            for work in works:
                work._settle()
        return self._work(operations, works, results, finish)

    def broadcast(self, tensors, opts):
        tensor = _check(_one(tensors, "broadcast"))
        flat = tensor.contiguous()
        operation = self._communicator.broadcast(flat.data_ptr(), _bytes(flat), opts.rootRank)
        copies = [(tensor, flat)] if flat.data_ptr() != tensor.data_ptr() else []
        return self._work([operation], [flat], [tensor], lambda: _copy_all(copies))

    def _exchange(self, outgoing, incoming, results):
        """Sends outgoing[r] to rank r and receives incoming[r] from it; None for no data."""
        given = [None if t is None else _check(t).contiguous() for t in outgoing]
        taken = [None if t is None else _check(t).contiguous() for t in incoming]

        def runs(tensors):
            return [(None, 0) if t is None or t.numel() == 0 else (t.data_ptr(), _bytes(t))
                    for t in tensors]
        operation = self._communicator.all_to_all(runs(given), runs(taken))
        copies = [(to, flat) for to, flat in zip(incoming, taken)
                  if to is not None and flat.data_ptr() != to.data_ptr()]
        return self._work([operation], [given, taken], results, lambda: _copy_all(copies))

    def gather(self, output_lists, tensors, opts):
        tensor = _check(_one(tensors, "gather"))
        outgoing, incoming = [None] * self._world, [None] * self._world
        outgoing[opts.rootRank] = tensor
        if self._rank == opts.rootRank:
            incoming = list(_one(output_lists, "gather"))
            if len(incoming) != self._world or any(
                    t.numel() != tensor.numel() or t.dtype != tensor.dtype for t in incoming):
                raise ValueError(f"weir: gather: expected {self._world} tensors like the input")
        return self._exchange(outgoing, incoming, list(output_lists))

    def scatter(self, outputs, input_lists, opts):
        output = _check(_one(outputs, "scatter"))
        outgoing, incoming = [None] * self._world, [None] * self._world
        incoming[opts.rootRank] = output
        if self._rank == opts.rootRank:
            outgoing = list(_one(input_lists, "scatter"))
            if len(outgoing) != self._world or any(
                    t.numel() != output.numel() or t.dtype != output.dtype for t in outgoing):
                raise ValueError(f"weir: scatter: expected {self._world} tensors like the output")
        return self._exchange(outgoing, incoming, [output])

    def alltoall(self, outputs, inputs, opts=None):
        if len(outputs) != self._world or len(inputs) != self._world:
            raise ValueError(f"weir: all_to_all: expected {self._world} tensors each way, found "
                             f"{len(inputs)} and {len(outputs)}")
        return self._exchange(inputs, outputs, list(outputs))

    def alltoall_base(self, output, source, output_splits, input_splits, opts=None):
        _check(output), _check(source)

        def rows(tensor, splits, what):
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

    def barrier(self, opts=None):
        return self._work([self._communicator.barrier()], None, [])

    # ---- messages

    def send(self, tensors, peer, tag=0):
        flat = _check(_one(tensors, "send")).contiguous()
        operation = self._communicator.send(flat.data_ptr(), _bytes(flat), peer, tag)
        return self._work([operation], [flat], list(tensors), messages=True)

    def recv(self, tensors, peer, tag=0):
        tensor = _check(_one(tensors, "recv"))
        flat = tensor.contiguous()
        operation = self._communicator.receive(flat.data_ptr(), _bytes(flat), peer, tag)
        copies = [(tensor, flat)] if flat.data_ptr() != tensor.data_ptr() else []
        return self._work([operation], [flat], list(tensors), lambda: _copy_all(copies),
                          messages=True)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, _lib.ANY_RANK, tag)


def _op(opts):
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _copy_all(pairs):
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source.reshape(target.shape))


def _make(store, rank, world, timeout):
    asked = versions.backends_asked_for()
    elsewhere = sorted(device for device, backend in asked.items()
                       if backend == BACKEND and device != "cpu")
    if elsewhere:
        raise ValueError(f"weir: sums tensors on the CPU: expected cpu:{BACKEND}, found "
                         f"{','.join(f'{device}:{BACKEND}' for device in elsewhere)}")
    if set(asked.values()) <= {BACKEND}:
        return WeirProcessGroup(store, rank, world, timeout)
    if not versions.has_python_backends():
        others = ",".join(f"{d}:{b}" for d, b in asked.items() if b != BACKEND)
        raise ValueError(f"weir: torch {torch.__version__} loses {others} beside a backend in "
                         f'Python: expected "{BACKEND}" alone, and new_group(backend=...) '
                         "for other devices")
    return versions.as_backend(WeirProcessGroup(store, rank, world, timeout))


def register_process_group():
    """Registers the backend for init_process_group("weir"). `import weir` calls it.
    Repeated calls have no effect."""
    if versions.register(BACKEND, _make):
        for module in (communicator, versions, works, sys.modules[__name__]):
            versions.hide_from_compiler(module)


def _close_all():
    for group in list(_groups):
        group.close()


atexit.register(_close_all)
