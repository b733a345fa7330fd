"""What publishers are given: numbers over ranks, the worst ranks in order, and nothing that lives on."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from monitor.core.accounted import Accounted
from monitor.publish.scored import NOW, scored, straggler
from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.core.views import phases
from rankwatch_monitor.publish.snapshot import KEPT, SECTIONS, Spread, snapshot


def test_each_score_over_the_ranks_that_have_it() -> None:
    job = scored(4)
    scores = job.performance.scores
    assert scores is not None
    scores.gpu_relative_R = np.array([0.5, np.nan, 0.9, 1.0])
    scores.gpu_individual_R = np.full(4, np.nan)
    taken = snapshot(job, NOW)
    assert taken.spreads["gpu_relative"] == Spread(0.5, 0.9, 1.0)
    assert "gpu_individual" not in taken.spreads, "no rank has one"
    assert taken.spreads["section/forward/robust"] == pytest.approx(Spread(0.99, 0.995, 1.0))


def test_only_so_many_sections() -> None:
    job = scored(2, sections=tuple(f"s{i}" for i in range(40)))
    sections = {name.split("/")[1] for name in snapshot(job, NOW).spreads if name.startswith("section/")}
    assert sections == {f"s{i}" for i in range(SECTIONS)}


def test_a_job_of_which_nothing_is_known() -> None:
    taken = snapshot(Job("job", NOW), NOW)
    assert (taken.state, taken.spreads, taken.lateness, taken.step_seconds) == (JobState.STARTING, {}, None, None)
    assert (taken.worst, taken.stragglers, taken.incidents, taken.iteration) == ((), (), (), None)


def test_scores_without_one_number_are_no_rows() -> None:
    job = scored(4)
    job.performance.scores = Scores.empty(4, NOW, ("step",))
    taken = snapshot(job, NOW)
    assert (taken.spreads, taken.worst, taken.lateness) == ({}, (), None)


def test_the_straggler_comes_first_with_its_reason_then_the_lowest_scores() -> None:
    job = scored(8, slow=6)
    scores = job.performance.scores
    assert scores is not None
    scores.gpu_robust_R[2] = 0.4
    taken = snapshot(job, NOW)
    assert [worst.rank for worst in taken.worst] == [6, 2, 0, 1, 3]
    first = taken.worst[0]
    assert (first.host, first.gpu_relative, first.lateness, first.cause) == ("host-1", 0.5, 0.2, "compute")
    assert first.reason == "its kernels take twice as long as those of its peers (rank 6)"
    assert taken.worst[1].reason == ""
    assert taken.lateness == 0.2
    assert taken.step_seconds == 1.0
    assert taken.open_stragglers == 1


def test_with_no_kernel_timings_the_latest_rank_is_the_worst() -> None:
    job = scored(4)
    scores = job.performance.scores
    assert scores is not None
    scores.gpu_relative_R = scores.gpu_robust_R = scores.gpu_individual_R = np.full(4, np.nan)
    scores.lateness_R = np.array([-0.1, 0.3, np.nan, 0.1])
    assert [(w.rank, w.gpu_relative, w.lateness) for w in snapshot(job, NOW).worst] == [
        (1, None, 0.3),
        (3, None, 0.1),
        (0, None, 0.0),
    ]


@pytest.mark.parametrize(("printed", "shown"), [(0, [6]), (1, [6]), (3, [6, 0, 1])])
def test_as_many_ranks_as_the_report_prints_but_every_straggler(printed: int, shown: list[int]) -> None:
    job = scored(8, slow=6)
    job.policy = job.policy.changed({"num_gpu_perf_scores_to_print": printed})
    assert [worst.rank for worst in snapshot(job, NOW).worst] == shown


def test_it_holds_the_newest_stragglers_only() -> None:
    job = scored(200)
    job.performance.stragglers = [straggler(rank, ended=NOW) for rank in range(3 * KEPT)]
    taken = snapshot(job, NOW)
    assert [s["rank"] for s in taken.stragglers] == list(range(2 * KEPT, 3 * KEPT))
    assert taken.open_stragglers == 0


def test_a_straggler_whose_rank_the_scores_do_not_have_is_no_row() -> None:
    job = scored(4)
    job.performance.stragglers.append(straggler(9))
    assert 9 not in [worst.rank for worst in snapshot(job, NOW).worst]


def test_an_incident_with_its_sentence_and_what_each_phase_took() -> None:
    scene = Accounted(ranks=4).run(60).hang(2)
    scene.until(lambda: scene.closings).run(5)
    taken = snapshot(scene.job, scene.now)
    (incident,) = taken.incidents
    assert incident["reason"] == scene.job.incidents[0].reason
    assert incident["detect_s"] > 0
    assert incident["total_s"] == pytest.approx(
        sum(incident[f"{phase}_s"] for phase in (*phases.NAMES, "lost_steps") if incident[f"{phase}_s"])
    )
    assert taken.restarts == 1
    assert taken.goodput is not None


def test_nothing_in_it_changes_when_the_job_does() -> None:
    scene = Accounted(ranks=4).run(30).hang(2)
    scene.until(lambda: scene.job.incidents)
    taken = snapshot(scene.job, scene.now)
    before = json.dumps(dataclasses.asdict(taken), default=str)
    scene.until(lambda: scene.closings).run(30)
    assert json.dumps(dataclasses.asdict(taken), default=str) == before
