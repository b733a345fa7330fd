"""Formatting of text reports: that of :mod:`rankwatch.cli.formatting`, and lines wrapped to 100 columns."""

from __future__ import annotations

import textwrap
from typing import Final

from rankwatch.cli.formatting import count, duration, pace, percent, printable, ranks, when

__all__ = ["WIDTH", "count", "duration", "pace", "percent", "printable", "ranks", "when", "wrapped"]

WIDTH: Final = 100


def wrapped(sentence: str, indent: str) -> list[str]:
    """A sentence as lines; continuation lines are indented by two more columns."""
    return textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
