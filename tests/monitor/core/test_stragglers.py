"""Stragglers as scenes, each with its silent twin: the same job with nobody slow says nothing."""

from __future__ import annotations

import pytest

from rankwatch.wire.vocabulary import Cause, StragglerVerdict
from support.windows import COMPUTE, DATA, HOST, Ranks, Work, slower


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
@pytest.mark.parametrize(("part", "cause"), [(DATA, Cause.DATA), (HOST, Cause.HOST), (COMPUTE, Cause.COMPUTE)])
def test_a_slow_rank_is_named_with_its_cause(ranks: int, part: int, cause: Cause) -> None:
    job = Ranks(ranks).run(4).run(8, slower(1, part, 0.25))
    (straggler,) = job.told.open_stragglers
    assert (straggler.rank, straggler.cause) == (1, cause)
    assert straggler.lateness == pytest.approx(0.25, abs=0.1)
    assert job.told.finding.verdict is StragglerVerdict.WORKER
    assert job.told.finding.ranks == (1,)
    assert straggler.cost_gpu_hours == pytest.approx(0.25 * 64 * ranks * 5 / 3600, rel=0.4)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_names_nobody(ranks: int, seed: int) -> None:
    job = Ranks(ranks, seed=seed).run(60)
    assert job.told.stragglers == []
    assert job.told.finding.verdict is StragglerVerdict.HEALTHY
    assert job.said == []


def test_it_is_said_in_one_sentence() -> None:
    job = Ranks(8).run(4).run(8, slower(3, DATA, 0.3))
    (said,) = job.said
    assert said.startswith("Rank 3 on host-0 is slow: 7 ranks wait 2"), said
    assert "its input takes 3" in said
    assert "20 ms on its peers (section 'data')" in said or "ms on its peers (section 'data')" in said


def test_a_rank_that_is_fast_again_is_none_any_more_and_its_cost_stays() -> None:
    job = Ranks(8).run(4).run(8, slower(3, HOST, 0.3)).run(4)
    (straggler,) = job.told.stragglers
    assert straggler.ended is not None
    assert job.told.cost_gpu_hours == pytest.approx(straggler.cost_gpu_hours)
    assert job.said[-1].startswith("Rank 3 is no straggler any more: it is as fast as its peers again, which cost ")
    assert job.told.finding.verdict is StragglerVerdict.HEALTHY


def test_a_blip_names_nobody() -> None:
    job = Ranks(8).run(10).run(1, slower(3, HOST, 2.0)).run(10)
    assert job.told.stragglers == []


def test_a_rank_that_is_faster_than_all_blames_nobody() -> None:
    job = Ranks(64).run(20, slower(5, COMPUTE, -0.3))
    assert job.told.stragglers == []


def test_a_heavy_stage_is_the_jobs_doing() -> None:
    def heavy(_: int, work_RP: Work) -> None:
        work_RP[3::4, COMPUTE] += 0.3

    job = Ranks(64, stages=4).run(8, heavy)
    assert job.told.stragglers == []
    assert job.told.finding.verdict is StragglerVerdict.STAGE
    assert job.told.finding.ranks == tuple(range(3, 64, 4))


def test_a_slow_rank_within_a_stage_is_still_named() -> None:
    def both(window: int, work_RP: Work) -> None:
        work_RP[3::4, COMPUTE] += 0.3
        work_RP[7, COMPUTE] += 0.3

    job = Ranks(64, stages=4).run(4).run(8, both)
    assert [s.rank for s in job.told.open_stragglers] == [7]


def test_ranks_that_take_turns_are_the_workloads_doing() -> None:
    job = Ranks(16)

    def long_sequences(_: int, work_RP: Work) -> None:
        work_RP[:, COMPUTE] *= job.random.lognormal(0.0, 0.25, len(work_RP))

    job.run(20, long_sequences)
    assert job.told.stragglers == []
    assert (job.told.finding.verdict, job.told.finding.cause) == (StragglerVerdict.WORKLOAD, Cause.COMPUTE)


def test_a_slow_link_is_nobodys_fault() -> None:
    job = Ranks(16).run(10).run(8, transfer=0.4)
    assert job.told.stragglers == []
    assert job.told.finding.verdict is StragglerVerdict.LINK


def test_without_timings_sections_name_the_rank_but_only_among_enough_peers() -> None:
    assert [s.rank for s in Ranks(8, parts=False).run(4).run(8, slower(3, DATA, 0.3)).told.open_stragglers] == [3]
    assert Ranks(3, parts=False).run(4).run(8, slower(2, DATA, 0.3)).told.open_stragglers == []
    assert Ranks(8, parts=False).run(40).told.stragglers == []


def test_windows_without_a_profiled_step_change_nothing_but_the_cost() -> None:
    job = Ranks(8).run(4).run(4, slower(3, HOST, 0.3))
    cost = job.told.cost_gpu_hours
    job.parts = False
    job.run(5, slower(3, HOST, 0.3))
    assert [s.rank for s in job.told.open_stragglers] == [3]
    assert job.told.cost_gpu_hours > 2 * cost
    assert job.told.scores.lateness_R[3] > 0.2
    job.parts = True
    job.run(3)
    assert job.told.open_stragglers == []


def test_windows_that_few_ranks_profiled_are_not_judged() -> None:
    """Two of eight tell of a profiled step: the one that waits less is no straggler for that."""
    job = Ranks(8, told_by={0, 3}).run(4)
    job.told_by = None
    job.run(4)
    job.told_by = {0, 3}
    job.run(8, slower(3, HOST, 0.3))
    assert job.told.stragglers == []
    job.told_by = None
    job.run(3, slower(3, HOST, 0.3))
    assert [s.rank for s in job.told.open_stragglers] == [3]


def test_kernels_alone_name_a_slow_device() -> None:
    job = Ranks(8, parts=False, sections=False).run(2)
    for _ in range(4):
        job.kernels({5: 0.8})
        job.run(2)
    (straggler,) = job.told.open_stragglers
    assert (straggler.rank, straggler.cause) == (5, Cause.COMPUTE)
    assert straggler.score == pytest.approx(0.8, abs=0.02)
    assert Ranks(8, parts=False, sections=False).run(2).told.stragglers == []
