# SPDX-License-Identifier: Apache-2.0
"""Dense buckets summed by the job's own process group: gloo stands for NCCL, on loopback."""
import contextlib
import json
import os
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir
from stub_agent import StubAgent

WIDTH, BUCKET_MB = 24, 0.002
STEPS_MAX = 3000
FRAMEWORK = {"codec": "identity", "collective": "framework", "ratio": 1}
TOP_K = {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.2}
WEIRS = {"codec": "identity", "collective": "mesh", "ratio": 1}
ON = {"WEIR_FRAMEWORK_DENSE": "1"}
dist._DEFAULT_FIRST_BUCKET_BYTES = 1024


def make_model(dtype=torch.float32):
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)).to(dtype)


def make_ddp():
    return DistributedDataParallel(make_model(), bucket_cap_mb=BUCKET_MB)


def batch(step, rank):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def backward(model, step, rank):
    model.zero_grad()
    model(batch(step, rank)).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def plan(version, fallback, buckets=()):
    return {"job": "training", "version": version, "buckets": list(buckets), "fallback": fallback}


@contextlib.contextmanager
def plan_file(fallback, **keys):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"fallback": fallback, **keys}, file)
        file.flush()
        yield file.name


def beside_plain(rank, world, steps, options):
    """Whether every gradient is that of plain DDP bit for bit, and the counters."""
    ours, plain = make_ddp(), make_ddp()
    state = weir.attach(ours, **options)
    same = [torch.equal(backward(ours, step, rank), backward(plain, step, rank))
            for step in range(steps)]
    stats = state.stats()
    state.close()
    return same, stats


def switched(rank, world, address, last_version):
    """Trains until the plan of that version has run for 5 steps.

    Returns {version: whether its gradients equalled those of plain DDP, by step}, the steps at which
    plans began, and how far what was delivered is from what was fed, in all."""
    ours, plain = make_ddp(), make_ddp()
    state = weir.attach(ours, agent=address)
    same, began = {}, {}
    delivered, fed = 0.0, 0.0
    for step in range(STEPS_MAX):
        own, wanted = backward(ours, step, rank), backward(plain, step, rank)
        version = state.stats().plan_version
        began.setdefault(version, state.stats().step)
        same.setdefault(version, []).append(torch.equal(own, wanted))
        delivered, fed = delivered + own.double(), fed + wanted.double()
        if version == last_version and len(same[version]) > 5:
            break
        time.sleep(0.001)
    apart = float((delivered - fed).abs().max() / fed.abs().max())
    compared = state.stats().replicas_compared
    state.close()
    return same, began, apart, compared


def skipping(rank, world, address):
    """A step with NaN on one rank, between others; what was seen of them."""
    ours = make_ddp()
    state = weir.attach(ours, agent=address)
    seen = []
    for step in range(14):
        inputs = batch(step, rank)
        if step in (5, 9) and rank == 1:
            inputs[0, 0] = float("nan")
        ours.zero_grad()
        ours(inputs).square().sum().backward()
        finite = all(bool(torch.isfinite(p.grad).all()) for p in ours.parameters())
        seen.append((bool(state.last_step_skipped), getattr(state.last_step_skipped, "rank", None),
                     finite))
    skipped = state.stats().steps_skipped
    state.close()
    return seen, skipped


def failing(rank, world, how):
    """Returns what backward() raises when the process group of rank 1 fails, and after how long."""
    ours = make_ddp()
    state = weir.attach(ours, operation_timeout_s=4 if how == "hangs" else 20)
    backward(ours, 0, rank)
    backward(ours, 1, rank)
    if rank == 1 and how == "dies":
        os._exit(1)
    if rank == 1:
        class Broken:
            """A work that fails, or never ends."""
            def get_future(self):
                future = torch.futures.Future()
                if how == "raises":
                    future.set_exception(RuntimeError("the link is down"))
                return future
        state._framework.all_reduce = lambda unused_tensor: Broken()
    begun = time.monotonic()
    try:
        backward(ours, 2, rank)
        return "no error", 0.0
    except weir.WeirError as error:
        return str(error), time.monotonic() - begun


def attached(rank, world, plans, able):
    """Attaches where only some ranks' groups may sum; returns the error, or what ran."""
    os.environ["WEIR_FRAMEWORK_DENSE"] = "1" if rank in able else "0"
    ours, plain = make_ddp(), make_ddp()
    try:
        state = weir.attach(ours, plan_file=plans)
    except weir.WeirError as error:
        return str(error)
    same = all(torch.equal(backward(ours, step, rank), backward(plain, step, rank))
               for step in range(3))
    state.close()
    return same


def offered(rank, world, address, able):
    os.environ["WEIR_FRAMEWORK_DENSE"] = "1" if rank in able else "0"
    ours = make_ddp()
    state = weir.attach(ours, agent=address)
    for step in range(200):
        backward(ours, step, rank)
        time.sleep(0.001)
    version = state.stats().plan_version
    state.close()
    return version


class Flat(torch.nn.Module):
    """A parameter of 16 bits whose gradient is the input."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(500, dtype=torch.float16))

    def forward(self, x):
        return (self.weight.float() * x).sum()


def half(rank, world, address):
    """Relative distance of what was delivered from what was fed; None where gloo moves no float16."""
    try:
        dist.broadcast(torch.zeros(1, dtype=torch.float16), 0)
    except RuntimeError:  # of torch 2.14
        return None
    model = Flat()
    ddp = DistributedDataParallel(model)
    state = weir.attach(ddp, agent=address)
    delivered, fed, after = torch.zeros(500), torch.zeros(500), 0
    for step in range(STEPS_MAX):
        inputs = torch.randn(500, generator=torch.Generator().manual_seed(10 * step + rank))
        model.zero_grad()
        ddp(inputs).backward()
        delivered += model.weight.grad.float()
        fed += inputs.half().float()
        after += state.stats().plan_version == 4
        if after > 2:
            break
        time.sleep(0.001)
    dist.all_reduce(fed)
    state.close()
    return float((delivered - fed / world).norm() / (fed / world).norm())


def local(rank, world, plans):
    """Parameters after local steps that are synchronised by the framework."""
    ours = make_ddp()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
    state = weir.attach(ours, optimizer=optimizer, plan_file=plans)
    for step in range(8):
        backward(ours, step, rank)
        optimizer.step()
    state.synchronise(now=True)
    state.close()
    return torch.cat([p.detach().flatten() for p in ours.parameters()]).tolist()


class FrameworkTest(unittest.TestCase):
    def test_without_a_plan_gradients_are_those_of_plain_ddp(self):
        for world in (2, 3):
            results = [r for r, _ in ranks.run(world, beside_plain, 8, {}, environment=ON)]
            for same, stats in results:
                self.assertEqual(same, [True] * 8, world)
                self.assertEqual(stats.bytes_sent, results[0][1].bytes_sent)
                self.assertLess(stats.bytes_sent, 8 * 1000)  # a message to each rank in each step

    def test_gloo_is_left_to_weir_unless_asked(self):
        (_, stats), _ = ranks.run(2, beside_plain, 3, {})[0]
        self.assertGreater(stats.bytes_sent, 10000)

    def test_replicas_are_compared(self):
        for (_, stats), _ in ranks.run(2, beside_plain, 6, {"compare_every_steps": 1}, environment=ON):
            self.assertEqual(stats.replicas_compared, 5)

    def test_plans_switch_to_it_and_away_in_the_same_step_and_lose_nothing(self):
        with StubAgent(2) as agent:
            agent.offer_when_active = {2: plan(3, TOP_K), 3: plan(4, FRAMEWORK), 4: plan(5, WEIRS),
                                       5: plan(6, FRAMEWORK)}
            agent.offer(plan(2, FRAMEWORK))
            results = [r for r, _ in ranks.run(2, switched, agent.address, 6, environment=ON)]
            samples, hellos = list(agent.samples), dict(agent.hellos)
        for same, began, apart, _ in results:
            self.assertEqual(began, results[0][1])
            self.assertEqual(set(began), {0, 2, 3, 4, 5, 6})
            for version in (0, 2, 5, 6):
                self.assertTrue(all(same[version]), (version, same[version]))
            self.assertFalse(any(same[3]))  # compressed
            self.assertFalse(same[4][0])    # carries the residual, too
            self.assertTrue(all(same[4][1:]), same[4])
            self.assertLess(apart, 1e-6)
        for rank in (0, 1):
            offers = {c["name"]: c for c in hellos[rank]["capabilities"]["collectives"]}
            self.assertTrue(offers["framework"]["by_caller"])
        first = results[0][1]
        ran = {(b["collective"], b["codec"]) for step, _, b in samples if first[4] <= step < first[5]}
        self.assertEqual(ran, {("framework", "identity")})
        summed = [b for _, _, b in samples if b["collective"] == "framework"]
        self.assertTrue(all(int(b["payload_bytes"]) > 0 for b in summed))
        # One that ended behind a later one has no time of its own.
        self.assertGreater(sum(b["network_s"] > 0 for b in summed), len(summed) / 2)

    def test_a_plan_may_leave_some_buckets_to_it(self):
        with StubAgent(2) as agent:
            agent.offer_when_active = {2: plan(3, FRAMEWORK)}
            agent.offer(plan(2, TOP_K))
            (_, _, _, _), _ = ranks.run(2, switched, agent.address, 3, environment=ON)[0]
            keys = sorted({b["bucket"] for _, _, b in agent.samples})
        mixed = [{"bucket": key, "choice": FRAMEWORK} for key in keys[::2]]
        with StubAgent(2) as agent:
            agent.offer_when_active = {2: plan(3, FRAMEWORK)}
            agent.offer(plan(2, TOP_K, mixed))
            results = [r for r, _ in ranks.run(2, switched, agent.address, 3, environment=ON)]
            ran = {b["collective"] for _, _, b in agent.samples}
        self.assertEqual(ran, {"framework", "sparse_all_gather"})
        for same, began, apart, _ in results:
            self.assertEqual(began, results[0][1])
            self.assertFalse(any(same[2]))
            self.assertTrue(all(same[3][1:]))
            self.assertLess(apart, 1e-6)

    def test_a_step_with_nan_is_skipped_on_all_ranks(self):
        with StubAgent(2) as agent:
            results = [r for r, _ in ranks.run(2, skipping, agent.address, environment=ON)]
        for seen, skipped in results:
            self.assertEqual(skipped, 2)
            self.assertEqual([s for s, *_ in seen], [step in (5, 9) for step in range(14)])
            self.assertEqual([f for *_, f in seen], [step not in (5, 9) for step in range(14)])
            self.assertEqual(seen[9][1], 1)  # the rank

    def test_residuals_of_16_bits_go_into_the_sum(self):
        with StubAgent(2) as agent:  # in float16, as gloo does not broadcast bfloat16
            agent.offer_when_active = {2: plan(3, TOP_K), 3: plan(4, FRAMEWORK)}
            agent.offer(plan(2, FRAMEWORK))
            for apart, _ in ranks.run(2, half, agent.address, environment=ON):
                if apart is None:
                    self.skipTest("this gloo moves no float16")
                self.assertLess(apart, 0.001)

    def test_an_error_of_the_process_group_ends_the_step_on_all_ranks_and_names_it(self):
        results = [r for r, _ in ranks.run(2, failing, "raises", environment=ON)]
        for error, seconds in results:
            self.assertIn("rank 1: step 2 bucket", error)
            self.assertIn("(framework): gloo: the link is down", error)
            self.assertLess(seconds, 10)

    def test_a_process_group_that_hangs_is_an_error_after_the_deadline(self):
        results = [r for r, _ in ranks.run(2, failing, "hangs", environment=ON)]
        for error, seconds in results:
            self.assertIn("gloo has not summed it after 4 s", error)
            self.assertLess(seconds, 12)

    def test_a_lost_rank_is_an_error(self):
        (error, seconds), _ = ranks.run(2, failing, "dies", environment=ON, may_die=(1,))[0]
        self.assertNotEqual(error, "no error")
        self.assertIn("rank 1", error)
        self.assertLess(seconds, 18)

    def test_no_plan_takes_it_where_a_rank_has_none(self):
        for result, _ in ranks.run(2, attached, None, (0,)):
            self.assertEqual(result, True)
        with plan_file(FRAMEWORK) as plans:
            results = [r for r, _ in ranks.run(2, attached, plans, (0, 1))]
            self.assertEqual(results, [True, True])
            for error, _ in ranks.run(2, attached, plans, (0,)):
                self.assertIn("collective 'framework' leaves the sum to a process group", error)
                self.assertIn("rank 1", error)
        with StubAgent(2) as agent:
            agent.offer(plan(2, FRAMEWORK))
            versions = [r for r, _ in ranks.run(2, offered, agent.address, (0,))]
            self.assertEqual(versions, [0, 0])
            self.assertEqual(len(agent.nacks), 2)
            names = [c["name"] for c in agent.hellos[0]["capabilities"]["collectives"]]
            self.assertNotIn("framework", names)

    def test_it_synchronises_local_steps(self):
        found = []
        for choice in (FRAMEWORK, WEIRS):
            with plan_file(choice, sync={"every": 4}) as plans:
                results = [r for r, _ in ranks.run(2, local, plans, environment=ON)]
            self.assertEqual(results[0], results[1])
            found.append(torch.tensor(results[0]))
        self.assertLess(float((found[0] - found[1]).abs().max()), 1e-6)


if __name__ == "__main__":
    unittest.main()
