#!python
# SPDX-License-Identifier: Apache-2.0
"""Starts @PROGRAM@, which the wheel contains. Does not import weir, since that would load torch."""
import importlib.util
import os
import sys

PACKAGE = os.path.dirname(importlib.util.find_spec("weir").origin)
PROGRAM = os.path.join(PACKAGE, "bin", "@PROGRAM@")
os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
