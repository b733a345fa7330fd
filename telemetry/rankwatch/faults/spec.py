"""The notation of faults: which rank, when, what. Pure; used by the ranks and by their launcher.

``rank=2,step=52,kind=hang`` is one fault, several are separated by ``;``. What each kind does to a process is in
:mod:`rankwatch.faults.actions`, how it is injected in :mod:`rankwatch.faults.inject`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from rankwatch.contract import schema
from rankwatch.contract.text import did_you_mean

VARIABLE: Final = "RANKWATCH_INJECT"
"""The environment variable that holds the faults of a job."""


class Kind(StrEnum):
    """What a fault does to its rank."""

    HANG = "hang"
    """The main thread sleeps, in a frame with a name of its own; other threads continue."""
    GIL = "gil"
    """An extension call keeps the GIL: no Python code of the process runs."""
    STOP = "stop"
    """SIGSTOP."""
    KILL = "kill"
    """SIGKILL."""
    INT = "int"
    """SIGINT."""
    TERM = "term"
    """SIGTERM."""
    ABORT = "abort"
    """abort(), as a failed assertion in C++ does."""
    SEGFAULT = "segfault"
    """Reads from address 0."""
    UNINTERRUPTIBLE = "uninterruptible"
    """The main thread waits in the kernel in state D: signal handlers do not run, SIGKILL ends it."""
    EXCEPTION = "exception"
    ASYNC_EXCEPTION = "async_exception"
    """An exception that another thread raises in the main thread, at any place."""
    EXIT = "exit"
    """The process ends with ``code``."""
    SLOW = "slow"
    """From then on each step takes ``seconds`` longer, or ``factor`` times as long."""
    NETWORK = "network"
    """The rank's telemetry is disconnected: exports stop, training continues."""
    GPU_ERROR = "gpu_error"
    """A device-side assertion, after which the CUDA context is unusable."""
    GPU_SLEEP = "gpu_sleep"
    """The main thread waits for a kernel that does not end."""
    RANDOM = "random"
    """``stop`` or ``kill``, drawn from the seed."""


FIRST_ATTEMPT: Final = 1
FOREVER: Final = 86_400.0
"""Default length in seconds: any supervisor acts within a day."""
JITTER: Final = 0.2
"""Largest random extension of a delay, as a part of it; the value of NVRx's simulated faults."""
RANDOM_KINDS: Final = (Kind.STOP, Kind.KILL)
"""The kinds from which ``kind=random`` is drawn."""

SYNONYMS: Final[Mapping[str, Kind]] = {
    "rank_hung": Kind.STOP,
    "rank_killed": Kind.KILL,
    "sigstop": Kind.STOP,
    "sigkill": Kind.KILL,
    "sigint": Kind.INT,
    "sigterm": Kind.TERM,
    "lock_gil": Kind.GIL,
    "os_abort": Kind.ABORT,
    "workload_exc": Kind.EXCEPTION,
    "async_exc": Kind.ASYNC_EXCEPTION,
}
"""Names of the same faults in NVRx."""

_WITH_LENGTH: Final = (Kind.HANG, Kind.GIL, Kind.UNINTERRUPTIBLE, Kind.SLOW, Kind.NETWORK, Kind.GPU_SLEEP)
"""Kinds that have a length, and so accept ``seconds``."""
_WHEN: Final = frozenset({"step", "section", "delay"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It strikes only in the attempt it names, so that a restarted job gets past it."""

    rank: int | None
    """None: drawn from the seed."""
    step: int | None
    """0-based index of the step; None: the first time that ``section`` is entered, or after ``delay``."""
    kind: Kind
    attempt: int | None = FIRST_ATTEMPT
    """None: in every attempt."""
    section: str | None = None
    """Strike only when this section is entered."""
    seconds: float | None = None
    """Its length; for ``slow``, the extension of each step."""
    factor: float | None = None
    code: int = 1
    delay: float | None = None
    """Seconds after ``rankwatch.init()``, up to :data:`JITTER` more."""
    seed: int | None = None
    """Seed of the random choices; None: the job id, which is equal on all ranks."""

    def settled(self, *, world_size: int, job_id: str, index: int = 0) -> Fault:
        """The fault with its random choices made, equal on all ranks. ``index`` is its index among the job's faults.

        Call it once for each fault, since the jitter is added to the delay.
        """
        draw = random.Random(f"{job_id if self.seed is None else self.seed}/{index}")
        # All three are always drawn, so that setting one does not change the others.
        rank, kind, late = draw.randrange(world_size), draw.choice(RANDOM_KINDS), draw.random()
        return replace(
            self,
            rank=rank if self.rank is None else self.rank,
            kind=kind if self.kind is Kind.RANDOM else self.kind,
            delay=None if self.delay is None else self.delay * (1 + JITTER * late),
        )

    def concerns(self, *, rank: int, attempt: int) -> bool:
        """Whether it applies to this rank and this attempt."""
        return rank == self.rank and self.attempt in (None, attempt)

    def is_due(self, step: int, section: str | None) -> bool:
        """Whether it strikes here in its rank; always false for a fault with a delay."""
        if section != self.section or self.delay is not None:
            return False
        if self.step is None:
            return True
        return step >= self.step if self.kind is Kind.SLOW else step == self.step

    def when(self) -> str:
        """Where or when it strikes, as text for messages."""
        if self.delay is not None:
            return f"{self.delay:.1f} s after init()"
        where = f" in section {self.section!r}" if self.section is not None else ""
        return f"in step {self.step}{where}" if self.step is not None else f"the first time{where}"

    def __str__(self) -> str:
        rank = "a random rank" if self.rank is None else f"rank {self.rank}"
        attempt = "every attempt" if self.attempt is None else f"attempt {self.attempt}"
        return f"{self.kind} on {rank}, {self.when()}, in {attempt}"


def parse(text: str) -> Fault:
    """Read ``rank=R|random,step=N,kind=K`` with any of the further parts that ``docs/faults.md`` lists.

    Raises:
        ValueError: a part is missing, unknown, repeated or invalid; the message names it and its valid values.
    """
    values: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, mark, raw = (piece.strip() for piece in part.partition("="))
        if not mark or name not in _PARTS:
            close = did_you_mean(name, _PARTS) if mark else ""
            raise ValueError(
                f"a fault is written NAME=VALUE,... with names {', '.join(_PARTS)}; {part!r} is not{close}"
            )
        if name in values:
            raise ValueError(f"fault {text!r} sets {name} twice")
        values[name] = raw
    missing = [name for name in ("rank", "kind") if name not in values]
    if not values.keys() & _WHEN:
        missing.append("step (or section, or delay)")
    if missing:
        raise ValueError(f"fault {text!r} lacks {', '.join(missing)}")
    return of(values)


def parse_all(text: str) -> tuple[Fault, ...]:
    """Read any number of faults separated by ``;``.

    Raises:
        ValueError: as :func:`parse`.
    """
    return tuple(parse(part) for part in text.split(";") if part.strip())


def of(values: Mapping[str, object]) -> Fault:
    """Build a fault from its parts, at least ``rank`` and ``kind``; values may be strings.

    Raises:
        ValueError: a part is invalid, or the parts contradict each other.
    """
    read: dict[str, Any] = {"step": None}
    for name, value in values.items():
        try:
            read[name] = _PARTS[name].read_text(str(value).strip())
        except ValueError as error:
            raise ValueError(f"{name} of a fault {error}") from None
    fault = Fault(**read)
    if complaint := _contradiction(fault, values):
        raise ValueError(complaint)
    return fault


def _contradiction(fault: Fault, given: Collection[str]) -> str | None:
    kind = fault.kind
    if kind is Kind.SLOW and (fault.seconds is None) == (fault.factor is None):
        return "a slow rank takes either seconds or factor"
    if fault.factor is not None and kind is not Kind.SLOW:
        return f"factor is for kind=slow, not for {kind}"
    if fault.seconds is not None and kind not in _WITH_LENGTH:
        return f"seconds is for {', '.join(_WITH_LENGTH)}; {kind} has no length"
    if "code" in given and kind is not Kind.EXIT:
        return f"code is for kind=exit, not for {kind}"
    if fault.delay is not None and (fault.step is not None or fault.section is not None):
        return "a fault strikes after a delay or in a step or section, not both"
    if fault.seed is not None and fault.rank is not None and kind is not Kind.RANDOM and fault.delay is None:
        return "seed is for what is random: rank=random, kind=random or a delay's jitter"
    return None


def _natural(raw: str) -> int:
    value = int(raw)
    if value < 0:
        raise ValueError
    return value


def _kind(raw: str) -> Kind:
    name = raw.lower()
    return SYNONYMS.get(name) or Kind(name)


def _name(raw: str) -> str:
    if not raw:
        raise ValueError
    return raw


_PARTS: Final[Mapping[str, schema.Kind]] = {
    "rank": schema.Kind("a whole number from 0, or random", lambda raw: None if raw == "random" else _natural(raw)),
    "step": schema.Kind("a whole number from 0", _natural),
    "kind": schema.Kind(f"one of {', '.join(Kind)}", _kind, choices=(*Kind, *SYNONYMS)),
    "attempt": schema.Kind("a whole number from 0, or any", lambda raw: None if raw == "any" else _natural(raw)),
    "section": schema.Kind("a name", _name),
    "seconds": schema.number(schema.MORE_THAN_0, FOREVER, f"a number above 0 and up to {FOREVER:.0f}"),
    "factor": schema.number(schema.MORE_THAN_0, FOREVER, "a number above 0"),
    "code": schema.whole(0, 255),
    "delay": schema.number(0.0, FOREVER, f"a number of seconds from 0 to {FOREVER:.0f}"),
    "seed": schema.Kind("a whole number", int),
}
