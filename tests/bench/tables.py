#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tables of what the benchmarks measured into the READMEs of tests/bench, controller and the whole project.

Results are JSON lines in tests/bench/results: NAME.jsonl is the last recorded run of benchmark NAME and
NAME.previous.jsonl the one before it. Their first line says where and how they ran. Those of GPUs are in
tests/device/results, a file for each run of tests/device/run.
"""
import json
import pathlib
import re
import statistics
import sys

from device_tables import DEVICE_TABLES
from formats import NONE, markdown, microseconds, ratio, size

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
PAGES = (HERE / "README.md", ROOT / "README.md", ROOT / "controller/README.md")
EXPLAIN_LINES, EXPLAIN_COLUMNS = 12, 140


def record(name, lines, files=None):
    """Keeps `lines`, and other files' texts by suffix, as the last run of benchmark `name`, and what was the last as the
    previous."""
    last = RESULTS / f"{name}.jsonl"
    if last.exists():
        last.replace(RESULTS / f"{name}.previous.jsonl")
    last.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for suffix, text in (files or {}).items():
        (RESULTS / f"{name}{suffix}").write_text(text, encoding="utf-8")


def load(name, suffix=""):
    """(origin, rows) of a recorded run; (None, []) where there is none."""
    path = RESULTS / f"{name}{suffix}.jsonl"
    if not path.exists():
        return None, []
    origin, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return origin, rows


class Table:
    """Rows by key, so that the previous run's can stand beside them. columns: (title, function of a row's values)."""

    def __init__(self, keys, columns, values, judged):
        self.keys = keys          # titles of the first columns
        self.columns = columns    # (title, function(values) -> text)
        self.values = values      # function(rows) -> {key: values}
        self.judged = judged      # (title, function(values) -> text) of the previous run's column

    def render(self, name):
        """The table in Markdown, with where it was measured above it."""
        origin, rows = load(name)
        if origin is None:
            return f"Not recorded yet: `tests/bench/run --record {name}`."
        before_origin, before = load(name, ".previous")
        before = self.values(before) if before_origin else {}
        title, judge = self.judged
        lines = markdown([*self.keys, *(t for t, _ in self.columns), *([f"{title} before"] if before else [])], [
            [*map(str, key), *(column(values) for _, column in self.columns),
             *([judge(before[key]) if key in before else NONE] if before else [])]
            for key, values in self.values(rows).items()])
        words = [f"`tests/bench/run {name}`, which calls `{origin['command']}`.", where(origin)]
        days = sorted({f"{row['date']} at {row['commit']}" for row in rows if "commit" in row})
        if len(days) > 1:
            words.append(f"Measured on {', '.join(days)}.")
        if before:
            words.append(f"Before: {where(before_origin)}")
        return "\n".join([" ".join(words), "", *lines])


def where(origin):
    """Date, machine and commit of a run."""
    return f"{origin['date']}, {origin['cores']} cores of {origin['processor']}, commit {origin['commit']}."


def fastest(rows, implementation):
    """The fastest row of an implementation, or None."""
    found = [row for row in rows if row["impl"] == implementation]
    return min(found, key=lambda row: row["median_us"], default=None)


def median_of(row):
    return row and row["median_us"]


def contests(rows):
    """By (transport, ranks, bytes): medians of the best algorithm of each library, and times as fast as the best peer."""
    result = {}
    groups = {}
    for row in rows:
        groups.setdefault((row["transport"], row["ranks"], row["bytes"]), []).append(row)
    for (transport, ranks, count), group in sorted(groups.items()):
        weir, gloo, mpi = (median_of(fastest(group, name)) for name in ("weir", "gloo", "open_mpi"))
        best = min((peer for peer in (gloo, mpi) if peer), default=None)
        goal = 1.25 if count >= 1 << 20 else 1.0
        result[(transport, ranks, size(count))] = {
            "weir": weir, "gloo": gloo, "mpi": mpi, "goal": goal,
            "faster": best / weir if best and weir else None}
    return result


def faster(values):
    return ratio(values["faster"], values["faster"] is None or values["faster"] >= values["goal"])


CONTEST = Table(("transport", "ranks", "bytes"), [
    ("Weir", lambda v: microseconds(v["weir"])), ("Open MPI", lambda v: microseconds(v["mpi"])),
    ("Gloo", lambda v: microseconds(v["gloo"])), ("times as fast as the best peer", faster),
    ("goal", lambda v: f"{v['goal']:g}")], contests, ("times as fast", faster))


def shares(rows):
    """By (link, ranks, bytes): the part of its bound that each library's best algorithm reaches."""
    result, groups = {}, {}
    for row in rows:
        link = f"{row['rate_mbps']:g} Mb/s" + (f", {row['delay_ms']:g} ms" if row["delay_ms"] else "")
        # Small messages are bound by latency and large ones by bandwidth; sizes in between have no
        # goal.
        if row["bound_us"] and (row["bytes"] >= 1 << 20 or row["delay_ms"]):
            groups.setdefault((row["delay_ms"], row["ranks"], row["bytes"], link), []).append(row)
    for (_, ranks, count, link), group in sorted(groups.items()):
        best = {name: fastest(group, name) for name in ("weir", "gloo", "open_mpi")}
        share = {name: row and row["bound_us"] / row["median_us"] for name, row in best.items()}
        result[(link, ranks, size(count))] = {
            **share, "bound": group[0]["bound_us"], "algorithm": best["weir"] and best["weir"]["algorithm"],
            "goal": 0.96 if count >= 1 << 20 else 0.87}
    return result


def share(values):
    value = values["weir"]
    return ratio(value, value is None or value >= values["goal"])


LINKS = Table(("link", "ranks", "bytes"), [
    ("bound", lambda v: microseconds(v["bound"])), ("Weir", share),
    ("by", lambda v: f"`{v['algorithm']}`"), ("Gloo", lambda v: ratio(v["gloo"])),
    ("Open MPI", lambda v: ratio(v["open_mpi"])), ("goal", lambda v: f"{v['goal']:g}")],
    shares, ("Weir", share))


def codec_rows(rows):
    """By (codec, setting)."""
    result = {}
    for row in rows:
        params = row["params"]
        if params["ratio"] not in (1.0, 0.01):
            continue  # three ratios of everything would be three hundred rows
        setting = ", ".join([*([f"{params['ratio']:.4g}"] if params["ratio"] < 1 else []),
                             *([f"{params['bits']} bits"] if params["bits"] else [])])
        result[(f"`{row['codec']}`", setting)] = row
    return result


def encoded(row):
    return ratio(row["encode_over_memcpy"], "encode" not in row["goals_missed"])


def decoded(row):
    return ratio(row["decode_one_over_memcpy"], "decode" not in row["goals_missed"])


def counted(row):
    found = [row.get(f"{part}_instructions") for part in ("encode", "decode")]
    return " + ".join(f"{value:.3g}" for value in found) if None not in found else NONE


CODECS = Table(("codec", "setting"), [
    ("encode", encoded), ("goal", lambda r: f"{r['encode_goal']:g}" if r["encode_goal"] else ""),
    ("floor", lambda r: ratio(r["encode_floor"])),
    ("decode", decoded), ("goal", lambda r: f"{r['decode_goal']:g}" if r["decode_goal"] else ""),
    ("step, world of 4", lambda r: ratio(r["step_over_memcpy"])), ("of 8", lambda r: ratio(r.get("step_over_memcpy_of_8"))),
    ("instructions per element", counted), ("bits per element", lambda r: f"{r['bits_per_element']:.3g}"),
    ("error", lambda r: f"{r['relative_error']:.3f}"),
    ("peer: its time over ours", lambda r: f"{r['peer']}: {r['peer_over_ours']:.1f}" if r.get("peer") else NONE)],
    codec_rows, ("encode", encoded))


def compressed_rows(rows):
    return {(f"`{r['codec']}`, `{r['collective']}`", r["ranks"], f"{r['rate_mbps']:g} Mb/s"): r for r in rows}


def over_bound(row):
    return ratio(row["over_bound"], row["over_bound"] <= 1.15)


COMPRESSED = Table(("codec, collective", "ranks", "link"), [
    ("step", lambda r: microseconds(r["median_us"])), ("dense", lambda r: microseconds(r["dense_us"])),
    ("times its bound", over_bound), ("goal", lambda r: "1.15")], compressed_rows, ("times its bound", over_bound))


def overlap_rows(rows):
    return {(r["torch"], r["ranks"], f"{r['rate_mbps']:g} Mb/s"): r for r in rows}


def over_gloo(row):
    return ratio(row["over_gloo"], row["over_gloo"] <= 1.02)


OVERLAP = Table(("torch", "ranks", "link"), [
    ("DDP over Gloo", lambda r: microseconds(r["gloo_us"])), ("Weir, dense", lambda r: microseconds(r["weir_us"])),
    ("Weir / Gloo", over_gloo), ("goal", lambda r: "1.02")], overlap_rows, ("Weir / Gloo", over_gloo))


def demo_rows(rows):
    """The claims of a demo's report, by label."""
    sys.path.insert(0, str(ROOT / "deploy"))
    from demo_job import report  # only here: most tables need no demo
    return {(claim.label,): claim for row in rows for claim in report.claims(row)}


def claimed(claim):
    if claim.value is None:
        return NONE
    if isinstance(claim.value, int):
        return str(claim.value) if claim.value <= claim.most else f"**{claim.value}**"
    return ratio(claim.value, claim.value <= claim.most)


DEMO = Table(("claim",), [("measured", claimed), ("goal", lambda c: c.goal())], demo_rows, ("measured", claimed))


def decision_rows(rows):
    return {(f"{r['rate_mbps']:g} Mb/s" if r["rate_mbps"] else "unshaped", f"{r['delay_ms']:g} ms",
             r["condition"].replace("_", " ") or "quiet"): r for r in rows}


def over_best(row):
    return ratio(row["over_best"], row["over_best"] <= 1.10)


def believed(row, what, unit):
    """A belief beside the truth; bold where it is off by more than 20 %."""
    belief, true = row[f"believed_{what}"], row[f"true_{what}"]
    text = f"{belief:.3g} {unit}"
    return text if not true or abs(belief / true - 1) <= 0.2 else f"**{text}**"


def predicted(row):
    if not row["predicted_step_s"]:
        return NONE
    error = row["predicted_step_s"] / row["measured_step_s"] - 1
    return ratio(error, abs(error) <= 0.1) + ("" if row["within_interval"] else ", outside its interval")


DECISIONS = Table(("rate", "delay", "condition"), [
    ("Weir ran", lambda r: r["weir"]), ("best in hindsight", lambda r: r["best"]),
    ("seconds per progress over the best", over_best), ("believed rate", lambda r: believed(r, "mbps", "Mb/s")),
    ("believed delay", lambda r: believed(r, "ms", "ms")), ("error of predicted step", predicted)],
    decision_rows, ("over the best", over_best))


def aggregation_rows(rows):
    return {(f"`{r['protocol']}`", f"{r['rate_mbps']:g} Mb/s", f"{100 * r['density']:g} %",
             f"{100 * r['cell_loss']:g} %"): r for r in rows if r["over_ring"] is not None}


AGGREGATION = Table(("protocol", "links", "not zero", "lost"), [
    ("goodput", lambda r: f"{r['goodput_gbps']:.3g} Gb/s"),
    ("times the ring's speed", lambda r: ratio(r["over_ring"])),
    ("the links allow", lambda r: ratio(r["over_ring_ceiling"])),
    ("times Gloo's", lambda r: ratio(r["over_gloo"]))], aggregation_rows,
    ("times the ring's", lambda r: ratio(r["over_ring"])))


def sums_rows(rows):
    return {(r["plane"], f"`{r['protocol']}`", r["workers"], f"{100 * r['loss']:g} %"): r for r in rows}


SUMS = Table(("plane", "protocol", "workers", "lost"), [
    ("summed", lambda r: f"{r['goodput_gbps']:.3g} Gb/s"),
    ("a packet", lambda r: f"{r['ns_per_packet']:.0f} ns" if r["ns_per_packet"] else NONE)], sums_rows,
    ("summed", lambda r: f"{r['goodput_gbps']:.3g} Gb/s"))


def google_rows(rows):
    return {(f"`{r['name'].removesuffix('_median')}`",): r for r in rows}


def throughput(row):
    value = row.get("bytes_per_second")
    return f"{value / 1e9:.3g} GB/s" if value else f"{row['real_time']:.3g} {row['time_unit']}"


GOOGLE = Table(("row",), [("bytes a second, or time", throughput)], google_rows, ("it was", throughput))


def converged(rows):
    return {(r["task"], f"`{r['codec']}`", f"{r['params']['ratio']:.3g}" if r["params"]["ratio"] < 1 else NONE): r
            for r in rows if "error" not in r}


def over_dense(row):
    text = f"{row['over_dense']:+.3f}"
    return text if row["over_dense"] <= row["within"] else f"**{text}**"


CODEC_LOSS = Table(("task", "codec", "ratio"), [
    ("final loss", lambda r: f"{r['final_loss']:.3f}"), ("over dense", over_dense),
    ("goal", lambda r: f"+{r['within']:g}"), ("times smaller", lambda r: f"{r['compression']:.1f}")],
    converged, ("over dense", over_dense))


def trained(rows):
    """By (task, schedule): medians over the seeds of each method's time to the target, None where a seed missed it."""
    groups = {}
    for row in rows:
        groups.setdefault((row["task"], row["schedule"]), {}).setdefault(row["method"], []).append(row)
    result = {}
    for key, methods in sorted(groups.items()):
        times = {name: None if any(r["time_to_target_s"] is None for r in runs) else
                 statistics.median(r["time_to_target_s"] for r in runs) for name, runs in methods.items()}
        static = min((name for name in times if name.startswith("top_k") and times[name]), key=times.get, default=None)
        weir = methods.get("weir", [])
        result[key] = {"times": times, "static": static, "seeds": len(methods["dense"]), "quality":
                       statistics.median(r["loss_over_dense"] for r in weir) if weir else None}
    return result


def seconds(name):
    return lambda v: f"{v['times'][name]:.1f} s" if v["times"].get(name) else NONE


def weir_over(peer, most):
    """Weir's time to the target over a peer's; bold where it is more than `most`."""
    def cell(values):
        name = values["static"] if peer == "static" else peer
        weir, other = values["times"].get("weir"), values["times"].get(name)
        return ratio(weir / other, weir / other <= most) if weir and other else NONE
    return cell


def quality(values):
    return ratio(values["quality"], values["quality"] is None or values["quality"] <= 1.01)


CONVERGENCE = Table(("task", "schedule"), [
    ("seeds", lambda v: str(v["seeds"])), ("dense", seconds("dense")), ("bf16", seconds("bf16")),
    ("best static", lambda v: f"{v['static']}: {v['times'][v['static']]:.1f} s" if v["static"] else NONE),
    ("PowerSGD", seconds("power_sgd")), ("published rule", seconds("moo")), ("Weir", seconds("weir")),
    ("Weir / best static", weir_over("static", 1.05)), ("Weir / bf16", weir_over("bf16", 0.6)),
    ("final loss / dense", quality)], trained, ("Weir / best static", weir_over("static", 1.05)))


def failovers(rows):
    """Figures of each way in which a leader was lost."""
    return {(row["way"].replace("_", " "),): row for row in rows if "runs" in row}


def goal_seconds(row):
    text = f"{row['ready_s_max']:.1f} s"
    return text if row["ready_s_max"] <= row["goal_s"] else f"**{text}**"


FAILOVER = Table(("leader",), [
    ("runs", lambda r: str(r["runs"])), ("another leads, median", lambda r: f"{r['leader_s_median']:.1f} s"),
    ("agents and ranks there, median", lambda r: f"{r['ready_s_median']:.1f} s"), ("worst", goal_seconds),
    ("within 5 s", lambda r: f"{r['within_goal']} of {r['runs']}"),
    ("a pin stored, worst", lambda r: f"{r['pinned_s_max']:.1f} s")], failovers, ("worst", goal_seconds))

def fleet_rows(rows):
    return {(r["agents"], r["jobs"] * r["world"]): r for r in rows}


def judged(name, form):
    """A measurement with a goal; bold where it misses it."""
    def cell(row):
        if row.get(name) is None:
            return "**missed**"
        text = form.format(row[name])
        return f"**{text}**" if name in row["goals_missed"] else text
    return cell


FLEET = Table(("agents", "ranks"), [
    ("lost", judged("lost", "{:.0f}")), ("welcome, p99", judged("welcome_p99_s", "{:.2f} s")),
    ("pushed plan, p99", judged("push_p99_s", "{:.2f} s")), ("memory", judged("rss_mib", "{:.0f} MiB")),
    ("all back after SIGKILL", judged("storm_s", "{:.1f} s")),
    ("cores", lambda r: f"{r['cpu_cores']:.2f}"), ("per agent", lambda r: f"{r['cpu_us_per_agent_s']:.0f} us/s")],
    fleet_rows, ("cores", lambda r: f"{r['cpu_cores']:.2f}"))

TABLES = {"demo": DEMO, "demo_quick": DEMO, "loopback": CONTEST, "hosts": CONTEST, "links": LINKS, "codecs": CODECS,
          "compressed": COMPRESSED, "decisions": DECISIONS, "overlap": OVERLAP, "aggregation": AGGREGATION, "sums": SUMS,
          "wire": GOOGLE, "nccl_plugin": GOOGLE, "kernels": GOOGLE, "codec_loss": CODEC_LOSS, "convergence": CONVERGENCE,
          "failover": FAILOVER, "fleet": FLEET,
          **DEVICE_TABLES}


def summary():
    """The few rows of the project's front page: what, measured, goal, peer, when and where, command."""
    lines = ["| what | measured | goal | peer | date, machine | command |", "|---" * 6 + "|"]

    def add(what, value, goal, peer, name):
        origin, _ = load(name)
        if origin is not None:
            lines.append(f"| {what} | {value} | {goal} | {peer} | {origin['date']}, {origin['cores']} cores of "
                         f"{origin['processor']} | `tests/bench/run {name}` |")
    for name, words in (("demo", "full"), ("demo_quick", "quick")):
        for (label,), claim in demo_rows(load(name)[1]).items():
            if label.startswith(("time to target", "final validation")) and claim.value is not None:
                add(f"{words} demo: {label}", claimed(claim), claim.goal(), "DDP over Gloo", name)
    for transport, words in (("shm", "shared memory"), ("tcp", "TCP on loopback")):
        found = [v["faster"] for (kind, *_), v in contests(load("loopback")[1]).items()
                 if kind == transport and v["faster"]]
        if found:
            add(f"dense all-reduce, {words}, 1 KiB to 16 MiB: times as fast",
                f"{statistics.median(found):.2f} in the median, {min(found):.2f} at worst", "1", "best of Open MPI and Gloo",
                "loopback")
    found = [v["weir"] for v in shares(load("links")[1]).values() if v["weir"]]
    if found:
        add("dense all-reduce on shaped links: share of the bound", f"{min(found):.2f} or more", "0.87 to 0.96",
            "the wire; Gloo, Open MPI", "links")
    for row in load("overlap")[1]:
        add("backward pass with the hook, dense, over DDP's", over_gloo(row), "at most 1.02", "DDP over Gloo", "overlap")
    return "\n".join(lines) if len(lines) > 2 else "Not recorded yet: `tests/bench/run --record`."


def headline():
    """The demo's result as a sentence and a picture; empty until one was recorded."""
    sys.path.insert(0, str(ROOT / "deploy"))
    from demo_job import report
    for name, words in (("demo", "The demo"), ("demo_quick", "The short demo")):
        origin, rows = load(name)
        if origin is not None:
            picture = (RESULTS / f"{name}.svg").relative_to(ROOT)
            return (f"{words}, on a network that changes: {report.sentence(rows[0])} (`{origin['command']}`, "
                    f"{origin['date']}.)\n\n![Validation loss over training time]({picture})")
    return ""


def explained():
    """The beginning of what `weirctl explain` said of the last switch in a recorded demo; empty until one was."""
    for name in ("demo", "demo_quick"):
        path = RESULTS / f"{name}.explain.txt"
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            shown = [line if len(line) <= EXPLAIN_COLUMNS else f"{line[:EXPLAIN_COLUMNS - 1]}…" for line in lines[:EXPLAIN_LINES]]
            return "\n".join(["```", *shown, *(["…"] if len(lines) > EXPLAIN_LINES else []), "```"])
    return ""


def rendered(page):
    """The page's text with every generated part as the results are."""
    def replace(match):
        name = match.group(1)
        special = {"summary": summary, "headline": headline, "explain": explained}
        made = special[name]() if name in special else TABLES[name].render(name)
        return f"<!-- measured: {name} -->\n{made}\n<!-- end -->"
    return re.sub(r"<!-- measured: (\w+) -->\n.*?<!-- end -->", replace, page.read_text(encoding="utf-8"), flags=re.S)


def write():
    """Writes the tables into their pages."""
    for page in PAGES:
        page.write_text(rendered(page), encoding="utf-8")


if __name__ == "__main__":
    write()
