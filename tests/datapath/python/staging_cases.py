# SPDX-License-Identifier: Apache-2.0
"""Cases that must hold for tensors of an accelerator, for a fake one and for CUDA devices.

A case is a function of (device, rank, world). It returns True when the numbers are right. `device`
gives tensors, lets slow kernels of its stream change them, and reads them behind these.
"""
import contextlib
import ctypes
import json
import queue
import tempfile
import threading
import time

import torch
import torch.distributed as dist

import weir
from weir import _lib
from weir import staging
from weir.framework import FrameworkGroup

_WORK = ctypes.CFUNCTYPE(None)
DEADLINE_S = 20.0
KERNEL_S = 0.05
COPY_S = 0.01
ELEMENTS = 5000


class Stream:
    """Runs what it is given in order, on a thread of its own."""

    def __init__(self):
        self._work = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def give(self, work, seconds=0.0):
        self._work.put((work, seconds))

    def _run(self):
        torch.set_grad_enabled(False)
        while True:
            work, seconds = self._work.get()
            time.sleep(seconds)
            work()


class FakeFuture(torch.futures.Future):
    """A future of the fake: who waits for it only makes its stream wait."""

    def __init__(self, fake):
        super().__init__()
        self._fake, self._event = fake, None

    def set_result(self, result):
        self._event = self._fake.record(self._fake.current())
        super().set_result(result)

    def wait(self):
        value = super().wait()
        self._fake.follow(self._fake.current(), self._event)
        return value

    def then(self, callback):
        child = FakeFuture(self._fake)

        def run(done):
            try:
                child.set_result(callback(done))
            except Exception as error:
                child.set_exception(error)
        super().then(run)
        return child


class FakeDevice:
    """An Accelerator whose tensors are in host memory, and whose streams work with delays.

    forgotten: "block", or "follow" and the name of a stream: a wait that does nothing. A case must
    then go wrong, or it would not notice that the wait is missing in the code, either.
    """

    def __init__(self, forgotten=None, copy_s=COPY_S):
        self.outgoing, self.incoming, self.computing = Stream(), Stream(), Stream()
        self.summing = Stream()
        self.waiting = Stream()  # no stream of the device
        self.captures = False
        self._names = {self.outgoing: "outgoing", self.incoming: "incoming",
                       self.computing: "computing", self.summing: "summing"}
        self._forgotten, self.copy_s = forgotten, copy_s
        # Work that is not waited for must end later than a busy machine comes to it, or the case is right by luck.
        self._slowness = 5 if forgotten else 1
        self._mine = {}  # by address; kept, so that no other tensor gets the address
        self._handles = []
        self._transfers = 0
        self._thread = threading.local()
        original = staging.accelerator_of
        staging.accelerator_of = lambda tensors: self if any(
            t.data_ptr() in self._mine for t in tensors) else original(tensors)

    # Helpers of the tests.

    def tensor(self, values):
        return self.adopt(values.clone())

    def adopt(self, tensor):
        """From now on the tensor is the fake's."""
        self._mine[tensor.data_ptr()] = tensor
        return tensor

    def on_host(self, future):
        """A future of the CPU that is completed when the computing stream has come to the end of this one of the fake:
        what DDP, whose C++ code knows nothing of the fake, waits for and then reads."""
        found = torch.futures.Future()

        def read():
            try:
                value = future.wait()
                self.block(self.record(self.computing), always=True)
                found.set_result(value)
            except Exception as error:
                found.set_exception(error)
        self.waiting.give(read)
        return found

    def took_buckets(self):
        """Whether buckets went the way that this libweir has for a device, and no other."""
        return bool(self._handles) == in_place() and bool(self._transfers) != in_place()

    def kernel(self, function, seconds=KERNEL_S):
        """Something slow on the stream that computes."""
        self.computing.give(function, seconds * self._slowness)

    def framework(self):
        """A FrameworkGroup whose sums are made by a stream, as NCCL's are."""
        group = FrameworkGroup(None, "fake", DEADLINE_S)
        group.all_reduce = lambda tensor: FakeSum(self, tensor)
        return group

    def read(self, tensor):
        """The content of a tensor as the computing stream sees it."""
        seen = torch.empty_like(tensor)
        self.computing.give(lambda: seen.copy_(tensor.detach()))
        self.block(self.record(self.computing), always=True)
        return seen

    # See weir.staging.Accelerator.

    def current(self):
        return getattr(self._thread, "stream", self.computing)

    @contextlib.contextmanager
    def on(self, stream):
        before, self._thread.stream = self.current(), stream
        try:
            yield
        finally:
            self._thread.stream = before

    def record(self, stream):
        event = threading.Event()
        stream.give(event.set)
        return event

    def follow(self, stream, event):
        if self._forgotten != f"follow {self._names[stream]}":
            stream.give(lambda: event.wait(DEADLINE_S))

    def block(self, event, always=False):
        if always or self._forgotten != "block":
            assert event.wait(DEADLINE_S)

    def done(self, event):
        return event.is_set()

    def copy(self, target, source):
        self._transfers += 1
        self.current().give(lambda: target.copy_(source), self.copy_s)

    def pinned(self, like):
        return torch.full(like.shape, 77, dtype=like.dtype)

    def run(self, work):
        self.current().give(work)

    def duplicate(self, tensor):
        made = self.tensor(torch.full_like(tensor, 78))
        self.run(lambda: made.copy_(tensor))
        return made

    def to_host(self, tensor):
        self.block(self.record(self.current()), always=True)
        return tensor.detach().clone()

    def mark(self, stream):
        event = threading.Event()

        def note():
            event.time = time.monotonic()
            event.set()
        stream.give(note)
        return event

    def seconds(self, begin, end):
        assert begin.is_set() and end.is_set()
        return end.time - begin.time

    def since(self, end):
        assert end.is_set()
        return time.monotonic() - end.time

    def capturing(self):
        return self.captures

    def future(self):
        return FakeFuture(self)

    def number(self):
        return 0 if in_place() else None

    def handle(self, stream):
        event = self.record(stream)
        work = _WORK(lambda: event.wait(DEADLINE_S) and None)
        self._handles.append(work)  # the library calls it later
        return _lib.library().weir_test_stream(work)


def in_place():
    """Whether this libweir takes the memory of the host for that of a device."""
    library = _lib.library()
    if not hasattr(library, "weir_test_stream"):
        return False
    library.weir_test_stream.restype = ctypes.c_void_p
    return True


class FakeSum:
    """A sum by a stream of the fake, which runs behind the current one."""

    def __init__(self, fake, tensor):
        self._fake = fake
        fake.follow(fake.summing, fake.record(fake.current()))

        def add():
            host = tensor.detach().clone()  # to the process group, it is not the fake's
            dist.all_reduce(host)
            tensor.copy_(host)
        fake.summing.give(add, KERNEL_S)
        self._end = fake.record(fake.summing)

    def wait(self):
        """Makes the current stream wait."""
        self._fake.follow(self._fake.current(), self._end)


class CudaDevice:
    """A CUDA device, for the same cases."""

    def __init__(self):
        self.device = torch.device("cuda", torch.cuda.current_device())

    def tensor(self, values):
        return values.to(self.device)

    def framework(self):
        """Gloo copies through the host, since NCCL wants a device for each rank."""
        group = dist.new_group(backend="gloo")
        return FrameworkGroup(group, "gloo", DEADLINE_S)

    def kernel(self, function, seconds=KERNEL_S):
        torch.cuda._sleep(int(seconds * 1.5e9))
        with torch.no_grad():
            function()

    def read(self, tensor):
        return tensor.detach().clone().cpu()


def _ranks_sum(world, dtype=torch.float32):
    return torch.full((ELEMENTS,), world * (world + 1) / 2, dtype=dtype)


# ---- the process group


def all_reduce(device, rank, world):
    data = device.tensor(torch.zeros(ELEMENTS))
    device.kernel(lambda: data.fill_(rank + 1))
    work = dist.all_reduce(data, async_op=True)
    work.wait()
    good = torch.equal(device.read(data), _ranks_sum(world))
    return good and work.is_completed()


def future(device, rank, world):
    data = device.tensor(torch.zeros(ELEMENTS))
    device.kernel(lambda: data.fill_(rank + 1))
    found = dist.all_reduce(data, async_op=True).get_future().wait()[0]
    same = found.data_ptr() == data.data_ptr()
    return torch.equal(device.read(found), _ranks_sum(world)) and same


def receive(device, rank, world):
    """Work that was given to the stream before still sees the tensor's earlier content."""
    data, kept = device.tensor(torch.full((ELEMENTS,), 7.0)), torch.zeros(ELEMENTS)
    kept = device.tensor(kept)
    if rank == 0:
        for peer in range(1, world):
            dist.send(device.tensor(torch.full((ELEMENTS,), 9.0)), peer)
        return True
    device.kernel(lambda: kept.copy_(data), 4 * KERNEL_S)
    dist.recv(data, 0)
    return bool((device.read(kept) == 7).all()) and bool((device.read(data) == 9).all())


def gathers(device, rank, world):
    own, out = device.tensor(torch.zeros(ELEMENTS)), device.tensor(torch.zeros(world * ELEMENTS))
    parts = [device.tensor(torch.zeros(ELEMENTS)) for _ in range(world)]
    device.kernel(lambda: own.fill_(rank))
    dist.all_gather(parts, own)
    dist.distributed_c10d._get_default_group()._allgather_base(out, own).wait()
    share = device.tensor(torch.zeros(ELEMENTS))
    dist.reduce_scatter(share, [p.clone() if isinstance(device, CudaDevice) else
                                device.tensor(device.read(p)) for p in parts])
    scattered = device.tensor(torch.zeros(ELEMENTS))
    dist.scatter(scattered, parts if rank == 0 else None, src=0)
    dist.broadcast(own, world - 1)
    ordered = torch.arange(float(world)).repeat_interleave(ELEMENTS)
    return (torch.equal(torch.cat([device.read(p) for p in parts]), ordered)
            and torch.equal(device.read(out), ordered)
            and bool((device.read(share) == rank * world).all())
            and bool((device.read(scattered) == rank).all())
            and bool((device.read(own) == world - 1).all()))


def _await_launches(owner):
    end = time.monotonic() + DEADLINE_S
    while not owner._launches.settled():
        assert time.monotonic() < end
        time.sleep(0.001)


def order(device, rank, world):
    """Tensors of the host wait for those of the device before them, equally on all ranks: on rank 0
    the first one has not begun when the second one comes, on the others it has."""
    first, second = device.tensor(torch.zeros(ELEMENTS)), torch.full((3,), float(rank + 1))
    device.kernel(lambda: first.fill_(rank + 1), 6 * KERNEL_S * (rank == 0))
    works = [dist.all_reduce(first, async_op=True)]
    if rank > 0:
        _await_launches(dist.distributed_c10d._get_default_group())
    works.append(dist.all_reduce(second, async_op=True))
    dist.barrier()
    for work in works:
        work.wait()
    return (torch.equal(device.read(first), _ranks_sum(world))
            and torch.equal(second, _ranks_sum(world)[:3]))


def calls_return_at_once(device, rank, world):
    """Neither the process group nor the hook waits for the device or for other ranks."""
    data, state = device.tensor(torch.zeros(ELEMENTS)), _state()
    key = state.define([("a", ELEMENTS, 0)], torch.float32)
    dist.all_reduce(data)  # so that memory is there
    device.read(data)
    device.kernel(lambda: data.fill_(rank + 1), 10 * KERNEL_S)
    began = time.monotonic()
    work = dist.all_reduce(data, async_op=True)
    summed = work.get_future()
    took = [time.monotonic() - began]
    early = work.is_completed()
    summed.wait()
    device.kernel(lambda: data.mul_(2), 10 * KERNEL_S)
    began = time.monotonic()
    delivery = state.submit(key, data)
    took.append(time.monotonic() - began)
    good = torch.equal(device.read(delivery.future.wait()), 2 * _ranks_sum(world))
    state._finish_step()
    state.close()
    return good and not early and max(took) < 5 * KERNEL_S


def wrong_argument(device, rank, world):
    """An error of a deferred operation comes from wait()."""
    work = dist.all_reduce(device.tensor(torch.zeros(3, dtype=torch.int16)), async_op=True)
    try:
        work.wait()
    except ValueError as error:
        return "cannot reduce torch.int16" in str(error) and work.exception() is error
    return False


# ---- the hooks


class Model(torch.nn.Module):
    """Only its names and shapes matter."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        for name in "abc":
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(ELEMENTS, dtype=dtype)))


def _state(kind=weir.DDPState):
    return kind(Model(), job=f"staging-{kind.__name__}")


def _hook(device, rank, world, dtype, place=None):
    """The means of three buckets in three steps, each written by a slow kernel."""
    state, good = _state(), True
    keys = [state.define([(name, ELEMENTS, 0)], dtype) for name in "abc"]
    buffers = [device.tensor(torch.zeros(ELEMENTS, dtype=dtype)) for _ in keys]
    if place is not None:
        buffers[place] = torch.zeros(ELEMENTS, dtype=dtype)
    for step in range(3):
        deliveries = []
        for index, (key, buffer) in enumerate(zip(keys, buffers)):
            def fill(buffer=buffer, value=(rank + 1) * (step + 1) * (index + 1)):
                buffer.fill_(value)
            if index == place:
                fill()
                if rank > 0:  # on rank 0 the bucket before has not begun, on the others it has
                    _await_launches(state)
            else:
                device.kernel(fill, KERNEL_S * (1 + rank))
            deliveries.append(state.submit(key, buffer))
        for index, delivery in enumerate(deliveries):
            found = delivery.future.wait()
            found = found if index == place else device.read(found)
            mean = (world + 1) / 2 * (step + 1) * (index + 1)
            good = good and bool((found == mean).all())
        state._finish_step()
    state.close()
    return good


def hook(device, rank, world):
    return _hook(device, rank, world, torch.float32)


def hook_of_16_bits(device, rank, world):
    return all(_hook(device, rank, world, dtype) for dtype in (torch.float16, torch.bfloat16))


def hook_with_a_bucket_of_the_host(device, rank, world):
    return _hook(device, rank, world, torch.float32, place=1)


class _Unit:
    name = "unit"

    def ranges(self, elements):
        return [("a", elements, 0)]


def unit(device, rank, world):
    """A unit of FSDP, whose hook uses the result at once."""
    state, good = _state(weir.FSDPState), True
    gradient = device.tensor(torch.zeros(ELEMENTS))
    for step in range(3):
        device.kernel(lambda: gradient.fill_((rank + 1) * (step + 1)))
        state.reduce(_Unit(), gradient)
        good = good and bool((device.read(gradient) == (world + 1) / 2 * (step + 1)).all())
        state._finish_step()
    state.close()
    return good


def non_finite(device, rank, world):
    """Infinity on the device skips the step, and later ones say where it was."""
    state, found = _state(), []
    key = state.define([("a", ELEMENTS - 10, 0), ("b", 10, 0)], torch.float32)
    for step in range(3):
        gradient = device.tensor(torch.ones(ELEMENTS))
        if rank == 1 and step > 0:
            device.kernel(lambda: gradient[ELEMENTS - 5:].fill_(float("inf")))
        delivered = state.submit(key, gradient).future.wait()
        state._finish_step()
        skipped = state.last_step_skipped
        found.append((bool(skipped), skipped and skipped.parameter,
                      bool(torch.isnan(device.read(delivered)).all())))
    state.close()
    return found == [(False, False, False), (True, None, True), (True, "b", True)]


def beside_hosts(device, rank, world):
    """Ranks with and without a device compress into the same bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"job": "beside", "version": 1, "buckets": [], "fallback": {
            "codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.1}}, file)
        file.flush()
        state = weir.DDPState(Model(), job="beside", plan_file=file.name)
    key, sums = state.define([("a", ELEMENTS, 0)], torch.float32), []
    of_device = device.tensor(torch.zeros(ELEMENTS))
    for step in range(4):
        values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(10 * step + rank))
        gradient = of_device if rank == 0 else values.clone()
        if rank == 0:
            device.kernel(lambda: gradient.copy_(values))
        found = state.submit(key, gradient).future.wait()
        sums.append(device.read(found) if rank == 0 else found)
        state._finish_step()
    state.close()
    found = torch.cat(sums)
    everywhere = [torch.zeros_like(found) for _ in range(world)]
    dist.all_gather(everywhere, found)
    return all(torch.equal(found, other) for other in everywhere) and bool(found.count_nonzero() > 0)


def _summed_by_framework(device):
    class Summed(weir.DDPState):
        """A state whose plan, as it has no other, leaves buckets to the framework."""

        def _framework_of(self, *unused):
            return device.framework()
    state = _state(Summed)
    return state, [state.define([(name, ELEMENTS, 0)], torch.float32) for name in "ab"]


def framework_sums(device, rank, world):
    """Neither hooks nor the end of a pass wait for sums of the framework, but the results do."""
    state, keys = _summed_by_framework(device)
    buffers = [device.tensor(torch.zeros(ELEMENTS)) for _ in keys]
    good, took = True, []
    for step in range(3):
        if step > 0:  # the forward pass, which begins the step when the last one has ended
            began = time.monotonic()
            state.begin_early()
            took.append(time.monotonic() - began)
        found = []
        for index, (key, buffer) in enumerate(zip(keys, buffers)):
            def fill(buffer=buffer, value=(rank + 1) * (step + 1) * (index + 1)):
                buffer.fill_(value)
            device.kernel(fill, 10 * KERNEL_S)
            state.begin_step()
            began = time.monotonic()
            found.append(state.submit(key, buffer).future.wait())
            took.append(time.monotonic() - began)
        began = time.monotonic()
        state._finish_step()
        took.append(time.monotonic() - began)
        good = good and (state._unended is None or not state._unended.ended.is_set()
                         or not isinstance(device, FakeDevice))
        for index, buffer in enumerate(found):
            mean = (world + 1) / 2 * (step + 1) * (index + 1)
            good = good and bool((device.read(buffer) == mean).all())
        took = took if step > 0 else []  # memory is there from the second step on
    good = good and state.last_step_skipped is False and state.stats().step == 2
    state.close()
    return good and (max(took) < 5 * KERNEL_S or not isinstance(device, FakeDevice))


def framework_skips(device, rank, world):
    """Infinity in a sum of the framework skips its step, as who asks learns."""
    state, (key, _) = _summed_by_framework(device)
    seen = []
    for step in range(3):
        gradient = device.tensor(torch.ones(ELEMENTS))
        if rank == 1 and step == 1:
            device.kernel(lambda: gradient[7:9].fill_(float("inf")))
        state.submit(key, gradient)
        state._finish_step()
        seen.append(bool(state.last_step_skipped))
    skipped = state.stats().steps_skipped
    state.close()
    return seen == [False, True, False] and skipped == 1


class StuckSum(FakeSum):
    """A sum that does not end in time."""

    def __init__(self, fake, unused_tensor):
        self._fake, self._end = fake, threading.Event()


def framework_hangs(device, rank, world):
    """A sum that does not end fails its step behind the pass. The next step says so, and the job
    does not go on with models that may have used it."""
    if not isinstance(device, FakeDevice):
        return True
    state, (key, _) = _summed_by_framework(device)
    gradient, errors = device.tensor(torch.ones(ELEMENTS)), []
    state._framework.timeout_s = 1.0
    state._framework.all_reduce = lambda tensor: StuckSum(device, tensor)
    state.submit(key, gradient)
    state._finish_step()
    for use in (state.begin_step, lambda: state.reform(timeout_s=5)):
        try:
            use()
            errors.append("")
        except weir.WeirError as error:
            errors.append(str(error))
    state.close()
    return "fake has not summed it after 1 s" in errors[0] and "from a checkpoint" in errors[1]


CASES = (all_reduce, future, receive, gathers, order, calls_return_at_once,
         wrong_argument, hook, hook_of_16_bits,
         hook_with_a_bucket_of_the_host, unit, non_finite, beside_hosts, framework_sums,
         framework_skips, framework_hangs)
