"""What NCCL's RAS subsystem (2.24 and newer) reports of a job's communicators: the record that launchers send.

A communicator has ranks of its own, 0 to its size - 1; a process is known by the address of its node and its pid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rankwatch.contract.text import one_line

MAX_COMMUNICATORS: Final = 32
"""Communicators of one report: those whose ranks differ, the largest first."""
MAX_MEMBERS: Final = 64
"""Processes that are listed of any group of them; of more none is, since a partial list would be taken as complete."""
MAX_LISTED: Final = 2048
"""Processes that one report lists in all; communicators beyond are left out."""
MAX_CLASSES: Final = 16
"""Different states of progress in one communicator; with more, no rank of it is told from the others."""
MAX_OPERATIONS: Final = 16
MAX_FAILURES: Final = 8
MAX_TEXT: Final = 64


@dataclass(frozen=True, slots=True)
class RasProcess:
    """A process as NCCL knows it."""

    host: str
    """The address of its node on NCCL's network; empty: unknown."""
    pid: int = -1
    """-1: unknown."""
    member: int = -1
    """Its rank in the communicator; -1: unknown, or of the whole job."""
    dead: bool = False
    """It could not be reached for so long that NCCL considers it dead; else it has not answered this time."""

    def bounded(self) -> RasProcess:
        """It with a host that no terminal obeys, cut."""
        return replace(self, host=_word(self.host))


@dataclass(frozen=True, slots=True)
class RasProgress:
    """Ranks of one communicator that have launched equally many operations of each kind."""

    counts: Mapping[str, int]
    """By kind (``AllReduce``; ``collective`` before 2.26, which counts all as one), those that differ between ranks."""
    ranks: int
    members: tuple[RasProcess, ...] = ()
    """Empty: NCCL does not list them, or they are more than :data:`MAX_MEMBERS`."""

    @property
    def launched(self) -> int:
        """Operations of the kinds that differ."""
        return sum(self.counts.values())

    def bounded(self) -> RasProgress:
        """It with texts that no terminal obeys, cut."""
        counts = {_word(kind): n for kind, n in [*self.counts.items()][:MAX_OPERATIONS]}
        return replace(self, counts=counts, members=_bounded(self.members))


@dataclass(frozen=True, slots=True)
class RasFailure:
    """An error or a state that NCCL reports of some ranks of a communicator, in its words."""

    what: str
    ranks: int
    members: tuple[RasProcess, ...] = ()

    def bounded(self) -> RasFailure:
        """It with texts that no terminal obeys, cut."""
        return replace(self, what=_word(self.what), members=_bounded(self.members))


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator whose ranks differ, or do not all answer."""

    name: str
    """Its hash, as in NCCL's own log."""
    size: int
    progress: tuple[RasProgress, ...] = ()
    """The most ranks first; empty: all ranks that answered are equally far, or go on."""
    missing: tuple[RasProcess, ...] = ()
    """Processes that did not answer."""
    failures: tuple[RasFailure, ...] = ()

    def bounded(self) -> RasCommunicator:
        """It with texts that no terminal obeys, cut."""
        return replace(
            self,
            name=_word(self.name),
            progress=tuple(each.bounded() for each in self.progress) if len(self.progress) <= MAX_CLASSES else (),
            missing=_bounded(self.missing),
            failures=tuple(each.bounded() for each in self.failures[:MAX_FAILURES]),
        )


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer, of the whole job as the process that was asked sees it."""

    version: str
    """Of NCCL."""
    communicators: tuple[RasCommunicator, ...] = ()
    total: int = 0
    """Communicators of the job; of those that are not listed, all ranks answer and are equally far, or go on."""
    missing: tuple[RasProcess, ...] = ()
    """Processes of the job that did not answer."""
    going_on: int = 0
    """Communicators whose ranks differ and launched operations between two answers: such a difference means nothing."""
    timeouts: int = 0
    """Connections over which NCCL itself awaited an answer in vain."""
    seconds: float = 0.0
    """How long it took."""

    def bounded(self) -> RasReport:
        """It with texts that no terminal obeys, cut: an answer may hold anything."""
        return replace(
            self,
            version=_word(self.version),
            communicators=_listed([each.bounded() for each in self.communicators[:MAX_COMMUNICATORS]]),
            missing=_bounded(self.missing),
        )


def _listed(communicators: Sequence[RasCommunicator]) -> tuple[RasCommunicator, ...]:
    found, listed = [], 0
    for each in communicators:
        groups = (each.missing, *(p.members for p in each.progress), *(f.members for f in each.failures))
        listed += sum(map(len, groups))
        if listed > MAX_LISTED:
            break
        found.append(each)
    return tuple(found)


def _word(text: str) -> str:
    return one_line(one_line(text, MAX_TEXT), MAX_TEXT)


def _bounded(processes: tuple[RasProcess, ...]) -> tuple[RasProcess, ...]:
    return tuple(each.bounded() for each in processes) if len(processes) <= MAX_MEMBERS else ()
