# SPDX-License-Identifier: Apache-2.0
"""The ctypes declarations of weir.h. No other module calls C.

Importing this module loads nothing; the library is searched for at its first use.
"""
import ctypes
import functools
import json
import os
import pathlib
import sysconfig
from typing import Dict, Optional, Type

# The file of the package libweir0. The plain name is for compiling.
SONAME = "libweir.so.0"

OK = 0
INVALID_ARGUMENT = 1
NOT_FOUND = 2
FAILED_PRECONDITION = 3
DATA_LOSS = 4
PEER_UNAVAILABLE = 5
DEADLINE_EXCEEDED = 6
RESOURCE_EXHAUSTED = 7
ABORTED = 8
INTERNAL = 9

FLOAT32 = 0
FLOAT16 = 1
BFLOAT16 = 2
FLOAT64 = 3  # this and the following only in communicators
INT8 = 4
UINT8 = 5
INT32 = 6
INT64 = 7

CALLER_SUMS = 1  # what weir_caller_sum_needs returns is a sum of these
NEEDS_RESIDUAL = 2
NEEDS_SAMPLE = 4
NEEDS_SUM = 8

SUM = 0
PRODUCT = 1
MIN = 2
MAX = 3
AVERAGE = 4
ANY_RANK = -1


class WeirError(RuntimeError):
    """An operation failed. `status` is the weir_status, `rank` the rank that reports it.

    WeirError(message, status) makes the subclass of that status.
    """

    def __new__(cls, message: str, status: int = INTERNAL, rank: Optional[int] = None):
        return super().__new__(_BY_STATUS.get(status, cls) if cls is WeirError else cls)

    def __init__(self, message: str, status: int = INTERNAL, rank: Optional[int] = None):
        super().__init__(f"weir: rank {rank}: {message}" if rank is not None else
                         f"weir: {message}")
        self.message = message
        self.status = status
        self.rank = rank

    def __reduce__(self):
        return type(self), (self.message, self.status, self.rank)


class InvalidArgument(WeirError):
    """An argument, or the model, is not one that the call takes; the message says which."""


class FailedPrecondition(WeirError):
    """The call is not allowed now, as after a failure; the message says what to do before."""


class DataLoss(WeirError):
    """Received or stored bytes are not what they should be, or replicas differ."""


class RankLost(WeirError):
    """A rank has left the job or cannot be reached; the message names it."""


class DeadlineExceeded(WeirError):
    """An operation took longer than allowed; the message names the rank that is missing."""


_BY_STATUS: Dict[int, Type[WeirError]] = {
    INVALID_ARGUMENT: InvalidArgument, FAILED_PRECONDITION: FailedPrecondition,
    DATA_LOSS: DataLoss, PEER_UNAVAILABLE: RankLost, DEADLINE_EXCEEDED: DeadlineExceeded,
}


class LibraryNotFound(WeirError):
    """libweir.so was not found; the message lists the places searched."""


# The last fields of the options of sessions and communicators.
_SECURITY = [
    ("job_key", ctypes.c_char_p),  # may contain zeros, so its size is passed, too
    ("job_key_size", ctypes.c_size_t),
    ("encrypt", ctypes.c_int32),
    ("unauthenticated", ctypes.c_int32),
]


class Options(ctypes.Structure):
    """struct weir_options."""
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("job", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("transport", ctypes.c_char_p),
        ("listen", ctypes.c_char_p),
        ("agent", ctypes.c_char_p),
        ("agent_token", ctypes.c_char_p),
        ("plan_file", ctypes.c_char_p),
        ("operation_timeout_s", ctypes.c_double),
        ("connect_timeout_s", ctypes.c_double),
        ("operation_timeout_floor_s", ctypes.c_double),
        ("epoch", ctypes.c_uint64),
        ("encode_workers", ctypes.c_int32),
        ("compare_every_steps", ctypes.c_int32),
        *_SECURITY,
        ("gradient_device", ctypes.POINTER(ctypes.c_int32)),
        ("local_steps", ctypes.c_int32),
        ("labels", ctypes.c_char_p),
        ("caller_sums", ctypes.c_int32),
    ]


class Mesh(ctypes.Structure):
    """struct weir_mesh."""
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("epoch", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("listen", ctypes.c_char_p),
    ]


class CommunicatorOptions(ctypes.Structure):
    """struct weir_communicator_options."""
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("job", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("transport", ctypes.c_char_p),
        ("listen", ctypes.c_char_p),
        ("operation_timeout_s", ctypes.c_double),
        ("connect_timeout_s", ctypes.c_double),
        *_SECURITY,
    ]


class Parameter(ctypes.Structure):
    """struct weir_parameter."""
    _fields_ = [("name", ctypes.c_char_p), ("elements", ctypes.c_uint64),
                ("columns", ctypes.c_uint64)]


class StatsStruct(ctypes.Structure):
    """struct weir_stats."""
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("step", ctypes.c_uint64),
        ("plan_version", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("steps_skipped", ctypes.c_uint64),
        ("agent_connected", ctypes.c_int32),
        ("last_step_s", ctypes.c_double),
        ("last_exposed_s", ctypes.c_double),
        ("peers_shared_memory", ctypes.c_int32),
        ("model_source", ctypes.c_int32),
        ("epoch", ctypes.c_uint64),
        ("next_step", ctypes.c_uint64),
        ("replicas_compared", ctypes.c_uint64),
        ("unauthenticated_peers", ctypes.c_int32),
    ]


class DeviceData(ctypes.Structure):
    """struct weir_device_data."""
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


class CallerSum(ctypes.Structure):
    """struct weir_caller_sum."""
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("error", ctypes.c_char_p),
        ("finite", ctypes.c_int32),
        ("sum", ctypes.c_void_p),
        ("network_s", ctypes.c_double),
        ("since_ready_s", ctypes.c_double),
        ("ended_ago_s", ctypes.c_double),
    ]


class Period(ctypes.Structure):
    """struct weir_period."""
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("steps", ctypes.c_uint32),
        ("overlap_steps", ctypes.c_uint32),
        ("waited_s", ctypes.c_double),
        ("moved_square", ctypes.c_double),
        ("mean_square", ctypes.c_double),
    ]


_pointer = ctypes.c_void_p
_text = ctypes.c_char_p
_int = ctypes.c_int32
_size = ctypes.c_uint64
_out = ctypes.POINTER(_pointer)
_size_pointer = ctypes.POINTER(ctypes.c_size_t)
# name -> (result, arguments); handles and buffers are void pointers.
_FUNCTIONS = {
    "weir_session_create": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.POINTER(_pointer), _text,
                                           ctypes.c_size_t]),
    "weir_session_address": (_text, [_pointer]),
    "weir_session_connect": (ctypes.c_int, [_pointer, ctypes.POINTER(_text), ctypes.c_int32]),
    "weir_session_interrupt_connect": (ctypes.c_int, [_pointer]),
    "weir_session_reform": (ctypes.c_int, [_pointer, ctypes.POINTER(Mesh)]),
    "weir_session_close": (None, [_pointer]),
    "weir_define_bucket": (ctypes.c_int, [_pointer, ctypes.POINTER(Parameter), ctypes.c_size_t,
                                          ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
    "weir_step_begin": (ctypes.c_int, [_pointer]),
    "weir_step_end": (ctypes.c_int, [_pointer, ctypes.POINTER(ctypes.c_int32)]),
    "weir_all_reduce": (ctypes.c_int, [_pointer, ctypes.c_uint64, _pointer, ctypes.c_double,
                                       _pointer, _pointer, ctypes.POINTER(_pointer)]),
    "weir_device_count": (ctypes.c_int32, []),
    "weir_all_reduce_device": (ctypes.c_int, [_pointer, ctypes.c_uint64, ctypes.POINTER(DeviceData),
                                              ctypes.c_double, _pointer, _pointer,
                                              ctypes.POINTER(_pointer)]),
    "weir_set_sharded": (ctypes.c_int, [_pointer, ctypes.c_uint64]),
    "weir_caller_sum_needs": (ctypes.c_int, [_pointer, ctypes.c_uint64, ctypes.POINTER(_int)]),
    "weir_caller_sum_begin": (ctypes.c_int, [_pointer, ctypes.c_uint64, _pointer, _out]),
    "weir_caller_sum_end": (ctypes.c_int, [_pointer, ctypes.c_uint64, ctypes.POINTER(CallerSum)]),
    "weir_request_wait": (ctypes.c_int, [_pointer, ctypes.c_double, ctypes.POINTER(_int)]),
    "weir_request_test": (ctypes.c_int, [_pointer, ctypes.POINTER(_int)]),
    "weir_request_release": (ctypes.c_int, [_pointer]),
    "weir_report_parameters": (ctypes.c_int, [_pointer, ctypes.POINTER(_pointer),
                                              ctypes.POINTER(_size), ctypes.c_size_t]),
    "weir_report_loss": (ctypes.c_int, [_pointer, ctypes.c_double]),
    "weir_report_period": (ctypes.c_int, [_pointer, ctypes.POINTER(Period)]),
    "weir_report_non_finite": (ctypes.c_int, [_pointer, _text]),
    "weir_export_state": (ctypes.c_int, [_pointer, _pointer, _size_pointer]),
    "weir_import_state": (ctypes.c_int, [_pointer, _pointer, ctypes.c_size_t]),
    "weir_scale_state": (ctypes.c_int, [_pointer, ctypes.c_double]),
    "weir_get_stats": (ctypes.c_int, [_pointer, ctypes.POINTER(StatsStruct)]),
    "weir_get_plan": (ctypes.c_int, [_pointer, _pointer, _size_pointer]),
    "weir_strerror": (_text, [ctypes.c_int]),
    "weir_last_error": (_text, [_pointer]),
    "weir_version": (_text, []),
    "weir_capabilities": (_text, []),
    "weir_communicator_create": (ctypes.c_int, [ctypes.POINTER(CommunicatorOptions),
                                                ctypes.POINTER(_pointer), _text, ctypes.c_size_t]),
    "weir_communicator_address": (_text, [_pointer]),
    "weir_communicator_connect": (ctypes.c_int, [_pointer, ctypes.POINTER(_text), ctypes.c_int32]),
    "weir_communicator_interrupt_connect": (ctypes.c_int, [_pointer]),
    "weir_communicator_shutdown": (ctypes.c_int, [_pointer]),
    "weir_communicator_close": (None, [_pointer]),
    "weir_communicator_all_reduce": (ctypes.c_int, [_pointer, _pointer, _size, _int, _int, _out]),
    "weir_communicator_reduce": (ctypes.c_int, [_pointer, _pointer, _size, _int, _int, _int, _out]),
    "weir_communicator_reduce_scatter": (ctypes.c_int, [_pointer, _pointer, _pointer, _size, _int,
                                                        _int, _out]),
    "weir_communicator_all_gather": (ctypes.c_int, [_pointer, _pointer, _pointer, _size, _out]),
    "weir_communicator_broadcast": (ctypes.c_int, [_pointer, _pointer, _size, _int, _out]),
    "weir_communicator_all_to_all": (ctypes.c_int, [_pointer, _out, ctypes.POINTER(_size), _out,
                                                    ctypes.POINTER(_size), _out]),
    "weir_communicator_barrier": (ctypes.c_int, [_pointer, _out]),
    "weir_communicator_send": (ctypes.c_int, [_pointer, _pointer, _size, _int, _size, _out]),
    "weir_communicator_receive": (ctypes.c_int, [_pointer, _pointer, _size, _int, _size, _out]),
    "weir_communicator_last_error": (_text, [_pointer]),
}


def _candidates():
    """The possible places of libweir.so, in the order in which they are tried."""
    named = os.environ.get("WEIR_LIBRARY")
    if named:
        return [pathlib.Path(named)]
    here = pathlib.Path(__file__).resolve().parent
    places = [here / "lib" / "libweir.so", here / "libweir.so"]  # of a wheel, of a copy by hand
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    # PREFIX/lib/python3/dist-packages/weir: the library of the same installation comes first.
    if here.parent.name == "dist-packages":
        places += [here.parents[2] / multiarch / SONAME, here.parents[2] / SONAME]
    for root in (here.parents[2], pathlib.Path.cwd()):  # a source tree with its build directory
        places += [root / "build" / "datapath" / "api" / "libweir.so",
                   root / "build" / "libweir.so"]
    for directory in ("/usr/local/lib", "/usr/lib"):
        places += [pathlib.Path(directory) / part / name
                   for part in dict.fromkeys((multiarch, "")) for name in ("libweir.so", SONAME)]
    return places


def library_path():
    """Path of the libweir.so that will be used. LibraryNotFound lists the places searched."""
    places = _candidates()
    for place in places:
        if place.is_file():
            return str(place)
    cause = ("WEIR_LIBRARY names a file that does not exist" if os.environ.get("WEIR_LIBRARY") else
             "build it (target weir) or set WEIR_LIBRARY")
    raise LibraryNotFound(f"libweir.so not found: {cause}; tried " +
                          ", ".join(dict.fromkeys(map(str, places))), NOT_FOUND)


@functools.lru_cache(maxsize=None)
def library():
    """The loaded library with every function declared."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise LibraryNotFound(f"{path} cannot be used: {error}", NOT_FOUND) from error
    return loaded


@functools.lru_cache(maxsize=None)
def device_count():
    """How many CUDA devices libweir can use; 0 where it was built without CUDA."""
    return library().weir_device_count()


def version():
    """Version of libweir."""
    return library().weir_version().decode()


def capabilities():
    """Codecs and collectives of this build, as weir.v1.Capabilities."""
    return json.loads(library().weir_capabilities().decode())
