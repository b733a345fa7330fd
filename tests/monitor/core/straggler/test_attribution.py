"""Who is to blame and what it costs, on jobs that are re-timed through their dependencies: a small part of the grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankwatch.contract.enums import StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler import attribution
from rankwatch_monitor.core.straggler.attribution import MOST_NODES, MOST_SLOW, Pipeline
from rankwatch_monitor.core.straggler.peers import Layout
from rankwatch_monitor.replay.player import NO_HANG_DETECTION, play_windows
from rankwatch_monitor.replay.summary import Summary, summarize
from support.causal_job import START, CausalJob

TWO_NODES = CausalJob(data=16, nodes=2)
PIPELINE = CausalJob(data=2, pipeline=4, seed=1)


def judged(job: CausalJob) -> Summary:
    """What is said of a job after all of its steps."""
    played = Job("causal", START, policy=Policy().changed(NO_HANG_DETECTION))
    for _ in play_windows(job.windows(), played):
        pass
    return summarize(played.performance)


def assert_costs(found: Summary, job: CausalJob) -> None:
    """The stated cost is the true one, within a fifth."""
    assert found.share == pytest.approx(job.share, rel=0.2)


@pytest.mark.parametrize(
    "layout",
    [
        TWO_NODES,
        replace(PIPELINE, nodes=2),
        replace(PIPELINE, nodes=2, pipeline_first=True),
        CausalJob(data=4, pipeline=4, tensor=2, nodes=8, pipeline_first=True),
    ],
    ids=["data parallel", "holds two stages", "holds a replica", "of eight"],
)
def test_a_slow_node_is_named_with_all_its_ranks(layout: CausalJob) -> None:
    job = replace(layout, kind="node", dose=0.3, victim=1)
    found = judged(job)
    assert (found.verdict, found.host, found.ranks) == (StragglerVerdict.WORKER, "node1", job.slow_ranks())
    assert_costs(found, job)
    assert judged(job.twin()).verdict is StragglerVerdict.HEALTHY


@pytest.mark.parametrize("victim", range(8))
def test_a_slow_rank_of_a_pipeline_costs_less_than_it_is_behind(victim: int) -> None:
    job = replace(PIPELINE, kind="rank", dose=0.3, victim=victim)
    found = judged(job)
    assert (found.verdict, found.ranks) == (StragglerVerdict.WORKER, (victim,))
    assert_costs(found, job)


def test_a_fast_rank_makes_nobody_slow() -> None:
    assert judged(replace(PIPELINE, kind="fast twin", dose=0.4, victim=5)).verdict is StragglerVerdict.HEALTHY


def test_of_two_ranks_the_one_that_did_not_change_is_not_named() -> None:
    fast = CausalJob(data=2, steps=40, kind="fast twin", dose=0.4, victim=1, since=12)
    assert judged(fast).stragglers == ()
    slow = judged(replace(fast, kind="rank"))
    assert [straggler.rank for straggler in slow.stragglers] == [1]


def test_a_rank_that_is_slow_in_every_fifth_step_is_named_with_how_often() -> None:
    job = replace(PIPELINE, kind="intermittent", dose=1.0, victim=5)
    found = judged(job)
    (slow,) = found.stragglers
    assert (slow.rank, slow.often) == (5, pytest.approx(0.2, abs=0.05))
    assert_costs(found, job)


def test_a_stage_that_is_a_node_cannot_be_told_apart_unless_it_has_changed() -> None:
    job = CausalJob(data=4, pipeline=2, nodes=2, kind="stage", dose=0.3, victim=1, steps=40)
    found = judged(job)
    assert (found.verdict, found.ranks, found.host) == (StragglerVerdict.STAGE, (4, 5, 6, 7), "node1")
    later = judged(replace(job, since=12))
    assert (later.verdict, later.host) == (StragglerVerdict.WORKER, "node1")


def test_two_of_eight_ranks_are_not_too_many() -> None:
    job = CausalJob(data=8, kind="two ranks", dose=0.3, victim=1)
    assert {straggler.rank for straggler in judged(job).stragglers} == {1, 5}


# Layouts and jobs that are made to be slow to judge: each is bounded by the number of ranks -----------------------


def test_a_layout_of_more_places_than_ranks_is_no_layout() -> None:
    rank_R, none_R = np.arange(2_000), np.full(2_000, -1)
    alone = Pipeline.of(Layout(rank_R, none_R, rank_R, none_R), {})
    assert (alone.stages, alone.replicas, set(alone.stage_R.tolist())) == (1, 1, {0})
    many = Pipeline.of(Layout(rank_R % 5, none_R, rank_R // 5, none_R), {})
    assert many.stages == 1
    usual = Pipeline.of(Layout(rank_R % 8, none_R, rank_R // 8, none_R), {})
    assert (usual.stages, usual.replicas) == (250, 8)


def test_of_many_late_nodes_the_latest_are_measured() -> None:
    ranks = 16 * MOST_NODES
    late_R = np.arange(ranks, dtype=np.float64)
    looked = attribution._worth_a_look(late_R, np.arange(ranks) // 4, np.ones(ranks, dtype=np.bool_), 10.0)
    assert looked == list(range(ranks // 4 - MOST_NODES, ranks // 4))


def test_the_loss_of_the_latest_ranks_is_computed_through_the_pipeline() -> None:
    ranks = 2 * MOST_SLOW
    rank_R, none_R = np.arange(ranks), np.full(ranks, -1)
    pipeline = Pipeline.of(Layout(rank_R // 2, none_R, rank_R % 2, none_R), {"point_to_point": 16})
    late_R = 1.0 + rank_R / ranks
    lost_R = attribution.losses(pipeline, 10.0 + late_R, late_R, np.array([10.0, 10.0]), late_R > 0.0)
    computed = np.flatnonzero(lost_R != late_R)
    assert len(computed)
    assert computed.min() >= ranks - MOST_SLOW


def test_of_two_others_the_better_one_counts_in_every_group() -> None:
    groups, rng = 40, np.random.default_rng(0)
    group_R = rng.permutation(np.repeat(np.arange(groups), 3))
    member_R = np.zeros(3 * groups, dtype=np.bool_)
    for group in range(groups):
        member_R[np.flatnonzero(group_R == group)[0]] = True
    parts_RP, work_R = rng.random((3 * groups, 6)), rng.random(3 * groups)
    none_R = np.full(3 * groups, -1)
    pipeline = Pipeline.of(Layout(none_R, none_R, none_R, none_R), {})
    excess_R, _ = attribution._beyond_others(pipeline, parts_RP, work_R, group_R, ~member_R, member_R)
    for rank in np.flatnonzero(member_R):
        pair = np.flatnonzero((group_R == group_R[rank]) & ~member_R)
        waited_R = parts_RP[:, attribution.COMMUNICATION]
        expected = min(waited_R[pair].min() - waited_R[rank], work_R[rank] - work_R[pair].max())
        assert excess_R[rank] == expected
