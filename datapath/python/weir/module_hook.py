# SPDX-License-Identifier: Apache-2.0
"""Hooks of modules that copies of the module do not inherit."""
import weakref


class ModuleHook:
    """Calls a method as long as its object lives.

    Models are copied and pickled (averaged weights, checkpoints of whole modules). What is attached to
    the original is not the copy's, so a hook in a copy does nothing.
    """

    def __init__(self, method=None):
        self._method = None if method is None else weakref.WeakMethod(method)

    def __call__(self, *arguments):
        method = None if self._method is None else self._method()
        return None if method is None else method(*arguments)

    def __deepcopy__(self, unused_memo):
        return ModuleHook()

    def __reduce__(self):
        return ModuleHook, ()
