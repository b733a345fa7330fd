"""The plan of a scene: the job, its durations and its faults. Plain values with units; randomness is seeded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from rankwatch.contract.enums import CulpritClass
from rankwatch.contract.semconv import CHECKPOINTING_SECTION, SETUP_SECTION, STEP_SECTION

EVALUATION: Final = "evaluation"
DATA: Final = "data"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
EVALUATION_BATCH: Final = "evaluation_batch"
SECTIONS: Final = (
    SETUP_SECTION,
    STEP_SECTION,
    DATA,
    FORWARD,
    BACKWARD,
    CHECKPOINTING_SECTION,
    EVALUATION,
    EVALUATION_BATCH,
)


class FaultKind(StrEnum):
    """The faults of a scene. Names shared with ``rankwatch run --inject`` have the same meaning."""

    HANG = "hang"
    """The main thread of the ranks sleeps; their exporters continue."""
    STALL = "stall"
    """All ranks are stuck at the same position."""
    STOP = "stop"
    """SIGSTOP."""
    GIL = "gil"
    """The GIL is held: the process runs, but none of its Python threads."""
    KILL = "kill"
    """SIGKILL."""
    EXIT = "exit"
    """The process ends with exit code 1."""
    UNINTERRUPTIBLE = "uninterruptible"
    """The main thread is in uninterruptible sleep (state D)."""
    NETWORK = "network"
    """Reports of the ranks no longer arrive; training continues, as launchers observe."""
    NODE_LOST = "node_lost"
    """The node of each named rank is gone, with its launcher and all its ranks."""
    NEVER_STARTED = "never_started"
    """The processes were started, but never report."""


EXPECTED_CLASSES: Final[Mapping[FaultKind, frozenset[CulpritClass]]] = {
    FaultKind.HANG: frozenset({CulpritClass.BEHIND}),
    FaultKind.STALL: frozenset(),
    FaultKind.STOP: frozenset({CulpritClass.STOPPED}),
    FaultKind.GIL: frozenset({CulpritClass.GIL_HELD}),
    FaultKind.KILL: frozenset({CulpritClass.DEAD}),
    FaultKind.EXIT: frozenset({CulpritClass.DEAD}),
    FaultKind.UNINTERRUPTIBLE: frozenset({CulpritClass.DEVICE_OR_NETWORK}),
    FaultKind.NETWORK: frozenset({CulpritClass.HOST_SILENT}),
    # Until the silence limit, all that is known is that the others wait for it.
    FaultKind.NODE_LOST: frozenset({CulpritClass.HOST_SILENT, CulpritClass.BEHIND}),
    FaultKind.NEVER_STARTED: frozenset({CulpritClass.NEVER_STARTED}),
}
"""The correct classes of the culprits of each kind of fault; empty: no rank is a culprit."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: it strikes once, in one attempt."""

    kind: FaultKind
    ranks: tuple[int, ...] = (0,)
    """Not used by a stall."""
    step: int | None = None
    """It starts in the first activity of its section in this step (0-based) or a later one; None: any."""
    section: str = ""
    """One of :data:`SECTIONS`; empty: the default of its kind."""
    attempt: int = 1
    seconds: float | None = None
    """Duration; None: until a restart."""

    @property
    def where(self) -> str:
        """The section in which it starts."""
        if self.section:
            return self.section
        return BACKWARD if self.kind is FaultKind.STALL else FORWARD

    @property
    def freezes(self) -> bool:
        """Whether the ranks stop, so that the others wait for them."""
        return self.kind is not FaultKind.NETWORK


def parse_fault(text: str) -> Fault:
    """Read ``kind=hang,rank=3,step=40``; also ``section``, ``attempt`` and ``seconds``; several ranks as ``3+5``.

    Raises:
        ValueError: the text is malformed; the message names the expected form.
    """
    given: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, mark, value = (each.strip() for each in part.partition("="))
        if not mark or name not in _READERS:
            raise ValueError(f"a fault is written kind=hang,rank=3,step=40; {part!r} is none of {', '.join(_READERS)}")
        try:
            field_name, reader = _READERS[name]
            given[field_name] = reader(value)
        except ValueError as error:
            raise ValueError(f"{name} of a fault: {error}") from None
    if "kind" not in given:
        raise ValueError(f"a fault needs its kind: one of {', '.join(FaultKind)}")
    return Fault(**given)


def _kind(text: str) -> FaultKind:
    try:
        return FaultKind(text)
    except ValueError:
        raise ValueError(f"it must be one of {', '.join(FaultKind)}, not {text!r}") from None


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(_number(each) for each in text.split("+"))


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"it must be a whole number from 0, not {text!r}")
    return int(text)


def _section(text: str) -> str:
    if text not in SECTIONS:
        raise ValueError(f"it must be one of {', '.join(SECTIONS)}, not {text!r}")
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"it must be a number of seconds above 0, not {text!r}")
    return seconds


_READERS: Final[Mapping[str, tuple[str, Any]]] = {
    "kind": ("kind", _kind),
    "rank": ("ranks", _ranks),
    "step": ("step", _number),
    "section": ("section", _section),
    "attempt": ("attempt", _number),
    "seconds": ("seconds", _seconds),
}


def _setting(default: Any, unit: str, meaning: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job and its durations. An interval of 0 (``*_every``) disables the event."""

    world: int = _setting(16, "", "ranks of the job")
    nodes: int = _setting(2, "", "nodes they run on")
    seconds: float = _setting(600.0, "s", "length of the scene")
    seed: int = _setting(0, "", "seed of all randomness")
    interval: float = _setting(1.0, "s", "export interval of the ranks")
    step: float = _setting(1.0, "s", "time of a step")
    noise: float = _setting(0.1, "", "relative standard deviation of step times")
    setup: float = _setting(5.0, "s", "time of the section setup of each attempt")
    compilation: float = _setting(20.0, "s", "additional time of the first step of a process")
    checkpoint_every: int = _setting(100, "steps", "steps between checkpoints")
    checkpoint: float = _setting(10.0, "s", "time of a checkpoint")
    evaluate_every: int = _setting(0, "steps", "steps between evaluations")
    evaluation: float = _setting(60.0, "s", "time of an evaluation")
    stall_every: int = _setting(0, "steps", "steps between long data stalls, on average")
    stall: float = _setting(30.0, "s", "longest data stall")
    relaunch_every: int = _setting(0, "steps", "steps after which the job is restarted from outside")
    restart: float = _setting(5.0, "s", "from the end of an attempt to the processes of the next one")
    boot: float = _setting(2.0, "s", "from the start of a process to its first report")
    delay: float = _setting(0.05, "s", "longest latency of a message to the monitor")
    gives_up: float = _setting(
        0.0, "s", "silence after which the launchers give up a lost node and continue without it; 0: never"
    )
    launchers: bool = _setting(True, "", "launchers of Rankwatch run the job and execute directives")
    faults: tuple[Fault, ...] = ()

    def checked(self) -> Plan:
        """This plan, validated.

        Raises:
            ValueError: a value is invalid; the message names it.
        """
        if not 1 <= self.nodes <= self.world:
            raise ValueError(f"{self.world} ranks cannot run on {self.nodes} nodes")
        for name in ("seconds", "interval", "step", "restart"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")
        for name in ("noise", "setup", "compilation", "checkpoint", "evaluation", "stall", "boot", "delay", "gives_up"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must not be below 0, as {getattr(self, name):g} is")
        for fault in self.faults:
            beyond = [rank for rank in fault.ranks if rank >= self.world]
            if beyond:
                raise ValueError(f"there is no rank {beyond[0]} among {self.world}")
        return self

    def node_of(self, rank: int) -> int:
        """The node that a rank runs on."""
        return rank * self.nodes // self.world
