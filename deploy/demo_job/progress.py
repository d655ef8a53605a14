# SPDX-License-Identifier: Apache-2.0
"""Live progress: one line for the step, full lines for phases, validations and decisions."""
import sys
import threading
import time

LINE_INTERVAL_S = 2.0        # when standard output is not a terminal
TERMINAL_INTERVAL_S = 0.2
POLL_INTERVAL_S = 1.0


class DecisionPoller:
    """Follows the controller's decisions from a thread, so that a slow answer delays nothing."""

    def __init__(self, control_plane, job, aggregator=False):
        self._control_plane = control_plane
        self._asks_aggregator = aggregator
        self._aggregator = {}
        self._job = job
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._latest = []
        self._thread = threading.Thread(target=self._follow, name="decisions", daemon=True)
        self._thread.start()

    def _follow(self):
        while not self._stop.wait(POLL_INTERVAL_S):
            found = self._control_plane.decisions(self._job)
            aggregator = self._control_plane.aggregator() if self._asks_aggregator else {}
            with self._lock:
                if found:
                    self._latest = found
                self._aggregator = aggregator or self._aggregator

    def aggregator(self):
        """The aggregator (weir.v1.Aggregator) as the controller said last; empty: not known."""
        with self._lock:
            return self._aggregator

    def latest(self):
        """All decisions known so far, oldest first."""
        with self._lock:
            return list(self._latest)

    def stop(self):
        """Ends the thread."""
        self._stop.set()
        self._thread.join(timeout=20)


class Progress:
    """Prints how a run goes."""

    def __init__(self, schedule, poller=None, out=sys.stdout):
        self._schedule = schedule
        self._poller = poller
        self._out = out
        self._terminal = out.isatty()
        self._phase = None
        self._printed_at = 0.0
        self._line_length = 0
        self._loss = None
        self._told = set()
        self._reason = ""

    def __call__(self, result, line):
        """Takes one line of rank 0, or None while it is silent."""
        if line is not None and line["kind"] == "step":
            self._on_step(result.name, line)
        elif line is not None and line["kind"] == "validation":
            self._loss = line["loss"]
        elif line is not None and line["kind"] == "end":
            reached = line["time_to_target_s"]
            self.say(f"{result.name}: {line['steps']} steps in {line['time_s']:.1f} s, validation "
                     f"loss {line['final_validation_loss']:.4f}, target "
                     + (f"reached after {reached:.1f} s" if reached else "not reached"))
        self._tell_decisions()

    def _on_step(self, name, line):
        index = self._schedule.phase_index(line["step"] - 1)
        if index != self._phase:
            self._phase = index
            phase = self._schedule.phases[index]
            self.say(f"{name}: phase '{phase.name}': {phase.describe()}, from step {line['step']}")
        interval = TERMINAL_INTERVAL_S if self._terminal else LINE_INTERVAL_S
        if time.monotonic() - self._printed_at >= interval:
            self._show(name, line)

    def _show(self, name, line):
        self._printed_at = time.monotonic()
        phase = self._schedule.phases[self._phase].name
        validation = "" if self._loss is None else f"  validation {self._loss:.3f}"
        text = (f"{name:<12} {phase:<13} step {line['step']:>4}/{self._schedule.steps}  "
                f"{line['step_s']:6.3f} s/step  loss {line['loss']:.3f}{validation}  "
                f"{line['choice']}{self._reason}")
        if self._terminal:
            self._out.write("\r" + text.ljust(self._line_length))
            self._line_length = len(text)
        else:
            self._out.write(text + "\n")
        self._out.flush()

    def _tell_decisions(self):
        if self._poller is None:
            return
        for decision in self._poller.latest():
            if decision.get("id") in self._told or not decision.get("switched"):
                continue
            self._told.add(decision.get("id"))
            self._reason = f"  ({decision.get('trigger', '')})"
            self.say(f"  decision at step {decision.get('step', 0)}: {decision.get('from', '')} -> "
                     f"{decision.get('to', '')}: {decision.get('reason', '')}")

    def say(self, text):
        """A full line of its own."""
        if self._terminal and self._line_length:
            self._out.write("\r" + " " * self._line_length + "\r")
            self._line_length = 0
        self._out.write(text + "\n")
        self._out.flush()
