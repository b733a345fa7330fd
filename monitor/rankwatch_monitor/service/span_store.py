"""The newest sampled spans of each rank, in a bounded memory: what a rank was busy with, section by section.

How this works
--------------
A span is one entry of a section in a sampled step. They are kept by rank, so that a rank that says nothing any more
keeps its last ones however much the others send: it is the one people will look at. Each rank has a ring of as many
spans as the job's share allows (:func:`capacity`), 26 bytes each; when more ranks appear, all rings are cut. When all
jobs together hold more than :data:`SPANS_IN_ALL`, those jobs are forgotten of which nothing was heard for longest.

Hosts have clocks of their own, which may differ by more than a step lasts. So times are only ever compared within one
rank: a step of a rank begins with its first span of that iteration, and steps of different ranks are put side by side
by their iteration. What is lost by this is how much later than the others a rank began; what is told, how long each
part took it, is exact.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rankwatch_monitor.ingest.otlp.traces import SpanRecord

MOST: Final = 512
LEAST: Final = 16
"""Spans of a rank that are kept: so many while there is room, and never fewer."""
SPANS_IN_JOB: Final = 2**20
SPANS_IN_ALL: Final = 2**21
"""Spans of one job (27 MB) and of all jobs together."""
SECTIONS: Final = 256
"""Different section names of one job; spans of further ones are not kept."""

_PACKED: Final = struct.Struct("<Hqqq")


class Span(NamedTuple):
    """One entry of a section: seconds since the rank's step began, and how deep it lies within others."""

    section: str
    depth: int
    start: float
    duration: float


class RankStep(NamedTuple):
    """One sampled step of one rank."""

    iteration: int
    began: float
    """Unix seconds by the clock of the rank's host."""
    seconds: float
    """From the start of its first span to the end of its last."""
    spans: tuple[Span, ...]


def capacity(ranks: int) -> int:
    """How many spans a rank of a job may keep: a power of two, so that it changes seldom."""
    share = SPANS_IN_JOB // max(1, ranks)
    return max(LEAST, min(MOST, 1 << (share.bit_length() - 1) if share else LEAST))


class JobTimeline:
    """The spans of one attempt of one job."""

    def __init__(self) -> None:
        self.attempt = 0
        self.sections: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rings: dict[int, deque[bytes]] = {}
        self._capacity = MOST

    def __len__(self) -> int:
        return sum(map(len, self._rings.values()))

    @property
    def ranks(self) -> list[int]:
        """Ranks of which spans are kept, in order."""
        return sorted(self._rings)

    def take(self, record: SpanRecord) -> int:
        """Keep one span; return by how many the number of kept ones has changed."""
        if record.iteration is None or record.attempt < self.attempt:
            return 0
        before = 0
        if record.attempt > self.attempt:
            before = len(self)
            self.attempt = record.attempt
            self._rings.clear()
        number = self._number(record.section)
        if number is None:
            return -before
        ring = self._rings.get(record.rank)
        if ring is None:
            before += self._cut(len(self._rings) + 1)
            ring = self._rings[record.rank] = deque(maxlen=self._capacity)
        grown = len(ring) < self._capacity
        ring.append(_PACKED.pack(number, record.iteration, record.start_unix_ns, record.end_unix_ns))
        return int(grown) - before

    def iterations(self, ranks: Iterable[int]) -> list[int]:
        """Sampled steps of which any of these ranks has spans, in order."""
        return sorted({_PACKED.unpack(each)[1] for rank in ranks for each in self._rings.get(rank, ())})

    def steps(self, rank: int, iterations: Iterable[int]) -> list[RankStep]:
        """These steps of a rank, as far as they are kept, in order."""
        wanted = set(iterations)
        found: dict[int, list[tuple[int, int, int]]] = {}
        for each in self._rings.get(rank, ()):
            number, iteration, start, end = _PACKED.unpack(each)
            if iteration in wanted:
                found.setdefault(iteration, []).append((start, end, number))
        return [self._step(iteration, found[iteration]) for iteration in sorted(found)]

    def _step(self, iteration: int, entries: list[tuple[int, int, int]]) -> RankStep:
        # Outer before inner: who starts first, and of those who start together who ends last.
        entries.sort(key=lambda entry: (entry[0], -entry[1]))
        began, last = entries[0][0], max(end for _, end, _ in entries)
        open_until: list[int] = []
        spans = []
        for start, end, number in entries:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            spans.append(Span(self.sections[number], len(open_until), (start - began) / 1e9, (end - start) / 1e9))
            open_until.append(end)
        return RankStep(iteration, began / 1e9, (last - began) / 1e9, tuple(spans))

    def _number(self, section: str) -> int | None:
        number = self._numbers.get(section)
        if number is None and len(self.sections) < SECTIONS:
            number = self._numbers[section] = len(self.sections)
            self.sections.append(section)
        return number

    def _cut(self, ranks: int) -> int:
        """Make room for so many ranks; return how many spans were let go."""
        allowed = capacity(ranks)
        if allowed == self._capacity:
            return 0
        before = len(self)
        self._capacity = allowed
        self._rings = {rank: deque(ring, maxlen=allowed) for rank, ring in self._rings.items()}
        return before - len(self)


class Timelines:
    """The timelines of all jobs; those heard of last are kept."""

    def __init__(self, in_all: int = SPANS_IN_ALL) -> None:
        self._in_all = in_all
        self._jobs: dict[str, JobTimeline] = {}
        """The job heard of last stands last."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def take(self, records: Sequence[SpanRecord], known: Iterable[str], ranks: int) -> None:
        """Keep spans of known jobs.

        Args:
            records: what came in.
            known: jobs there are; spans of others are let go, and so is what was kept of jobs that are gone.
            ranks: ranks a job may have at most; a span of another rank is let go.
        """
        jobs = set(known)
        for gone in self._jobs.keys() - jobs:
            self._forget(gone)
        for job_id in {record.job_id for record in records} & jobs:
            timeline = self.of(job_id)
            self._jobs.pop(job_id, None)
            self._jobs[job_id] = timeline
        for record in records:
            if record.job_id in jobs and record.rank < ranks:
                self._size += self._jobs[record.job_id].take(record)
        while self._size > self._in_all and len(self._jobs) > 1:
            self._forget(next(iter(self._jobs)))

    def of(self, job_id: str) -> JobTimeline:
        """The timeline of a job; an empty one when nothing is kept of it."""
        kept = self._jobs.get(job_id)
        return JobTimeline() if kept is None else kept

    def _forget(self, job_id: str) -> None:
        self._size -= len(self._jobs.pop(job_id))


def to_json(step: RankStep, sections: Sequence[str]) -> dict[str, Any]:
    """A step as the API shows it: of each span the number of its section, its depth, start and duration (seconds)."""
    number = {name: index for index, name in enumerate(sections)}
    return {
        "iteration": step.iteration,
        "began": step.began,
        "seconds": round(step.seconds, 6),
        "spans": [[number[s.section], s.depth, round(s.start, 6), round(s.duration, 6)] for s in step.spans],
    }
