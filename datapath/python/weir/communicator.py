# SPDX-License-Identifier: Apache-2.0
"""One rank's libweir communicator as a Python object. Knows nothing of torch."""
import contextlib
import ctypes
import os
import threading
from typing import Optional

from weir import _lib
from weir._lib import WeirError

ERROR_BYTES = 2048


class Communicator:
    """Exact collectives and messages between ranks: create, connect, operate, close.

    Buffers are addresses (integers) that must stay valid until their operation is done. Operations
    return a handle for wait, test and release. Thread-safe. Failures raise WeirError with the
    library's message, which names the rank at fault. A communicator is closed when nothing refers
    to it any more.
    """

    def __init__(self, job, rank, world, *, transport=None, listen=None, operation_timeout_s=0.0,
                 connect_timeout_s=0.0, job_key=None, encrypt=False, unauthenticated=False):
        self._library = _lib.library()
        self.rank = rank
        self.world = world
        self._handle: Optional[ctypes.c_void_p] = ctypes.c_void_p()
        self._process = os.getpid()
        self._inside = 0  # calls that use the handle now
        self._closing = False
        self._changed = threading.Condition()

        def text(value):
            return None if value is None else str(value).encode()

        options = _lib.CommunicatorOptions(
            ctypes.sizeof(_lib.CommunicatorOptions), text(job), rank, world, text(transport),
            text(listen), operation_timeout_s, connect_timeout_s, job_key, len(job_key or b""),
            encrypt, unauthenticated)
        error = ctypes.create_string_buffer(ERROR_BYTES)
        status = self._library.weir_communicator_create(
            ctypes.byref(options), ctypes.byref(self._handle), error, ERROR_BYTES)
        if status != _lib.OK:
            self._handle = None
            raise WeirError(error.value.decode(errors="replace") or
                            self._library.weir_strerror(status).decode(), status, rank)

    @contextlib.contextmanager
    def _open(self):
        with self._changed:
            if self._closing or not self._handle:
                raise WeirError("the communicator is closed", _lib.FAILED_PRECONDITION, self.rank)
            self._inside += 1
        try:
            yield self._handle
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def _check(self, handle, status):
        if status != _lib.OK:
            words = self._library.weir_communicator_last_error(handle).decode(errors="replace")
            raise WeirError(words or self._library.weir_strerror(status).decode(), status,
                            self.rank)

    def _call(self, name, *arguments):
        with self._open() as handle:
            self._check(handle, getattr(self._library, name)(handle, *arguments))

    def _ask(self, name, request, *arguments):
        with self._open() as handle:
            self._check(handle, getattr(self._library, name)(request, *arguments))

    def _submit(self, name, *arguments):
        operation = ctypes.c_void_p()
        self._call(name, *arguments, ctypes.byref(operation))
        return operation

    @property
    def address(self):
        """The address at which peers reach this rank."""
        with self._open() as handle:
            return self._library.weir_communicator_address(handle).decode()

    def connect(self, addresses):
        """Connects to all ranks; addresses[r] is rank r's address. Every rank must call it."""
        array = (ctypes.c_char_p * len(addresses))(*[a.encode() for a in addresses])
        self._call("weir_communicator_connect", array, len(addresses))

    def interrupt_connect(self):
        """Ends connect(), which runs in another thread, with an error."""
        self._call("weir_communicator_interrupt_connect")

    def all_reduce(self, data, count, dtype, reduction):
        """Reduces `count` elements over all ranks, in place."""
        return self._submit("weir_communicator_all_reduce", data, count, dtype, reduction)

    def reduce(self, data, count, dtype, reduction, root):
        """The same, but only the root gets the result."""
        return self._submit("weir_communicator_reduce", data, count, dtype, reduction, root)

    def reduce_scatter(self, source, target, count, dtype, reduction):
        """Writes the reduction of this rank's part of `source` to `target`, `count` elements."""
        return self._submit("weir_communicator_reduce_scatter", source, target, count, dtype,
                            reduction)

    def all_gather(self, source, target, size):
        """Gathers `size` bytes of every rank into `target`, in rank order."""
        return self._submit("weir_communicator_all_gather", source, target, size)

    def broadcast(self, data, size, root):
        """Sends `size` bytes of the root to all ranks."""
        return self._submit("weir_communicator_broadcast", data, size, root)

    def all_to_all(self, outgoing, incoming):
        """Exchanges data between all ranks. Both lists have an (address, bytes) pair per rank."""
        def arrays(runs):
            return ((ctypes.c_void_p * self.world)(*[address for address, _ in runs]),
                    (ctypes.c_uint64 * self.world)(*[size for _, size in runs]))
        return self._submit("weir_communicator_all_to_all", *arrays(outgoing), *arrays(incoming))

    def barrier(self):
        """Ends when every rank has called it."""
        return self._submit("weir_communicator_barrier")

    def send(self, data, size, peer, tag):
        """Sends a message. The operation ends when rank `peer` has received it."""
        return self._submit("weir_communicator_send", data, size, peer, tag)

    def receive(self, data, size, peer, tag):
        """Receives the next message with `tag` from rank `peer` or ANY_RANK."""
        return self._submit("weir_communicator_receive", data, size, peer, tag)

    def wait(self, operation, timeout_s=0.0):
        """Waits for one operation (0: until it ends). Returns the other rank of a message."""
        peer = ctypes.c_int32()
        self._ask("weir_request_wait", operation, timeout_s, ctypes.byref(peer))
        return peer.value

    def test(self, operation):
        """Returns True when the operation has ended."""
        done = ctypes.c_int32()
        self._ask("weir_request_test", operation, ctypes.byref(done))
        return bool(done.value)

    def release(self, operation):
        """Frees an operation that has ended. Has no effect after close()."""
        try:
            self._ask("weir_request_release", operation)
        except WeirError as error:
            if error.status == _lib.INVALID_ARGUMENT:
                raise

    def finish(self, operation):
        """Waits for one operation, as long as its deadline allows, and frees it."""
        try:
            self.wait(operation)
        finally:
            self.release(operation)

    def close(self):
        """Ends every operation and frees the communicator, within 5 s. Safe to call twice."""
        if not self._handle:  # closed; modules may be gone if the interpreter ends
            return
        if self._process != os.getpid():  # a fork lacks its threads, and a lock may be held
            return
        with self._changed:
            handle, self._handle = self._handle, None
            self._closing = True
        if not handle:
            return
        self._library.weir_communicator_shutdown(handle)
        with self._changed:
            left = self._changed.wait_for(lambda: self._inside == 0, timeout=5.0)
        if left:  # else a call has not returned, and its handle must stay
            self._library.weir_communicator_close(handle)

    def __del__(self):
        if hasattr(self, "_process"):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
