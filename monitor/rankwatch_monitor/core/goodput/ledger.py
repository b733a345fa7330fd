"""The ledger of a job's time: settled seconds by bucket, pending spans, and the state needed to continue. Plain data.

``goodput_accounting`` writes it. The store keeps it as JSON, from which a monitor that takes over continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rankwatch_monitor.core.goodput.intervals import Bucket, Span

WINDOW_MINUTES: Final = 60
SAME_CHECKPOINT: Final = 5.0
"""Seconds in which all ranks report that they have saved the same checkpoint."""
COUNTED_AFTER: Final = 15.0
"""Seconds before settled time enters the Prometheus counters: longer than what a killed monitor loses, so that the
counters of the one that takes over are never below those of the one before."""


class CompletedStep(NamedTuple):
    """A step that the job completed, and when."""

    at: float
    iteration: int


class Ledger:
    """The ledger of one job: ``settled`` seconds by bucket, and ``pending`` spans of which the bucket may change."""

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
        self.step_seconds = 0.0
        """Usual seconds of a step; 0: unknown."""
        self.checkpoint: CompletedStep | None = None
        """The last checkpoint, after which step, and when it was saved; None: none is known."""
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
        self.counted: dict[Bucket, float] = dict(self.settled)
        """Settled seconds by bucket for the Prometheus counters, which never decrease."""
        self._to_count = (began, dict(self.settled))
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

    def settle(self, done: Sequence[Span]) -> None:
        """Add spans to the settled time."""
        for span in done:
            self.settled[span.bucket] += span.seconds
            self.settled_until = span.end
            into_minutes(self.minutes, span)

    def save(self, step: int, now: float) -> None:
        """Note that a rank has saved a checkpoint after a step; -1: the script counts none. The first report counts."""
        if self.checkpoint is None or now - self.checkpoint.at > SAME_CHECKPOINT:
            self.checkpoint = CompletedStep(now, step)

    def count(self, now: float) -> None:
        """Move time that was settled some time ago into the counters."""
        if now - self._to_count[0] >= COUNTED_AFTER:
            self.counted, self._to_count = self._to_count[1], (now, dict(self.settled))

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
            "step_seconds": self.step_seconds,
            "checkpoint": list(self.checkpoint) if self.checkpoint else None,
            "attempt": self.attempt,
            "attempt_since": self.attempt_since,
            "flags": [self.had_ranks, self.first_attempt, self.ended, self.lost],
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Ledger:
        """The ledger that :meth:`to_json` wrote.

        Raises:
            KeyError, ValueError: another version wrote it.
        """
        ledger = cls(data["began"])
        ledger.accounted_at, ledger.settled_until = data["looked_at"], data["settled_until"]
        ledger.settled.update({Bucket(b): s for b, s in data["settled"].items()})
        ledger.minutes = {m: {Bucket(b): s for b, s in spent.items()} for m, spent in data["minutes"]}
        ledger.pending = [Span(start, end, Bucket(b)) for start, end, b in data["pending"]]
        ledger.last_step = CompletedStep(*data["mark"]) if data["mark"] else None
        ledger.furthest, ledger.step_seconds = data["furthest"], data["step_seconds"]
        if checkpoint := data.get("checkpoint"):  # an earlier version has none
            ledger.checkpoint = CompletedStep(*checkpoint)
        ledger.attempt, ledger.attempt_since = data["attempt"], data["attempt_since"]
        ledger.had_ranks, ledger.first_attempt, ledger.ended, ledger.lost = data["flags"]
        ledger.counted, ledger._to_count = dict(ledger.settled), (ledger.accounted_at, dict(ledger.settled))
        return ledger


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
