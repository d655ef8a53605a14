# SPDX-License-Identifier: Apache-2.0
"""The registry of ways to wrap a model, and what a way gets when it runs. `ways.py` runs them.

A way is a function of a Run. It trains or exchanges something and returns tensors, which must be
equal to those of the same function over gloo. One decorator registers it:

    @way("DDP, static graph", hook=True)
    def static_graph(run): ...
"""
import contextlib
import re

import torch
import weir

GLOO, GROUP, HOOK = "gloo", "group", "hook"  # how a way runs; gloo is what the others must equal


class NotOffered(Exception):
    """This torch lacks what a way needs. The text says what."""


class Way:
    """One way, as the decorator describes it."""

    def __init__(self, name, function, options):
        self.name, self.function = name, function
        self.world = options.pop("world", 2)
        self.hook = options.pop("hook", False)
        self.deadline_s = options.pop("deadline_s", 60.0)
        self.tolerance = options.pop("tolerance", 0.0 if self.world == 2 else 1e-6)
        self.refused = options.pop("refused", {})
        self.launched = options.pop("launched", False)
        self.reference = options.pop("reference", function)
        if options:
            raise TypeError(f"way {name}: unknown options {sorted(options)}")

    def variants(self):
        """The ways to run it beside gloo."""
        return (GROUP, HOOK) if self.hook else (GROUP,)


WAYS = []


def way(name, **options):
    """Registers a way. Its row in the table has `name`.

    world: ranks, 2 unless given.
    hook: it also runs with gloo as the process group and weir.attach() on its models.
    deadline_s: of all its ranks together, for one variant.
    tolerance: the largest difference relative to gloo's largest number; 0 with 2 ranks, which is
        bit for bit.
    refused: by variant, the regular expression that the error of a way matches which weir refuses.
    reference: the function whose run over gloo it must equal, where gloo cannot run this one.
    launched: the function gets a variant, a folder, a free port and the deadline, and starts its
        ranks itself. It returns the tensors of each.
    """
    def register(function):
        WAYS.append(Way(name, function, dict(options)))
        return function
    return register


class Run:
    """The facts of a run that a way needs. The default process group is made."""

    def __init__(self, rank, world, variant, folder):
        self.rank, self.world, self.variant, self.folder = rank, world, variant, folder
        self.states = []

    def attach(self, model, **options):
        """Attaches Weir to a model where the variant is "hook". Returns the model."""
        if self.variant == HOOK:
            self.states.append(weir.attach(model, **options))
        return model

    def close(self):
        """Ends the run. AssertionError: a hook was not called, so gloo alone made the results."""
        for state in self.states:
            steps = state.stats().step
            state.close()
            if not steps:
                raise AssertionError("a model was attached, and its hook was never called")


def needs(found, what):
    """Raises NotOffered unless `found`."""
    if not found:
        raise NotOffered(what)


@contextlib.contextmanager
def offered(what):
    """Converts a missing module or name of torch to NotOffered."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise NotOffered(f"{what}: {error}") from None


def outcome(rank, world, way_of_run, variant, folder):
    """Runs a way on one rank. Returns (status, text, tensors); never raises for a refusal."""
    run = Run(rank, world, variant, folder)
    torch.manual_seed(1)
    try:
        function = way_of_run.reference if variant == GLOO else way_of_run.function
        found = function(run)
        run.close()
        return "ran", "", [t.detach().clone() for t in found]
    except NotOffered as error:
        return "not offered", str(error), []
    except (weir.WeirError, ValueError, RuntimeError) as error:
        pattern = way_of_run.refused.get(variant)
        if pattern and re.search(pattern, str(error)):
            return "refused", str(error), []
        raise
