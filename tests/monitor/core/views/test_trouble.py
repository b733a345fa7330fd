"""Since when a job is in trouble, as the list of jobs shows it."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, Cause, JobState, ProcessEventKind, StragglerVerdict
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Ending
from rankwatch_monitor.core.straggler.findings import Finding
from rankwatch_monitor.core.views.job_view import summary
from rankwatch_monitor.core.views.node_view import one_node


def since(scene: Scene) -> float | None:
    shown = summary(scene.job, scene.now)["trouble_since"]
    assert shown is None or isinstance(shown, float)
    return shown


def test_a_job_that_trains_or_ended_as_wanted_is_in_no_trouble() -> None:
    scene = Scene()
    assert since(scene) is None
    scene.run(20)
    assert since(scene) is None
    scene.order(Action.CAPTURE)
    assert since(scene) is None, "an order that leaves the ranks running is no trouble"
    scene.finish()
    assert since(scene) is None
    stopped = Scene().run(20)
    stopped.job.ended = Ending(JobState.STOPPED, "ordered", stopped.now)
    assert since(stopped) is None


def test_a_hang_counts_from_the_last_progress_and_ends_with_the_incident() -> None:
    scene = Scene(on_hang="log").run(20)
    scene.hang(2).until_found()
    assert summary(scene.job, scene.now)["state"] == "hung"
    assert since(scene) == scene.incident.timeline.since
    scene.resume().run(3)
    assert since(scene) is None


def test_a_job_stays_in_trouble_until_its_first_new_step() -> None:
    scene = Scene(on_hang="restart").run(20)
    assert summary(scene.job, scene.now)["recovering_since"] is None
    scene.hang(2).until_found()
    began = since(scene)
    scene.until(lambda: summary(scene.job, scene.now)["state"] == "restarting", within=60)
    assert since(scene) == began
    recovering = summary(scene.job, scene.now)["recovering_since"]
    assert began is not None
    assert began < recovering <= scene.now
    scene.tick()
    assert summary(scene.job, scene.now)["recovering_since"] == recovering


def test_a_suspicion_counts_although_the_job_is_running() -> None:
    scene = Scene(section_timeouts={}, confirmation_window=30.0).run(40)
    scene.hang(2)
    scene.until(lambda: scene.job.open_incident is not None, within=400)
    shown = summary(scene.job, scene.now)
    assert (shown["state"], scene.incident.confirmed) == ("suspected", False)
    assert since(scene) == (scene.incident.timeline.since or scene.incident.opened_at)


def test_a_failed_job_counts_from_its_end_and_a_lost_one_from_the_last_report() -> None:
    failed = Scene().run(20)
    failed.finish(ProcessEventKind.FAILED, "the restarts are used up")
    assert summary(failed.job, failed.now)["state"] == "failed"
    assert since(failed) == failed.job.ended.at  # type: ignore[union-attr]
    lost = Scene(launchers=False).run(20)
    lost.ranks = []
    lost.run(600)
    assert summary(lost.job, lost.now)["state"] == "lost"
    assert since(lost) == pytest.approx(lost.job.last_heard)


def test_a_slow_job_counts_from_the_first_slow_window() -> None:
    scene = Scene().run(20)
    scene.job.performance.findings = (
        Finding(StragglerVerdict.WORKER, Cause.DATA, "Rank 1 is slow.", since=scene.now - 9),
    )
    assert since(scene) == scene.now - 9


def test_on_a_node_the_job_in_trouble_and_the_worst_rank_stand_first() -> None:
    healthy = Scene(4, hosts=1, job_id="a").run(20)
    ill = Scene(4, hosts=1, job_id="b", on_hang="log").run(20)
    ill.hang(2).until_found()
    ill.run(2)
    healthy.now = ill.now
    advance(healthy.job, healthy.now)
    shown = one_node([healthy.job, ill.job], "host-0", ill.now)
    assert shown is not None
    assert [part["job"] for part in shown["jobs"]] == ["b", "a"]
    assert [row["rank"] for row in shown["jobs"][0]["ranks"]] == [2, 0, 1, 3]
    assert shown["jobs"][0]["trouble_since"] == ill.incident.timeline.since
    assert shown["jobs"][1]["trouble_since"] is None
