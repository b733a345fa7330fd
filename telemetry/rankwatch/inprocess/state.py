"""What a rank is in one iteration, how the function ended on it, and how restarts are reported to the monitor.

``State``, ``Mode`` and the exceptions are public: callbacks are given them, and callers catch them.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rankwatch.inprocess.decision import IterationPlan

_log = logging.getLogger("rankwatch")

ERROR_TEXT_LENGTH: Final = 200
"""Characters of an error's text that are kept."""
COLLECTIVE_ERROR_TEXTS: Final = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
)
"""Parts of the error texts that a failed collective raises after another rank has died."""


class Mode(StrEnum):
    """The role of a rank in an iteration."""

    INITIALIZED = "initialized"
    """Before the first assignment."""
    ACTIVE = "active"
    """It runs the wrapped function."""
    INACTIVE = "inactive"
    """A warm reserve, which replaces an active rank that is lost."""
    TERMINATED = "terminated"
    """It was excluded, or it has left."""


@dataclass(frozen=True, slots=True)
class State:
    """A rank in one iteration. ``rank`` counts active ranks and reserves, ``active_rank`` only active ones."""

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
    """Raised inside the wrapped function to unwind it. ``except Exception`` does not catch it."""


class InProcessError(RuntimeError):
    """No in-process restart is possible any more on this rank; the process should end, and the launcher restart it."""


class HealthCheckError(InProcessError):
    """A health check found this rank unfit to continue."""


class FaultCounterExceededError(HealthCheckError):
    """This rank has caused more faults than ``max_rank_faults`` allows."""


@dataclass(slots=True)
class FunctionResult:
    """How the wrapped function ended on this rank."""

    value: Any = None
    error: Exception | None = None
    interruption: RankShouldRestart | None = None
    """It was interrupted, or raised :class:`RankShouldRestart` itself."""
    exit: BaseException | None = None
    """``SystemExit`` or ``KeyboardInterrupt``: the process is to end."""


def state_of(plan: IterationPlan, rank: int, world: int, error: Exception | None = None) -> State:
    """Return the state of the process with initial rank ``rank``, of ``world`` processes, under a plan."""
    order = (*plan.places, *plan.reserves)
    mode = Mode.ACTIVE if rank in plan.places else Mode.INACTIVE if rank in plan.reserves else Mode.TERMINATED
    return State(
        rank=order.index(rank) if rank in order else rank,
        world_size=len(order),
        initial_rank=rank,
        initial_world_size=world,
        active_rank=plan.places.index(rank) if mode is Mode.ACTIVE else None,
        active_world_size=len(plan.places),
        iteration=plan.iteration,
        mode=mode,
        fn_exception=error,
    )


# Errors ---------------------------------------------------------------------------------------------------------------


def describe(error: BaseException) -> str:
    """Return "raised TYPE: first line", to follow "rank N" in a sentence."""
    return f"raised {named(error)}"


def named(error: BaseException) -> str:
    """Return "TYPE: first line"."""
    text = (_text(error).strip().splitlines() or [""])[0]
    return ": ".join(filter(None, (type(error).__name__, text[:ERROR_TEXT_LENGTH])))


def is_collective_error(error: BaseException) -> bool:
    """Whether an error, or one that led to it, comes from a collective or store whose peer was lost."""
    return any(_is_connection_error(one) for one in _chain(error))


def is_store_error(error: BaseException) -> bool:
    """Whether an error is one of torch's store, such as a lost connection or a timeout."""
    return type(error).__module__ == "torch.distributed"


def clear_frames(error: BaseException) -> None:
    """Clear the frames of an error and of those that led to it, which otherwise keep their tensors alive."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)


def _is_connection_error(error: BaseException) -> bool:
    if is_store_error(error):
        return True
    text = _text(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in COLLECTIVE_ERROR_TEXTS)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - user code
        return ""


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes or contexts, the error first."""
    found: dict[int, BaseException] = {}
    link: BaseException | None = error
    while link is not None and id(link) not in found:
        found[id(link)] = link
        link = link.__cause__ if link.__cause__ is not None else link.__context__
    return list(found.values())


# Reports --------------------------------------------------------------------------------------------------------------


def report_restart(plan: IterationPlan, rank: int, seconds: float) -> None:
    """Report a restart that took ``seconds``, once per job: only the first active rank does."""
    if plan.iteration == 0 or not plan.places or rank != plan.places[0]:
        return
    text = (
        f"{plan.cause}; the training function was restarted in the same processes in {seconds:.1f} s "
        f"(restart {plan.iteration}, {len(plan.places)} ranks)"
    )
    _log.warning("%s", text)
    _notify("RESTARTED_IN_PROCESS", text, seconds)


def report_abandoned(rank: int, text: str) -> None:
    """Report that no further restart is possible; the text becomes the exit reason of this process."""
    _log.error("rank %d: %s", rank, text)
    _notify("LAST_WORDS", text, 0.0)


def report_expendable(*, expendable: bool) -> None:
    """Publish to the launcher whether the other ranks would continue if this process ended."""
    from rankwatch import launcher_requests

    launcher_requests.set_expendable(expendable=expendable)


def _notify(kind: str, text: str, seconds: float) -> None:
    import rankwatch
    from rankwatch.contract.enums import NoticeKind

    if rankwatch.is_initialized():
        rankwatch.tell(NoticeKind[kind], text, seconds)
