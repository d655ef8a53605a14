# SPDX-License-Identifier: Apache-2.0
"""The steps of one model on one rank: what its hooks share, whatever wraps the model.

A hook hands over a flat buffer of gradients with the key of its bucket. How libweir gets at a buffer
of an accelerator is in weir.staging. A thread waits for the deliveries in order and completes their
futures. When the backward pass ends, a callback on the
autograd engine waits for the last of them, ends Weir's step, and raises a failure as a WeirError
that names the rank at fault. Where the framework sums all buckets on an accelerator, nothing waits
there, as without Weir: the step ends behind the pass, on that thread, at the latest before the next
pass reduces its first bucket, which raises a failure then. (The engine runs a reentrant checkpoint as a pass within the pass. So
the hooks, which are in weir.ddp and weir.fsdp, choose the pass with whose end the step ends.)
"""
import atexit
import contextlib
import sys
import threading
import weakref
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
import torch.distributed as dist

from weir import _lib
from weir import addresses
from weir import environment
from weir import regroup
from weir._lib import WeirError
from weir.communicator import Communicator
from weir.deliveries import Delivery, StepEnd
from weir.framework import FrameworkDelivery, FrameworkGroup
from weir.futures import Completer, Launch
from weir.non_finite import SEARCHED_STEPS, SkippedStep, first_non_finite
from weir.session import Session, Stats
from weir.staging import Transfer, way_of

DTYPES = {torch.float32: _lib.FLOAT32, torch.float16: _lib.FLOAT16,
          torch.bfloat16: _lib.BFLOAT16}
_CLOSE_S = 5.0  # how long close() waits for other threads
attached: "weakref.WeakSet[Steps]" = weakref.WeakSet()  # the states of this process


def columns(parameter):
    """Returns the length of a row, for codecs that use matrices; 0 for a vector."""
    if parameter.dim() < 2 or parameter.shape[0] == 0:
        return 0
    return parameter.numel() // parameter.shape[0]


def reduced_parameters(model):
    """Returns the parameters of the module inside a wrapper by name, without those that
    DistributedDataParallel was told to ignore. These may differ between ranks in any way."""
    ignored = set(getattr(model, "parameters_to_ignore", ()))
    return {name: parameter for name, parameter in getattr(model, "module", model).named_parameters()
            if name not in ignored and f".{name}" not in ignored}  # the latter in PyTorch 1.13


def at_end_of_backward(function):
    """Lets the autograd engine call `function`. Returns False where no backward pass runs: in DDP's
    join(), a rank that has no input left calls the hook itself."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(function)
    except RuntimeError:
        return False
    return True


def in_backward():
    """Whether the autograd engine runs a backward pass on this thread."""
    return at_end_of_backward(lambda: None)


def _raiser(error):
    def fail():
        raise error
    return fail


class Steps:
    """Steps, residuals and deliveries of one model. A subclass joins the job and sets `session`.

    module: the module whose parameters are trained, without its wrapper.
    scaler, compare_parameters: see DDPState.
    """

    session: Session
    rank: int
    world: int

    def __init__(self, module, scaler=None, compare_parameters=False):
        self._module = weakref.ref(module)
        self._parameters = list(module.parameters())
        self._skipped: Union[bool, SkippedStep] = False
        self._keys = {}
        self._ranges = {}      # bucket key -> its ranges, as given to define()
        self._sizes = {}       # bucket key -> elements, of the current or last step
        self._pending = []     # deliveries of the current backward pass
        self._in_backward = True  # false on a rank without input that calls the hook in join()
        self._divisor: Optional[int] = None  # of sums in this step, if not the number of ranks
        self._ending = False      # whether the step ends with the backward pass that runs
        self._completer = Completer()
        self._launches = Completer()
        self._session_calls = threading.Lock()  # those of other threads, and those beside them
        weakref.finalize(self, self._completer.close)
        weakref.finalize(self, self._launches.close)
        self._step_open = False
        self._unended: Optional[StepEnd] = None  # of the last step, behind its pass
        self._handed_out = False  # whether the gradients of a failed step were used
        self._closed = False
        self._framework: Optional[FrameworkGroup] = None  # sums where the plan says so
        self._scaler = scaler
        self._loss_scale = None  # that of the residuals
        self._compare_parameters = compare_parameters
        self._agreement = None  # a weir.non_finite.Agreement, where the ranks share a store
        self._searches_left = 0  # steps in which gradients are searched for NaN and infinity
        self._searched = False   # whether those of this step were
        self._found = None       # the first parameter with one

    # One step.

    # Newer versions of DDP refer to it, but a copy of a model is not attached, as ModuleHook says.
    def __deepcopy__(self, unused_memo):
        return None

    def __reduce__(self):
        return type(None), ()

    @property
    def last_step_skipped(self) -> Union[bool, SkippedStep]:
        """False, or a SkippedStep if a rank met NaN or infinity in the last step, for whose end this
        waits. Raises the WeirError of a step that failed behind its pass."""
        self._await_end()
        return self._skipped

    def before_forward(self, module, unused_inputs):
        """Begins a step with the forward pass of a training step."""
        if module.training and torch.is_grad_enabled():
            self.begin_early()

    def begin_early(self) -> None:
        """Does begin_step() without waiting: if the last step has not ended yet, its end does it."""
        end = self._unended
        if end is not None and not end.ended.is_set():
            end.begins = True  # if that comes too late, the first bucket begins the step
        else:
            self.begin_step()

    def begin_step(self) -> None:
        """Begins a step unless one is open. After attach(), each forward pass calls it."""
        self._await_end()
        self._begin_step()

    def _begin_step(self):
        if not self._step_open:
            if self._scaler is not None:
                self._follow_loss_scale(float(self._scaler.get_scale()))
            self.session.step_begin()
            self._step_open = True
            if self._compare_parameters:
                self.session.report_parameters(
                    [(p.data_ptr(), p.numel() * p.element_size()) for p in self._compared()
                     if p.device.type == "cpu" and p.is_contiguous()])

    def _compared(self):
        """The tensors that must be equal on all ranks."""
        return self._parameters

    def _follow_loss_scale(self, scale):
        """Converts the residuals of earlier steps to the loss scale of the next one."""
        if self._loss_scale is not None and scale != self._loss_scale:
            self.session.scale_state(scale / self._loss_scale)
        self._loss_scale = scale

    def scale_state(self, factor: float) -> None:
        """Scales residuals for gradients that are `factor` times as large from the next step on.

        See weir_scale_state.
        """
        self._await_end()
        self.session.scale_state(factor)

    def check_gradients(self, buffer, name):
        """Raises a WeirError that names the parameter, for gradients that no bucket can hold."""
        if buffer.layout != torch.strided:
            raise WeirError(f"the gradient of '{name}' is of layout {buffer.layout}, expected "
                            "dense gradients: make the embedding with sparse=False, or leave this "
                            "model to DDP over the process group 'gloo'",
                            _lib.INVALID_ARGUMENT, self.rank)
        if buffer.dtype not in DTYPES:
            raise WeirError(f"the gradient of '{name}' is of {buffer.dtype}, expected float32, "
                            "float16 or bfloat16: leave this model to DDP over the process group "
                            "'weir', which sums float64, too", _lib.INVALID_ARGUMENT, self.rank)

    def define(self, ranges, dtype):
        """Defines the bucket of these (name, elements, columns) ranges and returns its key."""
        with self._session_calls:
            key = self.session.define_bucket(ranges, DTYPES[dtype])
        self._ranges[key] = ranges
        return key

    def _scale(self):
        """The factor that makes a mean of a sum."""
        return 1.0 / (self._divisor or self.world)

    def submit(self, key, buffer):
        """Queues the mean of `buffer` over all ranks, in place, and returns its delivery.

        A bucket that is copied to the host is queued by a thread that waits until it is there, and
        later buckets behind it, so that all ranks queue them in the same order.
        """
        return self._submit(key, buffer, self._enter(key, buffer))

    def _submit(self, key, buffer, needs):
        if needs:
            return self._sum_by_framework(
                key, buffer, needs, buffer,
                lambda group: group.sum(buffer, self._scale(), needs))
        way = way_of(buffer, to_host=self._searches_left > 0)
        delivery = Delivery(self.session, buffer, way, raises=not self._in_backward)
        if not isinstance(way, Transfer) and self._launches.settled():
            self._begin(delivery, key)
            self._completer.put(delivery)
        else:
            self._launches.put(Launch(lambda: self._begin_later(delivery, key, way)))
        self._pending.append(delivery)
        return delivery

    def _enter(self, key, buffer):
        """Begins a step, if none is open, with this bucket, which will be put into _pending. Returns
        caller_sum_needs()."""
        self.begin_step()
        if not self._pending:
            self._sizes = {}
            self._in_backward = in_backward()
        self._sizes[key] = buffer.numel()
        if self._framework is None:
            return 0
        with self._session_calls:
            return self.session.caller_sum_needs(key)

    def _sum_by_framework(self, key, buffer, needs, result, launch):
        """Lets the job's own process group sum the bucket, by launch(group), and returns its delivery.

        The group is given its work here, in the order of the hooks: it may be used elsewhere, and
        all ranks must use it in the same order. result: see FrameworkDelivery.start.
        """
        if self._searches_left > 0:
            self._search(key, buffer)
        group = self._framework
        assert group is not None
        delivery = FrameworkDelivery(self.session, group, key, buffer, needs,
                                     raises=not self._in_backward)
        if not delivery.later:
            self._await_launches()
        later = delivery.copying or not self._launches.settled()

        def begin():
            delivery.arrive()
            with self._session_calls:
                delivery.begin()
        if not later:
            begin()
        delivery.start(lambda: launch(group), result)
        if later:
            self._launches.put(Launch(lambda: self._complete_after(delivery, begin)))
        else:
            self._completer.put(delivery)
        self._pending.append(delivery)
        return delivery

    def _complete_after(self, delivery, begin):
        try:
            begin()
        except Exception as error:
            delivery.fail(error)
        self._completer.put(delivery)

    def _await_launches(self, timeout_s=None):
        """Waits for the operations that have to begin first."""
        if not self._launches.settled():
            begun = threading.Event()
            self._launches.put(Launch(begun.set))
            begun.wait(timeout_s)

    def _begin(self, delivery, key):
        if self._searches_left > 0:
            self._search(key, delivery.used)
        with self._session_calls:
            delivery.begin(key, self._scale())

    def _begin_later(self, delivery, key, way):
        try:
            if isinstance(way, Transfer):
                way.arrived()
            self._begin(delivery, key)
        except Exception as error:
            delivery.fail(error)
        self._completer.put(delivery)

    def _search(self, key, buffer):
        self._searched = True
        ranges = self._ranges[key]
        pieces = buffer.flatten().split([elements for _, elements, *_ in ranges])
        self._found = self._found or first_non_finite(
            (name, piece) for (name, *_), piece in zip(ranges, pieces))

    def local_gradients(self):
        """(name, gradient) pairs that no sum has overwritten yet, at the end of a backward pass;
        None where there are none, equally on all ranks."""
        return None

    def _explain_skipped_step(self, local_gradients):
        """Returns a SkippedStep, and lets rank 0 say what it knows."""
        gradients = None if self._searched else local_gradients()
        known = self._searched or gradients is not None
        if gradients is not None:
            self._found = first_non_finite(gradients)
        stats = self.session.stats()
        where: Tuple[Optional[int], Optional[str]] = (None, None)
        if known and self._agreement is not None:
            where = self._agreement.reach(stats.step, self.rank, self.world, self._found)
        elif self._found is not None:
            where = self.rank, self._found
        if self._found is not None and where[0] in (None, self.rank):
            self.session.report_non_finite(self._found)
        skipped = SkippedStep(stats.step, *where)
        if not known:
            self._searches_left = SEARCHED_STEPS
        if self.rank == 0:
            more = "" if known else (f"; the next {SEARCHED_STEPS} steps are searched for the rank "
                                     "and the parameter")
            print(f"weir: {skipped}{more}", file=sys.stderr, flush=True)
        return skipped

    def end_with_pass(self) -> None:
        """Lets the step end with the backward pass that runs now, unless that is so already."""
        if not self._ending:
            self._ending = at_end_of_backward(self.end_pass)

    def end_pass(self) -> None:
        """Ends the step of a backward pass, if it has begun to reduce.

        The engine calls it, but not after a pass that raised an error, and not in DDP's join() on a
        rank without input. There the next pass does, so that all ranks end the step.
        """
        self._ending = False
        if self._pending:
            self._finish_step()

    def _finish_step(self):
        pending, self._pending = self._pending, []
        if pending and self._ends_behind() and all(delivery.deferred for delivery in pending):
            self._unended = end = StepEnd(self, pending)
            if self._launches.settled():
                self._completer.put(end)
            else:  # behind those that are yet to be put there
                self._launches.put(Launch(lambda: self._completer.put(end)))
            return
        for delivery in pending:
            delivery.done.wait()  # as long as its operation's deadline allows
        failure = self._conclude(pending, self.local_gradients)
        if failure is not None and self._in_backward:
            # Raised later, so that DDP ends the iteration properly and can begin another one.
            at_end_of_backward(_raiser(failure))

    def _conclude(self, pending, local_gradients):
        """Ends the session's step, whose deliveries are settled; returns the failure."""
        failure = next((d.error for d in pending if d.error is not None), None)
        self._step_open = False
        try:
            skipped = self.session.step_end()
            self._skipped = self._explain_skipped_step(local_gradients) if skipped else False
        except WeirError as error:
            failure = failure or error
        self._searches_left = max(0, self._searches_left - self._searched)
        self._searched, self._found = False, None
        return failure

    def _ends_behind(self):
        """Whether steps may end behind their pass. A loss scaler waits for the gradients anyway, and
        residuals have its scale when a step begins."""
        return self._scaler is None

    def end_behind(self, pending):
        """See StepEnd; returns the failure."""
        with self._session_calls:
            if self._closed:
                return None
            failure = self._conclude(pending, lambda: None)  # the gradients were used
            self._handed_out = self._handed_out or failure is not None
            return failure

    def begin_behind(self):
        """See StepEnd."""
        with self._session_calls:
            if not self._closed:
                self._begin_step()

    def _await_end(self):
        """Waits for the end of the last step, and raises its failure once."""
        end = self._unended
        if end is None:
            return
        end.ended.wait()
        self._unended = None
        if end.failure is not None:
            raise end.failure

    def reform(self, store=None, *, expected=None, settle_s=5.0, timeout_s=60.0, tensors=()):
        """Continues with the remaining ranks, after backward() has raised a WeirError.

        The ranks find each other in `store` (None: that of the process group); see weir.regroup.
        Parameters and buffers of the model, and also `tensors` (those of the optimiser, with equal
        shapes on all ranks), become those of a rank that has not applied the step that must be
        repeated. The gradients of that step are invalid. Returns a weir.Regrouped. DDP itself
        continues as long as it needs no collective of its own process group: attach to a model
        without buffers, or with broadcast_buffers=False, and without find_unused_parameters.
        """
        with contextlib.suppress(WeirError):
            self._await_end()
        if self._handed_out:
            raise WeirError("the sum of a step failed after its gradients were used, so no rank's "
                            "model is known to be right: restart from a checkpoint",
                            _lib.FAILED_PRECONDITION, self.rank)
        store = store or dist.distributed_c10d._get_default_store()
        self._await_launches(timeout_s)  # no bucket of the broken step may begin in the new mesh
        self._framework = None  # its group has the lost rank
        self._pending, self._step_open, self._ending = [], False, False
        self._agreement = None  # replacements of lost ranks may use another store
        found = regroup.reform(self.session, store, expected=expected, settle_s=settle_s,
                               timeout_s=timeout_s)
        self.rank, self.world = found.rank, found.world
        self.take_over(store, found, tensors, timeout_s)
        return found

    def take_over(self, store, regrouped, tensors=(), timeout_s=60.0):
        """Copies model and `tensors` from rank model_source. All ranks of the job must call it."""
        module = self._module()
        if module is None:
            raise WeirError("the model is gone", _lib.FAILED_PRECONDITION, self.rank)
        with torch.no_grad():
            share(store, self.session.job, regrouped,
                  [*module.parameters(), *module.buffers(), *tensors], timeout_s,
                  self.session.security)

    # Around the steps.

    def report_loss(self, loss: float) -> None:
        """Tells the controller the loss of the current step."""
        loss = float(loss)
        with self._session_calls:
            self.session.report_loss(loss)

    def stats(self) -> Stats:
        """Counters of this rank (weir.Stats)."""
        return self.session.stats()

    def plan(self) -> Dict[str, Any]:
        """The active plan as a dictionary."""
        with self._session_calls:
            return self.session.plan()

    def choices(self) -> List[Tuple[int, Dict[str, Any]]]:
        """Returns the choices of the last step's buckets: [(elements, choice)], largest first.

        A choice is a weir.v1.Choice as a dictionary.
        """
        plan = self.plan()
        listed = {int(b["bucket"], 16): b["choice"] for b in plan.get("buckets", [])}
        return sorted(((elements, listed.get(key, plan.get("fallback") or {}))
                       for key, elements in self._sizes.items()), key=lambda c: -c[0])

    def state_dict(self) -> Dict[str, Any]:
        """Returns this rank's residuals and codec states, to be saved with its checkpoint."""
        self._await_end()
        state = self.session.export_state()
        return {"residuals": torch.frombuffer(bytearray(state), dtype=torch.uint8)
                if state else torch.empty(0, dtype=torch.uint8), "loss_scale": self._loss_scale}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restores state_dict() between steps. Parameters are matched by name."""
        self._await_end()
        self.session.import_state(state["residuals"].numpy().tobytes())
        self._loss_scale = state.get("loss_scale", self._loss_scale)

    def close(self) -> None:
        """Leaves the job. Called at exit; safe to call twice."""
        end, framework = self._unended, self._framework
        if end is not None and framework is not None:
            end.ended.wait(framework.timeout_s + _CLOSE_S)  # its sums have that deadline themselves
        held = self._session_calls.acquire(timeout=_CLOSE_S)
        self._closed = True
        if held:
            self._session_calls.release()
        self.session.close()
        attached.discard(self)


@contextlib.contextmanager
def communicator(store, name, rank, world, timeout_s=60.0, security=None):
    """A Communicator of ranks that meet in a store by a `name` that was never used; security: as Session's."""
    with Communicator(name, rank, world, operation_timeout_s=timeout_s,
                      connect_timeout_s=timeout_s, listen=addresses.alone(),
                      transport=environment.read("WEIR_TRANSPORT"), **(security or {})) as group:
        group.connect(regroup.exchange(store, f"weir/{name}", rank, world, group.address,
                                       timeout_s))
        yield group


def share(store, job, regrouped, tensors, timeout_s=60.0, security=None):
    """Copies the `tensors` (equal shapes) of rank model_source to every rank of a regrouped job.

    security: that of the session."""
    rank, name = regrouped.rank, f"{job}/share/{regrouped.epoch}"
    with communicator(store, name, rank, regrouped.world, timeout_s, security) as group:
        for tensor in tensors:
            host = tensor.detach().to("cpu", copy=True).contiguous()
            group.finish(group.broadcast(host.data_ptr(), host.numel() * host.element_size(),
                                         regrouped.model_source))
            if rank != regrouped.model_source:
                tensor.detach().copy_(host)


class ModuleHook:
    """A hook of a module that calls a method as long as its object lives.

    Models are copied and pickled (averaged weights, checkpoints of whole modules). What is attached
    to the original is not the copy's, so a hook in a copy does nothing.
    """

    def __init__(self, method=None):
        self._method = None if method is None else weakref.WeakMethod(method)

    def __call__(self, *arguments):
        method = None if self._method is None else self._method()
        return None if method is None else method(*arguments)

    def __deepcopy__(self, unused_memo):
        return ModuleHook()

    def __reduce__(self):
        return ModuleHook, ()


def begin_with_forward(model, state):
    """Lets steps begin at the forward pass, so that Weir can tell computing from waiting."""
    model.register_forward_pre_hook(ModuleHook(state.before_forward))


def report_loss(loss: float) -> None:
    """Reports the loss of the current step on every attached model of this process."""
    for state in list(attached):
        state.report_loss(loss)


@atexit.register
def _close_all():
    for state in list(attached):
        state.close()
