# SPDX-License-Identifier: Apache-2.0
"""The demo: a data-parallel training job on emulated hosts whose network changes under it."""
