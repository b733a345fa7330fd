"""Why a job is slow, as records: what diagnosis compares, and :mod:`.words.slow` makes every sentence of.

Shares are fractions of a step, durations seconds of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
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


class Doubt(StrEnum):
    """Why a rank that the newest window shows late is not named."""

    FEW_WINDOWS = "few_windows"
    NOISE = "noise"
    """Steps of this job differ by as much from window to window."""
    TURNS = "turns"
    """Other ranks are late as often."""
    FAST_PEER = "fast_peer"
    """It takes no longer than before; its few peers have become faster."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the newest window shows late by more than matters, and that is not named yet."""

    rank: int
    host: str
    slow: int
    """Windows that show it so, of the last ``of``."""
    needed: int
    of: int
    share: float
    """As of the newest window."""
    since: float
    """Unix seconds at which the first of these windows began."""
    doubt: Doubt
    suspected: bool
    """Evidence grows: more than one window, and no other reason is known."""


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
    operation: str = ""
    """The collective that takes longest; empty: its bandwidth is not known."""
    bandwidth: float = 0.0
    usual_bandwidth: float = 0.0
    """Bus bandwidths of it and of its reference, in bytes a second; 0: unknown."""
    hosts: tuple[str, ...] = ()
    """Of its members; empty: unknown."""
    slow_host: str = ""
    """The one of them that is in all slow groups, and in no fast one; empty: there is no such."""


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
