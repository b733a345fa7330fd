"""How one rank left one iteration, and the words for it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, Final

from rankwatch.inprocess.decision import Plan
from rankwatch.inprocess.state import Mode, RankShouldRestart, State

WORDS: Final = 200
"""Characters of an error's text that are kept."""
OF_COLLECTIVES: Final = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")
"""Words in the text of errors by which a rank notices that another one is gone."""


@dataclass(slots=True)
class Outcome:
    """What became of the function on this rank."""

    value: Any = None
    error: Exception | None = None
    struck: RankShouldRestart | None = None
    """It was interrupted, or raised the same of itself."""
    leaving: BaseException | None = None
    """``SystemExit``, for example: it is to end the process."""


def state_of(plan: Plan, rank: int, world: int, error: Exception | None = None) -> State:
    """What a rank is in an iteration; ``rank`` is its initial one."""
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


def describe(error: BaseException) -> str:
    """Say what was raised, as the end of a sentence that begins with "rank N"."""
    text = (_text(error).strip().splitlines() or [""])[0]
    kind = type(error).__name__
    return f"raised {kind}: {text[:WORDS]}" if text else f"raised {kind}"


def is_collective(error: BaseException) -> bool:
    """Whether an error is what one sees of another rank's death: a collective or a store that broke off."""
    return any(_breaks_off(one) for one in _chain(error))


def let_go(error: BaseException) -> None:
    """Clear the frames that an error and those before it hold: tensors live in them."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)


def _breaks_off(error: BaseException) -> bool:
    if type(error).__module__ == "torch.distributed":
        return True
    text = _text(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in OF_COLLECTIVES)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a person's code
        return ""


def _chain(error: BaseException) -> list[BaseException]:
    """An error, and what was raised before it and led to it."""
    found: dict[int, BaseException] = {}
    after: BaseException | None = error
    while after is not None and id(after) not in found:
        found[id(after)] = after
        after = after.__cause__ if after.__cause__ is not None else after.__context__
    return list(found.values())


def is_store_failure(error: BaseException) -> bool:
    """Whether an error says that a store does not answer."""
    return type(error).__module__ == "torch.distributed"
