"""A job is healthy only where something shows that it trains."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, Cause, JobState, StragglerVerdict
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.job import Ending, Job
from rankwatch_monitor.core.straggler.findings import Finding
from rankwatch_monitor.core.views import job_view, rankings
from rankwatch_monitor.core.views.job_verdict import FIRST_STEP_AFTER, finding, no_step_since
from rankwatch_monitor.core.views.verdict import job_state

BEGAN = 14 * 3600.0 + 3 * 60 + 5
WHILE = 4 * FIRST_STEP_AFTER


def reported(seconds: float = WHILE, *, attempt: int = 1, job: Job | None = None, **last: Any) -> tuple[Job, float]:
    """A job whose two ranks report every five seconds for so long, and last as given; ages count from each report."""
    job, now = job or Job("job", BEGAN), BEGAN
    while now <= BEGAN + seconds:
        for rank in range(2):
            identity = RankIdentity("job", rank, world_size=2, attempt=attempt, instance=f"{attempt}-{rank}")
            apply(job, RankReport(identity, **last), now)
        now += 5.0
    return job, BEGAN + seconds


def verdict(job: Job, now: float) -> str:
    shown = {job_view.summary(job, now)["verdict"], rankings.score_table(job, now)["finding"].verdict}
    assert len(shown) == 1
    return str(shown.pop())


def test_ranks_that_never_come_to_a_step_are_not_healthy_and_it_is_reported_since_when() -> None:
    job, now = reported()
    shown = job_view.summary(job, now)
    assert (shown["state"], shown["verdict"]) == ("no step", "no_step")
    assert shown["reason"] == "No step has completed yet: its ranks report."
    assert rankings.score_table(job, now)["finding"].since == BEGAN
    assert (job.incidents, job.directives) == ([], []), "it is a statement: nothing is done"


def test_its_twin_that_steps_is_healthy() -> None:
    scene = Scene().run(int(WHILE))
    assert verdict(scene.job, scene.now) == "healthy"
    assert job_state(scene.job, scene.now) == ("running", "")


def test_a_step_that_completes_makes_it_healthy_at_once() -> None:
    job, now = reported()
    job, now = reported(job=job, iteration=0)
    assert verdict(job, now) == "healthy"


def test_ranks_have_some_time_to_begin() -> None:
    assert verdict(*reported(FIRST_STEP_AFTER)) == "healthy"
    assert verdict(*reported(FIRST_STEP_AFTER + 5.0)) == "no_step"


@pytest.mark.parametrize(
    "facts",
    [
        {"beats": 1, "heartbeat_age": WHILE},
        {"open_sections": {}, "idle": 1.0, "quiet": 1.0},
        {"open_sections": {"batch": 5.0}},
        {"progress": 3, "quiet": 1.0, "open_sections": {}},
        {"progress": 3},
    ],
    ids=["beats", "leaves sections", "enters sections", "counts progress", "another emitter's progress"],
)
def test_a_script_that_counts_no_steps_is_healthy_while_it_works(facts: dict[str, Any]) -> None:
    assert verdict(*reported(**facts)) == "healthy"


@pytest.mark.parametrize(
    "facts",
    [
        {"beats": 0},
        {"open_sections": {"data": WHILE}, "quiet": WHILE, "progress": 0},
        {"open_sections": {}, "idle": WHILE, "quiet": WHILE, "progress": 3},
        {"progress": 0},
    ],
    ids=["never beats", "waits for its first batch", "only set up", "no progress"],
)
def test_a_script_that_does_nothing_any_more_is_not(facts: dict[str, Any]) -> None:
    job, now = reported(**facts)
    assert verdict(job, now) == "no_step"


def test_an_attempt_that_does_not_come_to_a_step_after_others_that_did() -> None:
    job, _ = reported(20.0, iteration=7)
    job, now = reported(attempt=2, job=job)
    assert verdict(job, now) == "no_step"


def test_ranks_that_never_report_are_not_healthy_either() -> None:
    job = Job("job", BEGAN)
    assert finding(job, BEGAN + WHILE).reason == "No step has completed yet: no rank has reported."
    job.ended = Ending(JobState.FINISHED, "all ranks ended", BEGAN + WHILE)
    assert finding(job, BEGAN + WHILE).reason == "No step completed: no rank has reported."


def test_a_new_monitor_does_not_doubt_a_job_that_has_stepped() -> None:
    scene = Scene().run(20).reload(away=5)
    assert no_step_since(scene.job, scene.now + WHILE) is None


def test_a_job_that_is_over_is_seen_as_it_was_then() -> None:
    scene = Scene(steps=False, beats=False, sections=False).run(int(FIRST_STEP_AFTER / 2))
    scene.finish()
    assert verdict(scene.job, scene.now + WHILE) == "healthy"
    job, now = reported(FIRST_STEP_AFTER / 2)
    job, _ = reported(0.0, job=job, ended=True)
    assert verdict(job, now + WHILE) == "healthy"
    job, now = reported(ended=True)
    assert verdict(job, now + 10 * WHILE) == "no_step"


def test_what_slows_a_job_is_reported_first() -> None:
    job, now = reported()
    job.performance.findings = (Finding(StragglerVerdict.WORKER, Cause.DATA, "Rank 1 is slow."),)
    assert verdict(job, now) == "worker"


def shown(scene: Scene) -> tuple[str, str, float | None]:
    summary = job_view.summary(scene.job, scene.now)
    return summary["state"], summary["verdict"], summary["iterations_per_second"]


def test_a_job_that_hangs_is_not_healthy_and_has_no_speed() -> None:
    scene = Scene(on_hang="log").run(20)
    assert shown(scene) == ("running", "healthy", pytest.approx(1.0))
    scene.hang(2).until_found()
    assert shown(scene) == ("hung", "no_step", 0.0)
    assert finding(scene.job, scene.now).reason == scene.incident.reason
    scene.resume().run(3)
    assert shown(scene)[:2] == ("running", "healthy")
    assert shown(scene)[2] != 0.0


def test_neither_is_one_that_restarts_failed_or_is_lost() -> None:
    scene = Scene(on_hang="restart").run(20)
    scene.hang(2).until_found().until(lambda: scene.incident.phase == "recovering", within=60)
    assert shown(scene) == ("restarting", "no_step", 0.0)

    scene = Scene(launchers=False).run(20)
    scene.ranks = []
    scene.run(600)
    assert shown(scene) == ("lost", "no_step", 0.0)

    scene = Scene().run(20)
    scene.job.ended = Ending(JobState.FAILED, "the restarts are used up", scene.now)
    assert shown(scene) == ("failed", "no_step", 0.0)
    assert finding(scene.job, scene.now).reason == "the restarts are used up"
    scene.job.ended = Ending(JobState.STOPPED, "", scene.now)
    assert shown(scene) == ("stopped", "no_step", 0.0)


def test_an_order_that_leaves_the_ranks_running_leaves_the_job_healthy() -> None:
    scene = Scene().run(20)
    scene.order(Action.CAPTURE)
    assert shown(scene)[1] == "healthy"
    assert shown(scene)[2] == pytest.approx(1.0)
