# SPDX-License-Identifier: Apache-2.0
"""The codecs of a build in Python: ctypes around weir_codec_shim (tests/support/codec_shim.cc)."""
import ctypes
import json
import os
import pathlib

import numpy as np

FLOATS = ctypes.POINTER(ctypes.c_float)


class CodecError(RuntimeError):
    """The error of a codec's Status."""


class _Arguments(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("ratio", ctypes.c_double), ("bits", ctypes.c_int32),
                ("world", ctypes.c_int32), ("rank", ctypes.c_int32), ("seed", ctypes.c_uint64),
                ("elements", ctypes.c_uint64), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("tensors", ctypes.c_uint64)]


class Step(ctypes.Structure):
    """The results of one step of a World; seconds and energies are rank 0's."""
    _fields_ = [("encode_s", ctypes.c_double), ("decode_s", ctypes.c_double),
                ("energy_in", ctypes.c_double), ("energy_lost", ctypes.c_double),
                ("payload_bytes", ctypes.c_uint64), ("non_finite", ctypes.c_int32)]


def library_path(build=None):
    """WEIR_CODEC_SHIM, else the library of a build directory (by default build/)."""
    if build is None and "WEIR_CODEC_SHIM" in os.environ:
        return os.environ["WEIR_CODEC_SHIM"]
    root = pathlib.Path(__file__).resolve().parents[2]
    return str(pathlib.Path(build or root / "build") / "tests/support/libweir_codec_shim.so")


def load(build=None):
    """The library with its signatures. OSError when it is not built."""
    lib = ctypes.CDLL(library_path(build))
    handle, size = ctypes.c_void_p, ctypes.c_uint64
    signatures = {
        "weir_codec_error": (ctypes.c_char_p, []),
        "weir_codec_all": (ctypes.c_char_p, []),
        "weir_codec_open": (handle, [ctypes.POINTER(_Arguments)]),
        "weir_codec_close": (None, [handle]),
        "weir_codec_keep_state": (None, [handle]),
        "weir_codec_encode": (ctypes.c_int64, [handle, size, ctypes.c_float, FLOATS, FLOATS,
                                               ctypes.POINTER(ctypes.c_double)]),
        "weir_codec_decode_add": (ctypes.c_int64, [handle, ctypes.c_float, FLOATS]),
        "weir_codec_indices": (ctypes.c_int64, [handle, ctypes.POINTER(ctypes.c_uint32), size]),
        "weir_codec_payload": (ctypes.c_int64, [handle, ctypes.c_void_p, size]),
        "weir_world_open": (handle, [ctypes.POINTER(_Arguments)]),
        "weir_world_close": (None, [handle]),
        "weir_world_step": (ctypes.c_int64, [handle, ctypes.POINTER(FLOATS), size, size, FLOATS,
                                             ctypes.POINTER(Step)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def all_traits(lib):
    """The traits of every registered codec, by name."""
    return {t["name"]: t for t in json.loads(lib.weir_codec_all().decode())}


def settings_of(traits, world=1):
    """The different `bits` that a codec offers in a world of this size, its default first."""
    found = []
    for setting in traits["settings"]:
        largest = setting["world_max"] or world
        if setting["world_min"] <= world <= largest and setting["bits"] not in found:
            found.append(setting["bits"])
    return found


def _pointer(array):
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise TypeError("expected contiguous float32")
    return array.ctypes.data_as(FLOATS)


def _arguments(name, elements, ratio, bits, world, rank, seed, shape):
    flat = [number for tensor in shape or () for number in tensor]
    values = (ctypes.c_uint64 * max(1, len(flat)))(*flat)
    return _Arguments(name.encode(), ratio, bits, world, rank, seed, elements, values,
                      len(flat) // 2)


class Codec:
    """One rank alone with a codec."""

    def __init__(self, lib, name, elements, *, ratio=1.0, bits=0, world=1, rank=0, shape=None,
                 stateful=False):
        self._lib, self._elements = lib, elements
        arguments = _arguments(name, elements, ratio, bits, world, rank, 0, shape)
        self._handle = lib.weir_codec_open(ctypes.byref(arguments))
        if not self._handle:
            raise CodecError(lib.weir_codec_error().decode())
        if stateful:
            lib.weir_codec_keep_state(self._handle)
        self.energies = (0.0, 0.0)

    def close(self):
        self._lib.weir_codec_close(self._handle)
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _check(self, result):
        if result == -2:
            raise CodecError("input is not finite")
        if result < 0:
            raise CodecError(self._lib.weir_codec_error().decode())
        return result

    def encode(self, gradient, residual=None, seed=1, shared_max=-1.0):
        """Encodes; a residual is updated in place. Returns the payload's size in bytes."""
        energies = (ctypes.c_double * 2)()
        size = self._check(self._lib.weir_codec_encode(
            self._handle, seed, shared_max, _pointer(gradient),
            None if residual is None else _pointer(residual), energies))
        self.energies = tuple(energies)
        return size

    def decode(self, scale=1.0):
        """The decoded last payload."""
        out = np.zeros(self._elements, np.float32)
        self._check(self._lib.weir_codec_decode_add(self._handle, scale, _pointer(out)))
        return out

    def indices(self):
        """The positions that the last payload selects."""
        out = np.zeros(self._elements, np.uint32)
        count = self._check(self._lib.weir_codec_indices(
            self._handle, out.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32)), out.size))
        return out[:count]

    def payload(self):
        """The bytes of the last payload."""
        size = self._check(self._lib.weir_codec_payload(self._handle, None, 0))
        out = ctypes.create_string_buffer(max(1, size))
        self._lib.weir_codec_payload(self._handle, out, size)
        return out.raw[:size]


class World:
    """All ranks around one codec and one bucket, with residuals where the codec asks for them."""

    def __init__(self, lib, name, elements, world, *, ratio=1.0, bits=0, seed=1, shape=None):
        self._lib, self._elements, self._world = lib, elements, world
        arguments = _arguments(name, elements, ratio, bits, world, 0, seed, shape)
        self._handle = lib.weir_world_open(ctypes.byref(arguments))
        if not self._handle:
            raise CodecError(lib.weir_codec_error().decode())

    def close(self):
        self._lib.weir_world_close(self._handle)
        self._handle = None

    def exchange(self, gradients, mean):
        """mean = what the ranks' gradients come to. Returns the Step."""
        pointers = (FLOATS * self._world)(*[_pointer(g) for g in gradients])
        step = Step()
        if self._lib.weir_world_step(self._handle, pointers, self._world, self._elements,
                                     _pointer(mean), ctypes.byref(step)) < 0:
            raise CodecError(self._lib.weir_codec_error().decode())
        return step
