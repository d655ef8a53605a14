# SPDX-License-Identifier: Apache-2.0
"""Child processes that cannot outlive the demo.

Each child leads its own session, so that the terminal's Ctrl-C reaches only the driver, which then
ends the children it started, by their process group. Should the driver be killed, the kernel ends
the children (PR_SET_PDEATHSIG).
"""
import ctypes
import os
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1
TERMINATE_S = 3.0
_libc = ctypes.CDLL(None, use_errno=True)


def _before_exec():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_on_signals():
    """Makes every polite signal end the driver as Ctrl-C does: through its clean-up.

    SIGINT too: a shell starts background jobs with it ignored. SIGHUP stays ignored under nohup.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number, unused_frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


class Children:
    """Starts processes, optionally inside a network namespace, and ends all of them."""

    def __init__(self):
        self._running = []

    def start(self, command, namespace=None, environment=None, stdout=None, stderr=None):
        """Starts `command`; returns its Popen."""
        if namespace:
            command = ["ip", "netns", "exec", namespace, *command]
        child = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=stdout,
            stderr=stderr, env={**os.environ, **(environment or {})}, start_new_session=True,
            preexec_fn=_before_exec)
        self._running.append(child)
        return child

    def stop(self, children=None):
        """Ends the given children, or all: SIGTERM, then SIGKILL after TERMINATE_S."""
        children = list(self._running if children is None else children)
        for child in children:
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_S
        for child in children:
            try:
                child.wait(timeout=max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            _signal(child, signal.SIGKILL)  # also whatever is left of its group
            child.wait()
            if child in self._running:
                self._running.remove(child)


def _signal(child, number):
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        pass
