"""What enters the core. Every input of a job is one of these immutable events; ``now`` travels beside it.

Ages are seconds before the moment the event arrived. ``None`` says "not told", which is not the same as zero or empty:
a batch of telemetry may have been split on its way, and what a message does not mention is left as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rankwatch.wire.control import DirectiveAck, Evidence, NodeObservation, NodeRegistration, ProcessEvent
from rankwatch.wire.policy import Policy
from rankwatch.wire.vocabulary import Action


class SectionStatistics(NamedTuple):
    """Finished sections of one name since the last report: how many, and seconds in sum, least and most."""

    count: int  # type: ignore[assignment]  # the word everybody expects; tuple.count is not used here
    sum: float
    min: float
    max: float


class RankIdentity(NamedTuple):
    """Which process speaks, taken from the resource attributes of its telemetry."""

    job_id: str
    rank: int
    job_name: str = ""
    local_rank: int = -1
    world_size: int = 0
    attempt: int = 0
    host: str = ""
    pid: int = 0
    instance: str = ""
    """``service.instance.id``: tells two processes that claim the same rank apart."""
    started_at: float = 0.0
    """Unix time of the process's start, 0 when not told. Only ever compared between processes of the same rank."""
    device: str = ""


class RankReport(NamedTuple):
    """What a rank says of itself in one export."""

    identity: RankIdentity
    beats: int | None = None
    heartbeat_age: float | None = None
    iteration: int | None = None
    progress: int | None = None
    """Progress within the current step: sections finished and ``progress()`` calls since the last completed step."""
    open_sections: Mapping[str, float] | None = None
    """Seconds each open section has been open; empty: it uses sections and none is open now; None: nothing was said."""
    idle: float | None = None
    finished: Mapping[str, SectionStatistics] = {}
    dropped: Mapping[str, int] = {}
    first_iteration: int | None = None
    """The first step this process completed: where it resumed."""
    first_iteration_age: float | None = None
    quiet: float | None = None
    """Seconds since the last sign of progress: a section entered or left, a step completed."""
    first_time: tuple[str, ...] = ()
    """Sections open now that this process has never finished before."""
    longest: Mapping[str, float] = {}
    """The longest each section has taken in this process, its first run left out; only what was told this time."""
    first_durations: Mapping[str, float] = {}
    """How long the first run of each section took in this process; only what was told this time."""
    idle_longest: float | None = None
    ended: bool = False
    """The process shut its telemetry down by itself: silence from now on is no alarm."""


class Acknowledged(NamedTuple):
    """A launcher answered a directive."""

    directive: int
    ack: DirectiveAck


class Order(NamedTuple):
    """A person ordered an action."""

    action: Action
    reason: str
    nodes: tuple[str, ...] = ()
    """Of ``restart_excluding_node``: names of the launchers to be left out."""


class PolicyChanged(NamedTuple):
    """The policy was replaced by another one that was checked already."""

    policy: Policy


JobEvent = (
    RankReport | NodeRegistration | NodeObservation | ProcessEvent | Acknowledged | Evidence | Order | PolicyChanged
)
