"""Stragglers as scenes, each with its silent twin: the same job without a slow rank."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from monitor.core.accounted import account
from rankwatch.contract.enums import Cause, JobState, StragglerVerdict
from rankwatch_monitor.core.slow_cause import Doubt
from rankwatch_monitor.core.straggler.describe import seconds
from rankwatch_monitor.core.straggler.state import KEPT_STRAGGLERS
from rankwatch_monitor.core.straggler_detector import NAMED
from rankwatch_monitor.core.views import job_view, rankings
from rankwatch_monitor.core.views.stated import stated
from rankwatch_monitor.core.views.verdict import job_state
from rankwatch_monitor.publish.text.scores_report import scores_text
from rankwatch_monitor.store import codec, performance_codec
from support.windows import COMPUTE, DATA, EVERY, HOST, START, Fault, Ranks, Work, slower


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
@pytest.mark.parametrize(("part", "cause"), [(DATA, Cause.DATA), (HOST, Cause.HOST), (COMPUTE, Cause.COMPUTE)])
def test_a_slow_rank_is_named_with_its_cause(ranks: int, part: int, cause: Cause) -> None:
    job = Ranks(ranks).run(4).run(8, slower(1, part, 0.25))
    (straggler,) = job.performance.open_stragglers
    assert (straggler.rank, straggler.cause) == (1, cause)
    assert straggler.lateness == pytest.approx(0.25, abs=0.1)
    assert job.performance.finding.verdict is StragglerVerdict.WORKER
    assert job.performance.finding.ranks == (1,)
    assert straggler.cost_gpu_hours == pytest.approx(0.25 * 64 * ranks * 5 / 3600, rel=0.4)


@pytest.mark.parametrize(("ranks", "seed"), [*product([2, 4, 8, 64], range(3)), (512, 0)])
def test_noise_alone_names_no_rank(ranks: int, seed: int) -> None:
    job = Ranks(ranks, seed=seed).run(60)
    assert job.performance.stragglers == []
    assert job.performance.finding.verdict is StragglerVerdict.HEALTHY
    assert job.log == []


def test_a_straggler_is_logged_in_one_sentence() -> None:
    job = Ranks(8).run(4).run(8, slower(3, DATA, 0.3))
    (line,) = job.log
    assert line.startswith("Rank 3 on host-0 is slow: 7 ranks wait 2"), line
    assert "its input takes 3" in line
    assert "ms on its peers (section 'data')" in line


def test_a_straggler_ends_when_it_is_fast_again_and_its_cost_stays() -> None:
    job = Ranks(8).run(4).run(8, slower(3, HOST, 0.3)).run(4)
    (straggler,) = job.performance.stragglers
    assert straggler.ended is not None
    assert job.performance.cost_gpu_hours == pytest.approx(straggler.cost_gpu_hours)
    assert job.log[-1].startswith("Rank 3 is no straggler any more: it is as fast as its peers again, which cost ")
    assert job.performance.finding.verdict is StragglerVerdict.HEALTHY


def test_a_straggler_that_has_ended_is_not_found_again_in_the_windows_before() -> None:
    job = Ranks(8, policy={"straggler_windows": 10}).run(4).run(5, slower(3, HOST, 0.3)).run(5)
    (straggler,) = job.performance.stragglers
    assert straggler.ended is not None


@pytest.mark.parametrize("growth", [0.0, 0.02])
def test_all_figures_of_one_wait_are_of_one_window(growth: float) -> None:
    job = Ranks(8).run(12)
    for window in range(30):
        job.run(1, slower(3, DATA, 0.4 + growth * window))
        for straggler in job.performance.open_stragglers:
            share, late = straggler.stated_share, straggler.lateness
            assert f"wait {seconds(late)} of each {seconds(late / straggler.share)} step for it ({share:.0%})" == (
                straggler.reason.split("ranks ")[1].split(";")[0].replace(" %", "%")
            )
            assert job.performance.finding.reason == straggler.reason
            assert job.performance.finding.share == share
            late_R, share_R = rankings.lateness(job.job)
            assert (late_R[3], share_R[3]) == (late, share)
            shown = f"({100 * share:.0f} %)"
            assert shown in " ".join(scores_text(job.job, job.now).split())
    (straggler,) = job.performance.open_stragglers
    usual = float(np.median(job.performance.signal_TR[-job.job.policy.straggler_windows :, 3]))
    assert straggler.share == pytest.approx(usual, rel=0.05)


def uneven(scale: float, late: float = 0.0) -> Fault:
    """All ranks vary by so much from window to window; rank 1 is late by so much besides."""
    random = np.random.default_rng(0)

    def fault(_: int, work_RP: Work) -> None:
        work_RP[:, HOST] += np.abs(random.normal(0.0, scale, len(work_RP)))
        work_RP[1, HOST] += late

    return fault


def test_while_evidence_grows_the_verdict_is_suspected_and_nothing_contradicts_it() -> None:
    job, seen = Ranks(4).run(10), []
    for _ in range(4):
        job.run(1, slower(1, HOST, 0.3))
        late = job.performance.late
        found = rankings.score_table(job.job, job.now)["finding"]
        seen.append((late and (late.rank, late.slow, late.of, late.doubt), found.verdict))
        account_words = " ".join(account(job.job, job.now)) + " " + " ".join(scores_text(job.job, job.now).split())
        assert ("at most" in account_words) is (late is None and found.verdict == "healthy")
    assert seen == [
        ((1, 1, 5, Doubt.FEW_WINDOWS), "healthy"),
        ((1, 2, 5, Doubt.FEW_WINDOWS), "suspected"),
        (None, "worker"),
        (None, "worker"),
    ]
    assert job_state(job.job, job.now)[0] is JobState.SLOW


def test_a_suspected_rank_is_no_trouble_and_is_forgotten() -> None:
    job = Ranks(4).run(10).run(2, slower(1, HOST, 0.3))
    assert job_view.summary(job.job, job.now)["verdict"] == "suspected"
    assert (job_state(job.job, job.now), job.log) == ((JobState.RUNNING, ""), [])
    assert stated(job.job, job.now)["since"] is None
    job.run(1)
    assert (job.performance.late, job_view.summary(job.job, job.now)["verdict"]) == (None, "healthy")


def test_ranks_late_in_turns_are_not_suspected() -> None:
    job = Ranks(4).run(10)
    for window in range(8):
        job.run(1, slower(window % 2, HOST, 0.3))
        assert not job.performance.late.suspected, job.performance.late
    assert job.performance.late.doubt is Doubt.TURNS


def test_a_rank_whose_peer_became_fast_is_not_suspected() -> None:
    job = Ranks(2).run(10).run(4, slower(0, COMPUTE, -0.4))
    assert (job.performance.late.rank, job.performance.late.doubt) == (1, Doubt.FAST_PEER)
    assert job_view.summary(job.job, job.now)["verdict"] == "healthy"


def test_four_windows_in_a_row_name_a_rank_where_single_ones_are_too_noisy() -> None:
    job, vary, late = Ranks(4).run(0), uneven(0.2), uneven(0.2, 0.45)
    job.run(10, vary)
    assert job.performance.stragglers == []
    for _ in range(4):
        job.run(1, late)
    (straggler,) = job.performance.open_stragglers
    assert straggler.rank == 1
    assert straggler.since == pytest.approx(START + 10 * EVERY)
    job.run(2, late).run(4, vary)
    assert not job.performance.open_stragglers


def test_lost_waiting_is_booked_back_to_the_first_slow_window() -> None:
    job, waited = Ranks(4, paced=True).run(10), 0.0
    for windows in range(1, 8):
        job.run(1, slower(1, HOST, 0.3))
        waited += job.performance.take_waited()
        if windows >= 3:
            assert waited == pytest.approx(windows * EVERY * 0.3 / 1.32, rel=0.15), windows


def test_slow_first_windows_are_no_past_of_a_rank() -> None:
    def compiles(_: int, work_RP: Work) -> None:
        work_RP[:] *= 5.0

    job = Ranks(4).run(2, compiles).run(6).run(4, slower(1, HOST, 0.4))
    assert [each.rank for each in job.performance.open_stragglers] == [1]


def test_ranks_of_a_slow_node_have_a_cause_where_most_peers_are_on_it() -> None:
    def slow_node(_: int, work_RP: Work) -> None:
        work_RP[:8, DATA] += 0.3

    job = Ranks(12, per_host=8).run(10).run(6, slow_node)
    assert {(each.host, each.cause) for each in job.performance.open_stragglers} == {("host-0", Cause.DATA)}
    assert len(job.performance.open_stragglers) == 8


def test_ranks_that_wait_for_a_cpu_on_average_are_no_uneven_workload() -> None:
    job = Ranks(4, waited=lambda _: 0.15)

    def delayed(_: int, work_RP: Work) -> None:
        work_RP[:, COMPUTE] += job.random.exponential(0.15, len(work_RP))

    job.run(20, delayed)
    assert job.performance.finding.verdict in (StragglerVerdict.UNEXPLAINED, StragglerVerdict.HEALTHY)
    assert StragglerVerdict.WORKLOAD not in job.performance.verdicts


@pytest.mark.parametrize("healthy", [0, 10])
def test_two_of_four_ranks_are_named(healthy: int) -> None:
    def two(_: int, work_RP: Work) -> None:
        work_RP[1:3, HOST] += 0.3

    job = Ranks(4).run(healthy).run(8, two)
    assert sorted(each.rank for each in job.performance.open_stragglers) == [1, 2]


def test_all_findings_are_published_with_their_shares() -> None:
    def both(window: int, work_RP: Work) -> None:
        work_RP[3::4, COMPUTE] += 0.3
        work_RP[6, COMPUTE] += 0.6

    job = Ranks(64, stages=4).run(4).run(8, both)
    table = rankings.score_table(job.job, job.now)
    assert table["finding"] == table["findings"][0]
    assert {each.verdict for each in table["findings"]} == {"worker", "stage"}
    assert all(each.share > 0.05 for each in table["findings"])


def test_a_blip_names_no_rank() -> None:
    job = Ranks(8).run(10).run(1, slower(3, HOST, 2.0)).run(10)
    assert job.performance.stragglers == []


def test_a_fast_rank_makes_no_stragglers() -> None:
    job = Ranks(64).run(20, slower(5, COMPUTE, -0.3))
    assert job.performance.stragglers == []


def test_a_heavy_stage_is_a_stage_verdict() -> None:
    def heavy(_: int, work_RP: Work) -> None:
        work_RP[3::4, COMPUTE] += 0.3

    job = Ranks(64, stages=4).run(8, heavy)
    assert job.performance.stragglers == []
    assert job.performance.finding.verdict is StragglerVerdict.STAGE
    assert job.performance.finding.ranks == tuple(range(3, 64, 4))


def test_a_slow_rank_within_a_stage_is_still_named() -> None:
    def both(window: int, work_RP: Work) -> None:
        work_RP[3::4, COMPUTE] += 0.3
        work_RP[7, COMPUTE] += 0.3

    job = Ranks(64, stages=4).run(4).run(8, both)
    assert [s.rank for s in job.performance.open_stragglers] == [7]


def test_ranks_that_take_turns_are_a_workload_verdict() -> None:
    job = Ranks(16)

    def long_sequences(_: int, work_RP: Work) -> None:
        work_RP[:, COMPUTE] *= job.random.lognormal(0.0, 0.25, len(work_RP))

    job.run(20, long_sequences)
    assert job.performance.stragglers == []
    assert (job.performance.finding.verdict, job.performance.finding.cause) == (
        StragglerVerdict.WORKLOAD,
        Cause.COMPUTE,
    )


def test_a_slow_link_is_a_link_verdict() -> None:
    job = Ranks(16).run(10).run(8, transfer=0.4)
    assert job.performance.stragglers == []
    assert job.performance.finding.verdict is StragglerVerdict.LINK


def test_without_timings_sections_name_the_rank_but_only_among_enough_peers() -> None:
    assert [s.rank for s in Ranks(8, parts=False).run(4).run(8, slower(3, DATA, 0.3)).performance.open_stragglers] == [
        3
    ]
    assert Ranks(3, parts=False).run(4).run(8, slower(2, DATA, 0.3)).performance.open_stragglers == []
    assert Ranks(8, parts=False).run(40).performance.stragglers == []


def test_windows_without_a_profiled_step_change_nothing_but_the_cost() -> None:
    job = Ranks(8).run(4).run(4, slower(3, HOST, 0.3))
    cost = job.performance.cost_gpu_hours
    job.parts = False
    job.run(5, slower(3, HOST, 0.3))
    assert [s.rank for s in job.performance.open_stragglers] == [3]
    assert job.performance.cost_gpu_hours > 2 * cost
    assert job.performance.scores.lateness_R[3] > 0.2
    job.parts = True
    job.run(3)
    assert job.performance.open_stragglers == []


def test_windows_that_few_ranks_profiled_are_not_judged() -> None:
    """Two of eight report a profiled step: the one that waits less is no straggler for that."""
    job = Ranks(8, profiled_by={0, 3}).run(4)
    job.profiled_by = None
    job.run(4)
    job.profiled_by = {0, 3}
    job.run(8, slower(3, HOST, 0.3))
    assert job.performance.stragglers == []
    job.profiled_by = None
    job.run(3, slower(3, HOST, 0.3))
    assert [s.rank for s in job.performance.open_stragglers] == [3]


def test_kernels_alone_name_a_slow_device() -> None:
    job = Ranks(8, parts=False, sections=False).run(2)
    for _ in range(4):
        job.kernels({5: 0.8})
        job.run(2)
    (straggler,) = job.performance.open_stragglers
    assert (straggler.rank, straggler.cause) == (5, Cause.COMPUTE)
    assert straggler.score == pytest.approx(0.8, abs=0.02)
    assert Ranks(8, parts=False, sections=False).run(2).performance.stragglers == []


def test_one_report_of_kernels_is_one_window() -> None:
    """Many windows pass until the next report: the same look at a rank is no proof that it is slow again and again."""
    job = Ranks(8, parts=False, sections=False).run(2)
    job.kernels({5: 0.8})
    job.run(20)
    assert job.performance.stragglers == []


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_slow_from_the_very_first_window(ranks: int) -> None:
    job = Ranks(ranks).run(5, slower(1, HOST, 0.3))
    assert [s.rank for s in job.performance.open_stragglers] == [1]


def test_a_single_rank_has_no_peers() -> None:
    job = Ranks(1).run(10, slower(0, HOST, 0.3))
    assert (job.performance.stragglers, job.performance.finding.verdict) == ([], StragglerVerdict.HEALTHY)


def test_half_of_the_ranks_slow_is_unexplained() -> None:
    def half(_: int, work_RP: Work) -> None:
        work_RP[::2, COMPUTE] += 0.3

    job = Ranks(16).run(10, half)
    assert job.performance.open_stragglers == []
    assert job.performance.finding.verdict is StragglerVerdict.UNEXPLAINED
    assert (
        "8 of 16 ranks, which are behind in most windows, with more computation: too many for one of them"
        in job.performance.finding.reason
    )
    assert job.performance.finding.ranks == tuple(range(0, 16, 2))


def test_the_finding_follows_its_cause() -> None:
    job = Ranks(16)

    def uneven(part: int) -> Fault:
        def fault(_: int, work_RP: Work) -> None:
            work_RP[:, part] += np.abs(job.random.normal(0.0, 0.3, len(work_RP)))

        return fault

    job.run(20, uneven(COMPUTE))
    assert job.performance.finding.cause is Cause.COMPUTE
    job.run(30, uneven(DATA))
    assert job.performance.finding.cause is Cause.DATA


def test_one_rank_that_is_often_behind_in_a_very_uneven_job_does_not_take_turns() -> None:
    job = Ranks(4)

    def uneven(_: int, work_RP: Work) -> None:
        work_RP[:, COMPUTE] += job.random.normal(0.0, 0.15, len(work_RP))
        work_RP[2, DATA] += 0.2

    found = [job.run(1, uneven).performance.finding for _ in range(40)]
    assert (2,) in {each.ranks for each in found if each.verdict is StragglerVerdict.UNEXPLAINED}


def test_one_rank_a_stage_has_no_peers_but_its_stage_can_be_heavier() -> None:
    job = Ranks(4, stages=4).run(8, slower(2, COMPUTE, 0.3))
    assert job.performance.stragglers == []
    found = job.performance.finding
    assert (found.verdict, found.ranks) == (StragglerVerdict.STAGE, (2,))
    assert found.reason.startswith("Pipeline stage 2 ")
    assert "its only rank" in found.reason
    assert Ranks(4, stages=4).run(8).performance.finding.verdict is StragglerVerdict.HEALTHY


def test_a_rank_that_was_slow_from_the_beginning_is_reported_as_such() -> None:
    job = Ranks(8).run(8, slower(3, COMPUTE, 0.5))
    (straggler,) = job.performance.open_stragglers
    assert straggler.always
    assert straggler.reason.endswith("; it has been slow since the first steps of this attempt.")
    (later,) = Ranks(8).run(4).run(8, slower(3, COMPUTE, 0.5)).performance.open_stragglers
    assert not later.always


def test_a_heavier_rank_of_an_undeclared_pipeline_is_a_stage_verdict() -> None:
    job = Ranks(4, sends=True).run(12, slower(2, COMPUTE, 2.0))
    assert job.performance.stragglers == []
    found = job.performance.finding
    assert (found.verdict, found.ranks) == (StragglerVerdict.STAGE, (2,))
    assert "Rank 2 has done 3.0 times the work of the others since the first steps" in found.reason
    assert "dl.pipeline_parallel.rank" in found.reason
    two = Ranks(8, sends=True)

    def heavy(_: int, work_RP: Work) -> None:
        work_RP[2::4, COMPUTE] += 2.0

    assert two.run(12, heavy).performance.stragglers == []
    assert (two.performance.finding.verdict, two.performance.finding.ranks) == (StragglerVerdict.STAGE, (2, 6))


def test_a_rank_of_an_undeclared_pipeline_that_becomes_slow_is_named() -> None:
    job = Ranks(4, sends=True).run(12).run(8, slower(2, COMPUTE, 0.4))
    assert [s.rank for s in job.performance.open_stragglers] == [2]
    assert Ranks(4, sends=True).run(20).performance.finding.verdict is StragglerVerdict.HEALTHY


def test_ranks_that_take_turns_in_waiting_for_a_cpu_are_no_workload() -> None:
    job = Ranks(8)
    waits_R = np.zeros(8)
    job.waited = lambda rank: float(waits_R[rank])

    def crowded(_: int, work_RP: Work) -> None:
        waits_R[:] = job.random.exponential(0.3, len(work_RP))
        work_RP[:, COMPUTE] += waits_R

    job.run(20, crowded)
    found = job.performance.finding
    assert job.performance.stragglers == []
    assert (found.verdict, found.cause) == (StragglerVerdict.UNEXPLAINED, Cause.HOST)
    assert "take turns in waiting for a CPU" in found.reason


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_is_little_slower_is_named_under_much_noise(seed: int) -> None:
    def noisy(more: float) -> Ranks:
        job = Ranks(4, seed=seed, noise=0.0)

        def fault(_: int, work_RP: Work) -> None:
            work_RP[:, COMPUTE] += job.random.normal(0.0, 0.08, len(work_RP))
            work_RP[1, COMPUTE] += more

        return job.run(40, fault)

    assert {s.rank for s in noisy(0.2).performance.stragglers} == {1}
    assert noisy(0.0).performance.stragglers == []


def test_a_low_score_of_a_rank_that_waits_for_another_names_no_rank() -> None:
    """One slow sample made a rank's score 0.1, while the others waited for another rank 40 % of each step."""
    fastest = {"straggler_reference": "fastest", "relative_threshold": 0.7, "individual_threshold": 0.7}
    job = Ranks(4, policy=fastest, sections=False).run(2)
    job.kernels({0: 0.1})
    job.run(3, slower(1, HOST, 0.7))
    assert job.performance.scores.gpu_relative_R[0] < 0.2
    assert job.performance.stragglers == []
    text = scores_text(job.job, job.now)
    assert "Low scores of 1 rank (0) are contradicted by lateness" in " ".join(text.split())
    job.run(1)  # rank 1 is as fast as the others again: the score stands by itself
    assert [s.rank for s in job.performance.open_stragglers] == [0]


def test_scores_of_old_kernels_are_marked() -> None:
    job = Ranks(4, sections=False).run(2)
    job.kernels({})
    job.run(1)
    assert job.performance.scores.gpu_at == job.now
    assert "the newest are 0.0 s old." in " ".join(scores_text(job.job, job.now).split())
    assert "which is old: ranks report no kernels." in " ".join(scores_text(job.job, job.now + 1000.0).split())


@pytest.mark.parametrize("seed", range(8))
def test_noise_that_begins_names_no_rank(seed: int) -> None:
    job = Ranks(4, seed=seed).run(30)

    def noisy(_: int, work_RP: Work) -> None:
        work_RP[:, COMPUTE] += job.random.normal(0.0, 0.08, len(work_RP))

    assert job.run(30, noisy).performance.stragglers == []


# What is missing, and what ends ---------------------------------------------------------------------------------------


def test_missing_windows_do_not_end_a_straggler_at_once() -> None:
    job = Ranks(8).run(4).run(6, slower(3, HOST, 0.3))
    job.silent = {3}
    job.run(1).wait(20.0)
    for _ in range(6):
        job.run(1, slower(3, HOST, 0.3)).wait(3.0)
    assert [s.rank for s in job.performance.open_stragglers] == [3]
    for _ in range(60):
        job.run(1, slower(3, HOST, 0.3)).wait(3.0)
    assert job.performance.open_stragglers == []
    assert "it has reported no steps in 20 windows" in job.log[-1]


def test_a_rank_without_windows_does_not_mix_those_of_the_others() -> None:
    job = Ranks(8, silent={7}).run(30, slower(3, HOST, 0.3))
    assert [s.rank for s in job.performance.open_stragglers] == [3]
    assert job.job.performance.interval == pytest.approx(EVERY, rel=0.1)
    assert Ranks(8, silent={7}).run(30).performance.stragglers == []


def test_a_new_attempt_ends_stragglers_at_once_and_charges_nothing() -> None:
    job = Ranks(8).run(4).run(6, slower(3, HOST, 0.3))
    cost = job.performance.cost_gpu_hours
    job.restart()
    assert job.performance.open_stragglers == []
    assert job.performance.finding.verdict is StragglerVerdict.HEALTHY
    assert job.log[-1].startswith("Rank 3 is no straggler any more: attempt 2 has begun")
    assert job.run(10).performance.cost_gpu_hours == cost


def test_stragglers_end_after_half_an_hour_without_windows() -> None:
    job = Ranks(8).run(4).run(6, slower(3, HOST, 0.3)).wait(1000.0)
    assert len(job.performance.open_stragglers) == 1
    job.wait(1000.0)
    assert job.performance.open_stragglers == []
    assert "the ranks have reported no steps for 30 minutes" in job.log[-1]


def test_another_reference_ends_the_stragglers_of_the_first() -> None:
    job = Ranks(8).run(4).run(6, slower(3, HOST, 0.3))
    job.job.policy = job.job.policy.changed({"straggler_reference": "fastest", "relative_threshold": 0.01})
    job.run(1, slower(3, HOST, 0.3))
    assert any("ranks are judged by the fastest reference now" in line for line in job.log)


def test_a_restarted_monitor_continues_with_the_same_straggler() -> None:
    job = Ranks(8).run(4).run(6, slower(3, HOST, 0.3))
    (before,) = job.performance.open_stragglers
    body, row = performance_codec.snapshot(job.job.performance)(), codec.job_row(job.job)
    job.job = codec.job_of(row, job.now)
    performance_codec.restore(job.job.performance, body)
    first = job.identity(0)
    job.silent = set(range(1, 8))  # the first rank to speak is not the whole job
    job.run(1)
    assert job.job.performance.judged == 0
    job.silent = set()
    job.run(6, slower(3, HOST, 0.3))
    (after,) = job.performance.open_stragglers
    assert (after.id, after.since, first.rank) == (before.id, before.since, 0)
    assert job.performance.cost_gpu_hours > before.cost_gpu_hours


# What it costs, and how much is kept ----------------------------------------------------------------------------------


def test_the_cost_is_bounded_by_the_elapsed_time() -> None:
    """The profiled step may be an unusual one, as when each 64th step saves: 64 times its waiting is no cost."""
    job = Ranks(4).run(4).run(20, slower(0, HOST, 30.0))
    passed = 20 * EVERY
    assert 0 < job.performance.cost_gpu_hours <= 4 * passed / 3600


def test_missing_windows_are_charged_as_well() -> None:
    every = Ranks(8).run(4).run(20, slower(3, COMPUTE, 0.05 + 0.1))
    some = Ranks(8).run(4)
    for _ in range(10):
        some.window, some.iteration = some.window + 1, some.iteration + 64  # each second window is lost
        some.now += EVERY
        some.run(1, slower(3, COMPUTE, 0.05 + 0.1))
    assert some.performance.cost_gpu_hours == pytest.approx(every.performance.cost_gpu_hours, rel=0.35)


def test_after_an_hour_without_windows_a_straggler_has_not_been_slow_for_an_hour() -> None:
    job = Ranks(8).run(6)
    job.now += 3600.0
    job.run(4, slower(3, HOST, 0.3))
    (straggler,) = job.performance.open_stragglers
    assert job.now - straggler.since == pytest.approx(4 * EVERY)


def test_with_one_lucky_rank_only_the_slowest_are_named() -> None:
    job = Ranks(400, noise=0.0, policy={"straggler_reference": "fastest"}, sections=False).run(1)
    job.kernels({0: 2.0, 7: 0.5})
    job.run(1)
    logged = len(job.log)
    job.run(5)
    assert len(job.performance.open_stragglers) == NAMED
    assert 7 in {s.rank for s in job.performance.open_stragglers}
    assert len(job.performance.stragglers) <= KEPT_STRAGGLERS
    assert len(job.log) <= logged + 12  # the same ones, window after window
    assert any("389 more ranks are slow too" in line for line in job.log)


def test_late_kernel_scores_of_an_earlier_attempt_are_ignored() -> None:
    """Scores of a large job are computed on another thread, and the ranks may have been restarted meanwhile."""
    job = Ranks(8).run(2)
    job.kernels({5: 0.5})
    job.run(1)
    late = job.job.performance.kernel_scores
    job.restart()
    job.job.performance.take_kernel_scores(late)
    assert job.job.performance.kernel_scores is None
    job.kernels({})
    job.run(1)
    assert job.performance.scores.gpu_robust_R[5] == pytest.approx(1.0, abs=0.05)
