"""Stores the newest sampled spans of each rank in bounded memory, for the timeline on the page.

A span is one entry of a section in a sampled step. Each rank has a ring buffer, so that a silent rank keeps its last
spans however much the others send. The rings hold as many spans as the job's share allows (:func:`capacity`), 26 bytes
each, and are truncated when more ranks appear. When all jobs together exceed :data:`SPANS_IN_ALL`, the least recently
updated jobs are evicted.

Clocks of different hosts may differ by more than a step, so timestamps are only compared within one rank: a step begins
with the rank's first span of that iteration, and steps of different ranks are aligned by iteration. Durations are
exact; how much later than others a rank began a step is not known.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rankwatch_monitor.ingest.traces_decoder import SpanRecord

MAX_PER_RANK: Final = 512
MIN_PER_RANK: Final = 16
"""Capacity of a rank's ring buffer."""
SPANS_IN_JOB: Final = 2**20
SPANS_IN_ALL: Final = 2**21
"""Spans of one job (27 MB) and of all jobs together."""
MAX_SECTIONS: Final = 256
"""Section names of one job; spans of further sections are dropped."""

_PACKED: Final = struct.Struct("<Hqqq")
_WAITING: Final = 0xFFFF
"""Stands for exposed communication in place of a section's number."""


class Span(NamedTuple):
    """One entry of a section; ``start`` is in seconds since the rank's step began, ``depth`` counts enclosing spans."""

    section: str
    depth: int
    start: float
    duration: float


class RankStep(NamedTuple):
    """One sampled step of one rank."""

    iteration: int
    began: float
    """Unix seconds by the rank's host clock."""
    seconds: float
    """From the start of its first span to the end of its last."""
    spans: tuple[Span, ...]
    waits: tuple[tuple[float, float], ...] | None = None
    """Exposed communication: in collectives, while nothing was computed. Start since the step began, and seconds; None:
    it was not measured, as the step was not profiled."""


def capacity(ranks: int) -> int:
    """Spans stored for each rank of a job of this size: a power of two, so that it rarely changes."""
    share = SPANS_IN_JOB // max(1, ranks)
    return max(MIN_PER_RANK, min(MAX_PER_RANK, 1 << (share.bit_length() - 1) if share else MIN_PER_RANK))


class JobSpans:
    """The spans of one attempt of one job."""

    def __init__(self) -> None:
        self.attempt = 0
        self.sections: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rings: dict[int, deque[bytes]] = {}
        self._capacity = MAX_PER_RANK

    def __len__(self) -> int:
        return sum(map(len, self._rings.values()))

    @property
    def ranks(self) -> list[int]:
        """Ranks with stored spans, in order."""
        return sorted(self._rings)

    def add(self, record: SpanRecord) -> int:
        """Store one span; returns the change in the number of stored spans."""
        if record.iteration is None or record.attempt < self.attempt:
            return 0
        dropped = 0
        if record.attempt > self.attempt:
            dropped = len(self)
            self.attempt = record.attempt
            self._rings.clear()
        number = _WAITING if record.waiting else self._number(record.section)
        if number is None:
            return -dropped
        ring = self._rings.get(record.rank)
        if ring is None:
            dropped += self._resize(len(self._rings) + 1)
            ring = self._rings[record.rank] = deque(maxlen=self._capacity)
        grown = len(ring) < self._capacity
        ring.append(_PACKED.pack(number, record.iteration, record.start_unix_ns, record.end_unix_ns))
        return int(grown) - dropped

    def iterations(self, ranks: Iterable[int]) -> list[int]:
        """The sampled steps of these ranks, in order."""
        return self._with(ranks, waiting=False)

    def profiled(self, ranks: Iterable[int]) -> list[int]:
        """Those of them of which exposed communication is known, in order."""
        ranks = list(ranks)
        return sorted(set(self._with(ranks, waiting=True)) & set(self._with(ranks, waiting=False)))

    def _with(self, ranks: Iterable[int], *, waiting: bool) -> list[int]:
        entries = (_PACKED.unpack(each) for rank in ranks for each in self._rings.get(rank, ()))
        return sorted({iteration for number, iteration, _, _ in entries if (number == _WAITING) is waiting})

    def steps(self, rank: int, iterations: Iterable[int]) -> list[RankStep]:
        """The stored steps of a rank among ``iterations``, in order."""
        wanted = set(iterations)
        found: dict[int, list[tuple[int, int, int]]] = {}
        for each in self._rings.get(rank, ()):
            number, iteration, start, end = _PACKED.unpack(each)
            if iteration in wanted:
                found.setdefault(iteration, []).append((start, end, number))
        steps = (self._step(iteration, found[iteration]) for iteration in sorted(found))
        return [step for step in steps if step is not None]

    def _step(self, iteration: int, every: list[tuple[int, int, int]]) -> RankStep | None:
        entries = [entry for entry in every if entry[2] != _WAITING]
        waiting = sorted(entry for entry in every if entry[2] == _WAITING)
        if not entries:
            return None
        # Outer spans first: by start, then by descending end.
        entries.sort(key=lambda entry: (entry[0], -entry[1]))
        began, last = entries[0][0], max(end for _, end, _ in entries)
        open_until: list[int] = []
        spans = []
        for start, end, number in entries:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            spans.append(Span(self.sections[number], len(open_until), (start - began) / 1e9, (end - start) / 1e9))
            open_until.append(end)
        waits = tuple(((start - began) / 1e9, (end - start) / 1e9) for start, end, _ in waiting if start < end)
        return RankStep(iteration, began / 1e9, (last - began) / 1e9, tuple(spans), waits if waiting else None)

    def _number(self, section: str) -> int | None:
        number = self._numbers.get(section)
        if number is None and len(self.sections) < MAX_SECTIONS:
            number = self._numbers[section] = len(self.sections)
            self.sections.append(section)
        return number

    def _resize(self, ranks: int) -> int:
        """Resize the rings for this many ranks; returns the number of dropped spans."""
        allowed = capacity(ranks)
        if allowed == self._capacity:
            return 0
        before = len(self)
        self._capacity = allowed
        self._rings = {rank: deque(ring, maxlen=allowed) for rank, ring in self._rings.items()}
        return before - len(self)


class SpanStore:
    """The spans of all jobs; the least recently updated jobs are evicted."""

    def __init__(self, in_all: int = SPANS_IN_ALL) -> None:
        self._in_all = in_all
        self._jobs: dict[str, JobSpans] = {}
        """In order of their last update."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, records: Sequence[SpanRecord], known: Iterable[str], ranks: int) -> None:
        """Store spans of known jobs.

        Args:
            records: the received spans.
            known: IDs of the jobs in memory; spans of other jobs are dropped.
            ranks: ranks a job may have at most; spans of higher ranks are dropped.
        """
        jobs = set(known)
        for gone in self._jobs.keys() - jobs:
            self._forget(gone)
        for job_id in {record.job_id for record in records} & jobs:
            spans = self.of(job_id)
            self._jobs.pop(job_id, None)
            self._jobs[job_id] = spans
        for record in records:
            if record.job_id in jobs and record.rank < ranks:
                self._size += self._jobs[record.job_id].add(record)
        while self._size > self._in_all and len(self._jobs) > 1:
            self._forget(next(iter(self._jobs)))

    def of(self, job_id: str) -> JobSpans:
        """The spans of a job; empty when there are none."""
        stored = self._jobs.get(job_id)
        return JobSpans() if stored is None else stored

    def _forget(self, job_id: str) -> None:
        self._size -= len(self._jobs.pop(job_id))


def to_json(step: RankStep, sections: Sequence[str]) -> dict[str, Any]:
    """A step for the API: each span is ``[section number, depth, start, duration]``, each wait ``[start, duration]``,
    times in seconds; ``waits`` is null where they were not measured."""
    number = {name: index for index, name in enumerate(sections)}
    return {
        "iteration": step.iteration,
        "began": step.began,
        "seconds": round(step.seconds, 6),
        "spans": [[number[s.section], s.depth, round(s.start, 6), round(s.duration, 6)] for s in step.spans],
        "waits": None if step.waits is None else [[round(start, 6), round(each, 6)] for start, each in step.waits],
    }
