"""Words of the text reports: those of :mod:`rankwatch.cli.formatting`, and lines that fit a terminal of 100 columns."""

from __future__ import annotations

import textwrap
from typing import Final

from rankwatch.cli.formatting import count, duration, pace, percent, printable, ranks, when

__all__ = ["WIDTH", "count", "duration", "pace", "percent", "printable", "ranks", "when", "wrapped"]

WIDTH: Final = 100


def wrapped(words: str, indent: str) -> list[str]:
    """A sentence as lines; those after the first stand two columns further in."""
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
