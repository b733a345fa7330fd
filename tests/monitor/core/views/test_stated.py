"""The verdict on a job: since when it is in trouble, its tone, its figures, and that all surfaces print it."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.cli.formatting import verdict_row
from rankwatch.cli.status.render import state_lines
from rankwatch.cli.terminal import Terminal
from rankwatch.contract.enums import Action, Cause, JobState, ProcessEventKind, StragglerVerdict
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Ending
from rankwatch_monitor.core.straggler.findings import Finding
from rankwatch_monitor.core.views.headline import title
from rankwatch_monitor.core.views.job_view import summary
from rankwatch_monitor.core.views.node_view import one_node
from rankwatch_monitor.core.views.stated import stated
from rankwatch_monitor.publish.snapshot import snapshot
from rankwatch_monitor.publish.text import report
from rankwatch_monitor.publish.webhook.notices import Announced, new_notices


def since(scene: Scene) -> float | None:
    """Of a job that is in trouble; None: it is not."""
    shown = stated(scene.job, scene.now)
    return None if shown["tone"] in ("calm", "over") else shown["since"]


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
    scene.hang(2).until_found()
    began = since(scene)
    scene.until(lambda: summary(scene.job, scene.now)["state"] == "restarting", within=60)
    assert since(scene) == began


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
    assert shown["jobs"][0]["verdict"]["since"] == ill.incident.timeline.since
    assert shown["jobs"][1]["verdict"]["since"] is None


def test_a_healthy_job_has_a_title_and_no_headline() -> None:
    scene = Scene(4).run(20)
    shown = stated(scene.job, scene.now)
    assert (shown["tone"], shown["headline"], shown["title"]) == ("calm", "", "All 4 ranks make progress")
    assert (shown["idle"], shown["lost"], shown["next"], shown["since"]) == (0, None, None, None)


def test_a_hang_that_only_a_person_ends_is_bad_and_one_that_is_acted_on_waits() -> None:
    scene = Scene(4, on_hang="log").run(20)
    scene.hang(2).until_found()
    shown = stated(scene.job, scene.now)
    assert (shown["state"], shown["tone"], shown["idle"]) == ("hung", "bad", 4)
    assert shown["title"] == title(scene.incident)
    assert (shown["detected"], shown["limit"]) == (scene.incident.timeline.detected, scene.incident.limit)
    assert shown["lost"] == {"seconds": 0.0, "since": scene.incident.timeline.since, "gpus": 4, "steps": None}
    acted = Scene(4, on_hang="restart").run(20)
    acted.hang(2).until_found()
    found = stated(acted.job, acted.now)
    assert (found["tone"], found["next"] is not None) == ("waits", True)


def test_what_follows_a_suspicion_has_its_moment() -> None:
    scene = Scene(section_timeouts={}, confirmation_window=30.0).run(40)
    scene.hang(2)
    scene.until(lambda: scene.job.open_incident is not None, within=400)
    shown = stated(scene.job, scene.now)
    assert (shown["state"], shown["tone"]) == ("suspected", "waits")
    assert shown["next"] == {"text": "restart in", "due": scene.incident.acts_at}


def test_a_job_that_a_person_stopped_is_over_without_an_incident() -> None:
    scene = Scene(4).run(20)
    scene.finish(ProcessEventKind.STOPPED, "stopped by an order of alice")
    shown = stated(scene.job, scene.now)
    assert (shown["state"], shown["tone"], shown["lost"], shown["advice"]) == ("stopped", "over", None, None)
    assert shown["title"] == "Stopped by an order of alice"
    assert shown["since"] == shown["ended_at"]


def test_one_record_is_what_every_surface_prints() -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(20)
    scene.hang(2).until_found()
    shown = dict(stated(scene.job, scene.now))
    assert summary(scene.job, scene.now).items() >= shown.items()
    node = one_node([scene.job], "host-0", scene.now)
    assert node is not None
    assert node["jobs"][0]["verdict"] == shown
    sent = snapshot(scene.job, scene.now)
    assert [sent.state, sent.reason, sent.headline, sent.iteration, sent.goodput] == [
        shown[name] for name in ("state", "reason", "headline", "iteration", "goodput")
    ]
    opened = new_notices(scene.job, Announced(), scene.now)[0]
    assert opened.body["job"].items() >= shown.items()
    printed = " ".join(report.text(scene.job, scene.now).split())
    assert f"{shown['title']} {verdict_row(shown, scene.now)}" in printed
    lines = " ".join(" ".join(state_lines({**summary(scene.job, scene.now)}, Terminal(200), scene.now)).split())
    assert f"{shown['title']} {verdict_row(shown, scene.now)}" in lines
