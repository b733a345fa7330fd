"""The playbook: which rule decides, what it waits for, and that its table is true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import (
    Action,
    DirectiveKind,
    JobState,
    ProcessEventKind,
    Proof,
    ScoreReference,
    VerdictKind,
)
from rankwatch.contract.enums import Cause as SlowCause
from rankwatch_monitor.core.cause import Call, Cause, InKernel, NotEntered, Shown, Silent, Some
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident.lifecycle import REPEAT_AFTER
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.advice import playbook
from rankwatch_monitor.core.views.advice.of_incident import runbook
from rankwatch_monitor.core.views.advice.record import Advice
from rankwatch_monitor.core.views.advice.situation import PATIENCE, Situation, situation
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.host_commands import reach
from rankwatch_monitor.core.views.verdict import job_state


def advice(scene: Scene, now: float | None = None, *others: Scene) -> Advice | None:
    """The advice about a job, among other jobs."""
    at = scene.now if now is None else now
    activity = HostActivity({each.job.id: each.job for each in (scene, *others)})
    return playbook.advice(situation(scene.job, job_state(scene.job, at)[0], at, activity))


def known(scene: Scene, now: float | None = None, *others: Scene) -> Advice:
    found = advice(scene, now, *others)
    assert found is not None
    return found


def orders(found: Advice) -> list[Action]:
    return [order.action for order in found.orders]


def hung() -> Scene:
    return Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found().run(30)


def quiet() -> Scene:
    return Scene(4, hosts=2, on_hang="log").run(30).cut_host(1).run(25)


def lost() -> Scene:
    return Scene(4, hosts=2).run(30).cut_host(0).cut_host(1).run(400)


def failed() -> Scene:
    scene = Scene(4, hosts=2).run(20).die(2, exit_code=1, message="CUDA error").run(1)
    scene.finish(ProcessEventKind.FAILED, "rank 2 on host-1 exited with code 1: CUDA error; no restart is allowed")
    return scene


def slow() -> Scene:
    scene = Scene(4, hosts=2).run(20)
    scene.job.performance.stragglers.append(
        Straggler(
            "s", 3, "host-1", "", SlowCause.DATA, ScoreReference.ROBUST, "Its input is slow.", 5.0, 6.0, share=0.4
        )
    )
    return scene


def suspected(**policy: Any) -> Scene:
    return Scene(4, section_timeouts={}, reports_durations=True, **policy).run(60).hang(2).until_found()


def crashed() -> Scene:
    return Scene(4).run(20).die(2, exit_code=1, message="ValueError: bad batch").run(1)


def restarting() -> Scene:
    scene = Scene(4)
    scene.ignored = {DirectiveKind.RESTART}
    return scene.run(20).hang(2).until(lambda: scene.state == "restarting")


def restarted() -> Scene:
    scene = Scene(4).run(20).hang(2).until_found()
    return scene.until(lambda: scene.incident.phase is Phase.RECOVERING)


def stepless() -> Scene:
    scene = restarted()
    scene.job.columns.reported_R[0], scene.job.columns.first_report_R[0] = True, scene.now
    return scene


def test_the_table_in_the_docstring_is_the_playbook() -> None:
    assert playbook.__doc__ is not None
    _, _, table, _ = playbook.__doc__.split("\n====================  ")
    rows = [line.split("  ")[0] for line in table.splitlines()[1:] if line and not line.startswith(("=", " "))]
    assert rows == [rule.name for rule in playbook.RULES]


@pytest.mark.parametrize(
    ("make", "rule", "text", "proposes"),
    [
        (hung, "restart", "Restart the ranks", Action.RESTART),
        (quiet, "quiet_host", "Check whether node host-1 is up", Action.RESTART_EXCLUDING_NODE),
        (lost, "lost", "Check whether the job still runs", None),
        (failed, "failed", "Read what rank 2 logged, in the output of the launcher on host-1", None),
        (slow, "slow_rank", "Look at what feeds rank 3 on host-1", None),
    ],
)
def test_a_person_is_told_the_first_step_in_one_line(
    make: Callable[[], Scene], rule: str, text: str, proposes: Action | None
) -> None:
    found = known(make())
    assert (found.rule, found.text, found.waits) == (rule, text, False)
    assert (orders(found)[0] if found.proposed else None) is proposes
    assert found.steps[0].text.startswith(text)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (suspected, "suspected"),
        (crashed, "launchers_restart"),
        (restarting, "restart_ordered"),
        (restarted, "first_report"),
        (stepless, "first_step"),
    ],
)
def test_nothing_is_left_to_a_person_while_rankwatch_acts(make: Callable[[], Scene], rule: str) -> None:
    found = known(make())
    assert (found.rule, found.waits, found.steps, found.proposed) == (rule, True, (), False)
    assert found.text.startswith("Nothing to do")


def test_no_advice_while_all_is_well_or_the_end_was_wanted() -> None:
    assert advice(Scene(4).run(20)) is None
    ended = Scene(4).run(20)
    ended.finish()
    assert advice(ended) is None


@pytest.mark.parametrize("make", [hung, quiet, slow, restarting, suspected, crashed])
def test_it_stays_as_it_is_while_nothing_happens(make: Callable[[], Scene]) -> None:
    """A summary is sent again whenever it changes."""
    scene = make()
    before = job_view.summary(scene.job, scene.now)["advice"]
    assert job_view.summary(scene.job, scene.now + 3)["advice"] == before


def test_what_is_awaited_has_the_time_at_which_it_is_due() -> None:
    crash = crashed()
    due = crash.incident.phase_since + REPEAT_AFTER
    assert known(crash).until == known(crash, due).until == due
    late = known(crash, due + 1.0)
    assert (late.waits, late.until) == (False, None)
    assert late.steps[0].brief == "Read the log of the launcher on host-0"
    ordered = restarting()
    due = ordered.incident.phase_since + REPEAT_AFTER
    assert (known(ordered).until, known(ordered, due + 1.0).until) == (due, None), "the order is repeated"
    report = restarted()
    since = report.incident.timeline.restarted
    assert since is not None
    assert known(report).until == since + PATIENCE
    assert known(stepless()).until is None


def test_a_suspicion_is_acted_on_when_its_patience_ends_and_offers_to_act_now() -> None:
    scene = suspected()
    found = known(scene)
    assert (found.until, found.cost) == (scene.incident.acts_at, scene.incident.restart_cost)
    assert found.until == scene.incident.opened_at + scene.job.policy.confirmation_window
    assert [order.words for order in found.orders] == ["Restart now", "Capture stacks"]


def test_a_suspicion_that_is_only_recorded_offers_the_stacks_first() -> None:
    found = known(suspected(on_hang="log", observe_only=True))
    assert (found.rule, orders(found), found.waits) == ("capture_first", [Action.CAPTURE, Action.RESTART], False)


def test_each_runbook_link_leads_to_a_section_of_the_runbook() -> None:
    text = (Path(__file__).parents[5] / "docs/runbook.md").read_text()
    sections = {line.lstrip("# ").lower() for line in text.splitlines() if line.startswith("### ")}
    for kind in VerdictKind:
        page, _, section = runbook(kind).partition("#")
        assert (page, section in sections) == ("runbook.html", True), section


LATE = NotEntered(Call("all_reduce", 8192, "world"), 2, 3)


@pytest.mark.parametrize(
    ("fields", "cause", "rule", "ranks"),
    [
        ({}, LATE, "acts", ()),
        ({"confirmed": False}, LATE, "suspected", ()),
        ({"phase": Phase.ACTING}, LATE, "launchers_restart", ()),
        ({"action": Action.LOG}, LATE, "capture_first", ()),
        ({"action": Action.LOG, "confirmed": False}, LATE, "capture_first", ()),
        ({"action": Action.CAPTURE}, LATE, "restart", ()),
        ({"action": Action.CAPTURE, "phase": Phase.CAPTURING}, LATE, "capturing", ()),
        ({"action": Action.LOG}, InKernel("h"), "broken_node", (3,)),
        ({"action": Action.LOG, "phase": Phase.ACTING}, Silent(9.0), "broken_node", (3,)),
        ({"confirmed": False, "shown": Shown(Proof.STALLED, Some((), 0))}, LATE, "held", ()),
    ],
)
def test_the_rule_follows_from_the_record_and_an_order_is_proposed_where_rankwatch_does_not_act(
    fields: dict[str, Any], cause: Cause, rule: str, ranks: tuple[int, ...]
) -> None:
    scene = Scene(4).run(5)
    named = Culprit(3, "host-0", cause)
    record = Incident("i", "job", VerdictKind.SECTION_OVERRUN, 1, scene.now, "It hangs.", (named,))
    incident = replace(record, **{"action": Action.RESTART, "phase_since": scene.now, **fields})
    found = playbook.advice(Situation(scene.job, JobState.HUNG, scene.now, None, incident, named, None, None, (), None))
    assert found is not None
    assert found.rule == rule
    assert found.proposed is not found.waits
    assert (found.orders[0].ranks if found.proposed and found.orders[0].ranks else ()) == ranks


def test_without_a_launcher_nothing_is_ordered() -> None:
    found = known(Scene(4, launchers=False, on_hang="restart").run(20).hang(2).until_found().run(5))
    assert (found.rule, found.orders) == ("no_launcher", ())


def test_of_a_silent_host_a_command_shows_whether_it_is_up() -> None:
    found = known(Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).run(70))
    assert (orders(found), found.steps[0].command) == ([Action.RESTART_EXCLUDING_NODE], "ping -c 3 -- host-1")
    assert reach("a b", slurm=True) == "ping -c 3 -- 'a b'; sinfo -n 'a b'"
