# SPDX-License-Identifier: Apache-2.0
"""The results of a run with an aggregator: its leases, the steps that it summed, and the reasons."""
import math
import re

COLLECTIVES = ("omnireduce", "switchml", "thc_table")   # those that sum on an aggregator
# The demo's model compresses so well that compression always beats an aggregator, which needs uncompressed input;
# and much of its gradient is zero, which other collectives leave out. This policy is that of a user whose model
# does not allow either.
POLICY = """# The demo with an aggregator: dense sums, by the ranks alone or on the aggregator.
name: dense-sums
jobs: ["*"]
objective: time_to_accuracy
bounds:
  codecs: [identity]
  collectives: [ring, halving_doubling, switchml]
"""
# The payload per second that the aggregator receives from 4 ranks when ranks, links and aggregator
# share two cores: between 0.4, measured from steps on a fast link, and 0.8, measured alone. A lower
# statement only makes the controller careful; with a higher one it mistakes a slow aggregator for a
# slow network.
GOODPUT_GBIT_S = 0.4
PACKETS = re.compile(r'^weir_aggregator_packets_total\{.*outcome="(added|completed)".*\} (\S+)$',
                     re.MULTILINE)


def summed_packets(metrics):
    """Workers' packets that entered sums, from the aggregator's /metrics; None without them."""
    found = [float(value) for _, value in PACKETS.findall(metrics or "")]
    return int(sum(found)) if found else None


class LeaseLog:
    """Follows one run: which lease was there from which step on, and packets summed by phase."""

    def __init__(self, phases, state, metrics):
        """state(): the aggregator as the controller said last. metrics(): its /metrics, or None."""
        self._state, self._metrics = state, metrics
        self._packets = [None] * phases
        self._leases = {}
        self._phase, self._counted = 0, summed_packets(metrics())
        self.aggregator = {}

    def __call__(self, result, line):
        """Takes a line of rank 0, after `result` has taken it."""
        if line is None or line["kind"] not in ("step", "end"):
            return
        self._see(len(result.steps))
        phase = result.changed_at[-1][1]
        if phase != self._phase or line["kind"] == "end":
            self._count()
            self._phase = phase

    def _see(self, step):
        self.aggregator = self._state() or self.aggregator
        for lease in self.aggregator.get("leases", []):
            known = self._leases.setdefault(lease.get("epoch"), {
                "job": lease.get("job", ""), "epoch": lease.get("epoch"),
                "slots": lease.get("slots", 0), "workers": len(lease.get("workers", [])),
                "first_step": step})
            known["last_step"] = step

    def _count(self):
        now = summed_packets(self._metrics())
        if now is not None and self._counted is not None and now >= self._counted:
            self._packets[self._phase] = (self._packets[self._phase] or 0) + now - self._counted
        self._counted = now

    def leases(self):
        """Every lease that was seen, by the steps (from 1) at which it was first and last."""
        return sorted(self._leases.values(), key=lambda lease: lease["first_step"])

    def packets(self):
        """Packets summed in each phase; None: not known."""
        return list(self._packets)


def is_offloaded(label):
    """Whether a plan's label has a collective that sums on an aggregator."""
    return any(f"over {name}" in label for name in COLLECTIVES)


def best(candidates, offloaded):
    """The fastest candidate that is allowed, else the fastest; None without any."""
    found = [c for c in candidates or [] if is_offloaded(c.get("label", "")) == offloaded]
    allowed = [c for c in found if c.get("feasible")]
    return min(allowed or found, key=lambda c: float(c.get("step_s") or math.inf), default=None)


def last_of_phase(decisions, boundaries, index):
    """The last decision that was taken in a phase; None where there was none."""
    end = boundaries[index + 1] if index + 1 < len(boundaries) else math.inf
    found = [d for d in decisions if boundaries[index] <= int(d.get("step") or 0) < end]
    return found[-1] if found else None


def phase_rows(schedule, result, decisions, packets):
    """One object a phase: steps whose plan was on the aggregator, and what the last decision knew.

    decisions: the controller's, oldest first, with their candidates.
    """
    rows, boundaries = [], schedule.boundaries()
    for index, phase in enumerate(schedule.phases):
        last = boundaries[index + 1] if index + 1 < len(boundaries) else None
        steps = result.steps[boundaries[index]:last]
        decision = last_of_phase(decisions, boundaries, index) or {}
        there, here = (best(decision.get("candidates"), where) for where in (True, False))
        rows.append({
            "phase": phase.name, "steps": len(steps),
            "steps_on_aggregator": sum(is_offloaded(s["choice"]) for s in steps),
            "packets_summed": packets[index],
            "predicted_step_s_with": float(there["step_s"]) if there else None,
            "predicted_step_s_without": float(here["step_s"]) if here else None,
            "excluded_by": there.get("excluded_by", "") if there else "",
            "why": decision.get("reason", "")})
    return rows


def report_of(schedule, result, decisions, log):
    """The report's `offload`."""
    known = log.aggregator
    failures = [d.get("reason", "") for d in decisions if d.get("trigger") == "aggregator"]
    return {"aggregator": {"name": known.get("name", ""), "slots": known.get("slots", 0),
                           "goodput_gbit_s": float(known.get("goodput_bits_per_s") or 0) / 1e9},
            "leases": log.leases(), "failures": failures,
            "phases": phase_rows(schedule, result, decisions, log.packets())}


def table(offload):
    """Header and rows for people, one row a phase."""
    def seconds(value):
        return "-" if value is None else f"{value:.3f}"
    header = ["phase", "steps", "on aggregator", "packets summed", "s/step with", "without", "why"]
    rows = [[p["phase"], str(p["steps"]), str(p["steps_on_aggregator"]),
             "-" if p["packets_summed"] is None else str(p["packets_summed"]),
             seconds(p["predicted_step_s_with"]), seconds(p["predicted_step_s_without"]),
             p["excluded_by"] or p["why"] or "-"] for p in offload["phases"]]
    return header, rows


def lease_lines(offload):
    """A line a lease, and a line a failure."""
    name = offload["aggregator"]["name"]
    lines = [f"lease of {lease['slots']} slots on {name}, epoch {lease['epoch']}: seen from step "
             f"{lease['first_step']} to {lease['last_step']}, {lease['workers']} ranks"
             for lease in offload["leases"]]
    return lines + [f"given up: {why}" for why in offload["failures"]] or [f"no lease on {name}"]
