"""What the launchers of a job agree on: how an attempt ends, how often it may, when all ranks stop. Plain facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rankwatch_launcher.job.outcome import CODE_FAILED, STOPPED

RESTART: Final = "restart"
FAIL: Final = "fail"
STOP: Final = "stop"


@dataclass(frozen=True, slots=True)
class Ruling:
    """How one attempt of the whole job ended, and why."""

    verdict: str
    """``restart``, ``fail`` (no restart left) or ``stop`` (by order)."""
    reason: str
    by: str
    """The node that ruled."""
    used: int
    """Restarts used, this one included."""
    max_restarts: int
    incident: str | None = None
    fault: bool = True
    """Something went wrong, so that evidence is worth taking; False when nodes only regroup."""
    token: str = ""
    code: int = CODE_FAILED
    """The launchers' exit code, when this ruling ends the job and ranks had to be killed for it."""
    exclude: Mapping[str, str] = field(default_factory=dict)
    """Nodes that take no part any more, and why."""
    state: str = STOPPED
    """What a ``stop`` makes of the job: ``stopped`` or ``preempted``."""
    avoid: str | None = None
    """A node whose ranks should run elsewhere in the next attempt, if that can be had."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How often and how vainly a job may be restarted."""

    max_restarts: int
    max_no_progress: int = 0
    """0: any number of times."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far an attempt has come: the first step and the furthest that its ranks completed."""

    first: int
    iteration: int


@dataclass(frozen=True, slots=True)
class StopRequest:
    """All ranks are to save and stop: who asks for it, and why."""

    reason: str
    by: str
    state: str
    """What becomes of the job: ``preempted`` or ``stopped``."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step after which all ranks are to stop; a later proposal replaces an earlier one that came too late."""

    number: int
    """0 only asks how far the ranks are: what launchers say of themselves every second is too old to name a step."""
    step: int | None
    """None, unless the number is 0: some rank would not follow a stop step, so they get SIGTERM."""
    request: StopRequest
