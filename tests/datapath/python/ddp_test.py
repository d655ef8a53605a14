# SPDX-License-Identifier: Apache-2.0
"""weir under DistributedDataParallel: 2 and 3 ranks on loopback with the built libweir."""
import gc
import json
import os
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir

WIDTH = 24
# Several buckets for a small model, so that DDP rebuilds them.
BUCKET_MB = 0.002
dist._DEFAULT_FIRST_BUCKET_BYTES = 1024
RATIO = 0.25


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
                         nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def batch(step, rank):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def local_gradients(model, inputs):
    """The gradients that the rank alone would compute, without disturbing the model."""
    found = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
    return [g.clone() for g in found]


def plan_file(directory, codec, collective, ratio):
    path = os.path.join(directory, "plan.json")
    choice = {"codec": codec, "collective": collective, "ratio": ratio}
    with open(path, "w", encoding="ascii") as out:
        json.dump({"job": "training", "version": 1, "buckets": [], "fallback": choice}, out)
    return path


def dense_matches_gloo(rank, world):
    """Several steps of SGD with Weir's hook and with plain DDP; returns the largest difference."""
    models = [DistributedDataParallel(make_model(), bucket_cap_mb=BUCKET_MB) for _ in range(2)]
    state = weir.attach(models[0])
    for step in range(5):
        for model in models:
            model.zero_grad()
            model(batch(step, rank)).square().sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
    worst = max(float((a - b).abs().max())
                for a, b in zip(models[0].parameters(), models[1].parameters()))
    buckets = len(state._keys)
    steps = state.stats().step
    state.close()
    return worst, buckets, steps


def delivered_and_fed(rank, world, restart):
    """Feeds real gradients over the rebuild, then zeros until all residuals have drained.

    restart: after three steps continue in a session restored from state_dict().
    Returns per parameter (sum of delivered means * world, sum of this rank's gradients).
    """
    model = make_model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    state = weir.attach(ddp)
    delivered = [torch.zeros_like(p) for p in model.parameters()]
    fed = [torch.zeros_like(p) for p in model.parameters()]
    largest_late = 0.0
    for step in range(24):
        real = step < 5
        inputs = batch(step, rank)
        if real:
            for total, gradient in zip(fed, local_gradients(model, inputs)):
                total += gradient
        model.zero_grad()
        (ddp(inputs).square().sum() * (1.0 if real else 0.0)).backward()
        for total, p in zip(delivered, model.parameters()):
            total += p.grad * world
        if step == 23:
            largest_late = max(float(p.grad.abs().max()) for p in model.parameters())
        if restart and step == 2:
            saved = state.state_dict()
            state.session.close()
            replacement = weir.DDPState(ddp)
            replacement.load_state_dict(saved)
            state.session = replacement.session
            state._keys = {}
            state._step_open = False
    keys = len(state._keys)
    choices = state.choices()
    assert sum(count for count, _ in choices) == sum(p.numel() for p in model.parameters())
    assert {c["codec"] for _, c in choices} == {"top_k"}, choices
    assert choices[0][0] >= choices[-1][0]
    state.session.close()
    return [t.tolist() for t in delivered], [t.tolist() for t in fed], keys, largest_late


class Scaled(nn.Module):
    """A parameter of any dtype whose gradient is the input: CPUs lack half-precision matmul."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000, dtype=dtype))

    def forward(self, x):
        return (self.weight.float() * x).sum()


class Bucket:
    """The part of torch.distributed.GradBucket that the hook uses."""
    made = []

    def __init__(self, parameter, gradient):
        self._parameter, self._gradient = parameter, gradient
        self.future = None
        Bucket.made.append(self)

    def index(self):
        return 0

    def is_last(self):
        return True

    def buffer(self):
        return self._gradient

    def parameters(self):
        return [self._parameter]


def _reduce_now(state, bucket):
    bucket.future = weir.ddp_hook(state, bucket)


def half_precision(rank, world, dtype):
    """Largest relative error of the mean of fp16 or bf16 gradients.

    Gloo in torch 1.13 cannot broadcast bfloat16, so DDP itself is left out: a gradient hook hands
    the bucket over inside the backward pass, as DDP does.
    """
    model = Scaled(dtype)
    state = weir.DDPState(model)
    model.weight.register_hook(lambda g: _reduce_now(state, Bucket(model.weight, g.clone())))
    worst = 0.0
    for step in range(3):
        inputs = [1.0 + torch.rand(1000, generator=torch.Generator().manual_seed(10 * step + r))
                  for r in range(world)]
        del Bucket.made[:]
        model(inputs[rank]).backward()
        expected = sum(x.to(dtype).float() for x in inputs) / world
        reduced = Bucket.made[0].future.value()
        worst = max(worst, float(((reduced.float() - expected) / expected).abs().max()))
    state.close()
    return worst, str(reduced.dtype)


def not_a_number(rank, world):
    """Rank 1 meets NaN in step 1: what each step said and delivered."""
    ddp = DistributedDataParallel(Scaled(torch.float32))
    state = weir.attach(ddp)
    seen = []
    for step in range(3):
        inputs = torch.full((1000,), float(rank + 1))
        if step == 1 and rank == 1:
            inputs[17] = float("nan")
        ddp.zero_grad()
        ddp(inputs).backward()
        gradient = ddp.module.weight.grad
        seen.append((state.last_step_skipped, bool(torch.isnan(gradient).any()),
                     float(gradient[0])))
    skipped = state.stats().steps_skipped
    state.close()
    return seen, skipped


def comparisons(rank, world, option):
    """In how many of four steps the ranks compared their sums."""
    ddp = DistributedDataParallel(make_model())
    state = weir.attach(ddp, compare_every_steps=option, compare_parameters=True)
    train(ddp, rank)
    compared = state.stats().replicas_compared
    state.close()
    return compared


def plain_registration(rank, world):
    """register_comm_hook without attach()."""
    ddp = DistributedDataParallel(Scaled(torch.float32))
    state = weir.DDPState(ddp)
    ddp.register_comm_hook(state, weir.ddp_hook)
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.full((1000,), float(rank))).backward()
    result = float(ddp.module.weight.grad[3]), state.stats().step
    state.close()
    return result


def forgotten_model(rank, world):
    """Nobody keeps the state or closes it: it goes with the model, and libweir's threads with it."""
    def threads():
        return len(os.listdir("/proc/self/task"))

    ddp = DistributedDataParallel(Scaled(torch.float32))
    before = threads()
    weir.attach(ddp)
    attached = threads()
    ddp(torch.full((1000,), float(rank))).backward()
    trained = threads()  # torch has its own
    del ddp
    gc.collect()
    return attached - before, trained - threads()


def rank_dies(rank, world):
    """Rank 1 vanishes before its third step; the others return the error they get."""
    ddp = DistributedDataParallel(Scaled(torch.float32))
    state = weir.attach(ddp, operation_timeout_s=5.0)
    for step in range(4):
        if rank == 1 and step == 2:
            os._exit(9)
        try:
            ddp(torch.ones(1000)).backward()
        except weir.WeirError as error:
            state.close()
            return step, error.status, str(error)
    return "no error"


def broken_backward(rank, world):
    """A backward pass that raises after buckets were queued must not make the next one hang."""
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("broken on purpose")

    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.broken = first, second, False

        def forward(self, x):
            x = self.first(x)
            return self.second(Fails.apply(x) if self.broken else x)

    model = Model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    state = weir.attach(ddp)
    for _ in range(3):
        ddp(batch(0, rank)).sum().backward()
    dist.barrier()  # a rank that is ahead would abort the others' last good step
    model.broken = True
    words = []
    for _ in range(2):
        try:
            ddp(batch(1, rank)).sum().backward()
        except Exception as error:
            words.append(f"{type(error).__name__}: {error}")
        model.broken = False
    state.close()
    return words


def foreign_parameter(rank, world):
    """The state was made for another model."""
    ddp = DistributedDataParallel(Scaled(torch.float32))
    state = weir.DDPState(Scaled(torch.float32))
    ddp.register_comm_hook(state, weir.ddp_hook)
    try:
        ddp(torch.ones(1000)).backward()
    except Exception as error:
        return str(error)
    finally:
        state.close()
    return ""


def train(ddp, seed, steps=4):
    """The parameters after some steps of SGD on data of `seed`."""
    for step in range(steps):
        ddp.zero_grad()
        ddp(batch(step, seed)).square().sum().backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.01 * p.grad
    return [p.detach().clone() for p in ddp.parameters()]


def difference(found, expected):
    return max(float((a - b).abs().max()) for a, b in zip(found, expected))


def static_graph(rank, world):
    """With and without Weir's hook, DDP's own all-reduce delayed to the end of the first pass."""
    models = [DistributedDataParallel(make_model(), bucket_cap_mb=BUCKET_MB, static_graph=True)
              for _ in range(2)]
    state = weir.attach(models[0])
    found = [train(model, rank) for model in models]
    steps = state.stats().step
    state.close()
    return difference(*found), steps


def subgroups(rank, world):
    """Each pair of ranks trains a model of its own; each rank is attached in two groups."""
    found = []
    for pairs in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]):
        groups = [dist.new_group(pair) for pair in pairs]
        group = next(g for g, pair in zip(groups, pairs) if rank in pair)
        models = [DistributedDataParallel(make_model(), process_group=group) for _ in range(2)]
        state = weir.attach(models[0])
        found.append((state.session.job, state.world,
                      difference(*[train(model, rank) for model in models])))
    return found


def two_models(rank, world):
    """Jobs and differences of two models that train in turns, then of one that takes over a job."""
    models = [DistributedDataParallel(make_model()) for _ in range(4)]
    states = [weir.attach(model) for model in models[:2]]
    expected = train(models[2], rank)
    differences = [difference(train(model, rank), expected) for model in models[:2]]
    jobs = [state.session.job for state in states]
    states[0].close()
    later = weir.attach(models[3])
    jobs.append(later.session.job)
    return jobs, differences


def uneven_inputs(rank, world):
    """Rank r has 3 + 2 r batches; DDP's join() has the others keep the longest one company."""
    models = [DistributedDataParallel(make_model(), bucket_cap_mb=BUCKET_MB) for _ in range(2)]
    state = weir.attach(models[0])
    found = []
    for model in models:
        with model.join():
            found.append(train(model, rank, steps=3 + 2 * rank))
    return difference(*found), state.stats().step


def refused_gradients(rank, world):
    """The errors for gradients that the hook does not take; the group takes them."""
    texts = []
    sparse = nn.Embedding(10, 4, sparse=True)
    for module, data in ((sparse, torch.tensor([1, rank])), (Scaled(torch.float64), torch.ones(1000))):
        ddp = DistributedDataParallel(module)
        state = weir.attach(ddp)
        try:
            ddp(data.to(torch.float64) if data.is_floating_point() else data).sum().backward()
        except Exception as error:
            texts.append(str(error))
        state.close()
    return texts


class Scaler:
    """The part of torch.cuda.amp.GradScaler that the hook uses; CPUs have no other."""

    def __init__(self):
        self.scale = 1024.0

    def get_scale(self):
        return self.scale


def changing_loss_scale(rank, world, restart):
    """Gradients under a scale that is halved and doubled: unscaled sums of what came and went in.

    restart: after two steps continue in a session restored from state_dict().
    """
    torch.manual_seed(rank)
    ddp, scaler = DistributedDataParallel(Scaled(torch.float32)), Scaler()
    state = weir.attach(ddp, scaler=scaler)
    delivered, fed = torch.zeros(1000), torch.zeros(1000)
    for step in range(16):
        inputs = torch.randn(1000) if step < 4 else torch.zeros(1000)
        fed += inputs
        scaler.scale = (1024.0, 512.0, 512.0, 4096.0)[step % 4]
        ddp.zero_grad()
        (ddp(inputs) * scaler.scale).backward()
        delivered += ddp.module.weight.grad * (world / scaler.scale)
        if restart and step == 1:
            saved = state.state_dict()
            assert saved["loss_scale"] == 512.0, saved["loss_scale"]
            state.session.close()
            replacement = weir.DDPState(ddp)
            state.session = replacement.session
            state.load_state_dict(saved)
            state._keys, state._step_open = {}, False
    state.close()
    return delivered.tolist(), fed.tolist()


class DdpTest(unittest.TestCase):

    def test_dense_equals_plain_ddp(self):
        for world in (2, 3):
            for (worst, buckets, steps), _ in ranks.run(world, dense_matches_gloo):
                self.assertLess(worst, 1e-5)
                self.assertGreater(buckets, 2)
                self.assertEqual(steps, 4)  # counted from 0

    def test_says_once_that_it_runs_dense(self):
        results = ranks.run(2, dense_matches_gloo)
        self.assertEqual(results[0][1].count("running dense"), 1)
        self.assertIn("WEIR_AGENT", results[0][1])
        self.assertEqual(results[1][1].count("running dense"), 0)

    def test_options_of_the_transport_come_from_the_environment(self):
        over = {"WEIR_TRANSPORT": "tcp:connections=2"}
        self.assertEqual(len(ranks.run(2, dense_matches_gloo, environment=over)), 2)
        over = {"WEIR_TRANSPORT": "tcp:connections=17"}
        with self.assertRaisesRegex(AssertionError, "connections: expected 1..16, found '17'"):
            ranks.run(2, dense_matches_gloo, environment=over)

    def test_keys_come_from_the_store_or_a_file(self):
        over = {"WEIR_TRANSPORT": "tcp", "WEIR_ENCRYPT": "1"}
        self.assertEqual(len(ranks.run(2, dense_matches_gloo, environment=over)), 2)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("0123456789abcdef" * 4)
            file.flush()
            over["WEIR_JOB_KEY_FILE"] = file.name
            self.assertEqual(len(ranks.run(2, dense_matches_gloo, environment=over)), 2)
            os.chmod(file.name, 0o644)
            with self.assertRaisesRegex(AssertionError, "others may use it"):
                ranks.run(2, dense_matches_gloo, environment=over)

    def test_absent_agent_is_named_and_training_goes_on(self):
        agent = "unix:/nonexistent/weir-agent.sock"
        results = ranks.run(2, dense_matches_gloo, environment={"WEIR_AGENT": agent})
        self.assertLess(results[0][0][0], 1e-5)
        for _, words in results:
            self.assertIn(agent, words)
            self.assertEqual(words.count("running dense"), 1)

    def _conserved(self, world, restart):
        with tempfile.TemporaryDirectory() as directory:
            plan = plan_file(directory, "top_k", "sparse_all_gather", RATIO)
            results = ranks.run(world, delivered_and_fed, restart,
                                environment={"WEIR_PLAN_FILE": plan})
        fed = [[torch.tensor(p) for p in result[1]] for result, _ in results]
        for (delivered, _, _, late), _ in results:
            self.assertEqual(late, 0.0)
            for index, total in enumerate(delivered):
                expected = sum(rank[index] for rank in fed)
                error = (torch.tensor(total) - expected).abs().max()
                self.assertLess(float(error), 4e-3 * float(expected.abs().max()))
        return results

    def test_residuals_follow_parameters_over_bucket_rebuild(self):
        results = self._conserved(3, False)
        self.assertGreater(results[0][0][2], 2)  # keys of both layouts

    def test_residuals_survive_state_dict(self):
        self._conserved(2, True)

    def test_residuals_follow_the_loss_scale(self):
        with tempfile.TemporaryDirectory() as directory:
            plan = plan_file(directory, "top_k", "sparse_all_gather", RATIO)
            for restart in (False, True):
                results = ranks.run(2, changing_loss_scale, restart,
                                    environment={"WEIR_PLAN_FILE": plan})
                expected = sum(torch.tensor(fed) for (_, fed), _ in results)
                for (delivered, _), _ in results:
                    error = (torch.tensor(delivered) - expected).abs().max()
                    self.assertLess(float(error), 1e-2)

    def test_static_graph_equals_plain_ddp(self):
        for (worst, steps), _ in ranks.run(2, static_graph):
            self.assertLess(worst, 1e-5)
            self.assertEqual(steps, 3)  # counted from 0

    def test_join_lets_ranks_end_at_different_times(self):
        for (worst, step), _ in ranks.run(3, uneven_inputs):
            self.assertLess(worst, 1e-5)
            self.assertGreaterEqual(step, 5)

    def test_gradients_that_the_hook_does_not_take_are_named(self):
        for texts, _ in ranks.run(2, refused_gradients):
            self.assertEqual(len(texts), 2)
            self.assertIn("'weight' is of layout torch.sparse_coo", texts[0])
            self.assertIn("the process group 'gloo'", texts[0])  # Weir's takes none
            self.assertIn("sparse=False", texts[0])
            self.assertIn("'weight' is of torch.float64", texts[1])

    def test_models_of_a_subgroup_sum_over_it(self):
        results = ranks.run(4, subgroups)
        jobs = [[job for job, _, _ in found] for found, _ in results]
        self.assertEqual(jobs, [["training.0-1", "training.0-2by2"],
                                ["training.0-1", "training.1-3by2"],
                                ["training.2-3", "training.0-2by2"],
                                ["training.2-3", "training.1-3by2"]])
        for found, _ in results:
            for _, world, worst in found:
                self.assertEqual(world, 2)
                self.assertLess(worst, 1e-5)

    def test_models_of_a_process_are_jobs_of_their_own(self):
        for (jobs, differences), _ in ranks.run(2, two_models):
            self.assertEqual(jobs, ["training", "training.2", "training"])
            self.assertLess(max(differences), 1e-5)

    def test_half_precision(self):
        for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
            for (worst, found), _ in ranks.run(2, half_precision, dtype):
                self.assertEqual(found, str(dtype))
                self.assertLess(worst, tolerance)

    def test_not_a_number_skips_the_step_on_every_rank(self):
        for (seen, skipped), _ in ranks.run(2, not_a_number):
            self.assertEqual([s for s, _, _ in seen], [False, True, False])
            self.assertEqual([n for _, n, _ in seen], [False, True, False])
            self.assertAlmostEqual(seen[2][2], 1.5, places=5)
            self.assertEqual(skipped, 1)

    def test_options_replace_the_environment(self):
        over = {"WEIR_COMPARE_EVERY_STEPS": "-1"}
        for compared, _ in ranks.run(2, comparisons, 1, environment=over):
            self.assertGreater(compared, 1)
        over = {"WEIR_COMPARE_EVERY_STEPS": "1"}
        for compared, _ in ranks.run(2, comparisons, -1, environment=over):
            self.assertEqual(compared, 0)

    def test_hook_without_attach(self):
        for (mean, steps), _ in ranks.run(2, plain_registration):
            self.assertAlmostEqual(mean, 0.5, places=6)
            self.assertEqual(steps, 2)  # counted from 0

    def test_session_ends_with_its_model(self):
        for (started, ended), _ in ranks.run(2, forgotten_model):
            self.assertGreater(started, 0)
            self.assertGreaterEqual(ended, started)

    def test_lost_rank_is_named(self):
        results = ranks.run(3, rank_dies, may_die=(1,))
        self.assertIsNone(results[1])
        for rank in (0, 2):
            step, status, words = results[rank][0]
            self.assertEqual(step, 2)
            self.assertIn(f"rank {rank}:", words)
            self.assertIn("rank 1", words)

    def test_backward_that_raises_does_not_hang_the_next(self):
        for words, _ in ranks.run(2, broken_backward):
            self.assertIn("broken on purpose", words[0])
            self.assertEqual(len(words), 2)

    def test_foreign_parameter_is_an_error(self):
        for words, _ in ranks.run(2, foreign_parameter):
            self.assertIn("not in the model", words)


if __name__ == "__main__":
    unittest.main()
