"""The protocol of a check: a name, a time limit and a function from the node to what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rankwatch.contract.node_checks import CheckName, CheckReason

Counters = Mapping[str, int]
"""Counters by the name of what they count, ``mlx5_0/1 link_downed`` for example."""


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """What a check is told: where to read, what was asked for, and the last check. Plain JSON types."""

    sysfs: str = "/sys"
    proc: str = "/proc"
    kernel_log: str = "/dev/kmsg"
    shared_memory: str = "/dev/shm"
    paths: tuple[str, ...] = ()
    """Folders that are written and read."""
    command: str = ""
    monitor: str = ""
    """Address of the monitor, whose clock is compared; empty: none yet."""
    slots: str = ""
    """The launcher's folder: processes of its attempts have it in their environment."""
    last: Mapping[str, int] = field(default_factory=dict)
    """Counters of the last check."""
    last_age: float = 0.0
    """Seconds since then."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment of the ranks, as far as a check reads it."""

    def rise(self, counter: str, now: int) -> int:
        """By how much a counter is above that of the last check; 0: there was none, or it was reset."""
        return max(0, now - self.last.get(counter, now))


@dataclass(frozen=True, slots=True)
class Passed:
    """Nothing was found."""

    figures: Mapping[str, str] = field(default_factory=dict)
    counters: Counters = field(default_factory=dict)
    """For the next check to compare with."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The node should not take part."""

    reason: CheckReason
    evidence: Mapping[str, str] = field(default_factory=dict)
    counters: Counters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skipped:
    """There is nothing to check here, or it cannot be read."""

    why: CheckReason
    evidence: Mapping[str, str] = field(default_factory=dict)


Found = Passed | Failed | Skipped


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``run`` may block for as long as it likes: it is left behind after ``limit`` seconds."""

    name: CheckName
    run: Callable[[CheckedNode], Found]
    limit: float = 5.0
