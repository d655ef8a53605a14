# SPDX-License-Identifier: Apache-2.0
"""The report of a demo: a table for the terminal, one JSON object, one self-contained HTML page."""
import dataclasses
import html

from demo_job import offload, stats
from demo_job.plots import Chart, Line, figure, picture

STYLE = """
:root{color-scheme:light dark;--ink:#1b1e23;--soft:#667;--paper:#fff;--rule:#dde;
--a:#eef2f8;--b:#f7f8fb}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#9aa;--paper:#16181c;--rule:#333a44;
--a:#1f242c;--b:#1a1d23}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:920px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p.result{font-size:1.25rem;margin:.6rem 0}p.lead{color:var(--soft);margin:.2rem 0 1rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .5rem;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top}
th:first-child,td:first-child,td.l,th.l{text-align:left}th{font-weight:600;color:var(--soft)}
figure{margin:.5rem 0}svg{width:100%;height:auto}.t{font-size:12px;fill:var(--soft)}
.g{stroke:var(--rule)}.m{stroke:#d33;stroke-dasharray:3 3}
.l{stroke:var(--soft);stroke-dasharray:6 4}
.b0{fill:var(--a)}.b1{fill:var(--b)}.legend span{margin-right:1rem;font-size:13px}
.legend i{display:inline-block;width:14px;height:3px;margin-right:.35rem;vertical-align:middle}
.scroll{overflow-x:auto}
"""


def number(value, pattern="{:.2f}", unit=""):
    """A value for people; a dash for None."""
    return "-" if value is None else pattern.format(value) + unit


def table_rows(report):
    """Header and rows of the summary table."""
    phases = [p["name"] for p in report["schedule"]]
    header = ["run", "steps", "to target", "training", "final loss", "sent",
              *[f"{name}: s/step" for name in phases]]
    rows = []
    for run in report["runs"]:
        sent = run["bytes_sent"]
        rows.append([
            run["name"], str(run["steps"]), number(run["time_to_target_s"], "{:.1f}", " s"),
            number(run["training_time_s"], "{:.1f}", " s"),
            number(run["final_validation_loss"], "{:.4f}"),
            number(sent / 1e6 if sent is not None else None, "{:.0f}", " MB"),
            *[number(p["median"], "{:.3f}") for p in run["step_time_s"]]])
    return header, rows


def terminal_table(report):
    """The summary table as aligned text."""
    return _aligned(*table_rows(report))


def terminal_offload(report):
    """The aggregator's part as text: its leases, a table of the phases, and why below it."""
    header, rows = offload.table(report["offload"])
    why = [f"{row[0]}: {row[-1]}" for row in rows]
    return "\n".join([*offload.lease_lines(report["offload"]),
                      _aligned(header[:-1], [row[:-1] for row in rows]), *why])


def _aligned(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def sentence(report):
    """The result of the runs in one sentence; empty without both a dense and an adaptive run."""
    runs = {run["name"]: run for run in report["runs"]}
    if not {"dense", "adaptive"} <= set(runs):
        return ""
    dense, adaptive = (runs[name]["time_to_target_s"] for name in ("dense", "adaptive"))
    target = f"the validation loss {report['target_validation_loss']:g}"
    if dense is None and adaptive is None:
        return f"Neither Weir nor dense reached {target}."
    if adaptive is None:
        return f"Weir did not reach {target}; dense did in {dense:.1f} s."
    if dense is None:
        return f"Weir reached {target} in {adaptive:.1f} s; dense did not reach it."
    return f"Weir reached {target} in {adaptive:.1f} s; dense needed {dense:.1f} s."


@dataclasses.dataclass
class Claim:
    """One thing that a run judges: its value, None where it was not measured, and the most that meets the goal."""
    label: str
    value: float
    most: float
    optional: bool = False   # the goal is met also if there is nothing to judge

    def mark(self):
        """A tick, a cross, or a dash where there is nothing to judge."""
        if self.value is None:
            return "\u2713" if self.optional else "-"
        return "\u2713" if self.value <= self.most else "\u2717"

    def goal(self):
        """The goal in words."""
        return f"at most {self.most:g}" + (", or none needed" if self.optional else "")


def claims(report):
    """Every claim that the run itself can judge."""
    ratios = report["ratios"]
    result = [
        Claim("time to target, adaptive / dense (Gloo)", ratios["adaptive_over_dense"], 0.5),
        Claim("time to target, adaptive / best static", ratios["adaptive_over_best_static"], 1.05),
        Claim("step time on the unshaped network, Weir / Gloo", ratios["fast_network_step_ratio"],
              1.02),
        Claim("final validation loss, adaptive / dense", ratios["final_loss_adaptive_over_dense"],
              1.01),
        Claim("prediction error of network time, median", report["prediction_median_abs_error"],
              0.15),
    ]
    for change in report["reactions"]:
        result.append(Claim(f"steps from '{change['phase']}' to the decision about it",
                            change["decision_steps"], 15))
        result.append(Claim(f"steps from '{change['phase']}' to the first new plan",
                            change["plan_steps"], 15, optional=True))
    return result


def terminal_headline(report):
    """The sentence, and the claims with what this run measured."""
    lines = [sentence(report), ""] if sentence(report) else []
    lines += [f"{claim.mark()} {claim.label:<58} {number(claim.value, '{:.4g}'):>8}   ({claim.goal()})"
              for claim in claims(report)]
    return "\n".join(lines)


def _html_table(header, rows, left=()):
    def cells(tag, row):
        classes = ['class="l"' if i in left else "" for i in range(len(row))]
        return "".join(f"<{tag} {kind}>{html.escape(str(cell))}</{tag}>"
                       for kind, cell in zip(classes, row))
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", header)}</tr>{body}</table></div>'


def _bands(schedule):
    first, bands = 1, []
    for phase in schedule:
        bands.append((first, first + phase["steps"], phase["name"]))
        first += phase["steps"]
    return bands


def _loss_over_time(report, results):
    return Chart(
        "training time, s", "validation loss, nats per byte",
        [Line(r.name, [(v["time_s"], v["loss"]) for v in r.validations]) for r in results],
        level=(report["target_validation_loss"], "target"))


def loss_picture(report, results):
    """Validation loss over training time, as an SVG file of its own."""
    return picture(_loss_over_time(report, results), sentence(report))


def _charts(report, results, points):
    bands = _bands(report["schedule"])
    # The controller counts steps from 0, rank 0's lines from 1.
    marks = [(d["step"] + 1, f"{d['from']} -> {d['to']}: {d['reason']}")
             for d in report["decisions"]]
    yield "Validation loss over training time", _loss_over_time(report, results)
    yield "Validation loss over steps", Chart(
        "step", "validation loss, nats per byte",
        [Line(r.name, [(v["step"], v["loss"]) for v in r.validations]) for r in results],
        bands=bands, level=(report["target_validation_loss"], "target"))
    yield "Step time", Chart(
        "step", "s per step (logarithmic)",
        [Line(r.name, [(s["step"], s["step_s"]) for s in r.steps]) for r in results],
        bands=bands, log_y=True)
    if points:
        yield "Kept fraction of the largest bucket (red: a new plan)", Chart(
            "step", "kept fraction (logarithmic)",
            [Line("adaptive", [(int(p["step"]) + 1, float(p.get("ratio") or 1.0)) for p in points],
                  step=True)], bands=bands, marks=marks, log_y=True)
        yield "Network time of a step: predicted and measured", Chart(
            "step", "s (logarithmic)", [
                Line("predicted", [(int(p["step"]) + 1, float(p.get("predicted_network_s") or 0))
                                   for p in points]),
                Line("measured", [(int(p["step"]) + 1, float(p.get("measured_network_s") or 0))
                                  for p in points], dots=True)],
            bands=bands, marks=marks, log_y=True)
        # An unshaped network has no rate to compare with.
        true = [point for (first, last, _), phase in zip(bands, report["schedule"])
                for point in ((first, phase["rate_mbps"]), (last, phase["rate_mbps"])) if phase["rate_mbps"]]
        yield "What the controller believes of the network", Chart(
            "step", "Mb/s of the bottleneck (logarithmic)", [
                Line("believed", [(int(p["step"]) + 1,
                                   float(p.get("bandwidth_bytes_per_s") or 0) * 8e-6)
                                  for p in points]),
                Line("true", true)], bands=bands, log_y=True)


def html_page(report, results, points):
    """The whole report as one page that loads nothing."""
    decisions = [[d["step"], d["trigger_step"], d["from"], d["to"], d["reason"]]
                 for d in report["decisions"]]
    schedule = [[p["name"], p["steps"], number(p["rate_mbps"], "{:g}") if p["rate_mbps"] else
                 "unshaped", f"{p['delay_ms']:g}", f"{100 * p['loss_ratio']:g}"]
                for p in report["schedule"]]
    machine = [[key, value] for key, value in report["machine"].items()]
    sections = [
        "<h1>Weir: adaptive against fixed compression on a changing network</h1>",
        f'<p class="lead">{report["machine"]["hosts"]} hosts, {report["model_parameters"]:,} '
        f'parameters, target validation loss {report["target_validation_loss"]:g}. '
        f'{html.escape(report["started"])}. Training time stands still while validating.</p>',
        *(f'<p class="result">{html.escape(words)}</p>' for words in [sentence(report)] if words),
        *(f"<p><b>{html.escape(note)}</b></p>" for note in report["notes"]),
        "<h2>What it shows</h2>",
        _html_table(["", "claim", "this run", "wanted"],
                    [[c.mark(), c.label, number(c.value, "{:.4g}"), c.goal()] for c in claims(report)],
                    (1,)),
        "<h2>Runs</h2>", _html_table(*table_rows(report)),
    ]
    for title, chart in _charts(report, results, points):
        sections += [f"<h2>{title}</h2>", figure(chart)]
    if report["offload"]:
        sections += ["<h2>Aggregator</h2>",
                     *(f"<p>{html.escape(line)}</p>" for line in
                       offload.lease_lines(report["offload"])),
                     _html_table(*offload.table(report["offload"]), (6,))]
    sections += [
        "<h2>Decisions</h2>",
        _html_table(["step", "noticed at", "from", "to", "reason"], decisions, (2, 3, 4))
        if decisions else "<p>No plan was changed.</p>",
        "<h2>Network schedule</h2>",
        _html_table(["phase", "steps", "Mb/s", "one-way delay, ms", "lost, %"], schedule),
        "<h2>Machine and network</h2>", _html_table(["", ""], machine, (1,)),
    ]
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width"><title>Weir demo</title><style>{STYLE}</style>'
            f"<body>{''.join(sections)}</body></html>\n")


def decisions_of(found):
    """The report's `decisions` from the controller's (weir.v1.Decision): those that switched.

    Their steps count from 0, as the controller, weirctl and the phases' boundaries do.
    """
    result = []
    for decision in found:
        if not decision.get("switched"):
            continue
        # 64-bit integers are strings in proto3 JSON: "0" would be true.
        step = int(decision.get("activation_step") or 0) or int(decision.get("step") or 0)
        result.append({"step": step, "from": decision.get("from", ""), "to": decision.get("to", ""),
                       "reason": decision.get("reason", ""),
                       "trigger_step": int(decision.get("trigger_step") or 0),
                       "trigger": decision.get("trigger", ""),
                       "outcome": decision.get("outcome", "")})
    return result


def reactions(schedule, found):
    """Steps from each change of the network to the decision that it caused and to the first new plan.

    found: the controller's decisions, those included that kept the running plan. `plan_steps` is
    None where no plan followed before the next change.
    """
    boundaries = schedule.boundaries()[1:]
    caused = [int(d.get("trigger_step") or 0) for d in found
              if d.get("trigger") in ("bandwidth_change", "latency_change")]
    decided = stats.steps_until(boundaries, caused)
    planned = stats.steps_until(boundaries, [d["step"] for d in decisions_of(found)
                                            if d["outcome"] == "active"])
    return [{"phase": phase.name, "decision_steps": decision, "plan_steps": plan}
            for phase, decision, plan in zip(schedule.phases[1:], decided, planned)]
