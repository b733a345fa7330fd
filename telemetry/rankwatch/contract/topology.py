"""Where a node is: labels from the widest to the narrowest, ``rack=r1`` before ``switch=s12`` before ``nvlink=...``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_LABELS: Final = 8
LONGEST_LABEL: Final = 120


def label(text: str) -> str:
    """One label, ``KEY=VALUE``, without blanks around either.

    Raises:
        ValueError: it is none.
    """
    key, found, value = (part.strip() for part in text.partition("="))
    if not key or not found or not value or not (key + value).isprintable() or "," in key + value:
        raise ValueError(f"must be KEY=VALUE, such as rack=r1, not {text[:60]!r}")
    return f"{key}={value}"[:LONGEST_LABEL]


def path(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels of a node, bounded; each counts once."""
    return tuple(dict.fromkeys(labels))[:MOST_LABELS]


def valid(labels: Iterable[str]) -> tuple[str, ...]:
    """Those of reported labels that are some."""
    kept = []
    for each in labels:
        try:
            kept.append(label(each))
        except ValueError:
            continue
    return path(kept)


def shared(one: Iterable[str], other: Iterable[str]) -> int:
    """How many labels two nodes share, the narrower ones most: 0 for none."""
    here = tuple(one)
    there = set(other)
    return next((place for place in range(len(here), 0, -1) if here[place - 1] in there), 0)


def title(name: str) -> str:
    """A label as in a sentence: ``switch s2``."""
    return name.replace("=", " ", 1)
