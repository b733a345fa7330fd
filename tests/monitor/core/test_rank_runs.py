"""Ranks as runs behave as the tuple of them, and take the memory of their runs."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_monitor.core.rank_runs import MOST_RANKS, RankRuns, ranges

RANKS = st.lists(st.integers(0, 40) | st.integers(0, MOST_RANKS - 1))


@given(RANKS)
def test_they_are_the_ranks_in_order(ranks: list[int]) -> None:
    runs, ordered = RankRuns(ranks), tuple(sorted(set(ranks)))
    assert runs == ordered
    assert ordered == runs
    assert hash(runs) == hash(ordered)
    assert (list(runs), len(runs), bool(runs)) == (list(ordered), len(ordered), bool(ordered))
    assert [rank for rank in range(42) if rank in runs] == [rank for rank in range(42) if rank in ordered]
    assert RankRuns(np.array(ranks, np.int64)) == runs
    assert np.asarray(runs).tolist() == list(ordered)
    assert (runs[:3], runs[-2:]) == (ordered[:3], ordered[-2:])


@given(RANKS)
def test_text_comes_back(ranks: list[int]) -> None:
    assert RankRuns.parse(ranges(set(ranks))) == RankRuns(ranks)


@given(RANKS, RANKS)
def test_they_are_ordered_as_tuples_are(one: list[int], other: list[int]) -> None:
    assert (RankRuns(one) < RankRuns(other)) == (tuple(sorted(set(one))) < tuple(sorted(set(other))))
    assert (RankRuns(one) == RankRuns(other)) == (set(one) == set(other))
    assert RankRuns(one).cover(np.array(other, np.int64)) == (set(one) >= set(other))


def test_text_is_short() -> None:
    assert ranges([8, 0, 1, 2]) == "0-2,8"
    assert ranges([]) == ""


def test_they_take_eight_bytes_a_run() -> None:
    def size(runs: RankRuns) -> int:
        return sys.getsizeof(runs._bounds) - sys.getsizeof(b"")

    assert size(RankRuns(range(100_000))) == 8
    assert size(RankRuns(range(0, 100_000, 2))) == 4 * 100_000, "the worst case: 4 bytes for each rank of the job"


@pytest.mark.parametrize("text", ["0-2000000000", "0-9,5-12", "7-3", "3,3", "-5-9", "x", "0-" + "9" * 30])
def test_what_stands_for_more_ranks_than_any_job_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        RankRuns.parse(text)
