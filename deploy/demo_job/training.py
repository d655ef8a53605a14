# SPDX-License-Identifier: Apache-2.0
"""Runs one training over the scheduled network and collects what rank 0 says."""
import dataclasses
import json
import os
import pathlib
import selectors
import subprocess
import sys
import time

from demo_job import stats

PORT = 29500
MODULES = pathlib.Path(__file__).resolve().parent.parent
WEIR_MODULES = MODULES.parent / "datapath" / "python"
SILENCE_S = 240.0      # rank 0 counts as stuck after this time without output
ENDING_S = 30.0


class TrainingError(RuntimeError):
    """A rank failed or went silent; the message names it and holds the end of its log."""


@dataclasses.dataclass
class Result:
    """The measurements of one run. Steps count from 1; times are on the training clock, in seconds."""
    name: str
    phases: list                       # of the schedule, as given
    steps: list = dataclasses.field(default_factory=list)        # rank 0's "step" lines
    validations: list = dataclasses.field(default_factory=list)  # its "validation" lines
    ready: dict = dataclasses.field(default_factory=dict)
    end: dict = dataclasses.field(default_factory=dict)
    changed_at: list = dataclasses.field(default_factory=list)   # (step, phase index)

    def step_times(self, index, boundaries):
        """Step times of phase `index`; the last phase includes steps beyond the schedule."""
        first = boundaries[index]
        last = boundaries[index + 1] if index + 1 < len(boundaries) else None
        return [s["step_s"] for s in self.steps[first:last]]

    def summary(self, schedule):
        """The run's object in the machine-readable report."""
        boundaries = schedule.boundaries()
        phases = []
        for index, phase in enumerate(schedule.phases):
            times = self.step_times(index, boundaries)
            phases.append({"phase": phase.name, "steps": len(times), "median": stats.median(times),
                           "p99": stats.percentile(times, 0.99), "total": sum(times)})
        return {"name": self.name, "steps": self.end.get("steps", len(self.steps)),
                "training_time_s": self.end.get("time_s"),
                "time_to_target_s": self.end.get("time_to_target_s"),
                "final_validation_loss": self.end.get("final_validation_loss"),
                "bytes_sent": self.end.get("bytes_sent"),
                "steps_skipped": self.end.get("steps_skipped", 0),
                "step_time_s": phases}


class Training:
    """One run: `world` ranks, one per host."""

    def __init__(self, children, network, schedule, directory, *, world, model_params, seed,
                 validate_every, steps_max, module="demo_job.train"):
        self._children = children
        self._network = network
        self._schedule = schedule
        self._directory = pathlib.Path(directory)
        self._world = world
        self._module = module
        self._arguments = [
            "--steps", schedule.steps, "--steps-max", steps_max, "--target", schedule.target,
            "--validate-every", validate_every, "--model-params", model_params, "--seed", seed]

    def run(self, name, backend, environment=None, on_line=None, per_rank=None):
        """Trains to the end and returns the Result. on_line(result, line) sees every line.

        per_rank(rank) gives additional environment of one rank.
        """
        phases = [dataclasses.asdict(p) for p in self._schedule.phases]
        result = Result(name, phases)
        self._apply_phase(result, 0)
        ranks = [self._start_rank(name, backend, rank, environment or {}, per_rank)
                 for rank in range(self._world)]
        try:
            self._follow(result, ranks, on_line)
        finally:
            self._children.stop(ranks)
            for rank in ranks:
                if rank.stdout:
                    rank.stdout.close()
        return result

    def start(self, module, arguments, rank, environment, log_name, stdout):
        """Starts one rank of a module of this package on its host."""
        namespace = self._network.host(rank)
        everywhere = {
            "RANK": str(rank), "WORLD_SIZE": str(self._world),
            "MASTER_ADDR": self._network.address(0),
            "MASTER_PORT": str(PORT + (0 if namespace else os.getpid() % 1000)),
            "GLOO_SOCKET_IFNAME": self._network.interface,
            "WEIR_LISTEN": f"{self._network.address(rank)}:0",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": f"{MODULES}:{WEIR_MODULES}",
        }
        log = self._directory / f"{log_name}-rank{rank}.log"
        with open(log, "wb") as stderr:
            child = self._children.start(
                [sys.executable, "-m", module, *arguments],
                namespace, {**everywhere, **self._network.environment, **environment},
                stdout=stdout, stderr=stderr)
        child.log_path = log
        return child

    def _start_rank(self, name, backend, rank, environment, per_rank):
        extra = per_rank(rank) if per_rank else {}
        return self.start(self._module, ["--backend", backend, *self._arguments], rank,
                          {**environment, **extra}, name.replace(" ", "-"),
                          subprocess.PIPE if rank == 0 else subprocess.DEVNULL)

    def _apply_phase(self, result, index):
        phase = self._schedule.phases[index]
        self._network.shape(phase.rate_mbps, phase.delay_ms, phase.loss_ratio)
        result.changed_at.append((len(result.steps) + 1, index))

    def _take(self, result, line):
        kind = line.get("kind")
        if kind == "step":
            result.steps.append(line)
            index = self._schedule.phase_index(line["step"])
            if index != result.changed_at[-1][1]:
                self._apply_phase(result, index)
        elif kind == "validation":
            result.validations.append(line)
        elif kind == "ready":
            result.ready = line
        elif kind == "end":
            result.end = line

    def _follow(self, result, ranks, on_line):
        for line in lines_of(ranks[0], ranks, SILENCE_S):
            if line is not None:
                self._take(result, line)
            if on_line:
                on_line(result, line)
        deadline = time.monotonic() + ENDING_S
        for number, rank in enumerate(ranks):
            try:
                rank.wait(timeout=max(0.1, deadline - time.monotonic()))
            except Exception as error:
                raise TrainingError(f"{result.name}: rank {number} did not end") from error
        failed_rank(result.name, ranks)
        if not result.end:
            raise TrainingError(f"{result.name}: rank 0 ended without a result: "
                                f"{tail(ranks[0].log_path)}")


def lines_of(speaker, ranks, silence_s):
    """JSON lines of `speaker` until it ends; None about once a second while it is silent.

    TrainingError when a rank fails or the speaker is silent for silence_s.
    """
    selector = selectors.DefaultSelector()
    selector.register(speaker.stdout, selectors.EVENT_READ)
    os.set_blocking(speaker.stdout.fileno(), False)
    buffered, heard = b"", time.monotonic()
    with selector:
        while True:
            if not selector.select(timeout=1.0):
                failed_rank("training", ranks)
                if time.monotonic() - heard > silence_s:
                    raise TrainingError(f"rank 0 said nothing for {silence_s:g} s: "
                                        f"{tail(speaker.log_path)}")
                yield None
                continue
            chunk = os.read(speaker.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            heard = time.monotonic()
            *complete, buffered = (buffered + chunk).split(b"\n")
            for line in complete:
                yield json.loads(line)


def failed_rank(name, ranks):
    """Raises TrainingError naming the first rank that ended with a failure."""
    for number, rank in enumerate(ranks):
        if rank.poll() not in (None, 0):
            raise TrainingError(f"{name}: rank {number} ended with status {rank.returncode}: "
                                f"{tail(rank.log_path)}")


def tail(path, lines=4):
    """The last lines of a log on one line."""
    text = pathlib.Path(path).read_text(errors="replace").strip().splitlines()
    return " | ".join(text[-lines:]) or "it wrote nothing"
