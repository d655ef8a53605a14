"""The demo: a data-parallel training job on emulated hosts whose network changes under it."""
