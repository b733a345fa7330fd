"""Why a job is slow, as records: what diagnosis compares, and :mod:`.words.slow` makes every sentence of.

Shares are fractions of a step, durations seconds of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from rankwatch.contract.enums import Cause

UNDECLARED: Final = -1
"""Number of a stage that no rank has declared."""
MANY: Final = 0.25
"""Fraction of the ranks above which the constantly slow ones are a class of their own rather than single ones."""


class SlowNode(NamedTuple):
    """All ranks of a node are slow, and those of the others are not."""

    host: str
    ranks: int
    share: float


class HeavyStage(NamedTuple):
    """The pipeline stage with the most work in one window."""

    number: int
    """:data:`UNDECLARED`: ranks that may be one."""
    share: float
    """How much longer the step is for it."""
    ranks: tuple[int, ...]
    cause: Cause
    times: float = 1.0
    """Its work divided by that of the others."""
    host: str = ""
    """The node that runs all of it and nothing else: it may as well be the reason."""


class SlowLink(NamedTuple):
    """A process group whose transfers take too long."""

    group: str
    seconds: float
    usual: float
    """Of its reference."""
    against: str
    """``others``: the other groups of its kind; ``itself``: its own earlier best."""
    host: str = ""
    """The host of all members: no network is between them."""
    starved: bool = False
    """Members wait for a CPU for most of it."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Another rank is far behind in each window."""

    share: float
    cause: Cause
    ranks: int
    """Of the job."""
    starved: bool = False
    """They wait for a CPU."""
    often_behind: tuple[int, ...] = ()
    """It is these ranks again and again."""
