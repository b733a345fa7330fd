"""Gapless lists of time spans, each with its bucket, and the arithmetic on them. Pure.

Times are unix seconds. In a list each span begins where the one before it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple


class Bucket(StrEnum):
    """What a second of a job's life was spent on."""

    PRODUCTIVE = "productive"
    """Steps that were kept, without the waiting in them."""
    WAITING = "waiting"
    """Part of the steps that were kept: the other ranks waited for a slow one."""
    LOST_STEPS = "lost_steps"
    """Steps that a restart threw away, and the step that it interrupted."""
    STARTUP = "startup"
    """Until the first step of the first attempt."""
    RESTART = "restart"
    """From the beginning of a later attempt until its first step."""
    CHECKPOINTING = "checkpointing"
    """Between steps, with most ranks in a section of that name."""
    EVALUATION = "evaluation"
    """Between steps, with most ranks in a section of one of the names for it."""
    HANG = "hang"
    """From the last progress until detection, or until the end of the incident if no action was taken."""
    HANDLING = "handling"
    """From detection until the next attempt began: deciding, taking stacks, ending the ranks."""
    STALLED = "stalled"
    """No progress and an open incident, after which the ranks continued by themselves."""
    SHUTDOWN = "shutdown"
    """From the last step until the end of a run."""
    DOWN = "down"
    """Between the end of a run and the beginning of the next one of the same job."""
    UNSEEN = "unseen"
    """The monitor was away, and too few steps were completed meanwhile to fill the time."""
    UNMEASURED = "unmeasured"
    """A run that succeeded without reporting a step."""


class Span(NamedTuple):
    """From ``start`` to ``end``, spent on ``bucket``."""

    start: float
    end: float
    bucket: Bucket

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end - self.start


def append(spans: list[Span], start: float, end: float, bucket: Bucket) -> None:
    """Append a span in place, joined to the last one if it has the same bucket."""
    if end <= start:
        return
    if spans and spans[-1].bucket is bucket:
        start = spans.pop().start
    spans.append(Span(start, end, bucket))


def split(spans: Iterable[Span], at: float) -> tuple[list[Span], list[Span]]:
    """The spans before and after a moment; a span across it is split."""
    before: list[Span] = []
    after: list[Span] = []
    for span in spans:
        append(before, span.start, min(span.end, at), span.bucket)
        append(after, max(span.start, at), span.end, span.bucket)
    return before, after


def relabel(
    spans: Iterable[Span], choose: Callable[[Bucket], Bucket], start: float = float("-inf"), end: float = float("inf")
) -> list[Span]:
    """The same time with another bucket chosen between ``start`` and ``end``."""
    changed: list[Span] = []
    for span in spans:
        a = min(max(span.start, start), span.end)
        b = max(a, min(span.end, end))
        append(changed, span.start, a, span.bucket)
        append(changed, a, b, choose(span.bucket))
        append(changed, b, span.end, span.bucket)
    return changed


def replacing(changes: Mapping[Bucket, Bucket]) -> Callable[[Bucket], Bucket]:
    """A choice for :func:`relabel` that replaces some buckets."""
    return lambda known: changes.get(known, known)


def one(start: float, end: float, bucket: Bucket) -> list[Span]:
    """A list of one span, or an empty one."""
    return [Span(start, end, bucket)] if end > start else []


def fill(spans: Iterable[Span], among: Bucket, seconds: float, by: Bucket) -> list[Span]:
    """The same time with the first ``seconds`` of one bucket moved to another."""
    changed: list[Span] = []
    for span in spans:
        taken = min(max(seconds, 0.0), span.seconds) if span.bucket is among else 0.0
        seconds -= taken
        # start + (end - start) need not be end: a span that is moved whole must leave no rest.
        until = span.end if taken == span.seconds else span.start + taken
        append(changed, span.start, until, by)
        append(changed, until, span.end, span.bucket)
    return changed


def total(spans: Iterable[Span], bucket: Bucket | None = None) -> float:
    """Seconds of all spans, or of those of one bucket."""
    return sum(span.seconds for span in spans if bucket is None or span.bucket is bucket)
