"""What a rank is in one iteration of the wrapped function, as callbacks see it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """What a rank does in an iteration."""

    INITIALIZED = "initialized"
    """It waits for the first assignment."""
    ACTIVE = "active"
    """It runs the wrapped function."""
    INACTIVE = "inactive"
    """It is a warm reserve: it waits for a place that becomes free."""
    TERMINATED = "terminated"
    """It takes no part any more."""


@dataclass(frozen=True, slots=True)
class State:
    """A rank in one iteration. ``rank`` counts active ranks and reserves, ``active_rank`` those that train."""

    rank: int
    world_size: int
    initial_rank: int
    initial_world_size: int
    active_rank: int | None = None
    active_world_size: int | None = None
    iteration: int = 0
    """0 in the first one, and one more after each restart."""
    mode: Mode = Mode.INITIALIZED
    fn_exception: Exception | None = None
    """What the wrapped function raised on this rank in the iteration that was interrupted."""


class RankShouldRestart(BaseException):
    """Raised inside the wrapped function to unwind it. Let it pass: ``except Exception`` does."""


class InProcessError(RuntimeError):
    """In-process restarts have ended on this rank; the next layer, the launcher, is meant to go on."""


class HealthCheckError(InProcessError):
    """A health check found that this rank may not go on."""


class FaultCounterExceededError(HealthCheckError):
    """This rank has caused more faults than ``max_rank_faults`` allows."""
