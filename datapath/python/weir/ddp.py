"""A communication hook for DistributedDataParallel, and its state.

The path of a bucket: DDP calls the hook as soon as a bucket's gradients are ready. The hook queues
weir_all_reduce on DDP's flat buffer and returns a future. While libweir encodes, sends and decodes,
the backward pass continues. A thread waits for the buckets in order and completes their futures. DDP
then copies the means into the gradients. When the pass ends, a callback on the autograd engine waits
for the last bucket, ends Weir's step, and lets backward() raise a failure as a WeirError that names
the rank at fault. (With a static graph, DDP's own callback comes first and waits for the futures.)

DDP over a subgroup of the ranks sums over that subgroup, as a separate job, whose name is the name of
the job, a dot and the ranks (where attach() is not given rank or world). A second model in a process is a separate job, too.

Residuals belong to parameters, by their names in the model, so they follow their parameters when
DDP rebuilds the buckets after the first iteration.

Mixed precision: gradients with a loss scale (torch.cuda.amp.GradScaler) are added to residuals of
earlier steps, which have the scale of those steps. Pass the scaler to attach(), and the residuals
are converted to its scale before each step. (Otherwise keep the scale constant, or train in
bfloat16, which needs no scale.) A step in which any rank meets NaN or infinity is delivered as NaN
on all ranks, which GradScaler recognises. Other training loops must check `state.last_step_skipped`
after backward() and skip the optimiser step.

Learning rate: residuals hold gradients, so they are applied at the rate of the step that delivers
them. Where that matters, call state.scale_state(old_rate / new_rate) after each change of the rate:
then they are applied at the rate of the step that they come from.

Environment, for arguments that attach() does not get:
  WEIR_AGENT               unix:/path or tcp:host:port of this node's agent
  WEIR_AGENT_TOKEN         for tcp agents
  WEIR_PLAN_FILE           static plan, used while no controller has sent one
  WEIR_JOB                 name of the run (else TORCHELASTIC_RUN_ID, else "training")
  WEIR_LISTEN              host:port of this rank's datapath; port 0: any; see weir.addresses
  WEIR_INTERFACE           name of the interface whose addresses are tried
  WEIR_PEERS               comma-separated host:port of all ranks, in rank order; replaces the store
  WEIR_TRANSPORT           auto (shared memory within a node, else TCP), shm or tcp, with options:
                           auto:connections=4,pacing=100M (weir.h lists them); default auto
  WEIR_TIMEOUT_S           deadline of one collective, default 60
  WEIR_ENCODE_WORKERS      threads that encode different buckets, at most 16; default 1
  WEIR_COMPARE_EVERY_STEPS steps between comparisons of the delivered sums; default 64, -1: never
  WEIR_COMPARE_PARAMETERS  1: compare the parameters of the model, too (CPU; equal hardware only)
  WEIR_JOB_KEY_FILE        file with the job's key, where no store provides it; see weir.keys
  WEIR_ENCRYPT             1: payloads are encrypted; equal on all ranks
  WEIR_UNAUTHENTICATED     1: no key, over any network
"""
import atexit
import itertools
import os
import sys
import threading
import weakref
import zlib

import torch
import torch.distributed as dist

from weir import _lib
from weir import addresses
from weir import keys
from weir import regroup
from weir._lib import WeirError
from weir.communicator import Communicator
from weir.futures import Completer
from weir.session import Session

_DTYPES = {torch.float32: _lib.FLOAT32, torch.float16: _lib.FLOAT16,
           torch.bfloat16: _lib.BFLOAT16}
CONNECT_TIMEOUT_S = 60.0
_attached = weakref.WeakSet()
_attach_counts = {}  # by job and ranks
_said = set()


def _say_once(key, message):
    if key not in _said:
        _said.add(key)
        print(f"weir: {message}", file=sys.stderr, flush=True)


def _columns(parameter):
    """Returns the length of a row, for codecs that use matrices; 0 for a vector."""
    if parameter.dim() < 2 or parameter.shape[0] == 0:
        return 0
    return parameter.numel() // parameter.shape[0]


def _ranks_of(group):
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


class _Delivery:
    """A bucket on its way, as an entry of a Completer.

    raises: whether a failure fails the future; otherwise the end of the backward pass raises it.
    """

    def __init__(self, session, request, buffer, host, raises):
        self._session, self._request, self._buffer, self._host = session, request, buffer, host
        self._raises = raises
        self.future = torch.futures.Future()
        self.done = threading.Event()
        self.error = None

    def settle(self):
        try:
            self._session.wait(self._request)
        except WeirError as error:
            self.error = error
        self._session = None  # so that the session closes when the state is dropped

    def complete(self):
        if self.error is not None:
            self._buffer.zero_()
        elif self._host is not self._buffer:
            self._buffer.copy_(self._host)
        if self.error is not None and self._raises:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self._buffer)
        self.done.set()


def _at_end_of_backward(function):
    """Lets the autograd engine call `function`. Returns False where no backward pass runs: in DDP's
    join(), a rank that has no input left calls the hook itself."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(function)
    except RuntimeError:
        return False
    return True


def _raiser(error):
    def fail():
        raise error
    return fail


class DDPState:
    """The state of the hook for one DistributedDataParallel model on one rank.

    model: the DDP model, or the module inside it. An initialised process group must provide rank,
    world and rendezvous, unless `peers` lists all ranks and `rank` is given. Arguments that are
    None are taken from the environment (module docstring).
    process_group: the ranks that sum; None: that of the DDP model, or the default group.
    job_key: 32 bytes, equal on all ranks; None: see weir.keys.
    scaler: the torch.cuda.amp.GradScaler of the training loop, or an object with its get_scale().
    The scale must be equal on all ranks, which it is when all skip the same steps.
    join: a function of (job, options of Session) that returns a connected Session. It replaces the
    arguments that describe the peers; see attach_replacement.
    """

    def __init__(self, model, *, job=None, rank=None, world=None, agent=None, agent_token=None,
                 plan_file=None, peers=None, listen=None, operation_timeout_s=None,
                 transport=None, scaler=None, encode_workers=None, join=None, job_key=None,
                 encrypt=None, unauthenticated=None, process_group=None):
        environment = os.environ.get
        module = getattr(model, "module", model)
        self._module = weakref.ref(module)
        self._names = {id(p): name for name, p in module.named_parameters()}
        # Names are looked up by identity, so the parameters must live as long as this table.
        self._parameters = list(module.parameters())
        peers = peers or [p for p in environment("WEIR_PEERS", "").split(",") if p]
        group = process_group or getattr(model, "process_group", None)
        numbered = rank is not None or world is not None
        self.rank = dist.get_rank(group) if rank is None else rank
        self.world = (len(peers) or dist.get_world_size(group)) if world is None else world
        self.last_step_skipped = False
        self._keys = {}
        self._sizes = {}       # bucket key -> elements, of the current or last step
        self._pending = []     # deliveries of the current backward pass
        self._in_backward = True  # false on a rank without input that calls the hook in join()
        self._completer = Completer()
        weakref.finalize(self, self._completer.close)
        self._step_open = False
        self._scaler = scaler
        self._loss_scale = None  # that of the residuals
        self._compare_parameters = environment("WEIR_COMPARE_PARAMETERS", "0") not in ("", "0")
        agent = environment("WEIR_AGENT") if agent is None else agent
        plan_file = environment("WEIR_PLAN_FILE") if plan_file is None else plan_file
        job = job or environment("WEIR_JOB") or environment("TORCHELASTIC_RUN_ID") or "training"
        if peers and len(peers) != self.world:
            raise WeirError(f"{len(peers)} peers for a world of {self.world}",
                            _lib.INVALID_ARGUMENT, self.rank)
        listen = listen or environment("WEIR_LISTEN")
        if peers:
            listen = listen or peers[self.rank]
        elif join:
            listen = addresses.alone(listen, self.rank)
        options = dict(
            listen=listen, agent=agent or None,
            agent_token=agent_token or environment("WEIR_AGENT_TOKEN"), plan_file=plan_file or None,
            transport=transport or environment("WEIR_TRANSPORT"),
            operation_timeout_s=operation_timeout_s or float(environment("WEIR_TIMEOUT_S", "0")),
            connect_timeout_s=CONNECT_TIMEOUT_S,
            encode_workers=encode_workers or int(environment("WEIR_ENCODE_WORKERS", "0")),
            compare_every_steps=int(environment("WEIR_COMPARE_EVERY_STEPS", "0")),
            **keys.settings(job_key, encrypt, unauthenticated))
        if group is not None and not (join or peers or numbered):
            if self.world < dist.get_world_size():
                job += "." + _name_of_ranks(_ranks_of(group))
        if join:
            self.session = join(job, options)
        else:
            self.session = self._join(job, options, peers)
        self.rank, self.world = self.session.rank, self.session.world
        _attached.add(self)
        self._announce(agent, plan_file)

    def _join(self, job, options, peers):
        """Returns a session connected to `peers`, or to the ranks in the process group's store."""
        if not peers:
            store = dist.distributed_c10d._get_default_store()
            count = _attach_counts[job] = _attach_counts.get(job, 0) + 1
            prefix = f"weir/{job}/{count}"
            job = self._job_of_its_own(store, f"{prefix}/job", job)
            options.update(keys.from_store(store, f"{prefix}/key", self.rank,
                                           {name: options[name] for name in keys.OPTIONS}))
            options["listen"] = addresses.choose(
                store, prefix, self.rank, self.world, options["listen"],
                probes=not (options["transport"] or "").startswith("verbs"))
        session = Session(job, self.rank, self.world, **options)
        try:
            if not peers:
                addresses.publish(store, prefix, self.rank, session.address)
                peers = addresses.peers(store, prefix, self.rank, self.world)
            session.connect(peers)
        except BaseException:
            session.close()
            raise
        return session

    def _job_of_its_own(self, store, key, job):
        """Returns `job`, with a number if rank 0 has attached another model by that name."""
        if self.rank == 0:
            taken = {state.session.job for state in _attached if state.session.is_open()}
            names = itertools.chain([job], (f"{job}.{n}" for n in itertools.count(2)))
            store.set(key, next(name for name in names if name not in taken))
        return store.get(key).decode()

    def _announce(self, agent, plan_file):
        # libweir itself reports an agent that does not answer.
        if self.rank == 0 and not plan_file and not agent:
            _say_once("dense", "no agent (WEIR_AGENT) and no plan file (WEIR_PLAN_FILE): "
                      "running dense")

    # One step.

    def begin_step(self):
        """Begins a step unless one is open. After attach(), each forward pass calls it."""
        if not self._step_open:
            if self._scaler is not None:
                self._follow_loss_scale(float(self._scaler.get_scale()))
            self.session.step_begin()
            self._step_open = True
            if self._compare_parameters:
                self.session.report_parameters(
                    [(p.data_ptr(), p.numel() * p.element_size()) for p in self._parameters
                     if p.device.type == "cpu" and p.is_contiguous()])

    def _follow_loss_scale(self, scale):
        """Converts the residuals of earlier steps to the loss scale of the next one."""
        if self._loss_scale is not None and scale != self._loss_scale:
            self.session.scale_state(scale / self._loss_scale)
        self._loss_scale = scale

    def scale_state(self, factor):
        """Scales residuals for gradients that are `factor` times as large from the next step on.

        See weir_scale_state.
        """
        self.session.scale_state(factor)

    def all_reduce(self, bucket):
        """The hook: queues the bucket and returns a future for its mean over all ranks."""
        if self._pending and not self._in_backward and bucket.index() == 0:
            self._finish_step()  # there was no end of a backward pass to do it
        if self._pending and bucket.index() == 0:
            raise WeirError("the previous backward pass raised an error after its first bucket; "
                            "the step cannot be finished on this rank", _lib.FAILED_PRECONDITION,
                            self.rank)
        self.begin_step()
        buffer = bucket.buffer()
        key = self._key(bucket, buffer)
        host = self._host_buffer(buffer)
        if not self._pending:
            self._sizes = {}
            self._in_backward = _at_end_of_backward(self._finish_step)
        request = self.session.all_reduce(key, host.data_ptr(), 1.0 / self.world)
        delivery = _Delivery(self.session, request, buffer, host, raises=not self._in_backward)
        self._pending.append(delivery)
        self._completer.put(delivery)
        self._sizes[key] = buffer.numel()
        return delivery.future

    def _finish_step(self):
        pending, self._pending = self._pending, []
        for delivery in pending:
            delivery.done.wait()  # as long as its operation's deadline allows
        failure = next((d.error for d in pending if d.error is not None), None)
        self._step_open = False
        try:
            self.last_step_skipped = self.session.step_end()
        except WeirError as error:
            failure = failure or error
        if failure is not None and self._in_backward:
            # Raised later, so that DDP ends the iteration properly and can begin another one.
            _at_end_of_backward(_raiser(failure))

    def _key(self, bucket, buffer):
        parameters = bucket.parameters()
        identity = (buffer.dtype, tuple(map(id, parameters)))
        key = self._keys.get(identity)
        if key is None:
            names = [self._name(p, bucket) for p in parameters]
            if buffer.layout != torch.strided:
                raise WeirError(f"the gradient of '{names[0]}' is of layout {buffer.layout}, expected "
                                "dense gradients: make the embedding with sparse=False, or leave "
                                "this model to DDP over the process group 'weir'",
                                _lib.INVALID_ARGUMENT, self.rank)
            if buffer.dtype not in _DTYPES:
                raise WeirError(f"the gradient of '{names[0]}' is of {buffer.dtype}, expected float32, "
                                "float16 or bfloat16: leave this model to DDP over the process "
                                "group 'weir', which sums float64, too",
                                _lib.INVALID_ARGUMENT, self.rank)
            key = self.session.define_bucket(
                [(name, p.numel(), _columns(p)) for name, p in zip(names, parameters)],
                _DTYPES[buffer.dtype])
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

    def _host_buffer(self, buffer):
        """Returns the bucket in host memory, which is a copy for buffers of an accelerator."""
        return buffer if buffer.device.type == "cpu" else buffer.to("cpu")

    def reform(self, store=None, *, expected=None, settle_s=5.0, timeout_s=60.0, tensors=()):
        """Continues with the remaining ranks, after backward() has raised a WeirError.

        The ranks find each other in `store` (None: that of the process group); see weir.regroup.
        Parameters and buffers of the model, and also `tensors` (those of the optimiser, with equal
        shapes on all ranks), become those of a rank that has not applied the step that must be
        repeated. The gradients of that step are invalid. Returns a weir.Regrouped. DDP itself
        continues as long as it needs no collective of its own process group: attach to a model
        without buffers, or with broadcast_buffers=False, and without find_unused_parameters.
        """
        store = store or dist.distributed_c10d._get_default_store()
        self._pending, self._step_open = [], False
        found = regroup.reform(self.session, store, expected=expected, settle_s=settle_s,
                               timeout_s=timeout_s)
        self.rank, self.world = found.rank, found.world
        self.take_over(store, found, tensors, timeout_s)
        return found

    def take_over(self, store, regrouped, tensors=(), timeout_s=60.0):
        """Copies model and `tensors` from rank model_source. All ranks of the job must call it."""
        module = self._module()
        with torch.no_grad():
            share(store, self.session.job, regrouped,
                  [*module.parameters(), *module.buffers(), *tensors], timeout_s,
                  self.session.security)

    # Around the steps.

    def report_loss(self, loss):
        """Tells the controller the loss of the current step."""
        self.session.report_loss(float(loss))

    def stats(self):
        """Counters of this rank (weir.Stats)."""
        return self.session.stats()

    def plan(self):
        """The active plan as a dictionary."""
        return self.session.plan()

    def choices(self):
        """Returns the choices of the last step's buckets: [(elements, choice)], largest first.

        A choice is a weir.v1.Choice as a dictionary.
        """
        plan = self.plan()
        listed = {int(b["bucket"], 16): b["choice"] for b in plan.get("buckets", [])}
        return sorted(((elements, listed.get(key, plan.get("fallback") or {}))
                       for key, elements in self._sizes.items()), key=lambda c: -c[0])

    def state_dict(self):
        """Returns this rank's residuals and codec states, to be saved with its checkpoint."""
        state = self.session.export_state()
        return {"residuals": torch.frombuffer(bytearray(state), dtype=torch.uint8)
                if state else torch.empty(0, dtype=torch.uint8), "loss_scale": self._loss_scale}

    def load_state_dict(self, state):
        """Restores state_dict() between steps. Parameters are matched by name."""
        self.session.import_state(state["residuals"].numpy().tobytes())
        self._loss_scale = state.get("loss_scale", self._loss_scale)

    def close(self):
        """Leaves the job. Called at exit; safe to call twice."""
        self.session.close()
        _attached.discard(self)


def share(store, job, regrouped, tensors, timeout_s=60.0, security=None):
    """Copies the `tensors` (equal shapes) of rank model_source to every rank of a regrouped job.

    security: that of the session."""
    rank, world = regrouped.rank, regrouped.world
    name = f"{job}/share/{regrouped.epoch}"
    with Communicator(name, rank, world, operation_timeout_s=timeout_s, listen=addresses.alone(),
                      connect_timeout_s=timeout_s,
                      transport=os.environ.get("WEIR_TRANSPORT"), **(security or {})) as group:
        group.connect(regroup.exchange(store, f"weir/{name}", rank, world, group.address,
                                       timeout_s))
        for tensor in tensors:
            host = tensor.detach().to("cpu", copy=True).contiguous()
            operation = group.broadcast(host.data_ptr(), host.numel() * host.element_size(),
                                        regrouped.model_source)
            group.wait(operation)
            group.release(operation)
            if rank != regrouped.model_source:
                tensor.detach().copy_(host)


def ddp_hook(state, bucket):
    """For DistributedDataParallel.register_comm_hook(state, weir.ddp_hook)."""
    return state.all_reduce(bucket)


def attach(ddp_model, **options):
    """Registers Weir on a DistributedDataParallel model. Options are those of DDPState.

    Returns the state. Steps then begin at the forward pass, so that Weir can distinguish computing
    from waiting. With register_comm_hook alone, a step begins at its first bucket.
    """
    state = DDPState(ddp_model, **options)
    _register(ddp_model, state)
    return state


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


def _register(ddp_model, state):
    """Registers the hook, and lets steps begin at the forward pass."""
    ddp_model.register_comm_hook(state, ddp_hook)
    reference = weakref.ref(state)

    def before_forward(module, unused_inputs):
        current = reference()
        if current is not None and module.training and torch.is_grad_enabled():
            current.begin_step()

    ddp_model.register_forward_pre_hook(before_forward)


def report_loss(loss):
    """Reports the loss of the current step on every attached model of this process."""
    for state in list(_attached):
        state.report_loss(loss)


@atexit.register
def _close_all():
    for state in list(_attached):
        state.close()
