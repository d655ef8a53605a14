# SPDX-License-Identifier: Apache-2.0
"""Settings, options and models that cannot be are named to users in a WeirError."""
import importlib.util
import os
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel

import ranks
import weir
from ddp_test import batch, make_model

VARIABLES = {  # that are wrong: what is said to be expected
    "WEIR_TIMEOUT_S=abc": "a number of seconds", "WEIR_TIMEOUT_S=-1": "a number of seconds",
    "WEIR_ENCODE_WORKERS=x": "a whole number", "WEIR_COMPARE_EVERY_STEPS=1.5": "a whole number",
    "WEIR_ENCRYPT=yes": "0 or 1", "WEIR_UNAUTHENTICATED=no": "0 or 1",
    "WEIR_COMPARE_PARAMETERS=on": "0 or 1", "WEIR_FRAMEWORK_DENSE=false": "0 or 1",
}
OPTIONS = {"job": 5, "job_key": "text", "listen": 5, "rank": "0", "peers": "127.0.0.1:1", "encrypt": 1,
           "encode_workers": True, "operation_timeout_s": "1", "optimizer": 0.1, "scaler": 65536.0}


def refused(call):
    """The kind and words of the WeirError that a call raises."""
    try:
        call()
    except weir.WeirError as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"


def variables(rank, world):
    """Returns what attach() says of each wrong variable, which rank 1 alone has."""
    found = {}
    for setting in VARIABLES:
        name, _, value = setting.partition("=")
        if rank == 1:
            os.environ[name] = value
        found[setting] = refused(lambda: weir.attach(DistributedDataParallel(make_model())))
        os.environ.pop(name, None)
    return found


def addresses(rank, world):
    found = []
    for name, value in (("WEIR_LISTEN", "203.0.113.7:0"), ("WEIR_LISTEN", "no.such.host.invalid:0"),
                        ("WEIR_INTERFACE", "nosuch0")):
        os.environ[name] = value
        found.append((name, *refused(lambda: weir.attach(DistributedDataParallel(make_model())))))
        del os.environ[name]
    return found


def options(rank, world):
    ddp = DistributedDataParallel(make_model())
    return {name: refused(lambda: weir.attach(ddp, **{name: value})) for name, value in OPTIONS.items()}


def hooks(rank, world):
    """A model with another hook, one that is attached twice, and a state that is none."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    with_hook = DistributedDataParallel(make_model())
    with_hook.register_comm_hook(None, default_hooks.allreduce_hook)
    found = [refused(lambda: weir.attach(with_hook))]
    ddp = DistributedDataParallel(make_model())
    state = weir.attach(ddp)
    found += [refused(lambda: weir.attach(ddp)), refused(lambda: state.load_state_dict({})),
              refused(lambda: state.load_state_dict([]))]
    ddp(batch(0, rank)).sum().backward()
    state.load_state_dict(state.state_dict())
    state.close()
    return found


def other_wrappers(rank, world):
    found = [refused(lambda: weir.attach(torch.compile(DistributedDataParallel(make_model()))))]
    try:
        from torch.distributed._composable import replicate
        model = replicate(make_model())
    except (ImportError, RuntimeError, ValueError):
        return found
    return found + [refused(lambda: weir.attach(model))]


def make_pair(rank, how):
    first, second = (DistributedDataParallel(make_model()) for _ in range(2))
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.5)
    if how == "one is larger":
        second = DistributedDataParallel(torch.nn.Linear(3, 1))
    if how == "other shapes":
        second = DistributedDataParallel(torch.nn.Sequential(make_model()))
    return (second, first) if rank == 1 and how != "in order" else (first, second)


def order(rank, world, how):
    """Two models, which rank 1 attaches in another order."""
    models = make_pair(rank, how)
    states = []
    words = refused(lambda: states.extend(weir.attach(model) for model in models))
    for state in states:
        state.close()
    return words


class RefusalsTest(unittest.TestCase):

    def test_a_variable_with_a_wrong_value_is_named_to_all_ranks(self):
        (told, _), (own, _) = ranks.run(2, variables)
        for setting, expected in VARIABLES.items():
            name, _, value = setting.partition("=")
            for kind, words in (told[setting], own[setting]):
                self.assertIn(f"{name}: expected {expected}", words)
                self.assertIn(f"found '{value}'", words)
            self.assertEqual((told[setting][0], own[setting][0]), ("RankLost", "InvalidArgument"))

    def test_an_address_that_this_host_does_not_have_is_an_invalid_argument(self):
        for name, kind, words in ranks.run(1, addresses)[0][0]:
            self.assertEqual(kind, "InvalidArgument", words)
            self.assertIn(name, words)

    def test_options_of_a_wrong_type_are_named(self):
        for name, (kind, words) in ranks.run(1, options)[0][0].items():
            self.assertEqual(kind, "InvalidArgument", words)
            self.assertIn(f"weir.attach({name}=...): expected ", words)
            self.assertIn(f"found {type(OPTIONS[name]).__name__}", words)

    def test_a_second_hook_and_a_state_that_is_none(self):
        for (other, twice, empty, no_state), _ in ranks.run(2, hooks):
            self.assertEqual(other[0], "FailedPrecondition")
            self.assertIn("this model has one", other[1])
            self.assertEqual(twice[0], "FailedPrecondition")
            self.assertIn("before", twice[1])
            self.assertIn("without 'residuals'", empty[1])
            self.assertIn("found list", no_state[1])

    @unittest.skipUnless(importlib.util.find_spec("torch._dynamo"), "this torch has no torch.compile")
    def test_other_wrappers_are_told_what_to_do(self):
        compiled, *replicated = ranks.run(1, other_wrappers)[0][0]
        self.assertIn("attach before torch.compile", compiled[1])
        for _, words in replicated:
            self.assertIn("DistributedDataParallel", words)

    def test_models_that_ranks_attach_in_unlike_order_are_refused(self):
        for how, words in (("same shapes", "other values"), ("other shapes", "other names, types or shapes"),
                           ("one is larger", "2 parameters")):
            for (kind, found), _ in ranks.run(2, order, how):
                # A rank may hear of it by the other one first.
                self.assertIn(kind, ("InvalidArgument", "RankLost"), found)
                self.assertIn("rank 1 has one with", found)
                self.assertIn(words, found, how)
        for (kind, found), _ in ranks.run(2, order, "in order"):
            self.assertEqual(kind, "", found)


if __name__ == "__main__":
    unittest.main()
