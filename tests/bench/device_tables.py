# SPDX-License-Identifier: Apache-2.0
"""Tables of the newest run of tests/device/run that is kept in tests/device/results, for tables.py.

Its lines are {"part", "row"} for a measurement and {"part", "status"} for the end of a part; later ones replace earlier
ones, because a part that failed runs again.
"""
import json
import pathlib

from formats import NONE, markdown, microseconds, ratio, size

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "device" / "results"


def newest_run():
    """(name, machine, rows) of the newest run that is kept; (None, {}, []) where there is none. Names begin with the
    date, so the last one is the newest. Rows of a rehearsal are left out."""
    files = sorted(RESULTS.glob("*.jsonl"))
    if not files:
        return None, {}, []
    machine, rows, on_device = {}, [], False
    for line in files[-1].read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["part"] == "machine":  # each call begins with one
            on_device = not row["rehearsal"]
            machine = row if on_device else machine
        elif on_device:
            rows.append(row)
    return files[-1].name, machine, rows


class DeviceTable:
    """Rows of the newest run with a GPU. No earlier run stands beside them, because devices differ."""

    def __init__(self, keys, columns, values):
        self.keys = keys          # titles of the first columns
        self.columns = columns    # (title, function(values) -> text)
        self.values = values      # function(rows as in the file) -> {key: values}

    def render(self, _):
        """The table in Markdown, with device and date above it."""
        name, machine, rows = newest_run()
        if name is None:
            return "Not run yet: no GPU has run `tests/device/run`."
        found = self.values(rows)
        commit = f", commit {machine['commit'][:8]}" if machine.get("commit") else ""
        origin = (f"`tests/device/results/{name}`: {machine.get('device') or 'no device'}, "
                  f"{machine.get('date', '')[:10]}{commit}.")
        if not found:
            return f"{origin} It has no such rows."
        return "\n".join([origin, "", *markdown([*self.keys, *(title for title, _ in self.columns)], [
            [*map(str, key), *(column(values) for _, column in self.columns)] for key, values in found.items()])])


def device_parts(rows):
    """By part: how it ended last."""
    return {(row["part"],): row for row in rows if "status" in row}


DEVICE_PARTS = DeviceTable(("part",), [
    ("end", lambda r: r["status"] if r["status"] == "passed" else f"**{r['status']}**"),
    ("time", lambda r: f"{r['seconds']:.0f} s")], device_parts)


def measured_rows(rows, part, kind):
    """The measurements that have `kind`, of a part and of those that begin with its name, which measure the same for
    longer or with larger buffers; a row that says why there is none is left out."""
    return [row["row"] for row in rows if row["part"].startswith(part) and kind in row.get("row", {})
            and not {"error", "left_out"} & row["row"].keys()]


def device_codecs(rows):
    """By (codec, setting, elements): each operation's row, and PyTorch's time for the same purpose."""
    peers = {(row["codec"], row["elements"]): row["us"] for row in measured_rows(rows, "device_peers", "codec")}
    result = {}
    for row in measured_rows(rows, "device_bench", "codec"):
        # The ratio is the same for all, except for power_sgd, where it follows from the size.
        setting = f"{row['bits']} bits" if row["bits"] else ""
        key = (f"`{row['codec']}`", setting, f"{row['elements'] / 1e6:g} M")
        place = result.setdefault(key, {"goal": row["goal"], "peer_us": peers.get((row["codec"], row["elements"]))})
        place[row["benchmark"]] = row
    return result


def of_floor(operation):
    """The time of an operation over its floor; bold where it misses its goal."""
    def cell(values):
        row = values.get(operation)
        return ratio(row["times_floor"], row["times_floor"] <= row["goal"]) if row else NONE
    return cell


def over_ours(values):
    return ratio(values["peer_us"] / values["encode"]["us"]) if values["peer_us"] and "encode" in values else NONE


DEVICE_CODECS = DeviceTable(("codec", "setting", "elements"), [
    ("encode", lambda v: microseconds(v["encode"]["us"]) if "encode" in v else NONE),
    ("encode / floor", of_floor("encode")), ("decode / floor", of_floor("decode")),
    ("sum / floor", of_floor("accumulate")), ("goal", lambda v: f"{v['goal']:g}"),
    ("PyTorch's time over ours", over_ours)], device_codecs)


def rate_of(row):
    return f"{row['rate_mbps']:g} Mb/s" if row["rate_mbps"] else "unpaced"


def variant_of(row):
    return f"`{row['variant']}`"


def which(row):
    """The variant that it was, where that was found out or decided."""
    return f"`{row['is']}`" if "is" in row else NONE


def device_steps(rows):
    """By (model, rate, variant), of the short and of the full measurement."""
    return {(row["model"], rate_of(row), variant_of(row)): row
            for row in measured_rows(rows, "hook_overhead", "variant")}


def over(name):
    """A ratio of a row; bold where it is more than the row's goal."""
    return lambda row: ratio(row.get(name), row.get(name) is None or row[name] <= row.get("goal", row[name]))


def goal_of(row):
    return f"{row['goal']:g}" if "goal" in row else ""


DEVICE_STEPS = DeviceTable(("model", "rate", "variant"), [
    ("which", which), ("step", lambda r: microseconds(r["us"])), ("floor", lambda r: microseconds(r["floor_us"])),
    ("over the faster of Gloo and NCCL", over("over_plain")), ("goal", goal_of)], device_steps)

DEVICE_BACKWARD = DeviceTable(("model", "variant"), [
    ("backward pass", lambda r: microseconds(r["us"])), ("over no exchange", over("over_nothing")), ("goal", goal_of)],
    lambda rows: {(row["model"], f"`{row['variant']}`"): row for row in measured_rows(rows, "backward", "variant")})

DEVICE_TRAINING = DeviceTable(("rate", "variant"), [
    ("which", which),
    ("final loss", lambda r: f"{r['loss']:.3f}"), ("time", lambda r: f"{r['seconds']:.2f} s"),
    ("time to the loss of bfloat16", lambda r: f"{r['seconds_to_target']:.2f} s" if r["seconds_to_target"] else NONE)],
    lambda rows: {(rate_of(row), variant_of(row)): row for row in measured_rows(rows, "training", "variant")})


def device_nccl(rows):
    """By size: the seconds of an all-reduce in each phase that times it."""
    result = {}
    for row in measured_rows(rows, "nccl_plugin", "seconds"):
        for count, taken in row["seconds"].items():
            result.setdefault((size(int(count)),), {})[row["phase"]] = taken
    return result


def nccl_time(phase):
    return lambda v: microseconds(v[phase] * 1e6) if phase in v else NONE


DEVICE_NCCL = DeviceTable(("bytes",), [
    ("NCCL alone", nccl_time("plain")), ("plug-in, no agent", nccl_time("idle")),
    ("one operation in 16 measured", nccl_time("sampled")), ("all measured", nccl_time("all"))], device_nccl)

DEVICE_TABLES = {"device_parts": DEVICE_PARTS, "device_codecs": DEVICE_CODECS, "device_steps": DEVICE_STEPS,
                 "device_backward": DEVICE_BACKWARD, "device_training": DEVICE_TRAINING, "device_nccl": DEVICE_NCCL}
