# SPDX-License-Identifier: Apache-2.0
"""Figures and tables as people read them, for tables.py and device_tables.py."""

NONE = "-"


def size(count):
    """Bytes for people."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def microseconds(value):
    """A duration for people."""
    if value is None:
        return NONE
    return f"{value:.3g} us" if value < 1000 else f"{value / 1000:.3g} ms"


def ratio(value, meets=True):
    """A ratio; bold where it misses its goal."""
    if value is None:
        return NONE
    text = f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.3f}"
    return text if meets else f"**{text}**"


def markdown(header, rows):
    """The lines of a table, of which all cells are texts."""
    return ["| " + " | ".join(header) + " |", "|---" * len(header) + "|",
            *("| " + " | ".join(row) + " |" for row in rows)]
