# SPDX-License-Identifier: Apache-2.0
"""The network schedule: phases counted in optimiser steps, so that every run meets them alike.

A file holds either a list of phases or {"phases": [...], "target_validation_loss": X}. A phase is
{"name": "slow", "steps": 80, "rate_mbps": 50, "delay_ms": 2, "loss_ratio": 0.001}: rate 0 is
unshaped; delay and loss are of one way, and 0 where left out.
"""
import dataclasses
import json

KEYS = ("name", "steps", "rate_mbps", "delay_ms", "loss_ratio")
STEPS_MAX = 1_000_000
RATE_MBPS_MIN, RATE_MBPS_MAX = 0.1, 32000.0
DELAY_MS_MAX = 1000.0
LOSS_RATIO_MAX = 0.5


class ScheduleError(ValueError):
    """A schedule that cannot be run; the message names file, phase, key and what was expected."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """One constant state of the network."""
    name: str
    steps: int
    rate_mbps: float
    delay_ms: float
    loss_ratio: float = 0.0

    def describe(self):
        """"50 Mb/s, 2 ms, 0.1 % lost"."""
        rate = f"{self.rate_mbps:g} Mb/s" if self.rate_mbps else "unshaped"
        lost = f", {100 * self.loss_ratio:g} % lost" if self.loss_ratio else ""
        return f"{rate}, {self.delay_ms:g} ms{lost}"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Phases in order and the validation loss that counts as reached."""
    phases: tuple
    target: float

    @property
    def steps(self):
        """Steps of all phases."""
        return sum(p.steps for p in self.phases)

    def boundaries(self):
        """First step of each phase, counted from 0."""
        first, result = 0, []
        for phase in self.phases:
            result.append(first)
            first += phase.steps
        return result

    def phase_index(self, step):
        """Phase of step `step`, counted from 0; the last one beyond the end."""
        result = 0
        for index, first in enumerate(self.boundaries()):
            if step >= first:
                result = index
        return result

    def with_target(self, target):
        """The same phases towards another target."""
        return dataclasses.replace(self, target=target)


# Targets are 2 % above the final loss of dense training with the default recipe and size: 1.648 and
# 1.851.
FULL = Schedule((
    Phase("fast", 100, 1000.0, 0.0),
    Phase("slow", 100, 50.0, 2.0),
    Phase("high latency", 100, 200.0, 25.0),
    Phase("recovering", 140, 500.0, 1.0),
), 1.68)

QUICK = Schedule((
    Phase("fast", 30, 1000.0, 0.0),
    Phase("slow", 12, 50.0, 2.0),
    Phase("high latency", 20, 200.0, 25.0),
    Phase("recovering", 48, 500.0, 1.0),
), 1.89)

# For hosts that compress nothing: in the middle phase the links are so slow that sending half as
# much again, as ranks without an aggregator do, costs more than the aggregator.
AGGREGATOR = Schedule((
    Phase("fast", 40, 1000.0, 0.0),
    Phase("slow", 30, 50.0, 1.0),
    Phase("recovering", 40, 500.0, 1.0),
), 1.89)


def parse(text, origin, default_target):
    """Schedule from JSON text. ScheduleError names what is wrong and what was expected."""
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise ScheduleError(f"{origin}: not JSON: {error}") from error
    target = default_target
    if isinstance(document, dict):
        unknown = sorted(set(document) - {"phases", "target_validation_loss"})
        if unknown:
            raise ScheduleError(f"{origin}: unknown key '{unknown[0]}'; allowed: phases, "
                                "target_validation_loss")
        target = _number(document.get("target_validation_loss", default_target), origin,
                         "target_validation_loss", 0.0, 10.0)
        document = document.get("phases")
    if not isinstance(document, list) or not document:
        raise ScheduleError(f"{origin}: expected a list of at least one phase")
    return Schedule(tuple(_phase(p, i, origin) for i, p in enumerate(document)), target)


def _no_duplicates(pairs):
    keys = [k for k, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"key '{key}' appears twice")
    return dict(pairs)


def _phase(value, index, origin):
    where = f"{origin}: phase {index}"
    if not isinstance(value, dict):
        raise ScheduleError(f"{where}: expected an object, found {type(value).__name__}")
    for key in value:
        if key not in KEYS:
            raise ScheduleError(f"{where}: unknown key '{key}'; allowed: {', '.join(KEYS)}")
    for key in ("steps", "rate_mbps"):
        if key not in value:
            raise ScheduleError(f"{where}: '{key}' is missing")
    steps = value["steps"]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= STEPS_MAX:
        raise ScheduleError(f"{where}: steps: expected an integer from 1 to {STEPS_MAX}, "
                            f"found {steps!r}")
    rate = _number(value["rate_mbps"], where, "rate_mbps", 0.0, RATE_MBPS_MAX)
    if 0.0 < rate < RATE_MBPS_MIN:
        raise ScheduleError(f"{where}: rate_mbps: expected 0 (unshaped) or at least "
                            f"{RATE_MBPS_MIN}, found {rate}")
    name = value.get("name", f"phase {index + 1}")
    if not isinstance(name, str) or not 1 <= len(name) <= 40:
        raise ScheduleError(f"{where}: name: expected 1 to 40 characters, found {name!r}")
    return Phase(name, steps, rate,
                 _number(value.get("delay_ms", 0.0), where, "delay_ms", 0.0, DELAY_MS_MAX),
                 _number(value.get("loss_ratio", 0.0), where, "loss_ratio", 0.0, LOSS_RATIO_MAX))


def _number(value, where, key, low, high):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ScheduleError(f"{where}: {key}: expected a number from {low:g} to {high:g}, "
                            f"found {value!r}")
    return float(value)
