# SPDX-License-Identifier: Apache-2.0
"""What `weir run --auto` puts first on PYTHONPATH: attaches Weir to every DistributedDataParallel model.

Python imports this module at its start. It waits for the module of DistributedDataParallel to be
imported, and then lets the constructor call weir.attach(). A sitecustomize further along the path,
which this one hides, runs as well.
"""
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_MODULE, _CLASS = "torch.nn.parallel.distributed", "DistributedDataParallel"


def _attach_after(wrapper):
    construct = wrapper.__init__

    def __init__(self, *arguments, **options):
        construct(self, *arguments, **options)
        if type(self) is wrapper:  # a subclass may not be complete yet
            import weir
            weir.attach(self)

    wrapper.__init__ = functools.wraps(construct)(__init__)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the module be found as always, and adds a step to its execution."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            if self in sys.meta_path:  # not in find_spec, which may be called without importing anything
                sys.meta_path.remove(self)
            execute(module)
            _attach_after(getattr(module, _CLASS))

        setattr(spec.loader, "exec_module", exec_module)
        return spec


def _run_the_hidden_one():
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _Finder())
_run_the_hidden_one()
