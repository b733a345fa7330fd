"""Kernels and their trends: what is kept, for how long, and when a kernel became slower."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest

from rankwatch_monitor.core.straggler.kernel_trends import MAX_KERNELS, MAX_POINTS, SPACING, KernelTrends
from rankwatch_monitor.core.straggler.scores import KernelFigures, KernelScoreRequest, kernel_scores

NAN = np.nan
START = 1_760_000_000.0


def figures(seconds: Mapping[str, float | list[float]], calls: float = 100.0) -> KernelFigures:
    """What the ranks report: the median of each kernel on each rank, NaN where a rank lacks it."""
    median_RK = np.array([np.atleast_1d(each) for each in seconds.values()], dtype=np.float32).T
    return kernel_scores(
        KernelScoreRequest(
            number=1,
            at=START,
            names=tuple(seconds),
            median_RK=median_RK,
            tail_RK=1.1 * median_RK,
            spent_RK=calls * median_RK,
            best_RK=np.full_like(median_RK, NAN),
            group_R=np.zeros(len(median_RK), dtype=np.int64),
            relative=True,
            individual=True,
        )
    ).kernels


def run(trends: KernelTrends, points: int, seconds: Mapping[str, float], begin: float = START) -> float:
    """So many reports, one a spacing; return when the next one is due."""
    for i in range(points):
        trends.add(begin + i * SPACING, figures(seconds))
    return begin + points * SPACING


def test_now_is_what_the_ranks_last_reported() -> None:
    trends = KernelTrends()
    trends.add(START, figures({"copy": [1e-3, 1e-3, 1e-3], "gemm": [2e-3, 8e-3, 3e-3], "only": [NAN, 1e-4, NAN]}))
    gemm, copy, only = trends.kernels
    assert (gemm.name, gemm.ranks, gemm.slowest_rank, copy.name, only.name, only.ranks) == (
        "gemm", 3, 1, "copy", "only", 1,
    )  # fmt: skip
    assert gemm[3:7] == pytest.approx((3e-3, 3.3e-3, 2e-3, 8e-3))
    assert gemm.share == pytest.approx(13 / 16.1)
    assert only.slowest == only.fastest == pytest.approx(1e-4)


def test_a_kernel_that_became_slower_is_seen_with_its_moment_and_its_twin_is_not() -> None:
    trends = KernelTrends()
    slow_from = run(trends, 20, {"gemm": 2e-3, "copy": 1e-3})
    run(trends, 10, {"gemm": 3e-3, "copy": 1e-3}, slow_from)
    gemm, copy = (trends.change(each) for each in trends.kernels)
    assert gemm is not None
    assert copy is not None
    assert (gemm.ratio, gemm.since) == (pytest.approx(1.5), slow_from)
    assert (copy.ratio, copy.since) == (pytest.approx(1.0), None)


def test_one_that_is_as_fast_as_before_again_is_not_slower() -> None:
    trends = KernelTrends()
    fast_again = run(trends, 5, {"gemm": 3e-3}, run(trends, 20, {"gemm": 2e-3}))
    run(trends, 1, {"gemm": 2e-3}, fast_again)
    change = trends.change(trends.kernels[0])
    assert change is not None
    assert change.since is None


def test_a_few_points_are_compared_with_nothing() -> None:
    trends = KernelTrends()
    run(trends, 3, {"gemm": 2e-3})
    assert trends.change(trends.kernels[0]) is None


def test_a_long_run_keeps_its_beginning_in_few_points() -> None:
    trends = KernelTrends()
    run(trends, 10 * MAX_POINTS, {"gemm": 2e-3})
    assert len(trends.points) == len(trends.trend("gemm")) <= MAX_POINTS
    assert trends.points[0] == START
    assert np.all(np.diff(trends.points) >= trends.spacing)
    assert trends.trend("gemm") == pytest.approx([2e-3] * len(trends.points))


def test_joined_points_are_means() -> None:
    trends = KernelTrends()
    for i in range(MAX_POINTS + 1):
        trends.add(START + i * SPACING, figures({"gemm": 1e-3 if i % 2 else 3e-3}))
    assert trends.trend("gemm")[:-1] == pytest.approx([2e-3] * (MAX_POINTS // 2))
    trends.add(trends.points[-1] + 1.0, figures({"gemm": 1e-3}))
    assert trends.trend("gemm")[-1] == pytest.approx(2e-3)


def test_kernels_come_and_go_and_memory_does_not_grow() -> None:
    trends = KernelTrends()
    always = {"gemm": 1.0}
    for round_ in range(20):
        names = {f"k{round_}_{i}": 1e-3 * (1 + i) for i in range(MAX_KERNELS + 8)}
        trends.add(START + round_ * SPACING, figures(always | names))
        assert (len(trends.kernels), trends.omitted) == (MAX_KERNELS, 9)
    assert len(trends._column) == MAX_KERNELS
    assert sorted(trends._column.values()) == list(range(MAX_KERNELS))
    assert trends.trend("gemm") == pytest.approx([1.0] * 20)
    newest = trends.trend(trends.kernels[1].name)
    assert newest[:-1] == [None] * 19, "it took the column of another, without its points"


def grown(ranks: int) -> int:
    """Bytes of the trends of a job of so many ranks, full."""
    seconds: dict[str, float | list[float]] = {f"k{i}": [1e-3] * (ranks - 1) + [2e-3] for i in range(MAX_KERNELS)}
    reported = figures(seconds)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    trends = KernelTrends()
    for i in range(2 * MAX_POINTS):
        trends.add(START + i * SPACING, reported)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def test_the_memory_does_not_depend_on_the_ranks() -> None:
    few, many = grown(2), grown(16_384)
    assert many <= 100_000
    assert many == pytest.approx(few, rel=0.05)


def test_the_slowest_rank_has_a_trend_and_since_when_it_is_slow() -> None:
    trends = KernelTrends()
    for i in range(8):
        gemm = [2e-3, 2e-3, 4e-3, 2.04e-3] if i >= 5 else [2e-3, 2e-3, 2e-3, 2.04e-3]
        trends.add(START + i * SPACING, figures({"gemm": gemm, "copy": [1e-3, 1.05e-3, 1e-3, 1e-3]}))
    gemm, copy = trends.kernels
    points = trends.slowest("gemm")
    assert [point.rank for point in points if point] == [3] * 5 + [2] * 3
    assert [point.seconds for point in points if point] == pytest.approx([2.04e-3] * 5 + [4e-3] * 3)
    assert trends.uneven_since(gemm) == START + 5 * SPACING
    assert trends.uneven_since(copy) is None, "5 % are no reason"


def test_a_rank_that_took_the_place_of_another_slow_one_is_slow_since_then() -> None:
    trends = KernelTrends()
    for i in range(6):
        gemm = [2e-3, 2e-3, 4e-3, 2e-3] if i < 4 else [2e-3, 3e-3, 2e-3, 2e-3]
        trends.add(START + i * SPACING, figures({"gemm": gemm}))
    assert trends.uneven_since(trends.kernels[0]) == START + 4 * SPACING


def test_a_joined_point_has_the_slower_of_its_slowest_ranks() -> None:
    trends = KernelTrends()
    for i in range(MAX_POINTS + 1):
        gemm = [2e-3, 5e-3, 2e-3] if i % 2 else [2e-3, 2e-3, 3e-3]
        trends.add(START + i * SPACING, figures({"gemm": gemm}))
    joined = trends.slowest("gemm")[:-1]
    assert {point.rank for point in joined if point} == {1}
    assert [point.seconds for point in joined if point] == pytest.approx([4e-3] * (MAX_POINTS // 2))


def test_a_report_without_kernels_changes_nothing() -> None:
    trends = KernelTrends()
    trends.add(START, figures({"gemm": [NAN, NAN]}))
    assert (trends.kernels, trends.points, trends.at) == ([], [], None)
