# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel, and its state.

The path of a bucket: DDP calls the hook as soon as a bucket's gradients are ready. The hook queues
weir_all_reduce on DDP's flat buffer, or on its copy in host memory, and returns a future. While
libweir encodes, sends and decodes, the backward pass continues. DDP copies the means of completed
futures into the gradients. The rest is in weir.steps. (With a static graph, DDP's own callback at
the end of the pass comes before that of weir.steps and waits for the futures.) Weir's step ends with the
pass that has reduced DDP's last bucket. In join(divide_by_initial_world_size=False) the ranks count
those with input over DDP's process group, and the mean is that of these.

DDP over a subgroup of the ranks sums over that subgroup, as a separate job, whose name is the name
of the job, a dot and the ranks (where attach() is not given rank or world). A second model in a
process is a separate job, too.

Residuals belong to parameters, by their names in the model, so they follow their parameters when
DDP rebuilds the buckets after the first iteration.

Mixed precision: gradients with a loss scale (torch.cuda.amp.GradScaler) are added to residuals of
earlier steps, which have the scale of those steps. Pass the scaler to attach(), and the residuals
are converted to its scale before each step. (Otherwise keep the scale constant, or train in
bfloat16, which needs no scale.) A step in which any rank meets NaN or infinity is delivered as NaN
on all ranks, which GradScaler recognises. Other training loops must check `state.last_step_skipped`
after backward() and skip the optimiser step; its `rank` and `parameter` say where it began
(weir.non_finite). Where the framework sums on a GPU, the step ends behind the pass, and reading waits.

Learning rate: residuals hold gradients, so they are applied at the rate of the step that delivers
them. Where that matters, call state.scale_state(old_rate / new_rate) after each change of the rate:
then they are applied at the rate of the step that they come from.
"""
import contextlib
import functools
import itertools
import math
import sys
import weakref
import zlib
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from weir import _lib
from weir import addresses
from weir import fingerprint
from weir import keys
from weir import regroup
from weir._lib import WeirError
from weir.environment import read
from weir.framework import group_of
from weir.local import LocalSteps, Sync, call_after_steps, check
from weir.meeting import Meeting
from weir.non_finite import Agreement
from weir.session import Session
from weir.staging import device_of, future_of
from weir.steps import (Steps, at_end_of_backward, attached, begin_with_forward, columns,
                        communicator, in_backward, reduced_parameters)
from weir.unreduced import DDPWatch, Watch

CONNECT_TIMEOUT_S = 60.0
TIMEOUT_S = 60.0  # of an operation, libweir's default
_RESTORED_STEPS_MAX = 2  # where DDP does not make its buckets again
_attach_counts: Dict[str, int] = {}  # by ranks
_said = set()


def say_once(key, message):
    """Prints the message unless this process has printed one with this key."""
    if key not in _said:
        _said.add(key)
        print(f"weir: {message}", file=sys.stderr, flush=True)


def ranks_of(group):
    """The ranks of a process group, numbered as in the default group, in the order of the group."""
    numbers = dist.distributed_c10d._pg_group_ranks[group]
    return sorted(numbers, key=numbers.get)


def _name_of_ranks(members):
    """A short name that is equal on all of them: "0-3", "0-12by4", or one with a checksum."""
    steps = {b - a for a, b in zip(members, members[1:])} or {1}
    if len(steps) == 1 and (step := steps.pop()) > 0:
        return f"{members[0]}-{members[-1]}" + (f"by{step}" if step > 1 else "")
    checksum = zlib.crc32(",".join(map(str, members)).encode())
    return f"{members[0]}and{len(members) - 1}-{checksum:08x}"


class RestoredBuckets:
    """Reduces the first steps after a restart in the buckets of the checkpoint.

    DDP makes its buckets in the order of the parameters, and makes them again after the first
    backward pass (with a static graph: the second), in the order in which gradients became ready. A
    codec that selects or scales by bucket gives other results in other buckets. So the state of a
    hook lists the buckets of the last step, and steps after load_state_dict() reduce in these, from
    and into copies, until DDP has made its buckets again. It holds DDP's buckets of a step until
    all are there.

    buckets: lists of parameters' names, in the order of the step.
    """

    def __init__(self, buckets):
        self._buckets = buckets
        self._held = []
        self._first = None  # DDP's buckets in the first step
        self._steps = 0

    def hold(self, bucket, names):
        """Returns the future of a bucket of DDP, whose parameters have these names."""
        if bucket.index() == 0:
            self._held = []  # an earlier pass may have raised an error
        pieces = bucket.buffer().split([p.numel() for p in bucket.parameters()])
        future = future_of(bucket.buffer())
        self._held.append((bucket.buffer(), dict(zip(names, pieces)), future))
        return future

    def reduce(self, submit):
        """Reduces what is held and completes the futures. Waits, as long as the deadlines allow.

        submit: a function of (names, flat tensor) that returns a weir.deliveries.Delivery. Returns
        whether the next step should be held, too. All ranks find the same, as their buckets are
        equal.
        """
        pieces = {name: piece for _, named, _ in self._held for name, piece in named.items()}
        buckets = self._choose(list(pieces))
        flats = [torch.cat([pieces[name] for name in names]) for names in buckets]
        deliveries = [submit(names, flat) for names, flat in zip(buckets, flats)]
        for names, flat, delivery in zip(buckets, flats, deliveries):
            delivery.done.wait()
            if delivery.error is None:
                delivery.future.wait()  # lets the stream of an accelerator wait for the result
            sizes = [pieces[name].numel() for name in names]
            for name, piece in zip(names, flat.split(sizes)):
                pieces[name].copy_(piece)
        failure = next((d.error for d in deliveries if d.error is not None and d.raises), None)
        for buffer, _, future in self._held:
            if failure is None:
                future.set_result(buffer)
            else:
                future.set_exception(failure)
        self._steps += 1
        return buckets is self._buckets and self._steps < _RESTORED_STEPS_MAX

    def _choose(self, names):
        """The restored buckets, unless DDP has its own by now or the model has other parameters."""
        own = [list(named) for _, named, _ in self._held]
        self._first = self._first or own
        restored = sorted(name for names in self._buckets for name in names)
        if own == self._buckets or own != self._first or restored != sorted(names):
            return own
        return self._buckets


def _not_taken(job):
    """Returns `job`, with a number if this process has attached another model by that name."""
    taken = {state.session.job for state in attached if state.session.is_open()}
    names = itertools.chain([job], (f"{job}.{n}" for n in itertools.count(2)))
    return next(name for name in names if name not in taken)


def _connected(session, peers):
    """Returns `session`, connected to all ranks."""
    try:
        session.connect(peers)
        return session
    except BaseException:
        session.close()
        raise


def _check_place(rank, world, peers, named):
    """Raises InvalidArgument unless `rank` is one of `world` ranks and `peers`, if any, lists them all."""
    if peers and len(peers) != world:
        raise WeirError(f"{named} lists {len(peers)} addresses, expected one of each of {world} ranks",
                        _lib.INVALID_ARGUMENT, rank)
    if not 0 <= rank < world:
        raise WeirError(f"rank {rank}, expected one from 0 to {world - 1}, as the world has {world} "
                        f"rank{'s' * (world != 1)}", _lib.INVALID_ARGUMENT, rank)


class DDPState(Steps):
    """The state of the hook for one DistributedDataParallel model on one rank.

    model: the DDP model, or the module inside it. An initialised process group must provide rank,
    world and rendezvous, unless `peers` lists all ranks and `rank` is given. Arguments that are
    None are taken from the environment (see weir.attach).
    process_group: the ranks that sum; None: that of the DDP model, or the default group.
    job_key: 32 bytes, equal on all ranks; None: see weir.keys.
    scaler: the torch.cuda.amp.GradScaler of the training loop, or an object with its get_scale().
    The scale must be equal on all ranks, which it is when all skip the same steps.
    optimizer: that of the training loop, for local steps; see weir.local.
    join: a function of (job, options of Session) that returns a connected Session. It replaces the
    arguments that describe the peers; see attach_replacement.
    """

    def __init__(self, model, *, job=None, rank=None, world=None, agent=None, agent_token=None,
                 plan_file=None, peers=None, listen=None, operation_timeout_s=None,
                 transport=None, scaler=None, encode_workers=None, join=None, job_key=None,
                 encrypt=None, unauthenticated=None, process_group=None,
                 compare_every_steps=None, compare_parameters=None, optimizer=None):
        module = getattr(model, "module", model)
        super().__init__(module, scaler)
        # Names are looked up by identity; the parameters live as long as these tables.
        self._by_name = reduced_parameters(model)
        self._parameters = list(self._by_name.values())
        self._names = {id(p): name for name, p in self._by_name.items()}
        self._restored = None  # in the first steps after load_state_dict()
        self._watch: Optional[Watch] = None
        self._local: Optional[LocalSteps] = None
        self._store: Any = None  # in which the ranks meet
        self._followed = 0  # the version of the plan whose `sync` counts
        self._keeps_gradients = False
        self._successor: Any = None  # a function of a bucket; see leave_to()
        self._wrapper = weakref.ref(model)
        named = "peers" if peers else "WEIR_PEERS"
        peers = peers or [p for p in read("WEIR_PEERS", default="").split(",") if p]
        group = process_group or getattr(model, "process_group", None)
        numbered = rank is not None or world is not None
        self.rank = dist.get_rank(group) if rank is None else rank
        if world is None and not (peers and numbered):
            world = dist.get_world_size(group)
        self.world = len(peers) if world is None else world
        _check_place(self.rank, self.world, peers, named)
        agent = read("WEIR_AGENT") if agent is None else agent
        plan_file = read("WEIR_PLAN_FILE") if plan_file is None else plan_file
        job = job or read("WEIR_JOB") or read("TORCHELASTIC_RUN_ID") or "training"
        place = job  # where the ranks meet; ranks with different jobs must meet, too, to be told so
        if not (join or peers or numbered):
            members = ranks_of(group or dist.distributed_c10d._get_default_group())
            place = _name_of_ranks(members)
            if self.world < dist.get_world_size():
                job += f".{place}"
        meeting = None if join or peers else self._meeting(place)
        with meeting or contextlib.nullcontext():  # lets the others know of settings that are wrong
            if compare_parameters is None:
                compare_parameters = read("WEIR_COMPARE_PARAMETERS", bool, False, self.rank)
            self._compare_parameters = compare_parameters
            timeout_s = operation_timeout_s or read("WEIR_TIMEOUT_S", float, 0.0, self.rank)
            if not (join or peers or numbered):
                self._framework = self._framework_of(group, self._parameters,
                                                     timeout_s or TIMEOUT_S)
            listen = listen or read("WEIR_LISTEN")
            if peers:
                listen = listen or peers[self.rank]
            elif join:
                listen = addresses.alone(listen, self.rank)
            options = dict(
                listen=listen, agent=agent or None,
                agent_token=agent_token or read("WEIR_AGENT_TOKEN"),
                plan_file=plan_file or None, transport=transport or read("WEIR_TRANSPORT"),
                operation_timeout_s=timeout_s,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                encode_workers=encode_workers or read("WEIR_ENCODE_WORKERS", int, 0, self.rank),
                compare_every_steps=(compare_every_steps
                                     or read("WEIR_COMPARE_EVERY_STEPS", int, 0, self.rank)),
                device=device_of(self._parameters), local_steps=optimizer is not None,
                labels=read("WEIR_LABELS"),
                caller_sums=self._framework is not None,
                **keys.settings(job_key, encrypt, unauthenticated))
            if join:
                self.session = join(job, options)
            elif peers:
                self.session = _connected(Session(job, self.rank, self.world, **options), peers)
            else:
                self.session = self._meet(job, options, meeting, fingerprint.of(
                    self._by_name, whole=isinstance(model, DistributedDataParallel),
                    equal=optimizer is None))
        self.rank, self.world = self.session.rank, self.session.world
        if optimizer is not None:
            self._local = LocalSteps(self._by_name, optimizer, self._all_ranks, self.rank)
            call_after_steps(optimizer, self._after_optimizer)
        attached.add(self)
        self._announce(agent, plan_file)

    def _framework_of(self, group, parameters, timeout_s):
        """The process group that sums where a plan leaves that to the framework, or None."""
        return group_of(group, parameters, timeout_s)

    def _meeting(self, place):
        """The ranks that attach this model, in the process group's store."""
        store = self._store = dist.distributed_c10d._get_default_store()
        count = _attach_counts[place] = _attach_counts.get(place, 0) + 1
        self._agreement = Agreement(store, f"weir/{place}/{count}")
        return Meeting(store, f"weir/{place}/{count}", self.rank, self.world)

    def _meet(self, job, options, meeting, model):
        """Returns a session that is connected to the other ranks of the meeting.

        model: a weir.fingerprint, which all must have in common.
        """
        if self.rank == 0:
            meeting.set("job", _not_taken(job))
        common = meeting.get("job").decode()
        if common != job and not common.startswith(f"{job}."):
            raise WeirError(f"rank 0 attaches as job '{common}', this rank as '{job}': set WEIR_JOB "
                            "to one name on all hosts", _lib.INVALID_ARGUMENT, self.rank)
        options.update(keys.from_store(meeting, "key", self.rank,
                                       {name: options[name] for name in keys.OPTIONS}))
        options["listen"] = addresses.choose(
            meeting, options["listen"],
            probes=not (options["transport"] or "").startswith("verbs"))
        session = Session(common, self.rank, self.world, **options)
        try:
            meeting.set(f"address/{self.rank}", f"{session.address} {model}")
            words = [word.rpartition(" ") for word in meeting.get_all("address")]
            fingerprint.check([text for *_, text in words], self.rank)
            meeting.connect(session, [address for address, *_ in words])
            return session
        except BaseException:
            session.close()
            raise

    def _announce(self, agent, plan_file):
        # libweir itself reports an agent that does not answer.
        if self.rank == 0 and not plan_file and not agent:
            say_once("dense", "no agent (WEIR_AGENT) and no plan file (WEIR_PLAN_FILE): "
                      "running dense")

    def before_forward(self, module, unused_inputs):
        """See Steps."""
        if module.training and torch.is_grad_enabled() and self._successor is None:
            self.synchronise()  # where the optimiser made no step, as a loss scaler may say
            self.begin_early()

    def begin_step(self):
        """See Steps."""
        self._await_end()
        if self._step_open or self._local is not None and self._local.resting:
            return
        super().begin_step()
        if self._local is None:
            return
        version = self.session.stats().plan_version
        if version != self._followed or self._local.unsettled:
            self._local.follow(Sync.of(self.plan()), self.session.scale_state, self._loss_scale)
            self._followed = version

    def _ends_behind(self):
        return self._local is None and super()._ends_behind()

    def _follow_loss_scale(self, scale):
        if self._local is not None and self._local.active:
            self._loss_scale = scale  # residuals are of parameters
        else:
            super()._follow_loss_scale(scale)

    @contextlib.contextmanager
    def _all_ranks(self):
        """A Communicator of all ranks; None where they have no store."""
        if self._store is None:
            yield None
            return
        stats = self.session.stats()
        name = f"{self.session.job}/ranks/{stats.epoch}/{stats.step}"
        with communicator(self._store, name, self.rank, self.world,
                          security=self.session.security) as group:
            yield group

    def take_over(self, store, regrouped, tensors=(), timeout_s=60.0):
        """See Steps. Ranks with local steps go back to their last synchronisation."""
        self._store, local = store, self._local
        if local is not None:
            local.retreat()
            if not local.active:  # a replacement
                local.follow(Sync.of(self.plan()), lambda unused_factor: None, None)
                self._followed = self.session.stats().plan_version
            tensors = [*tensors, *local.tensors()]
        super().take_over(store, regrouped, tensors, timeout_s)
        if local is not None:
            local.restart()

    def _after_optimizer(self):
        self.synchronise()

    def synchronise(self, now: bool = False) -> None:
        """Brings all ranks to equal parameters if that is due, or, on all ranks alike, `now`.

        After weir.attach(model, optimizer=optimizer) it is called where the plan wants it. To be
        called with now=True at the end of training, before ranks evaluate or save the model.
        """
        local = self._local
        if local is None:
            return
        if not now:
            if local.active and self._step_open:
                local.advance(self)
            return
        for _ in range(local.left()):
            local.steps = max(local.steps, 0)
            self.begin_step()
            if local.active:
                local.advance(self, now=True)

    def submit_named(self, names, flat):
        """Queues the mean over ranks of parameters' tensors, which `flat` holds in this order."""
        return self.submit(self._key(names, flat), flat)

    def tell_period(self, steps, overlap_steps, waited_s, moved_square, mean_square):
        """Reports a period of local steps to the controller."""
        if math.isfinite(moved_square) and math.isfinite(mean_square):
            self.session.report_period(steps, overlap_steps, waited_s, moved_square, mean_square)

    def end_period(self) -> bool:
        """Ends a step of the session; returns whether it is skipped."""
        self._finish_step()
        return bool(self.last_step_skipped)

    def _compared(self):
        return self._local.anchors() if self._local is not None and self._local.active \
            else super()._compared()

    def all_reduce(self, bucket):
        """The hook: queues the bucket and returns a future for its mean over all ranks."""
        if self._watch is not None:
            self._watch.on_hook(bucket.parameters())
        if bucket.index() == 0 and not (self._local is not None and self._local.active):
            self.end_pass()  # of the pass before
            self._divisor = self._ranks_with_input(bucket.buffer().device)
        self.begin_step()
        if self._local is not None and self._local.active:
            return self._hold(bucket, self._local)
        if bucket.is_last():
            self.end_with_pass()
        buffer = bucket.buffer()
        names = [self._name(p, bucket) for p in bucket.parameters()]
        if self._restored is None:
            return self.submit(self._key(names, buffer), buffer).future
        self.check_gradients(buffer, names[0])
        future = self._restored.hold(bucket, names)
        if bucket.is_last():
            if not self._restored.reduce(lambda n, flat: self.submit(self._key(n, flat), flat)):
                self._restored = None
        return future

    def leave_to(self, hook_state, hook):
        """Leaves the model, whose hook DDP cannot replace, to another hook from the next pass on.

        To be called between steps, on all ranks. The state can no longer be used.
        """
        self._successor = functools.partial(hook, hook_state)
        self.close()

    def _ranks_with_input(self, device):
        """In DDP's join(divide_by_initial_world_size=False), how many ranks have input for this step;
        otherwise None. All ranks call it in the order of DDP's own operations."""
        wrapper: Any = self._wrapper()
        join = getattr(wrapper, "_join_config", None)
        if join is None or not (join.enable and join.is_first_joinable) or \
                getattr(wrapper, "_divide_by_initial_world_size", True):
            return None
        found = torch.tensor([float(in_backward())], device=device)
        dist.all_reduce(found, group=wrapper.process_group)
        return int(found)

    def _hold(self, bucket, local):
        names = [self._name(p, bucket) for p in bucket.parameters()]
        self.check_gradients(bucket.buffer(), names[0])
        if bucket.index() == 0:
            self._skipped = False  # that was a period, and this step of the optimiser counts
        local.hold(names, bucket.index() == 0, at_end_of_backward)
        future = future_of(bucket.buffer())
        future.set_result(bucket.buffer())
        return future

    def watch(self, ddp_model):
        """From now on a step with gradients that stay local is an error; see weir.unreduced."""
        self._watch = DDPWatch(ddp_model, self.rank)
        self._keeps_gradients = not (ddp_model.gradient_as_bucket_view or ddp_model.static_graph)

    def local_gradients(self):
        """See Steps. DDP copies its buckets into the gradients after this step has ended."""
        if not (self._keeps_gradients and self._in_backward):
            return None
        return ((name, parameter.grad) for name, parameter in self._by_name.items())

    def close(self):
        """Leaves the job. Called at exit; safe to call twice."""
        if self._watch is not None:
            self._watch.close()
        super().close()

    def state_dict(self):
        """Returns residuals, codec states and the buckets of the last step, for a checkpoint."""
        if self._local is not None:
            self._local.settle(self)
        return {**super().state_dict(),
                "buckets": [[name for name, *_ in self._ranges[key]] for key in self._sizes],
                "local": self._local.state_dict() if self._local is not None else {}}

    def load_state_dict(self, state):
        """Restores state_dict() between steps. Parameters are matched by name.

        A new DDP model continues exactly as the saved one would have, unless it was saved after its
        very first step, when DDP had not rebuilt its buckets.
        """
        if not isinstance(state, dict) or "residuals" not in state:
            raise WeirError("load_state_dict() expected what state_dict() returned, found "
                            + ("a dictionary without 'residuals'" if isinstance(state, dict)
                               else type(state).__name__), _lib.INVALID_ARGUMENT, self.rank)
        super().load_state_dict(state)
        self._restored = RestoredBuckets(state["buckets"]) if state.get("buckets") else None
        if self._local is not None:
            self._local.load_state_dict(state.get("local") or {})

    def _key(self, names, buffer):
        identity = (buffer.dtype, *names)
        key = self._keys.get(identity)
        if key is None:
            self.check_gradients(buffer, names[0])
            parameters = [self._by_name[name] for name in names]
            key = self.define([(name, p.numel(), columns(p))
                               for name, p in zip(names, parameters)], buffer.dtype)
            # The definition dissolves buckets that held one of the parameters.
            self._keys = {other: known for other, known in self._keys.items()
                          if not set(names) & set(other[1:])}
            self._keys[identity] = key
        return key

    def _name(self, parameter, bucket):
        try:
            return self._names[id(parameter)]
        except KeyError:
            raise WeirError(
                f"bucket {bucket.index()} holds a parameter of shape {tuple(parameter.shape)} that "
                "is not in the model given to weir.attach", _lib.INVALID_ARGUMENT,
                self.rank) from None


def ddp_hook(state, bucket):
    """For DistributedDataParallel.register_comm_hook(state, weir.ddp_hook)."""
    if isinstance(bucket, tuple):
        raise WeirError("DistributedDataParallel's Python reducer (optimize_ddp='python_reducer', "
                        "for compiled autograd) has no buckets: leave compiled autograd off",
                        _lib.FAILED_PRECONDITION, state.rank)
    return state.all_reduce(bucket) if state._successor is None else state._successor(bucket)


def attach_replacement(ddp_model, store, *, epoch=None, expected=None, settle_s=5.0,
                       timeout_s=60.0, tensors=(), **options):
    """Does attach() for a process that replaces a lost rank. Returns (state, weir.Regrouped).

    The others call state.reform(expected=..., tensors=...) with `tensors` of the same shapes.
    `store`, `epoch`, `expected` and the times are those of weir.rejoin, options those of DDPState.
    DDP's constructor needs a process group. That of the lost rank is gone, so pass a group of this
    process alone. DDP also rebuilds its buckets after its first backward pass, and ranks must sum
    the same buckets, so run forward and backward twice before, on any input. Parameters, buffers
    and `tensors` are then copied from a rank that has them.
    """
    joined = []

    def join(job, session_options):
        session, found = regroup.rejoin(job, store, epoch=epoch, expected=expected,
                                        settle_s=settle_s, timeout_s=timeout_s, **session_options)
        joined.append(found)
        return session

    state = DDPState(ddp_model, rank=0, world=1, join=join, **options)
    try:
        state.take_over(store, joined[0], tensors, timeout_s)
        _register(ddp_model, state)
    except BaseException:
        state.close()
        raise
    return state, joined[0]


def attach_ddp(ddp_model, options):
    """Registers the hook on a DistributedDataParallel model; returns the state."""
    if options.get("optimizer") is not None:
        check(ddp_model, options["optimizer"])
    state = DDPState(ddp_model, **options)
    try:
        _register(ddp_model, state)
    except BaseException:
        state.close()
        raise
    return state


def _register(ddp_model, state):
    """Registers the hook, and lets steps begin at the forward pass."""
    try:
        ddp_model.register_comm_hook(state, ddp_hook)
    except RuntimeError as error:
        if "once" not in str(error):
            raise
        raise WeirError("DistributedDataParallel takes one communication hook, and this model has one: "
                        "leave register_comm_hook() out, or weir.attach", _lib.FAILED_PRECONDITION,
                        state.rank) from None
    state.watch(ddp_model)
    begin_with_forward(ddp_model, state)
