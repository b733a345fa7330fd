"""The kernels of a job: the table, and why it is empty."""

from __future__ import annotations

import pytest

from monitor.core.test_straggler_detector import Ranks
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.views.kernel_view import kernels
from support.windows import DATA, slower


def timed(job: Ranks, source: str, reason: str = "") -> None:
    job.performance.sources_of |= dict.fromkeys(range(8), (source, reason))


def test_the_table_names_the_slowest_rank_and_its_relative_score() -> None:
    job = Ranks(8).run(2)
    job.kernels({5: 0.5})
    job.run(1)
    shown = kernels(job.job)
    assert shown.reason == ""
    assert shown.since == pytest.approx(shown.at, abs=0.1) == shown.points[0]
    row = shown.kernels[0]
    assert (row.ranks, row.slowest_rank) == (8, 5)
    assert row.relative == pytest.approx(0.5, abs=0.1)
    assert row.trend == [row.median]
    assert row.change is None
    assert (row.slowest_trend, row.slowest_ranks) == ([row.slowest], [5])
    assert row.uneven_since == pytest.approx(shown.at)


def test_the_kernels_of_a_straggler_stand_beside_those_of_the_job_also_where_they_are_not_the_cause() -> None:
    job = Ranks(8).run(2)
    job.kernels({})
    job.run(10, slower(3, DATA, 0.4))
    shown = kernels(job.job)
    assert shown.straggler == 3
    assert [row.straggler for row in shown.kernels] == pytest.approx([row.median for row in shown.kernels], rel=0.1)
    job.kernels({3: 0.5})
    job.run(1, slower(3, DATA, 0.4))
    assert all(row.straggler == row.slowest > 1.5 * row.median for row in kernels(job.job).kernels)


def test_its_twin_without_a_straggler_no_rank_stands_there() -> None:
    job = Ranks(8).run(2)
    job.kernels({})
    job.run(10)
    shown = kernels(job.job)
    assert (shown.straggler, {row.straggler for row in shown.kernels}) == (None, {None})


def test_a_kernel_has_its_share_of_a_step_as_far_as_steps_are_profiled() -> None:
    job = Ranks(8).run(2)
    job.kernels({})
    job.run(1)
    shown = kernels(job.job)
    assert shown.compute == pytest.approx(0.9, rel=0.05)
    assert shown.step is not None
    assert shown.step > shown.compute
    unprofiled = Ranks(8, parts=False).run(2)
    assert (kernels(unprofiled.job).compute, kernels(unprofiled.job).step) == (None, None)


def test_trends_outlive_an_attempt() -> None:
    job = Ranks(8).run(2)
    job.kernels({})
    job.run(1)
    job.restart()
    job.kernels({})
    job.run(1)
    shown = kernels(job.job)
    assert len(shown.points) == 2
    assert None not in shown.kernels[0].trend


@pytest.mark.parametrize(
    ("source", "reason", "policy", "words"),
    [
        ("cupti", "", {}, ("timed by cupti", "300 s (report_interval)")),
        ("none", "kernel_timings is off", {"kernel_timings": "off"}, ("switched off", "kernel_timings to auto")),
        ("none", "cupti-python is missing: pip install rankwatch[gpu]", {}, ("No rank", "pip install rankwatch[gpu]")),
        ("", "", {}, ("No rank has reported", "rankwatch.step()")),
    ],
)
def test_an_empty_table_states_why(source: str, reason: str, policy: dict, words: tuple[str, ...]) -> None:
    job = Ranks(8).run(1)
    job.performance.sources_of.clear()
    if source:
        timed(job, source, reason)
    job.job.policy = Policy().changed(policy)
    shown = kernels(job.job)
    assert (shown.kernels, shown.points, shown.at, shown.since) == ([], [], None, None)
    for word in words:
        assert word in shown.reason
    assert [(each.source, each.ranks) for each in shown.sources] == ([(source, 8)] if source else [])
