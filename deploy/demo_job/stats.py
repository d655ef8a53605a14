# SPDX-License-Identifier: Apache-2.0
"""The report's arithmetic: medians, percentiles, ratios. None means "not measured"."""
import math


def median(values):
    """Middle value; None for no values."""
    return percentile(values, 0.5)


def percentile(values, fraction):
    """Linear interpolation between the closest ranks; None for no values."""
    ordered = sorted(v for v in values if v is not None)
    if not ordered:
        return None
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def quotient(a, b):
    """a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


def ratios(runs, fast_network_step_ratio):
    """The report's `ratios` from the runs' summaries.

    A run that never reached the target is no candidate for the best static setting; if adaptive did
    not reach it, its ratios are None.
    """
    time_of = {r["name"]: r["time_to_target_s"] for r in runs}
    static = [t for name, t in time_of.items() if name.startswith("static") and t is not None]
    loss_of = {r["name"]: r["final_validation_loss"] for r in runs}
    return {
        "adaptive_over_dense": quotient(time_of.get("adaptive"), time_of.get("dense")),
        "adaptive_over_best_static": quotient(time_of.get("adaptive"), min(static, default=None)),
        "fast_network_step_ratio": fast_network_step_ratio,
        "final_loss_adaptive_over_dense": quotient(loss_of.get("adaptive"), loss_of.get("dense")),
    }


def prediction_errors(points):
    """|predicted - measured| / measured of every series point that has both."""
    errors = []
    for point in points:
        predicted = float(point.get("predicted_network_s") or 0.0)
        measured = float(point.get("measured_network_s") or 0.0)
        if predicted > 0.0 and measured > 0.0:
            errors.append(abs(predicted - measured) / measured)
    return errors


def steps_until(boundaries, events):
    """Steps from each boundary to the first event before the next boundary; None without one.

    boundaries: first steps of the phases after the first; events: steps, in any order.
    """
    result = []
    for index, first in enumerate(boundaries):
        last = boundaries[index + 1] if index + 1 < len(boundaries) else math.inf
        after = [e for e in events if first <= e < last]
        result.append(min(after) - first if after else None)
    return result
