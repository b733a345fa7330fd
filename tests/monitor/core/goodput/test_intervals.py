"""Spans: cut, joined and renamed, never lost."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rankwatch_monitor.core.goodput import intervals
from rankwatch_monitor.core.goodput.intervals import Bucket, Span

TIMES = st.integers(0, 8000).map(lambda tenths: tenths / 10)
SECONDS = st.integers(0, 1000).map(lambda tenths: tenths / 10)


@st.composite
def lists(draw: st.DrawFn) -> list[Span]:
    made: list[Span] = []
    at = 0.0
    for _ in range(draw(st.integers(0, 8))):
        end = at + draw(SECONDS)
        intervals.append(made, at, end, draw(st.sampled_from(Bucket)))
        at = max(at, end)
    return made


def gapless(made: list[Span]) -> bool:
    return all(a.end == b.start and a.bucket is not b.bucket for a, b in itertools.pairwise(made)) and all(
        span.seconds > 0 for span in made
    )


def test_neighbours_of_a_kind_are_one() -> None:
    made: list[Span] = []
    intervals.append(made, 0.0, 1.0, Bucket.HANG)
    intervals.append(made, 1.0, 2.0, Bucket.HANG)
    intervals.append(made, 2.0, 2.0, Bucket.DOWN)
    assert made == [Span(0.0, 2.0, Bucket.HANG)]


@given(lists(), TIMES)
def test_a_cut_loses_nothing(made: list[Span], at: float) -> None:
    before, after = intervals.split(made, at)
    assert gapless(before)
    assert gapless(after)
    assert all(span.end <= at for span in before)
    assert all(span.start >= at for span in after)
    joined = list(before)
    for span in after:
        intervals.append(joined, *span)
    assert joined == made


@given(lists(), TIMES, TIMES)
def test_renaming_moves_no_border_but_its_own(made: list[Span], start: float, end: float) -> None:
    changed = intervals.relabel(made, lambda _: Bucket.DOWN, start, end)
    assert gapless(changed)
    assert [span.start for span in changed[:1]] == [span.start for span in made[:1]]
    assert [span.end for span in changed[-1:]] == [span.end for span in made[-1:]]
    for span in changed:
        middle = (span.start + span.end) / 2
        was = next(each.bucket for each in made if each.start <= middle <= each.end)
        assert span.bucket is (Bucket.DOWN if start < middle < end else was)


@given(lists(), st.floats(-10.0, 500.0))
def test_filling_takes_as_much_as_there_is(made: list[Span], seconds: float) -> None:
    filled = intervals.fill(made, Bucket.UNSEEN, seconds, Bucket.SHUTDOWN)
    assert gapless(filled)
    moved = intervals.total(filled, Bucket.SHUTDOWN) - intervals.total(made, Bucket.SHUTDOWN)
    assert abs(moved - min(max(seconds, 0.0), intervals.total(made, Bucket.UNSEEN))) < 1e-6
    assert abs(intervals.total(filled) - intervals.total(made)) < 1e-6


def test_the_first_of_a_bucket_are_filled_first() -> None:
    made = [Span(0.0, 4.0, Bucket.UNSEEN), Span(4.0, 6.0, Bucket.HANG), Span(6.0, 9.0, Bucket.UNSEEN)]
    assert intervals.fill(made, Bucket.UNSEEN, 5.0, Bucket.PRODUCTIVE) == [
        Span(0.0, 4.0, Bucket.PRODUCTIVE),
        Span(4.0, 6.0, Bucket.HANG),
        Span(6.0, 7.0, Bucket.PRODUCTIVE),
        Span(7.0, 9.0, Bucket.UNSEEN),
    ]
