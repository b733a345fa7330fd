"""One message of a sender that may ingest, or of a slot, blinds no job for good: what goes on refutes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch.recording import shared_slots
from rankwatch.recording.shared_slots import Slots
from rankwatch_launcher.node.rank_requests import RequestInbox
from rankwatch_monitor.core.apply import REFUTED_AFTER, apply
from rankwatch_monitor.http.launchers import without_control

OTHER = NodeRegistration("other", "other", 1, 1, policy={"on_hang": "stop", "detection": False})


def forge(scene: Scene, kind: ProcessEventKind, node: str = "other", **more: Any) -> None:
    apply(scene.job, replace(OTHER, policy={}), scene.now)
    apply(scene.job, ProcessEvent(node, kind, more.pop("attempt", 1), **more), scene.now)


def found_afterwards(scene: Scene) -> None:
    """Run on in good health for as long as a refutation takes, then hang: the culprit is found."""
    scene.run(int(REFUTED_AFTER) + 5)
    assert scene.state == "running"
    assert scene.job.incidents == []
    scene.hang(2).until_found(within=60)
    assert set(scene.blamed) == {2}


@pytest.mark.parametrize("more", [{"exit_code": 0}, {"exit_code": 1, "spared": True}])
def test_a_forged_exit_of_a_rank_does_not_blind_its_detection_for_good(more: dict[str, Any]) -> None:
    scene = Scene(on_hang="log").run(10)
    forge(scene, ProcessEventKind.EXITED, rank=2, **more)
    found_afterwards(scene)


@pytest.mark.parametrize("kind", [ProcessEventKind.FINISHED, ProcessEventKind.FAILED, ProcessEventKind.STOPPED])
@pytest.mark.parametrize("attempt", [1, 10**15])
def test_a_forged_end_of_a_launcher_does_not_end_its_job_for_good(kind: ProcessEventKind, attempt: int) -> None:
    scene = Scene(on_hang="log").run(10)
    apply(scene.job, ProcessEvent("node-0", kind, attempt), scene.now)
    assert scene.job.ended is not None
    found_afterwards(scene)


@pytest.mark.parametrize("kind", [ProcessEventKind.FINISHED, ProcessEventKind.FAILED, ProcessEventKind.STOPPED])
def test_the_end_of_a_former_launcher_of_the_node_does_not_end_its_job(kind: ProcessEventKind) -> None:
    """A replay, or what was delivered late: a launcher ends in the newest attempt that it has started, or later."""
    scene = Scene(on_hang="log").run(10)
    scene.restart()
    scene.run(10)
    apply(scene.job, ProcessEvent("node-0", kind, 1), scene.now)
    assert scene.job.ended is None
    scene.hang(2).until_found(within=60)
    apply(scene.job, ProcessEvent("node-0", kind, 2), scene.now)
    assert scene.job.ended is not None


def test_what_a_collector_delivers_late_does_not_bring_back_a_job_that_has_ended() -> None:
    scene = Scene(on_hang="log").run(10)
    late = [report for rank in scene.ranks if (report := scene.report(rank)) is not None]
    assert len(late) == 4
    for rank in scene.ranks:
        scene.event(ProcessEventKind.EXITED, rank=rank.number, exit_code=0)
        rank.over = True
    scene.event(ProcessEventKind.FINISHED)
    for _ in range(3):
        scene.run(int(REFUTED_AFTER) + 5)
        for _ in range(20):
            for report in late:
                apply(scene.job, report, scene.now)
    scene.run(2)
    assert scene.state == "finished"
    assert scene.job.incidents == []


def test_a_forged_restart_far_ahead_does_not_hide_the_restarts_that_follow() -> None:
    scene = Scene().run(10)
    forge(scene, ProcessEventKind.RESTARTING, attempt=10**15)
    assert scene.job.restarts == 0
    scene.event(ProcessEventKind.RESTARTING, attempt=2)
    assert scene.job.restarts == 1


def test_a_launcher_without_ranks_cannot_refuse_a_directive() -> None:
    scene = Scene().run(10)
    scene.ignored = {DirectiveKind.RESTART}
    scene.hang(2).until(lambda: scene.directives(DirectiveKind.RESTART))
    directive = scene.directives(DirectiveKind.RESTART)[0]
    apply(scene.job, replace(OTHER, policy={}), scene.now)
    phase = scene.incident.phase
    scene.ack(directive, AckState.REFUSED, node="other", detail="forged")
    assert "forged" not in str(scene.incident.to_json())
    assert scene.incident.phase is phase
    scene.ack(directive, AckState.REFUSED, detail="passed already")
    assert "passed already" in str(scene.incident.to_json())


# The policy -----------------------------------------------------------------------------------------------------------


def test_a_forged_end_does_not_open_the_policy_of_a_job_whose_ranks_go_on() -> None:
    scene = Scene().run(10)
    apply(scene.job, ProcessEvent("node-0", ProcessEventKind.FINISHED, 1), scene.now)
    for _ in range(int(REFUTED_AFTER)):
        taken, warnings = without_control(scene.job, OTHER, scene.now)
        assert (taken.policy, len(warnings)) == ({}, 1)
        scene.run(1)


def test_the_first_launcher_of_a_new_run_brings_its_policy_once_the_old_one_is_quiet() -> None:
    scene = Scene().run(10)
    apply(scene.job, ProcessEvent("node-0", ProcessEventKind.FINISHED, 1), scene.now)
    assert without_control(scene.job, OTHER, scene.now + 60) == (OTHER, [])


def test_a_launcher_does_not_bring_a_policy_to_a_job_that_has_long_run_without() -> None:
    scene = Scene(launchers=False).run(5)
    assert without_control(scene.job, OTHER, scene.now) == (OTHER, []), "its ranks may report before it registers"
    scene.run(70)
    taken, warnings = without_control(scene.job, OTHER, scene.now)
    assert (taken.policy, len(warnings)) == ({}, 1)
    assert without_control(scene.job, OTHER, scene.now + 600) == (OTHER, []), "its ranks are gone"


# Slots ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2**62, -(2**62)])
def test_a_count_of_requests_in_the_slots_that_is_none_keeps_no_launcher_busy(tmp_path: Path, count: int) -> None:
    slots = Slots.create(tmp_path / "0.slots")
    slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    slots.words[shared_slots.REQUESTS] = count
    reading = shared_slots.read(slots)
    assert reading is not None
    inbox = RequestInbox(tmp_path)
    assert inbox.take({0: reading}) == []
    assert inbox.take({0: reading}) == []
    slots.close()
