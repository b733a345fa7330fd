"""The points of a job over time, as columns for charts: what an event changes, changes at its moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import JobState, ProcessEventKind
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.regression.trends import Selection
from rankwatch_monitor.core.views import downtime, verdict
from rankwatch_monitor.service import trend
from support.windows import Ranks

LOSS = "loss"


def live(scene: Scene, seconds: int) -> None:
    """Let time pass; the lowest rank logs the second as its loss, and the service does what it does every second."""
    for _ in range(seconds):
        scene.run(1)
        if scene.job.ended is None:
            apply(scene.job, RankReport(scene.ranks[0].identity, logged={LOSS: scene.now}), scene.now)
        account(scene)


def account(scene: Scene) -> None:
    goodput_accounting.account(scene.job, scene.now)
    trend.sample(scene.job, verdict.job_state(scene.job, scene.now)[0], scene.now)


def shown(job: Job, now: float) -> dict[str, Any]:
    return trend.to_json(job.trends, Selection(0.0, now), outages=downtime.outages(job, now), began=job.ledger.began)


def rows(found: dict[str, Any], name: str) -> Iterator[tuple[float, float]]:
    """The known values of a column with their moments."""
    return ((at, value) for at, value in zip(found["at"], found[name], strict=True) if value is not None)


@pytest.fixture
def failed() -> Scene:
    """A job of a step a second that crashed in each of four attempts, the later ones 15 s after their start."""
    scene = Scene(4, checkpoint=50, saves=True)
    live(scene, 200)
    for attempt in range(2, 5):
        scene.crash(2, "RuntimeError: boom")
        scene.run(1).event(ProcessEventKind.RESTARTING, attempt=attempt)
        account(scene)
        scene.launch(attempt=attempt)
        live(scene, 15)
    scene.crash(2, "RuntimeError: boom")
    for _ in range(3):
        account(scene.run(1))
    scene.finish(ProcessEventKind.FAILED, "all restarts are used up")
    account(scene)
    return scene


def test_the_worst_rank_of_a_score_is_kept_with_the_score() -> None:
    ranks = Ranks(8).run(2)
    ranks.kernels({3: 0.6})
    ranks.run(1)
    trend.sample(ranks.job, JobState.RUNNING, ranks.now)
    scores = trend.to_json(ranks.job.trends, Selection(0.0, ranks.now))["scores"]["gpu_robust"]
    assert scores["rank"] == [3.0]
    assert scores["min"][0] < 0.7 < scores["median"][0]


def test_each_attempt_has_its_speed_until_its_crash_and_none_in_between(failed: Scene) -> None:
    found = shown(failed.job, failed.now)
    moving = [value for _, value in rows(found, "speed") if value > 0]
    assert moving == pytest.approx([1.0] * len(moving), abs=0.01), "no step was slower"
    assert len(failed.job.incidents) == 4
    for incident in failed.job.incidents:
        since, over = incident.timeline.since, incident.timeline.first_step or failed.job.ended.at  # type: ignore[union-attr]
        assert since is not None
        speed = dict(rows(found, "speed"))
        assert speed[since] == pytest.approx(1.0, abs=0.01)
        assert [value for at, value in speed.items() if since < at <= over] == [0.0] * 2
    assert found["at"] == sorted(set(found["at"]))


def test_an_attempt_too_young_for_a_speed_has_that_of_its_windows() -> None:
    ranks = Ranks(4).run(1)
    assert ranks.job.steps_per_second is None
    trend.sample(ranks.job, JobState.RUNNING, ranks.now)
    (speed,) = shown(ranks.job, ranks.now)["speed"]
    latest = ranks.job.performance.history.latest
    assert latest is not None
    assert speed == pytest.approx(1 / latest.step, rel=1e-5)


@pytest.mark.parametrize("other", ["attempt", "time"])
def test_its_twin_windows_of_another_time_or_attempt_say_nothing_of_it(other: str) -> None:
    ranks = Ranks(4).run(1)
    if other == "attempt":
        ranks.job.attempt += 1
    later = ranks.now + (3600 if other == "time" else 0)
    trend.sample(ranks.job, JobState.RUNNING, later)
    assert shown(ranks.job, later)["speed"] == [None]


def test_goodput_falls_from_the_crash_on_and_by_the_lost_steps_at_the_first_new_one(failed: Scene) -> None:
    found, job = shown(failed.job, failed.now), failed.job
    goodput = dict(rows(found, "goodput"))
    for incident in job.incidents[:3]:
        since, over = incident.timeline.since, incident.timeline.first_step
        assert since is not None
        assert over is not None
        before = [value for at, value in goodput.items() if at <= since][-2:]
        assert before[1] >= before[0] - 1e-6, "nothing was lost before it"
        at_end, after = goodput[over], min((at, value) for at, value in goodput.items() if at > over)[1]
        assert at_end == pytest.approx(before[1] * (since - job.ledger.began) / (over - job.ledger.began), abs=1e-6)
        lost = job.ledger.lost_by(over)
        assert at_end - after == pytest.approx(lost / (over - job.ledger.began), abs=0.01)


def test_a_logged_value_ends_at_the_crash_and_the_end(failed: Scene) -> None:
    found, job = shown(failed.job, failed.now), failed.job
    loss = list(zip(found["at"], found["logged"][LOSS], strict=True))
    for incident in job.incidents:
        since, over = incident.timeline.since, incident.timeline.first_step or job.ended.at  # type: ignore[union-attr]
        assert since is not None
        last = max(at for at, value in loss if value is not None and at <= since)
        assert since - last <= 1.0, "what was logged until the crash is kept"
        assert any(value is None for at, value in loss if since < at <= over), "no line joins two attempts"


def test_what_was_logged_until_the_end_is_kept() -> None:
    scene = Scene(4)
    live(scene, 100)
    last = scene.now
    scene.finish()
    account(scene)
    account(scene)
    found = shown(scene.job, scene.now)
    assert scene.job.ended is not None
    assert found["at"][-1] == scene.job.ended.at
    assert found["logged"][LOSS][-1] > last - trend.INTERVAL
    account(Scene(4))


def test_the_last_logged_value_is_the_newest_one() -> None:
    """In a point of its own after the last one, else in that, which has a mean; a range that ends earlier has means."""
    scene = Scene(2)
    for second in range(40):
        scene.run(1)
        apply(scene.job, RankReport(scene.ranks[0].identity, logged={LOSS: float(second)}), scene.now)
        account(scene)

    def until(moment: float | None) -> dict[str, Any]:
        return trend.to_json(scene.job.trends, Selection(0.0, scene.now), newest=trend.newest(scene.job, moment))

    means, whole = shown(scene.job, scene.now), until(None)
    assert whole["at"] == [*means["at"], scene.now]
    assert whole["logged"][LOSS] == [*means["logged"][LOSS], 39.0]
    assert (whole["speed"][-1], whole["iteration"][-1]) == (means["speed"][-1], scene.job.furthest_iteration)
    assert until(means["at"][-1]) == means
    scene.finish()
    account(scene)
    assert shown(scene.job, scene.now)["logged"][LOSS][-1] == 35.0, "a mean"
    assert until(None)["logged"][LOSS] == [*means["logged"][LOSS], 39.0]


def test_a_value_that_another_rank_logged_shortly_before_is_still_the_newest_one() -> None:
    scene = Scene(2)
    for second in range(40):
        scene.run(1)
        apply(scene.job, RankReport(scene.ranks[0].identity, logged={LOSS: float(second)}), scene.now)
        if second < 30:
            apply(
                scene.job, RankReport(scene.ranks[1].identity, logged={"of_the_last_stage": float(second)}), scene.now
            )
        account(scene)
    means = shown(scene.job, scene.now)
    whole = trend.to_json(scene.job.trends, Selection(0.0, scene.now), newest=trend.newest(scene.job, None))
    assert means["logged"]["of_the_last_stage"][-1] is not None
    assert len(whole["at"]) == len(means["at"]) + 1
    assert {name: values[-1] for name, values in whole["logged"].items()} == {LOSS: 39.0, "of_the_last_stage": 29.0}


def test_a_monitor_that_restarts_adds_no_point_to_a_job_that_has_ended(failed: Scene) -> None:
    points = len(failed.job.trends.window(0.0, failed.now))
    again = failed.reload()
    account(again)
    assert len(again.job.trends.window(0.0, again.now)) in (0, points)


def test_a_hang_stops_the_speed_when_it_began_however_late_it_was_detected() -> None:
    scene = Scene(4, section_timeouts={"step": 60.0})
    live(scene, 100)
    scene.hang(2)
    live(scene, 150)
    (incident,) = scene.job.incidents
    since, over = incident.timeline.since, incident.timeline.first_step
    assert since is not None
    assert over is not None
    assert incident.opened_at - since > 50
    found = shown(scene.job, scene.now)
    assert {value for at, value in rows(found, "speed") if since < at <= over} == {0.0}
    goodput = [(at, value) for at, value in rows(found, "goodput") if since < at <= over]
    kept = goodput[0][1] * (since - scene.job.ledger.began)
    assert [value for _, value in goodput] == pytest.approx(
        [kept / (at - scene.job.ledger.began) for at, _ in goodput], rel=1e-4
    )


def test_points_of_two_attempts_are_never_merged(failed: Scene) -> None:
    found = trend.to_json(failed.job.trends, Selection(0.0, failed.now, most=3))
    whole = trend.to_json(failed.job.trends, Selection(0.0, failed.now))
    ends = {attempt: at for at, attempt in zip(whole["at"], whole["attempt"], strict=True)}
    assert {attempt: at for at, attempt in zip(found["at"], found["attempt"], strict=True)} == ends
