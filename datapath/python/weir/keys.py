# SPDX-License-Identifier: Apache-2.0
"""Sources of the key of a job. Knows nothing of torch.

The key is the first of these: the one that the caller passes; the content of the file that
WEIR_JOB_KEY_FILE names, which has 32 bytes or 64 hexadecimal digits and which only its owner and
group can read; a key that rank 0 makes and the framework's store hands out, so that every process
which can read the store belongs to the job. With WEIR_UNAUTHENTICATED=1 there is no key, and ranks
connect over any network. WEIR_ENCRYPT=1 also encrypts payloads. Without a store and any of these
settings there is no key, and ranks connect over loopback and shared memory only.
"""
import os
import secrets
import stat

from weir import _lib
from weir import environment
from weir._lib import WeirError

KEY_BYTES = 32
_NO_KEY = "none"
OPTIONS = ("job_key", "encrypt", "unauthenticated")


def read_file(path):
    """Reads the key in `path`. WeirError: there is none, or others can read the file."""
    def refuse(why):
        return WeirError(f"job key file {path}: {why}", _lib.INVALID_ARGUMENT)
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(4 * KEY_BYTES)
    except OSError as error:
        raise refuse(error.strerror) from None
    if stat.S_IMODE(mode) & 0o007:
        raise refuse(f"others may use it (mode {stat.S_IMODE(mode):04o}); expected 0600")
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise refuse(f"expected {KEY_BYTES} bytes or {2 * KEY_BYTES} hexadecimal digits, "
                     f"found {len(content)} bytes")
    return key


def _flag(value, name):
    return environment.read(name, bool, False) if value is None else bool(value)


def settings(job_key=None, encrypt=None, unauthenticated=None):
    """Combines the caller's arguments and the environment to a dictionary of options of Session and
    Communicator. If job_key is None and unauthenticated is not set, a store may provide the key."""
    unauthenticated = _flag(unauthenticated, "WEIR_UNAUTHENTICATED")
    path = environment.read("WEIR_JOB_KEY_FILE")
    if job_key is None and path and not unauthenticated:
        job_key = read_file(path)
    return dict(job_key=job_key, encrypt=_flag(encrypt, "WEIR_ENCRYPT"),
                unauthenticated=unauthenticated)


def wants_key(given):
    """Returns whether a store may provide the key for `given`, as settings() returned it."""
    return given["job_key"] is None and not given["unauthenticated"]


def from_store(store, name, rank, given):
    """If wants_key(given), returns it with the key that rank 0 makes and `store` keeps under `name`.
    Every rank must call it, with a name that no other call has used. WeirError: rank 0 does not want
    one, as it has other settings."""
    if rank == 0:
        store.set(name, secrets.token_hex(KEY_BYTES) if wants_key(given) else _NO_KEY)
    if not wants_key(given):
        return given
    word = store.get(name).decode()
    if word == _NO_KEY:
        raise WeirError("rank 0 has the job key from elsewhere, or none, and this rank has neither: set "
                        "WEIR_JOB_KEY_FILE and WEIR_UNAUTHENTICATED as on the host of rank 0",
                        _lib.INVALID_ARGUMENT, rank)
    return {**given, "job_key": bytes.fromhex(word)}
