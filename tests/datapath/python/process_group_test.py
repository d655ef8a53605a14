# SPDX-License-Identifier: Apache-2.0
"""The process group "weir" against Gloo and against results computed here."""
import datetime
import gc
import os
import tempfile
import time
import unittest
import weakref

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

import ranks
import weir
from weir import versions

WORLDS = (1, 2, 3, 4)


def _tensor(rank, shape, dtype, seed=0):
    """Small integers, exact in every dtype and order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def _new_group(**arguments):
    return dist.new_group(backend="weir", **arguments)


def _expect_equal(found, expected, what):
    if not torch.equal(found, expected):
        raise AssertionError(f"{what}: expected {expected}, found {found}")


# ---- what ranks do; the default group is Gloo's


def _reductions(rank, world):
    group = _new_group()
    operations = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
    for dtype in (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
                  torch.float16):
        for shape in ((), (0,), (3, 5), (70001,)):
            for operation in operations:
                own = _tensor(rank, shape, dtype)
                # Not every build of Gloo knows half precision.
                reference = own.float() if dtype == torch.float16 else own.clone()
                dist.all_reduce(own, operation, group=group)
                dist.all_reduce(reference, operation)
                _expect_equal(own, reference.to(dtype), f"all_reduce {dtype} {shape} {operation}")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        own = _tensor(rank, (1000,), dtype)
        expected = sum(_tensor(r, (1000,), dtype).float() for r in range(world)) / world
        dist.all_reduce(own, dist.ReduceOp.AVG, group=group)
        torch.testing.assert_close(own.float(), expected, rtol=1e-2, atol=0)
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags, group=group)
    _expect_equal(flags, torch.tensor([True, False, True]), "all_reduce of bool")
    numbers = torch.full((4,), 1 + 2j)
    dist.all_reduce(numbers, group=group)
    _expect_equal(numbers, torch.full((4,), world * (1 + 2j)), "all_reduce of complex")
    for dtype in (torch.complex64, torch.complex128):
        parts = [torch.tensor([1 + 2j, -3j], dtype=dtype) * (r + 1) for r in range(world)]
        total, own = sum(parts), parts[rank].clone()
        dist.reduce(own, 0, group=group)
        _expect_equal(own, total if rank == 0 else own, f"reduce of {dtype}")
        part = torch.empty(2, dtype=dtype)
        dist.reduce_scatter_tensor(part, torch.cat(world * [parts[rank]]), group=group)
        _expect_equal(part, total, f"reduce_scatter of {dtype}")
    columns = _tensor(rank, (6, 4), torch.float32).t()  # not contiguous
    expected = sum(_tensor(r, (6, 4), torch.float32) for r in range(world)).t()
    dist.all_reduce(columns, group=group)
    _expect_equal(columns, expected, "all_reduce of a transposed tensor")
    for root in range(world):
        own = _tensor(rank, (1234,), torch.float32)
        reference = own.clone()
        dist.reduce(own, root, group=group)
        dist.reduce(reference, root)
        if rank == root:
            _expect_equal(own, reference, f"reduce to {root}")
    for bad, name in ((dist.ReduceOp.BAND, "BAND"), (dist.ReduceOp.BXOR, "BXOR")):
        try:
            dist.all_reduce(torch.ones(2, dtype=torch.int32), bad, group=group)
        except ValueError as error:
            assert f"{name}: expected SUM" in str(error), error
        else:
            raise AssertionError(f"{name} was taken")


def _gathers(rank, world):
    group = _new_group()
    for count in (0, 1, 300, 50001):
        own = _tensor(rank, (count,), torch.int64, seed=1)
        everyone = [_tensor(r, (count,), torch.int64, seed=1) for r in range(world)]
        gathered = [torch.zeros_like(own) for _ in range(world)]
        dist.all_gather(gathered, own, group=group)
        for r in range(world):
            _expect_equal(gathered[r], everyone[r], f"all_gather of {count}")
        flat = torch.zeros(world * count, dtype=torch.int64)
        dist.all_gather_into_tensor(flat, own, group=group)
        _expect_equal(flat, torch.cat(everyone), f"all_gather_into_tensor of {count}")
        inputs = [_tensor(rank, (count,), torch.int64, seed=10 + r) for r in range(world)]
        total = sum(_tensor(r, (count,), torch.int64, seed=10 + rank) for r in range(world))
        output = torch.zeros(count, dtype=torch.int64)
        dist.reduce_scatter(output, inputs, group=group)
        _expect_equal(output, total, f"reduce_scatter of {count}")
        output.zero_()
        dist.reduce_scatter_tensor(output, torch.cat(inputs), group=group)
        _expect_equal(output, total, f"reduce_scatter_tensor of {count}")
        for root in range(world):
            told = own.clone()
            dist.broadcast(told, root, group=group)
            _expect_equal(told, everyone[root], f"broadcast from {root}")
            taken = [torch.zeros_like(own) for _ in range(world)] if rank == root else None
            dist.gather(own, taken, dst=root, group=group)
            for r in range(world if rank == root else 0):
                _expect_equal(taken[r], everyone[r], f"gather to {root}")
            part = torch.zeros_like(own)
            dist.scatter(part, everyone if rank == root else None, src=root, group=group)
            _expect_equal(part, own, f"scatter from {root}")
        outputs = [torch.zeros(count, dtype=torch.int64) for _ in range(world)]
        dist.all_to_all(outputs, inputs, group=group)
        for r in range(world):
            _expect_equal(outputs[r], _tensor(r, (count,), torch.int64, seed=10 + rank), "all_to_all")
    # Rank a sends a + b + 1 rows to rank b.
    given = torch.cat([torch.full((rank + r + 1, 3), 10.0 * rank + r) for r in range(world)])
    taken = torch.zeros(sum(rank + r + 1 for r in range(world)), 3)
    splits = [rank + r + 1 for r in range(world)]
    dist.all_to_all_single(taken, given, splits, splits, group=group)
    _expect_equal(taken, torch.cat([torch.full((rank + r + 1, 3), 10.0 * r + rank)
                                    for r in range(world)]), "all_to_all_single")
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": r} for r in range(world)], objects
    words = ["a", {"b": 1}] if rank == 0 else [None, None]
    dist.broadcast_object_list(words, src=0, group=group)
    assert words == ["a", {"b": 1}], words
    dist.barrier(group=group)


def _messages(rank, world):
    group = _new_group()
    following, before = (rank + 1) % world, (rank - 1) % world
    big = torch.full((3 << 20,), float(rank))
    into = torch.zeros(3 << 20)
    sending = dist.isend(big, following, group=group)  # everyone sends first
    receiving = dist.irecv(into, before, group=group)
    receiving.wait()
    sending.wait()
    _expect_equal(into, torch.full((3 << 20,), float(before)), "ring of large messages")
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            value = torch.zeros(1, dtype=torch.int64)
            sender = dist.recv(value, group=group, tag=4)
            assert value.item() == sender * 11, (sender, value)
            seen.add(sender)
        assert seen == set(range(1, world)), seen
    else:
        dist.send(torch.tensor([rank * 11]), 0, group=group, tag=4)
    out, back = torch.tensor([float(rank)]), torch.zeros(1)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, following, group),
                                        dist.P2POp(dist.irecv, back, before, group)]):
        work.wait()
    assert back.item() == before


def _works(rank, world):
    group = _new_group()
    data = torch.ones(5)
    work = dist.all_reduce(data, group=group, async_op=True)
    tripled = work.get_future().then(lambda future: future.value()[0] * 3)
    _expect_equal(tripled.wait(), torch.full((5,), 3.0 * world), "future of all_reduce")
    assert work.wait() and work.is_completed() and work.is_success()
    assert work.exception() is None
    if rank == 0:  # nobody has sent: the wait ends, the message goes on
        into = torch.zeros(2)
        pending = dist.irecv(into, 1, group=group)
        assert not pending.is_completed()
        try:
            pending.wait(datetime.timedelta(seconds=0.05))
        except weir.WeirError as error:
            assert "not done within" in str(error), error
        else:
            raise AssertionError("the wait did not end")
        received = pending.get_future()
        dist.barrier(group=group)
        _expect_equal(received.wait()[0], torch.full((2,), 7.0), "future of irecv")
    else:
        dist.barrier(group=group)
        if rank == 1:
            dist.send(torch.full((2,), 7.0), 0, group=group)
    for wrong in (lambda: dist.all_reduce(torch.ones(2).to_sparse(), group=group),
                  lambda: group.allreduce([torch.ones(2, device="meta")]),
                  lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16), group=group)):
        try:
            wrong()
        except (ValueError, weir.InvalidArgument) as error:
            assert "weir" in str(error), error
        else:
            raise AssertionError("was taken")


def _subgroups(rank, world):
    low, high = _new_group(ranks=[0, 1]), _new_group(ranks=[world - 1, world - 2])
    for members, group in (([0, 1], low), ([world - 2, world - 1], high)):
        if rank in members:
            data = torch.tensor([rank + 1])
            dist.all_reduce(data, group=group)
            assert data.item() == sum(members) + 2, data
            told = torch.tensor([rank])
            dist.broadcast(told, members[1], group=group)
            assert told.item() == members[1], told


def _later_names(rank, world):
    """Attributes that torch reads from a group besides operations, some also under later names."""
    group = _new_group()
    cpu = torch.device("cpu")
    assert group.group_name and group.group_name != dist.group.WORLD.group_name
    assert cpu in group._device_types and group._get_backend(cpu) is group
    assert group._get_backend(torch.device("cuda")) is group
    assert dist.distributed_c10d._resolve_process_group(group.group_name) is group
    try:
        group._get_backend(torch.device("xpu"))
    except RuntimeError as error:
        assert "expected a device of cpu or cuda" in str(error), error
    else:
        raise AssertionError("there is a backend for xpu")
    own, gathered = torch.full((2,), float(rank)), torch.zeros(2 * world)
    group.all_gather_single(gathered, own).wait()
    _expect_equal(gathered, torch.arange(float(world)).repeat_interleave(2), "all_gather_single")
    part = torch.zeros(2)
    group.reduce_scatter_single(part, gathered).wait()
    _expect_equal(part, own * world, "reduce_scatter_single")
    swapped = torch.zeros(world)
    group.all_to_all_single(swapped, own.repeat(world)[:world].contiguous(), [], []).wait()
    _expect_equal(swapped, torch.arange(float(world)), "all_to_all_single")


def _second_wait_of_cpp(rank, world):
    """C++ waits for each tensor of a coalesced collective, for the last one much later."""
    group = _new_group()
    functional = torch.ops._c10d_functional
    first, second = functional.all_reduce_coalesced([torch.ones(3), torch.ones(4)], "sum",
                                                    group.group_name)
    functional.wait_tensor(first)
    for _ in range(20):
        dist.all_reduce(torch.ones(2), group=group)
    gc.collect()
    _expect_equal(functional.wait_tensor(second), torch.full((4,), float(world)), "second tensor")


def _expect_freed(references):
    """The thread that completed a future may be about to let go of it."""
    deadline = time.monotonic() + 5
    while any(reference() is not None for reference in references):
        assert time.monotonic() < deadline, references
        time.sleep(0.01)
        gc.collect()


def _results_are_freed(rank, world):
    """A work that was waited for does not keep its tensors."""
    group = _new_group()
    outputs = [torch.zeros(world) for _ in range(3)]
    alive = [weakref.ref(output) for output in outputs]
    while outputs:
        dist.all_gather_into_tensor(outputs.pop(), torch.ones(1), group=group)
    dist.barrier(group=group)
    _expect_freed(alive)
    reductions = [torch.ones(2) for _ in range(3)]
    alive = [weakref.ref(data) for data in reductions]
    while reductions:  # as DDP without a hook does
        dist.all_reduce(reductions.pop(), group=group, async_op=True).get_future().wait()
    dist.barrier(group=group)
    _expect_freed(alive)
    kept = torch.ones(2)
    work = dist.all_reduce(kept, group=group, async_op=True)
    work.wait()
    dist.barrier(group=group)
    _expect_equal(work.result()[0], torch.full((2,), float(world)), "result of a work that is held")


def _as_default_with(backend, rank, world, path):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(backend, store=dist.FileStore(path, world), rank=rank,
                            world_size=world, timeout=datetime.timedelta(seconds=30))


def _mixed_backends(rank, world, path):
    """Beside another device's backend: both work, or an error says that they cannot."""
    try:  # in this order, so that no rank still connects to another one over gloo
        _as_default_with("xpu:weir,cpu:gloo", rank, world, path + "a")
    except ValueError as error:
        assert "expected cpu:weir or cuda:weir, found xpu:weir" in str(error), error
    else:
        raise AssertionError("weir was taken for xpu")
    try:
        _as_default_with("cuda:weir,cpu:gloo", rank, world, path + "c")
    except ValueError as error:
        assert not versions.has_python_backends() and "loses cpu:gloo" in str(error), error
    else:
        assert dist.group.WORLD._get_backend(torch.device("cuda")).name() == "weir"
        assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "gloo"
    try:
        _as_default_with("cpu:weir,cuda:gloo", rank, world, path + "b")
    except ValueError as error:
        assert not versions.has_python_backends() and "loses cuda:gloo" in str(error), error
        return
    assert versions.has_python_backends()
    group = dist.group.WORLD
    assert group._get_backend(torch.device("cpu")).name() == "weir"
    assert group._get_backend(torch.device("cuda")).name() == "gloo"
    data = torch.full((1000,), float(rank + 1))
    work = dist.all_reduce(data, async_op=True)
    work.wait()
    _expect_equal(work.get_future().wait()[0], torch.full((1000,), world * (world + 1) / 2), "sum")
    gathered = torch.zeros(world)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))
    _expect_equal(gathered, torch.arange(float(world)), "all_gather_into_tensor")
    parts = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(parts, torch.tensor([float(rank)]))
    _expect_equal(torch.cat(parts), gathered, "all_gather")
    if rank == 0:
        dist.send(torch.tensor([7.0]), 1)
    else:
        received = torch.zeros(1)
        dist.recv(received, 0)
        assert received.item() == 7.0
    dist.barrier()
    dist.destroy_process_group()


def _as_default(rank, world, path):
    dist.destroy_process_group()
    for life in range(2):
        # Each life has its own file: the last rank that leaves removes it, maybe while another one starts again.
        dist.init_process_group("weir", store=dist.FileStore(f"{path}{life}", world), rank=rank,
                                world_size=world, timeout=datetime.timedelta(seconds=30))
        assert dist.get_backend() == "weir"
        data = torch.tensor([rank])
        dist.all_reduce(data)
        assert data.item() == world * (world - 1) // 2
        dist.destroy_process_group()


class _Model(torch.nn.Module):

    def __init__(self, with_spare=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(10, 30), torch.nn.Linear(30, 3)
        self.spare = torch.nn.Linear(30, 3) if with_spare else None
        self.norm = torch.nn.BatchNorm1d(30)  # has buffers, which DDP broadcasts

    def forward(self, x, spare=False):
        hidden = torch.relu(self.norm(self.first(x)))
        return self.spare(hidden) if spare else self.second(hidden)


def _train(group, rank, find_unused):
    torch.manual_seed(rank)  # DDP gives everyone rank 0's parameters
    model = torch.nn.parallel.DistributedDataParallel(
        _Model(find_unused), process_group=group, bucket_cap_mb=0.001,
        find_unused_parameters=find_unused)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank + 50)
    for step in range(6):
        optimiser.zero_grad()
        x = torch.randn(8, 10, generator=data)
        model(x, spare=find_unused and step % 2 == 1).square().mean().backward()
        optimiser.step()
    return [p.detach().clone() for p in model.parameters()]


def _ddp(rank, world):
    group = _new_group()
    for find_unused in (False, True):
        found, expected = _train(group, rank, find_unused), _train(None, rank, find_unused)
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def _train_with_power_sgd(group, rank):
    """PyTorch's hook, which waits for a second sum in what is attached to the first one's future."""
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64), process_group=group)
    model.register_comm_hook(power_sgd.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1),
        power_sgd.powerSGD_hook)
    data = torch.Generator().manual_seed(rank + 50)
    for _ in range(6):
        model.zero_grad()
        model(torch.randn(8, 64, generator=data)).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def _power_sgd(rank, world):
    group = _new_group()
    found, expected = _train_with_power_sgd(group, rank), _train_with_power_sgd(None, rank)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _futures_that_wait(rank, world):
    """Callbacks on earlier futures wait for later ones, several deep."""
    group = _new_group()
    tensors = [torch.full((1000,), float(n)) for n in range(20)]
    futures = [dist.all_reduce(t, group=group, async_op=True).get_future() for t in tensors]
    for n in range(19, 0, -1):
        futures[n - 1] = futures[n - 1].then(
            lambda done, after=futures[n]: (after.wait(), done.value())[1])
    for n, future in enumerate(futures):
        _expect_equal(future.wait()[0], torch.full((1000,), float(n * world)), f"sum {n}")


def _sharded(rank, world):
    """Parameters live in shards: gathered for the step, gradients reduced into the shards."""
    group = _new_group()
    size, shard = 12 * world, 12
    target = torch.linspace(-1, 1, size)
    full = torch.zeros(size)
    own = full[rank * shard:(rank + 1) * shard].clone()
    reference = torch.zeros(size)
    for step in range(20):
        dist.all_gather_into_tensor(full, own, group=group)
        weights = full.clone().requires_grad_()
        loss = ((weights - target) * (1 + rank)).square().sum()
        loss.backward()
        gradient = torch.zeros(shard)
        dist.reduce_scatter_tensor(gradient, weights.grad, op=dist.ReduceOp.AVG, group=group)
        own -= 0.01 * gradient
        factor = sum((1 + r) ** 2 for r in range(world)) / world
        reference -= 0.01 * 2 * factor * (reference - target)
    torch.testing.assert_close(own, reference[rank * shard:(rank + 1) * shard], rtol=1e-4,
                               atol=1e-6)


def _death(rank, world):
    group = _new_group()
    dist.barrier(group=group)
    if rank == 2:
        os._exit(3)
    data = torch.ones(1 << 20)
    try:
        for _ in range(3):
            dist.all_reduce(data, group=group)
    except weir.WeirError as error:
        return str(error)
    raise AssertionError("nothing failed")


def _absence(rank, world):
    group = _new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 1:
        dist.barrier()  # Gloo's: waits for those who fail
        return "absent"
    texts = []
    for operation in (lambda: dist.barrier(group=group),
                      lambda: dist.recv(torch.zeros(1), 1, group=group)):
        try:
            operation()
        except weir.WeirError as error:
            texts.append(str(error))
    dist.barrier()
    return texts


def _ddp_death(rank, world):
    group = _new_group()
    model = torch.nn.parallel.DistributedDataParallel(_Model(), process_group=group)
    if rank == 1:
        os._exit(3)
    try:
        for _ in range(3):
            model(torch.ones(4, 10)).sum().backward()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing failed")


class ProcessGroupTest(unittest.TestCase):

    def each_world(self, function, worlds=WORLDS):
        for world in worlds:
            with self.subTest(world=world):
                ranks.run(world, function)

    def test_reductions_equal_gloos(self):
        self.each_world(_reductions)

    def test_gathers_and_broadcasts_move_the_right_elements(self):
        self.each_world(_gathers)

    def test_messages_whatever_the_order(self):
        self.each_world(_messages, (2, 3, 4))

    def test_works_and_futures(self):
        self.each_world(_works, (2, 3))

    def test_subgroups(self):
        self.each_world(_subgroups, (3, 4))

    @unittest.skipUnless(hasattr(dist.distributed_c10d, "_resolve_process_group"),
                         "before torch 2.1")
    def test_name_devices_and_later_names(self):
        ranks.run(2, _later_names)

    @unittest.skipUnless(hasattr(torch.ops._c10d_functional, "all_reduce_coalesced"),
                         "before torch 2.1")
    def test_cpp_may_wait_twice(self):
        ranks.run(2, _second_wait_of_cpp, deadline_s=20.0)

    def test_results_are_freed(self):
        ranks.run(2, _results_are_freed)

    @unittest.skipUnless(hasattr(dist.distributed_c10d, "BackendConfig"), "before torch 2.0")
    def test_beside_another_devices_backend(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, _mixed_backends, os.path.join(folder, "store"))

    def test_default_group_has_a_second_life(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, _as_default, os.path.join(folder, "store"))

    def test_tcp_when_told(self):
        ranks.run(2, _gathers, environment={"WEIR_TRANSPORT": "tcp"})

    def test_ddp_trains_as_with_gloo(self):
        self.each_world(_ddp, (1, 2, 3))

    def test_callbacks_on_futures_may_wait_for_later_ones(self):
        self.each_world(_futures_that_wait, (2,))

    def test_power_sgd_hook_trains_as_with_gloo(self):
        self.each_world(_power_sgd, (2, 3))

    def test_sharded_training_equals_the_whole(self):
        self.each_world(_sharded)

    def test_dead_rank_is_named(self):
        results = ranks.run(3, _death, may_die=(2,))
        for result in results[:2]:
            self.assertIn("rank 2", result[0])

    def test_death_ends_a_backward_pass_with_its_name(self):
        results = ranks.run(2, _ddp_death, may_die=(1,))
        self.assertIn("rank 1", results[0][0])

    def test_absent_rank_is_named_by_collectives_and_messages(self):
        results = ranks.run(3, _absence)
        for rank in (0, 2):
            texts = results[rank][0]
            self.assertEqual(len(texts), 2, texts)
            for text in texts:
                self.assertIn("rank 1", text)


if __name__ == "__main__":
    unittest.main()
