"""The accounts of a job's time: what is settled, what is pending, and what is needed to go on. Plain data.

``goodput`` keeps them; the store writes them as JSON, so that a monitor which takes over goes on where another stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rankwatch_monitor.core.goodput.intervals import Bucket, Span

WINDOW_MINUTES: Final = 60
COUNTED_AFTER: Final = 15.0
"""Seconds at least that settled time waits before it is counted for Prometheus: longer than a killed monitor forgets,
so that the counters of the one that takes over never lie below those of the one before."""


class Mark(NamedTuple):
    """A step that the job had completed, and when."""

    at: float
    iteration: int


class Ledger:
    """The accounts of one job. ``settled`` holds seconds by bucket; ``pending`` is what is not decided yet."""

    def __init__(self, began: float) -> None:
        self.began = self.looked_at = self.settled_until = began
        self.settled: dict[Bucket, float] = dict.fromkeys(Bucket, 0.0)
        self.minutes: dict[int, dict[Bucket, float]] = {}
        """Settled seconds by bucket for each of the last minutes of unix time."""
        self.pending: list[Span] = []
        self.mark: Mark | None = None
        """The last step of this attempt; None before its first."""
        self.furthest = -1
        """The furthest step of all attempts."""
        self.step_seconds = 0.0
        """How long a step usually takes; 0: not known."""
        self.attempt = 0
        self.attempt_since = began
        self.peopled = False
        """The attempt has had ranks."""
        self.first = True
        """No attempt came before this one."""
        self.over = False
        self.lost = False
        self.counted: dict[Bucket, float] = dict(self.settled)
        """Settled seconds as they are counted for Prometheus: these never go down."""
        self._to_count = (began, dict(self.settled))
        self._key: object = None

    @property
    def until(self) -> float:
        """Unix seconds up to which every second is in a bucket."""
        return self.pending[-1].end if self.pending else self.settled_until

    @property
    def waiting_for(self) -> Bucket:
        """What an attempt is doing before its first step."""
        return Bucket.STARTUP if self.first else Bucket.RESTART

    def settle(self, done: Sequence[Span]) -> None:
        """Put spans down for good."""
        for span in done:
            self.settled[span.bucket] += span.seconds
            self.settled_until = span.end
            into_minutes(self.minutes, span)

    def count(self, now: float) -> None:
        """Let what was settled some time ago be counted."""
        if now - self._to_count[0] >= COUNTED_AFTER:
            self.counted, self._to_count = self._to_count[1], (now, dict(self.settled))

    def to_json(self) -> dict[str, Any]:
        """All of it, for the store."""
        return {
            "began": self.began,
            "looked_at": self.looked_at,
            "settled_until": self.settled_until,
            "settled": {str(bucket): seconds for bucket, seconds in self.settled.items() if seconds},
            "minutes": [[m, {str(b): s for b, s in spent.items()}] for m, spent in self.minutes.items()],
            "pending": [[span.start, span.end, str(span.bucket)] for span in self.pending],
            "mark": list(self.mark) if self.mark else None,
            "furthest": self.furthest,
            "step_seconds": self.step_seconds,
            "attempt": self.attempt,
            "attempt_since": self.attempt_since,
            "flags": [self.peopled, self.first, self.over, self.lost],
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Ledger:
        """The ledger that :meth:`to_json` wrote.

        Raises:
            KeyError, ValueError: it was written by something else.
        """
        ledger = cls(data["began"])
        ledger.looked_at, ledger.settled_until = data["looked_at"], data["settled_until"]
        ledger.settled.update({Bucket(b): s for b, s in data["settled"].items()})
        ledger.minutes = {m: {Bucket(b): s for b, s in spent.items()} for m, spent in data["minutes"]}
        ledger.pending = [Span(start, end, Bucket(b)) for start, end, b in data["pending"]]
        ledger.mark = Mark(*data["mark"]) if data["mark"] else None
        ledger.furthest, ledger.step_seconds = data["furthest"], data["step_seconds"]
        ledger.attempt, ledger.attempt_since = data["attempt"], data["attempt_since"]
        ledger.peopled, ledger.first, ledger.over, ledger.lost = data["flags"]
        ledger.counted, ledger._to_count = dict(ledger.settled), (ledger.looked_at, dict(ledger.settled))
        return ledger


def into_minutes(minutes: dict[int, dict[Bucket, float]], span: Span) -> None:
    """Add a span to the seconds of each minute it touches, in place, and forget minutes of more than an hour ago."""
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
