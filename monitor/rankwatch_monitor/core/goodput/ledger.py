"""The ledger of a job's time: settled seconds by bucket, pending spans, and the state needed to continue. Plain data.

``goodput_accounting`` writes it. The store keeps it as JSON, from which a monitor that takes over continues.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rankwatch_monitor.core.goodput.intervals import Bucket, Span

WINDOW_MINUTES: Final = 60
SAME_CHECKPOINT: Final = 5.0
"""Seconds in which all ranks report that they have saved the same checkpoint."""
KEPT: Final = (Bucket.PRODUCTIVE, Bucket.WAITING)
"""Buckets of the steps that are kept, which goodput counts."""
MARKS: Final = 128
"""Marks of a ledger; beyond that every second one of the older half is dropped."""
RESUMES: Final = 201
"""Restarts of which the loss is known: as many as incidents are kept, and the one before."""
COUNTED_AFTER: Final = 15.0
"""Seconds before settled time enters the Prometheus counters: longer than what a killed monitor loses, so that the
counters of the one that takes over are never below those of the one before."""


class CompletedStep(NamedTuple):
    """A step that the job completed, and when."""

    at: float
    iteration: int


class Checkpoint(NamedTuple):
    """A checkpoint, and when it was saved."""

    at: float
    iteration: int
    """The step after which it was saved; -1: the script counts none."""
    loaded: bool = False
    """An attempt loaded it, so the step is exact; else it is the least that it can be."""
    latest: int = -1
    """The step after which it was saved at the latest, where that is not exact."""


class Mark(NamedTuple):
    """Seconds that the kept steps up to ``step`` took, by bucket."""

    step: int
    productive: float
    waiting: float


class Resume(NamedTuple):
    """The first step of an attempt, at unix seconds ``at``, and the seconds of all steps lost until then."""

    at: float
    lost: float


class Ledger:
    """The ledger of one job: ``settled`` seconds by bucket, and ``pending`` spans of which the bucket may change.

    A restart moves settled time of the steps that it throws away to the lost ones (:meth:`throw_away`).
    """

    def __init__(self, began: float) -> None:
        self.began = self.accounted_at = self.settled_until = began
        self.settled: dict[Bucket, float] = dict.fromkeys(Bucket, 0.0)
        self.minutes: dict[int, dict[Bucket, float]] = {}
        """Settled seconds by bucket for each of the last minutes of unix time."""
        self.pending: list[Span] = []
        self.last_step: CompletedStep | None = None
        """The last step of this attempt; None before its first."""
        self.furthest = -1
        """The furthest step of all attempts."""
        self.marks: list[Mark] = []
        """What the kept steps took, the last one as of the last settled step."""
        self.resumes: list[Resume] = []
        """The first steps of the newest attempts."""
        self.waited = 0.0
        """Seconds in which ranks waited for a slow one, of steps that are not settled yet."""
        self.step_seconds = 0.0
        """Usual seconds of a step; 0: unknown."""
        self.checkpoint: Checkpoint | None = None
        """The last checkpoint; None: none is known."""
        self.offset = 0
        """What is added to the steps of an attempt that counts its own from 0: how many were kept before it."""
        self.attempt = 0
        self.attempt_since = began
        self.had_ranks = False
        """The attempt has had ranks."""
        self.first_attempt = True
        """It is the first attempt."""
        self.ended = False
        """The run has ended."""
        self.lost = False
        """The job was lost at the last evaluation."""
        self.totals: dict[Bucket, float] = dict(self.settled)
        """The same as ``settled`` in sum, and never decreasing: lost steps enter it as they are done again."""
        self.owed: dict[Bucket, float] = dict.fromkeys(KEPT, 0.0)
        """Seconds of lost steps that ``totals`` still has in the buckets of kept ones."""
        self.counted: dict[Bucket, float] = dict(self.settled)
        """``totals`` of some time ago, for the Prometheus counters."""
        self._to_count = (began, dict(self.totals))
        self.evaluated: object = None
        """The state of the job at the last evaluation, to detect transitions."""

    @property
    def until(self) -> float:
        """Unix seconds up to which every second is in a bucket."""
        return self.pending[-1].end if self.pending else self.settled_until

    @property
    def waiting_for(self) -> Bucket:
        """The bucket of an attempt before its first step."""
        return Bucket.STARTUP if self.first_attempt else Bucket.RESTART

    @property
    def reached(self) -> int:
        """The last step that is kept so far; -1: none."""
        return self.marks[-1].step if self.marks else -1

    def settle(self, done: Sequence[Span]) -> None:
        """Add spans to the settled time."""
        for span in done:
            self.settled[span.bucket] += span.seconds
            again = min(self.owed.get(span.bucket, 0.0), span.seconds)
            if again > 0.0:
                self.owed[span.bucket] -= again
                self.totals[Bucket.LOST_STEPS] += again
            self.totals[span.bucket] += span.seconds - again
            self.settled_until = span.end
            into_minutes(self.minutes, span)

    def mark(self, step: int) -> None:
        """Note that all time of kept steps so far was spent on steps up to ``step``."""
        self.marks.append(Mark(step, self.settled[Bucket.PRODUCTIVE], self.settled[Bucket.WAITING]))
        self.furthest = max(self.furthest, step)
        if len(self.marks) > MARKS:
            del self.marks[1 : MARKS // 2 : 2]

    def reach(self, step: int) -> None:
        """Note that the settled time was spent on steps up to ``step``, of which a report came late."""
        if self.marks and step > self.marks[-1].step:
            self.marks[-1] = self.marks[-1]._replace(step=step)
            self.furthest = max(self.furthest, step)

    @property
    def at_risk(self) -> int | None:
        """Steps that are kept so far, and after the last checkpoint, thus lost by a restart; None: none is known."""
        if self.checkpoint is None or self.checkpoint.iteration < 0:
            return None
        return max(0, self.reached - self.checkpoint.iteration)

    def resume(self, at: float, step: int, *, counted: bool = False) -> int:
        """Note the first step of an attempt: those after it that were done before are lost. Returns its number.

        ``counted``: it is the first of a script that counts from 0 in each attempt. It is taken to follow the last
        checkpoint that is known; where none is, no step is taken to be lost, since how many is not known.
        """
        self.offset = self.reached - (self.at_risk or 0) + 1 if counted else 0
        step += self.offset
        if step < self.reached:
            self._throw_away(step)
        if not counted and self.checkpoint is not None and step > self.checkpoint.iteration >= 0:
            self.checkpoint = Checkpoint(self.checkpoint.at, step - 1, loaded=True, latest=step - 1)
        self.resumes = [*self.resumes[1 - RESUMES :], Resume(at, self.settled[Bucket.LOST_STEPS])]
        self.mark(step)
        return step

    def lost_by(self, first_step: float | None) -> float:
        """Seconds of the steps lost by the restart whose first step was at unix seconds ``first_step``; 0: unknown."""
        for before, resumed in itertools.pairwise(self.resumes):
            if resumed.at == first_step:
                return resumed.lost - before.lost
        return 0.0

    def _throw_away(self, step: int) -> None:
        """Move the time of kept steps after ``step`` to the lost ones; it is the newest of their buckets."""
        kept = self._at(step)
        for bucket, still in ((Bucket.PRODUCTIVE, kept.productive), (Bucket.WAITING, kept.waiting)):
            lost = max(0.0, self.settled[bucket] - still)
            self.settled[bucket] -= lost
            self.settled[Bucket.LOST_STEPS] += lost
            self.owed[bucket] += lost
            for minute in sorted(self.minutes, reverse=True):
                spent_in = self.minutes[minute]
                moved = min(lost, spent_in.get(bucket, 0.0))
                if moved > 0.0:
                    spent_in[bucket] -= moved
                    spent_in[Bucket.LOST_STEPS] = spent_in.get(Bucket.LOST_STEPS, 0.0) + moved
                    lost -= moved
        self.marks = [mark for mark in self.marks if mark.step < step]

    def _at(self, step: int) -> Mark:
        """What the steps up to ``step`` took; between two marks all took equally long."""
        after = next(i for i, mark in enumerate(self.marks) if mark.step >= step)
        end = self.marks[after]
        if end.step == step:
            return end
        if after == 0:
            productive = max(0.0, end.productive - (end.step - step) * self.step_seconds)
            return Mark(step, productive, end.waiting * productive / end.productive if end.productive else 0.0)
        start = self.marks[after - 1]
        part = (step - start.step) / (end.step - start.step)
        return Mark(
            step,
            start.productive + part * (end.productive - start.productive),
            start.waiting + part * (end.waiting - start.waiting),
        )

    def save(self, step: int, now: float, latest: int = -1) -> None:
        """Note that a rank has saved a checkpoint, after ``step`` at the earliest and ``latest`` at the latest.

        -1: the script counts no steps. Of the ranks' reports of one checkpoint, the first has its time. Of two saves
        that follow each other closely, the newer one counts, since it is at the least as late as any rank states.
        """
        last = self.checkpoint
        if last is None or now - last.at > SAME_CHECKPOINT or step > last.latest >= 0:
            self.checkpoint = Checkpoint(now, step, latest=max(step, latest))
        else:
            self.checkpoint = last._replace(iteration=max(last.iteration, step), latest=max(last.latest, latest))

    def count(self, now: float) -> None:
        """Move time that was settled some time ago into the counters."""
        if now - self._to_count[0] >= COUNTED_AFTER:
            self.counted, self._to_count = self._to_count[1], (now, dict(self.totals))

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        return {
            "began": self.began,
            "looked_at": self.accounted_at,
            "settled_until": self.settled_until,
            "settled": {str(bucket): seconds for bucket, seconds in self.settled.items() if seconds},
            "minutes": [[m, {str(b): s for b, s in spent.items()}] for m, spent in self.minutes.items()],
            "pending": [[span.start, span.end, str(span.bucket)] for span in self.pending],
            "mark": list(self.last_step) if self.last_step else None,
            "furthest": self.furthest,
            "marks": [list(mark) for mark in self.marks],
            "resumes": [list(resumed) for resumed in self.resumes],
            "totals": {str(bucket): seconds for bucket, seconds in self.totals.items() if seconds},
            "owed": {str(bucket): seconds for bucket, seconds in self.owed.items()},
            "step_seconds": self.step_seconds,
            "offset": self.offset,
            "checkpoint": list(self.checkpoint) if self.checkpoint else None,
            "attempt": self.attempt,
            "attempt_since": self.attempt_since,
            "flags": [self.had_ranks, self.first_attempt, self.ended, self.lost],
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Ledger:
        """The ledger that :meth:`to_json` wrote; what the writer did not know is as in a new one.

        Raises:
            KeyError, ValueError: another version wrote it.
        """
        ledger = cls(data["began"])
        data = {**ledger.to_json(), **data}
        ledger.accounted_at, ledger.settled_until = data["looked_at"], data["settled_until"]
        ledger.settled.update(_by_bucket(data["settled"]))
        ledger.minutes = {m: _by_bucket(spent) for m, spent in data["minutes"]}
        ledger.pending = [Span(start, end, Bucket(b)) for start, end, b in data["pending"]]
        ledger.last_step = CompletedStep(*data["mark"]) if data["mark"] else None
        ledger.furthest, ledger.step_seconds = data["furthest"], data["step_seconds"]
        ledger.offset = data["offset"]
        ledger.totals.update(_by_bucket(data["totals"]))
        ledger.owed.update(_by_bucket(data["owed"]))
        ledger.resumes = [Resume(*resumed) for resumed in data["resumes"]]
        ledger.marks = [Mark(*mark) for mark in data["marks"]]
        ledger.checkpoint = Checkpoint(*data["checkpoint"]) if data["checkpoint"] else None
        ledger.attempt, ledger.attempt_since = data["attempt"], data["attempt_since"]
        ledger.had_ranks, ledger.first_attempt, ledger.ended, ledger.lost = data["flags"]
        ledger.counted, ledger._to_count = dict(ledger.totals), (ledger.accounted_at, dict(ledger.totals))
        return ledger


def _by_bucket(stored: Mapping[str, float]) -> dict[Bucket, float]:
    return {Bucket(name): seconds for name, seconds in stored.items()}


def into_minutes(minutes: dict[int, dict[Bucket, float]], span: Span) -> None:
    """Add a span to the seconds of each minute it touches, in place, and drop minutes of more than an hour ago."""
    start = max(span.start, span.end - 60.0 * WINDOW_MINUTES)
    while start < span.end:
        minute = int(start // 60.0)
        end = min(span.end, 60.0 * (minute + 1))
        spent_in = minutes.setdefault(minute, {})
        spent_in[span.bucket] = spent_in.get(span.bucket, 0.0) + end - start
        start = end
    oldest = int(span.end // 60.0) - WINDOW_MINUTES
    for minute in [m for m in minutes if m <= oldest]:
        del minutes[minute]
