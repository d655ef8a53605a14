# SPDX-License-Identifier: Apache-2.0
"""One rank's libweir session as a Python object. Knows nothing of torch."""
import collections
import ctypes
import json
import os
from typing import Optional

from weir import _lib
from weir import environment
from weir._lib import WeirError

ERROR_BYTES = 2048

Stats = collections.namedtuple(
    "Stats", "step plan_version bytes_sent steps_skipped agent_connected last_step_s "
             "last_exposed_s peers_shared_memory model_source epoch next_step replicas_compared "
             "unauthenticated_peers")


def _bytes(text):
    return None if text is None else str(text).encode()


class Session:
    """Joins one rank of a job: create, connect, define buckets, then steps.

    Only one thread may call it at a time. Failures raise WeirError with the library's message,
    which names the rank or peer at fault. A session is closed when nothing refers to it any more.
    """

    def __init__(self, job, rank, world, *, listen=None, agent=None, agent_token=None,
                 plan_file=None, transport=None, operation_timeout_s=0.0, connect_timeout_s=0.0,
                 operation_timeout_floor_s=0.0, epoch=0, encode_workers=0, compare_every_steps=0,
                 job_key=None, encrypt=False, unauthenticated=False, device=None,
                 local_steps=False, labels=None, caller_sums=False):
        self._library = _lib.library()
        self.job = environment.check_job(job, rank)
        self.rank = rank
        self.world = world
        self.security = dict(job_key=job_key, encrypt=encrypt, unauthenticated=unauthenticated)
        self._handle: Optional[ctypes.c_void_p] = ctypes.c_void_p()
        self._process = os.getpid()
        options = _lib.Options(
            ctypes.sizeof(_lib.Options), _bytes(job), rank, world, _bytes(transport),
            _bytes(listen), _bytes(agent), _bytes(agent_token), _bytes(plan_file),
            operation_timeout_s, connect_timeout_s, operation_timeout_floor_s, epoch,
            encode_workers, compare_every_steps, job_key, len(job_key or b""), encrypt,
            unauthenticated, None if device is None else ctypes.pointer(ctypes.c_int32(device)),
            local_steps, _bytes(labels), caller_sums)
        error = ctypes.create_string_buffer(ERROR_BYTES)
        status = self._library.weir_session_create(ctypes.byref(options),
                                                   ctypes.byref(self._handle), error, ERROR_BYTES)
        if status != _lib.OK:
            self._handle = None
            words = error.value.decode(errors="replace") or self._words(status)
            raise WeirError(words, status, rank)

    def _words(self, status):
        return self._library.weir_strerror(status).decode()

    def _open_handle(self):
        if not self._handle:
            raise WeirError("the session is closed", _lib.FAILED_PRECONDITION, self.rank)
        return self._handle

    def _check(self, status):
        if status != _lib.OK:
            words = self._library.weir_last_error(self._handle).decode(errors="replace")
            raise WeirError(words or self._words(status), status, self.rank)

    def is_open(self):
        """False after close()."""
        return bool(self._handle)

    @property
    def address(self):
        """The address at which peers reach this rank: "host:port"."""
        return self._library.weir_session_address(self._open_handle()).decode()

    def connect(self, addresses):
        """Connects to all ranks; addresses[r] is rank r's address. Every rank must call it."""
        array = (ctypes.c_char_p * len(addresses))(*[a.encode() for a in addresses])
        self._check(self._library.weir_session_connect(self._open_handle(), array,
                                                       len(addresses)))

    def interrupt_connect(self):
        """Ends connect(), which runs in another thread, with an error. Thread-safe, except for close()."""
        self._check(self._library.weir_session_interrupt_connect(self._open_handle()))

    def reform(self, epoch, rank, world, listen=None):
        """Leaves the mesh and listens for a new one, as `rank` of `world`. connect() must follow.

        Allowed after a failure or between steps; see weir_session_reform. weir.reform lets ranks
        find each other.
        """
        mesh = _lib.Mesh(ctypes.sizeof(_lib.Mesh), epoch, rank, world, _bytes(listen))
        self._check(self._library.weir_session_reform(self._open_handle(), ctypes.byref(mesh)))
        self.rank, self.world = rank, world

    def define_bucket(self, parameters, dtype=_lib.FLOAT32):
        """Returns the key of the bucket that consists of these parameters in this order.

        parameters: (name, elements) pairs, or (name, elements, columns) for matrices, row-major.
        """
        array = (_lib.Parameter * len(parameters))(
            *[_lib.Parameter(name.encode(), *shape) for name, *shape in parameters])
        key = ctypes.c_uint64()
        self._check(self._library.weir_define_bucket(self._open_handle(), array, len(parameters),
                                                     dtype, ctypes.byref(key)))
        return key.value

    def step_begin(self):
        """Begins an optimiser step, and activates an announced plan."""
        self._check(self._library.weir_step_begin(self._open_handle()))

    def step_end(self):
        """Ends the step. True: it must be skipped, because some rank met NaN or infinity."""
        skipped = ctypes.c_int32()
        self._check(self._library.weir_step_end(self._open_handle(), ctypes.byref(skipped)))
        return bool(skipped.value)

    def all_reduce(self, bucket, pointer, scale=1.0):
        """Queues the bucket's all-reduce in place at `pointer`. Returns a request for wait()."""
        request = ctypes.c_void_p()
        self._check(self._library.weir_all_reduce(self._open_handle(), bucket, pointer, scale, None,
                                                  None, ctypes.byref(request)))
        return request

    def all_reduce_device(self, bucket, device, pointer, stream, scale=1.0):
        """all_reduce() of a bucket in the memory of a CUDA device. See weir_all_reduce_device.

        device: its number. stream: a cudaStream_t, which has been given the work that fills the bucket.
        """
        data = _lib.DeviceData(ctypes.sizeof(_lib.DeviceData), device, pointer, stream)
        request = ctypes.c_void_p()
        self._check(self._library.weir_all_reduce_device(
            self._open_handle(), bucket, ctypes.byref(data), scale, None, None,
            ctypes.byref(request)))
        return request

    def set_sharded(self, bucket):
        """Says that each rank needs another part of this bucket's sum; see weir_set_sharded."""
        self._check(self._library.weir_set_sharded(self._open_handle(), bucket))

    def caller_sum_needs(self, bucket):
        """Returns the caller's part in a bucket of the open step: 0, or a sum of _lib.CALLER_SUMS
        and others; see weir_caller_sum_needs."""
        needs = ctypes.c_int32()
        self._check(self._library.weir_caller_sum_needs(self._open_handle(), bucket,
                                                        ctypes.byref(needs)))
        return needs.value

    def caller_sum_begin(self, bucket, pointer=None):
        """Begins the operation of a bucket that the caller sums. Returns a request for wait().

        pointer: the elements on the host, which may have changed when this returns; see
        weir_caller_sum_begin.
        """
        request = ctypes.c_void_p()
        self._check(self._library.weir_caller_sum_begin(self._open_handle(), bucket, pointer,
                                                        ctypes.byref(request)))
        return request

    def caller_sum_end(self, bucket, *, error=None, finite=True, pointer=None, network_s=0.0,
                       since_ready_s=0.0, ended_ago_s=0.0):
        """Ends it; see weir_caller_sum_end. Thread-safe."""
        ended = _lib.CallerSum(ctypes.sizeof(_lib.CallerSum), _bytes(error), finite, pointer,
                               network_s, since_ready_s, ended_ago_s)
        self._check(self._library.weir_caller_sum_end(self._open_handle(), bucket,
                                                      ctypes.byref(ended)))

    def test(self, request):
        """Whether the request has ended, without waiting or releasing it. Thread-safe."""
        done = ctypes.c_int32()
        self._check(self._library.weir_request_test(request, ctypes.byref(done)))
        return bool(done.value)

    def wait(self, request, timeout_s=0.0):
        """Waits for one request and releases it. 0: until the deadline of the operation.

        After a wait that was too short (WeirError with status DEADLINE_EXCEEDED while the
        operation continues), the request can be waited for again.
        """
        self._open_handle()
        try:
            self._check(self._library.weir_request_wait(request, timeout_s, None))
        finally:
            self._library.weir_request_release(request)  # refused while the operation continues

    def report_parameters(self, memory):
        """Within a step: passes (address, bytes) pairs of the model's parameters.

        In steps that compare replicas (compare_every_steps), they are compared with those of the
        other ranks; in other steps the call costs nothing. See weir_report_parameters.
        """
        addresses = (ctypes.c_void_p * len(memory))(*[address for address, _ in memory])
        sizes = (ctypes.c_uint64 * len(memory))(*[size for _, size in memory])
        self._check(self._library.weir_report_parameters(self._open_handle(), addresses, sizes,
                                                         len(memory)))

    def report_loss(self, loss):
        """Tells the controller the loss of the current step."""
        self._check(self._library.weir_report_loss(self._open_handle(), float(loss)))

    def report_period(self, steps, overlap_steps, waited_s, moved_square, mean_square):
        """Tells the controller of a period of local steps; see weir_report_period."""
        period = _lib.Period(ctypes.sizeof(_lib.Period), steps, overlap_steps, waited_s, moved_square,
                             mean_square)
        self._check(self._library.weir_report_period(self._open_handle(), ctypes.byref(period)))

    def report_non_finite(self, parameter):
        """Tells the controller that this rank's gradient of `parameter` held NaN or infinity.

        Between a step that was skipped and the next one. See weir_report_non_finite.
        """
        self._check(self._library.weir_report_non_finite(self._open_handle(), parameter.encode()))

    def export_state(self):
        """Returns residuals, momenta and codecs' states as bytes. To be called between steps."""
        size = ctypes.c_size_t()
        self._check(self._library.weir_export_state(self._open_handle(), None, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._check(self._library.weir_export_state(self._handle, buffer, ctypes.byref(size)))
        return buffer.raw[:size.value]

    def import_state(self, state):
        """Restores what export_state returned; parameters are matched by name."""
        state = bytes(state)
        self._check(self._library.weir_import_state(self._open_handle(), state, len(state)))

    def scale_state(self, factor):
        """Scales residuals for gradients that are `factor` times as large from the next step on.

        To be called between steps, on every rank with the same factor.
        """
        self._check(self._library.weir_scale_state(self._open_handle(), float(factor)))

    def stats(self):
        """Counters of this rank. Thread-safe."""
        stats = _lib.StatsStruct(ctypes.sizeof(_lib.StatsStruct))
        self._check(self._library.weir_get_stats(self._open_handle(), ctypes.byref(stats)))
        return Stats(stats.step, stats.plan_version, stats.bytes_sent, stats.steps_skipped,
                     bool(stats.agent_connected), stats.last_step_s, stats.last_exposed_s,
                     stats.peers_shared_memory, stats.model_source, stats.epoch, stats.next_step,
                     stats.replicas_compared, stats.unauthenticated_peers)

    def plan(self):
        """The active plan (weir.v1.Plan) as a dictionary."""
        capacity = 1 << 16
        while True:
            size = ctypes.c_size_t(capacity)
            buffer = ctypes.create_string_buffer(capacity)
            status = self._library.weir_get_plan(self._open_handle(), buffer, ctypes.byref(size))
            if status != _lib.RESOURCE_EXHAUSTED or capacity >= 1 << 28:
                break
            capacity *= 4
        self._check(status)
        return json.loads(buffer.raw[:size.value].rstrip(b"\0").decode())

    def close(self):
        """Ends every operation and frees the session, within 5 s. Safe to call twice."""
        handle, self._handle = self._handle, None
        if handle and self._process == os.getpid():  # a fork lacks the session's threads
            self._library.weir_session_close(handle)

    def __del__(self):
        if hasattr(self, "_process"):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
