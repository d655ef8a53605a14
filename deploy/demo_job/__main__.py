# SPDX-License-Identifier: Apache-2.0
"""The demo's driver: `deploy/demo` builds and calls it.

Runs the same training over the same network schedule three times: dense (Gloo), with fixed top-k
compression, and adaptively with controller and agents. Then writes a table, JSON and an HTML report.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

from demo_job import offload, report, schedule as schedules, stats, training
from demo_job.children import Children, end_on_signals
from demo_job.control_plane import ControlPlane, ControlPlaneError, find_binaries
from demo_job.network import (EmulatedNetwork, LoopbackNetwork, NetworkError, namespaces_refused,
                              remove_stale)
from demo_job.progress import DecisionPoller, Progress

STATIC_RATIOS = (0.1, 0.01, 0.001)
RUN_NAMES = ("dense", *(f"static {r:g}" for r in STATIC_RATIOS), "adaptive")
JOB = "demo"
COMPARE_JOB = "demo-fast-network"
STEPS_MAX_FACTOR = 1.5
ROOT = pathlib.Path(__file__).resolve().parents[2]


def parse(arguments):
    """Options of the command line; exits with a message that names what is wrong."""
    parser = argparse.ArgumentParser(prog="deploy/demo", description=" ".join(__doc__.splitlines()[2:]))
    parser.add_argument("--quick", action="store_true",
                        help="dense against adaptive on a short schedule, under 3 minutes")
    parser.add_argument("--aggregator", action="store_true",
                        help="dense against adaptive without compression, with an aggregator in "
                        "the network: when it is leased and why; about 5 minutes")
    parser.add_argument("--runs", help=f"comma list of: {', '.join(RUN_NAMES)} "
                        "(static: all three)")
    parser.add_argument("--schedule", metavar="FILE", help="JSON list of phases")
    parser.add_argument("--target", type=float, help="validation loss that counts as reached")
    parser.add_argument("--model-params", type=int, default=2_500_000, metavar="N")
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="training hosts, 1 to 16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", metavar="FILE", help="policy for the controller")
    parser.add_argument("--json", metavar="FILE", help="machine-readable report")
    parser.add_argument("--out", metavar="DIR", help="report and logs; default out/demo-<time>")
    parser.add_argument("--build", metavar="DIR", default=str(ROOT / "build"))
    parser.add_argument("--web-port", type=int, default=0, help="port of the controller's page "
                        "during the adaptive run; default: any")
    parser.add_argument("--no-fast-network", action="store_true",
                        help="leave out the comparison on the unshaped network")
    parser.add_argument("--loopback", action="store_true",
                        help="use no namespaces, even if they are permitted")
    options = parser.parse_args(arguments)
    if not 1 <= options.hosts <= 16:
        parser.error(f"--hosts: expected 1 to 16, found {options.hosts}")
    if options.aggregator and options.hosts < 2:
        parser.error(f"--aggregator: expected at least 2 hosts, found {options.hosts}")
    if not 10_000 <= options.model_params <= 200_000_000:
        parser.error(f"--model-params: expected 10000 to 200000000, found {options.model_params}")
    options.no_fast_network |= options.aggregator   # not what that run asks
    try:
        options.runs = selected_runs(options.runs, options.quick or options.aggregator)
        options.schedule = chosen_schedule(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def selected_runs(text, quick):
    """Run names in the order in which they run. ValueError names an unknown one."""
    if not text:
        return ["dense", "adaptive"] if quick else list(RUN_NAMES)
    wanted = []
    for name in (part.strip() for part in text.split(",")):
        if name == "static":
            wanted += [n for n in RUN_NAMES if n.startswith("static")]
        elif name in RUN_NAMES:
            wanted.append(name)
        else:
            raise ValueError(f"--runs: unknown run '{name}'; known: {', '.join(RUN_NAMES)}, static")
    return [n for n in RUN_NAMES if n in wanted]


def chosen_schedule(options):
    """The schedule of the options. ScheduleError or OSError says what is wrong with a file."""
    default = schedules.QUICK if options.quick else schedules.FULL
    if options.aggregator:
        default = schedules.AGGREGATOR
    if options.schedule:
        text = pathlib.Path(options.schedule).read_text(encoding="utf-8")
        default = schedules.parse(text, options.schedule, default.target)
    return default if options.target is None else default.with_target(options.target)


class Demo:
    """One invocation: owns the network, the children and the report's directory."""

    def __init__(self, options, binaries, network, directory):
        self.options = options
        self.binaries = binaries
        self.network = network
        self.directory = directory
        self.children = Children()
        self.control_plane = None
        self.results = []
        self.decisions = []
        self.points = []
        self.compare = None
        self.offload = None
        self.notes = []

    def run(self):
        """All runs in order."""
        for name in self.options.runs:
            print(f"\n== {name}", flush=True)
            if name == "adaptive":
                self._adaptive()
            elif name == "dense":
                self._train(name, "gloo", {})
            else:
                self._train(name, "weir", {"WEIR_PLAN_FILE": str(self._plan(name)),
                                           "WEIR_AGENT": "", **self._library()})

    def _library(self):
        return {"WEIR_LIBRARY": self.binaries["libweir.so"], "WEIR_JOB": JOB}

    def _plan(self, name):
        ratio = float(name.split()[1])
        path = self.directory / f"plan-{ratio:g}.json"
        choice = {"codec": "top_k", "collective": "sparse_all_gather", "ratio": ratio}
        path.write_text(json.dumps({"job": JOB, "version": 1, "buckets": [], "fallback": choice}))
        return path

    def _train(self, name, backend, environment, poller=None, per_rank=None, also=None):
        options = self.options
        run = training.Training(
            self.children, self.network, options.schedule, self.directory, world=options.hosts,
            model_params=options.model_params, seed=options.seed,
            validate_every=validation_interval(options.schedule.steps),
            steps_max=int(options.schedule.steps * STEPS_MAX_FACTOR))
        progress = Progress(options.schedule, poller)

        def on_line(result, line):
            progress(result, line)
            if also:
                also(result, line)
        result = run.run(name, backend, environment, on_line, per_rank)
        self.results.append(result)
        with open(self.directory / f"{name.replace(' ', '-')}.jsonl", "w") as out:
            for line in (result.ready, *result.steps, *result.validations, result.end):
                out.write(json.dumps(line) + "\n")
        return result

    def _policy(self):
        """The controller's policy file; None for its own default."""
        if self.options.policy or not self.options.aggregator:
            return self.options.policy
        path = self.directory / "dense-sums.yaml"
        path.write_text(offload.POLICY)
        return path

    def _adaptive(self):
        goodput = offload.GOODPUT_GBIT_S if self.options.aggregator else 0.0
        self.control_plane = ControlPlane(
            self.children, self.binaries, self.directory / "control", self.network,
            self.options.hosts, self._policy(), self.options.web_port, goodput)
        self.control_plane.start()
        print(f"controller: {self.control_plane.url} (web page and REST while this run goes on)",
              flush=True)
        poller = DecisionPoller(self.control_plane, JOB, self.options.aggregator)
        log = offload.LeaseLog(
            len(self.options.schedule.phases), poller.aggregator,
            self.control_plane.aggregator_metrics) if self.options.aggregator else None
        try:
            result = self._train("adaptive", "weir", self._library(), poller, self._agent_of, log)
        finally:
            poller.stop()
        self.decisions = self.control_plane.decisions(JOB, candidates=log is not None) or poller.latest()
        if log:
            self.offload = offload.report_of(self.options.schedule, result, self.decisions, log)
        self.points = self.control_plane.series(JOB)
        with open(self.directory / "decisions.json", "w") as out:
            json.dump({"decisions": self.decisions, "series": self.points}, out)
        switches = [d for d in self.decisions if d.get("switched")]
        if switches:
            (self.directory / "explain.txt").write_text(self.control_plane.explain(JOB, switches[-1]["id"]))
        if not self.options.no_fast_network:
            self._compare()
        self.control_plane.stop()

    def _agent_of(self, rank):
        return {"WEIR_AGENT": f"unix:{self.control_plane.socket(rank)}"}

    def _compare(self):
        print("\n== unshaped network: Gloo and Weir in turns", flush=True)
        self.network.shape(0.0)
        run = training.Training(
            self.children, self.network, self.options.schedule, self.directory,
            world=self.options.hosts, model_params=0, seed=0, validate_every=1, steps_max=1)
        arguments = ["--model-params", self.options.model_params, "--seed", self.options.seed]
        arguments += (["--steps", 8, "--rounds", 4, "--warm-up", 15] if self.options.quick else
                      ["--steps", 20, "--rounds", 8, "--warm-up", 30])
        ranks = [run.start("demo_job.compare", arguments, rank,
                           {**self._library(), "WEIR_JOB": COMPARE_JOB, **self._agent_of(rank)},
                           "fast-network", subprocess.PIPE if rank == 0 else subprocess.DEVNULL)
                 for rank in range(self.options.hosts)]
        try:
            for line in training.lines_of(ranks[0], ranks, training.SILENCE_S):
                if line is not None and line["kind"] == "compare":
                    self.compare = line
                elif line is not None and line["kind"] == "block":
                    print(f"round {line['round']}/{line['of']} {line['name']}: "
                          f"{line['median_step_s']:.3f} s a step", flush=True)
        finally:
            self.children.stop(ranks)
            ranks[0].stdout.close()
        if self.compare is None:
            raise training.TrainingError("the comparison on the unshaped network printed nothing: "
                                         + training.tail(ranks[0].log_path))

    def report(self, started):
        """The machine-readable report."""
        options = self.options
        runs = [r.summary(options.schedule) for r in self.results]
        ready = next((r.ready for r in self.results if r.ready), {})
        decisions = report.decisions_of(self.decisions)
        adaptive = any(r.name == "adaptive" for r in self.results)
        return {
            "schedule": [dataclasses.asdict(p) for p in options.schedule.phases],
            "target_validation_loss": options.schedule.target,
            "runs": runs,
            "ratios": stats.ratios(runs, self.compare["ratio"] if self.compare else None),
            "decisions": decisions,
            "reactions": report.reactions(options.schedule, self.decisions) if adaptive else [],
            "prediction_median_abs_error": stats.median(stats.prediction_errors(self.points)),
            "fast_network": self.compare,
            "offload": self.offload,
            "machine": machine(self.network, options.hosts, ready.get("torch", "unknown")),
            "model_parameters": ready.get("parameters", options.model_params),
            "seed": options.seed,
            "started": started,
            "notes": self.notes,
        }


def validation_interval(steps):
    """Steps between validations: fine enough to time the target, rare enough to cost little."""
    return max(5, min(20, steps // 25))


def machine(network, hosts, torch_version):
    """The facts about the machine that a reader needs to judge the figures."""
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    emulation = network.describe()
    return {"processor": model, "cores": os.cpu_count(), "kernel": platform.release(),
            "system": platform.platform(), "torch": torch_version, "hosts": hosts,
            "rate_emulation": emulation["rate"], "delay_emulation": emulation["delay"],
            "congestion_control": emulation["congestion_control"],
            "load_average_1min": os.getloadavg()[0]}


def write_reports(demo, started):
    """Table on the terminal; report.json, report.html, loss.svg, and --json FILE."""
    document = demo.report(started)
    text = json.dumps(document, indent=1)
    (demo.directory / "report.json").write_text(text + "\n")
    (demo.directory / "report.html").write_text(
        report.html_page(document, demo.results, demo.points))
    (demo.directory / "loss.svg").write_text(report.loss_picture(document, demo.results))
    if demo.options.json:
        pathlib.Path(demo.options.json).write_text(text + "\n")
    print("\n" + report.terminal_table(document) + "\n\n" + report.terminal_headline(document))
    if document["offload"]:
        print("\n" + report.terminal_offload(document))
    print(f"\nreport: {demo.directory / 'report.html'}", flush=True)


def drive(options, network, binaries, directory, notes):
    """Runs and reports; ends every child however it ends."""
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    demo = Demo(options, binaries, network, directory)
    demo.notes = notes
    try:
        demo.run()
    except (training.TrainingError, ControlPlaneError, NetworkError) as error:
        if not demo.results:
            raise
        # The runs before the failure are still reported.
        demo.notes.append(f"This demo did not end: {error}")
        write_reports(demo, started)
        raise
    else:
        write_reports(demo, started)
    finally:
        if demo.control_plane is not None:
            demo.control_plane.stop()
        demo.children.stop()


def main():
    options = parse(sys.argv[1:])
    binaries, missing = find_binaries(options.build)
    needed = {"libweir.so"} if any(r != "dense" for r in options.runs) else set()
    needed |= {"weir-controller", "weir-agent", "weirctl"} if "adaptive" in options.runs else set()
    needed |= {"weir-aggregator"} if options.aggregator else set()
    if needed & set(missing):
        sys.exit(f"deploy/demo: not built below {options.build}: "
                 f"{', '.join(sorted(needed & set(missing)))}")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    directory = pathlib.Path(options.out or ROOT / "out" / f"demo-{stamp}").resolve()
    directory.mkdir(parents=True, exist_ok=True)
    end_on_signals()
    stale = remove_stale() if os.geteuid() == 0 else []
    if stale:
        print(f"removed namespaces of a demo that is gone: {', '.join(stale)}")
    refused = "--loopback was given" if options.loopback else namespaces_refused()
    if refused and options.aggregator:
        sys.exit(f"deploy/demo: --aggregator: no network namespaces ({refused}), and on loopback "
                 "nothing would slow its packets down")
    try:
        if refused:
            network = LoopbackNetwork(binaries.get("libweir-pace.so"), directory)
            note = (f"No network namespaces ({refused}): all ranks run on this machine's loopback. "
                    f"Rate: {network.describe()['rate']}; delays are left out.")
            print(note)
            drive(options, network, binaries, directory, [note])
        else:
            relay = binaries.get("weir-delay-relay")
            with EmulatedNetwork(options.hosts, relay, options.aggregator) as network:
                drive(options, network, binaries, directory, [])
    except KeyboardInterrupt:
        print("\ndeploy/demo: interrupted; everything it started has been ended", file=sys.stderr)
        sys.exit(130)
    except (training.TrainingError, ControlPlaneError, NetworkError) as error:
        sys.exit(f"deploy/demo: {error}")


if __name__ == "__main__":
    main()
