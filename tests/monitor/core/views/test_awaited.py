"""What happens to a job without a person, and by when."""

from __future__ import annotations

from typing import Any

from monitor.core.scene import Scene
from rankwatch.cli.formatting import duration
from rankwatch.contract.enums import DirectiveKind
from rankwatch_monitor.core.incident.lifecycle import REPEAT_AFTER
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.awaited import PATIENCE
from rankwatch_monitor.core.views.job_verdict import clock


def awaited(scene: Scene) -> dict[str, Any] | None:
    found: dict[str, Any] | None = job_view.summary(scene.job, scene.now)["awaited"]
    return found


def of(text: str, until: float | None, cost: float | None = None) -> dict[str, Any]:
    when = "" if until is None else f" until {clock(until)} UTC"
    loses = "" if cost is None else f"; a restart loses {duration(cost)}"
    sentence = f"Nothing to do{when}: {text}{loses}"
    return {"text": text, "until": until, "meanwhile": "", "cost": cost, "sentence": sentence}


def suspected() -> Scene:
    return Scene(4, section_timeouts={}, reports_durations=True).run(60).hang(2).until_found()


def test_a_crash_is_restarted_by_the_launchers_by_a_fixed_time() -> None:
    scene = Scene(4).run(20).die(2, exit_code=1, message="ValueError: bad batch").run(1)
    due = scene.incident.phase_since + REPEAT_AFTER
    for _ in range(3):
        assert awaited(scene.run(2)) == of("the launchers restart the ranks", due)
    assert job_view.summary(scene.job, due + 1.0)["awaited"] == of("the launchers restart the ranks", None)


def test_a_hang_is_restarted_by_rankwatch_and_then_starts_up() -> None:
    scene = Scene(4)
    scene.ignored = {DirectiveKind.RESTART}
    scene.run(20).hang(2).until(lambda: scene.state == "restarting")
    found = awaited(scene)
    assert found == of("Rankwatch restarts the ranks", scene.incident.phase_since + REPEAT_AFTER)
    started = Scene(4).run(20).hang(2).until_found()
    started.until(lambda: started.incident.phase == "recovering")
    restarted = started.incident.timeline.restarted
    assert restarted is not None
    text = f"the ranks were started again at {clock(restarted)} UTC, and none has reported yet"
    assert awaited(started) == of(text, restarted + PATIENCE)
    columns = started.job.columns
    columns.reported_R[0], columns.first_report_R[0] = True, started.now
    assert awaited(started) == of("the ranks were restarted, and none has completed a step yet", None)


def test_a_suspicion_is_acted_on_when_its_patience_ends_unless_the_ranks_move() -> None:
    scene, text = suspected(), "Rankwatch restarts the ranks unless they make progress"
    assert not scene.incident.confirmed
    incident = scene.incident
    assert incident.acts_at == incident.opened_at + scene.job.policy.confirmation_window
    assert incident.restart_cost is not None
    assert awaited(scene) == of(text, incident.acts_at, incident.restart_cost)


def test_nothing_happens_by_itself_while_all_is_well_where_it_is_only_recorded_or_after_the_end() -> None:
    assert awaited(Scene(4).run(20)) is None
    assert awaited(Scene(4, on_hang="log").run(20).hang(2).until_found().run(30)) is None
    ended = Scene(4).run(20)
    ended.finish()
    assert awaited(ended) is None
