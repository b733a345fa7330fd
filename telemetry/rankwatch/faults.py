"""Faults on purpose, by rank and step, for demonstrations and tests.

``RANKWATCH_INJECT="rank=2,step=12,kind=hang"`` makes rank 2 hang in step 12 of the first attempt, if its training loop
calls :func:`maybe_inject`. Faults are separated by ``;``. What each does is in :mod:`rankwatch.fault_actions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rankwatch import settings


class Kind(StrEnum):
    """What a fault does to its rank."""

    HANG = "hang"
    """The main thread sleeps, in a frame named for it; other threads run on."""
    GIL = "gil"
    """An extension call keeps the GIL: no Python code of the process runs."""
    STOP = "stop"
    """SIGSTOP."""
    KILL = "kill"
    """SIGKILL."""
    EXCEPTION = "exception"
    EXIT = "exit"
    """The process ends with ``code``."""
    SLOW = "slow"
    """From that step on every step takes ``seconds`` more, or ``factor`` times as long."""


FIRST_ATTEMPT: Final = 1
FOREVER: Final = 86_400.0
"""Seconds of a hang of which no length was given; any supervisor acts within a day."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It strikes in the attempt it names and no other, so that a restarted job gets past it."""

    rank: int
    step: int
    kind: Kind
    attempt: int | None = FIRST_ATTEMPT
    """None: in every attempt."""
    section: str | None = None
    """Strike only where the loop says that it is in this section."""
    seconds: float | None = None
    """Length of a hang or a held GIL; of a slow rank, what each step takes longer."""
    factor: float | None = None
    code: int = 1

    def strikes(self, *, rank: int, step: int, attempt: int, section: str | None = None) -> bool:
        """Whether it is time."""
        return (
            rank == self.rank
            and section == self.section
            and self.attempt in (None, attempt)
            and (step >= self.step if self.kind is Kind.SLOW else step == self.step)
        )


def parse(text: str) -> Fault:
    """Read ``rank=2,step=12,kind=hang[,attempt=1|any][,section=NAME][,seconds=S][,factor=F][,code=N]``.

    Raises:
        ValueError: a part is missing, unknown or senseless; the text says which and what it should be.
    """
    values: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, mark, raw = (piece.strip() for piece in part.partition("="))
        if not mark or name not in _READ:
            raise ValueError(f"a fault is written NAME=VALUE,... with names {', '.join(_READ)}; {part!r} is not")
        try:
            values[name] = _READ[name](raw)
        except ValueError:
            raise ValueError(f"{name} of a fault must be {_WANTED[name]}, not {raw!r}") from None
    missing = [name for name in ("rank", "step", "kind") if name not in values]
    if missing:
        raise ValueError(f"fault {text!r} lacks {', '.join(missing)}")
    fault = Fault(**values)
    if fault.kind is Kind.SLOW and (fault.seconds is None) == (fault.factor is None):
        raise ValueError("a slow rank takes either seconds or factor")
    return fault


def parse_all(text: str) -> tuple[Fault, ...]:
    """Read any number of faults separated by ``;``.

    Raises:
        ValueError: as :func:`parse`.
    """
    return tuple(parse(part) for part in text.split(";") if part.strip())


def maybe_inject(step: int, section: str | None = None) -> None:
    """Call it in every step of the training loop, within a section with its name: does what RANKWATCH_INJECT asks for.

    ``step`` is the 0-based index of the step being run. Costs next to nothing where no fault is asked for.

    Raises:
        ValueError: RANKWATCH_INJECT cannot be read. A demonstration without its fault would be a false one.
        rankwatch.fault_actions.InjectedFaultError: the fault of kind ``exception``.
    """
    rank, attempt, faults = _asked_for()
    for fault in faults:
        if fault.strikes(rank=rank, step=step, attempt=attempt, section=section):
            from rankwatch import fault_actions

            fault_actions.carry_out(fault)


@functools.cache
def _asked_for() -> tuple[int, int, tuple[Fault, ...]]:
    loaded, _ = settings.load()
    return loaded.rank, loaded.attempt, parse_all(loaded.inject or "")


def _natural(raw: str) -> int:
    value = int(raw)
    if value < 0:
        raise ValueError
    return value


def _positive(raw: str) -> float:
    value = float(raw)
    if not 0 < value <= FOREVER:
        raise ValueError
    return value


def _exit_code(raw: str) -> int:
    value = int(raw)
    if not 0 <= value <= 255:
        raise ValueError
    return value


def _attempt(raw: str) -> int | None:
    return None if raw == "any" else _natural(raw)


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "rank": _natural,
    "step": _natural,
    "kind": Kind,
    "attempt": _attempt,
    "section": str,
    "seconds": _positive,
    "factor": _positive,
    "code": _exit_code,
}
_WANTED: Final[Mapping[str, str]] = {
    "rank": "a whole number from 0",
    "step": "a whole number from 0",
    "kind": f"one of {', '.join(Kind)}",
    "attempt": "a whole number from 0, or any",
    "section": "a name",
    "seconds": f"a number above 0 and up to {FOREVER:.0f}",
    "factor": "a number above 0",
    "code": "a whole number from 0 to 255",
}
