"""What ranks report of themselves becomes an incident that is over at once, and one for what belongs together."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import ProcessEventKind, VerdictKind
from rankwatch.contract.messages import ProcessEvent
from rankwatch_monitor.core.incident.notices import SETTLE, TOGETHER

WRONG = "rank 2 on host-0 rejected the loss of step 7 (nan)"


def notice(scene: Scene, rank: int, reason: str = WRONG, kind: str = "wrong_result", **more: float) -> None:
    reported = ProcessEvent(
        scene.nodes[0], ProcessEventKind.NOTICE, scene.attempt, rank=rank, reason=reason, notice=kind
    )
    scene.submit(reported if not more else ProcessEvent(**{**_fields(reported), **more}))


def _fields(event: ProcessEvent) -> dict[str, object]:
    return {name: getattr(event, name) for name in ProcessEvent.__slots__}


def test_a_rejected_result_is_an_incident_with_its_sentence_and_its_rank() -> None:
    scene = Scene().run(5)
    notice(scene, 2)
    scene.run(3)
    incident = scene.incident
    assert incident.kind is VerdictKind.WRONG_RESULT
    assert incident.reason == "Rank 2 on host-0 rejected the loss of step 7 (nan)."
    assert scene.blamed == {2: "wrong_result"}
    assert not incident.open
    assert incident.closed_at is not None
    assert scene.issued == []
    assert scene.state == "running"


def test_its_healthy_twin_has_no_incident() -> None:
    assert Scene().run(6).job.incidents == []


def test_a_restart_in_the_process_reports_how_long_it_took() -> None:
    scene = Scene().run(5)
    notice(scene, 1, "rank 1 raised ValueError: x", "restarted_in_process", seconds=0.4)
    scene.run(1)
    incident = scene.incident
    assert incident.kind is VerdictKind.RESTARTED_IN_PROCESS
    assert incident.culprits == ()
    assert incident.outcome.endswith("in the same process after 0.4 s")
    times = incident.timeline
    assert times.restarted is not None
    assert times.since == pytest.approx(times.restarted - 0.4)


def test_what_all_ranks_report_is_one_incident() -> None:
    scene = Scene().run(5)
    for rank in range(4):
        notice(scene, rank)
    scene.run(1)
    notice(scene, 2)
    scene.run(1)
    assert [i.affected for i in scene.job.incidents] == [(0, 1, 2, 3)]


def test_another_kind_or_much_later_is_another_incident() -> None:
    scene = Scene().run(5)
    notice(scene, 2)
    scene.run(1)
    notice(scene, 2, kind="restarted_in_process")
    scene.run(int(SETTLE + TOGETHER) + 3)
    notice(scene, 2, kind="restarted_in_process")
    scene.run(1)
    assert [str(i.kind) for i in scene.job.incidents] == ["wrong_result", *["restarted_in_process"] * 2]


def test_a_crash_right_after_it_is_an_incident_of_its_own() -> None:
    scene = Scene().run(12)
    notice(scene, 2)
    scene.die(2, exit_code=17).run(1)
    assert [i.kind for i in scene.job.incidents] == [VerdictKind.WRONG_RESULT, VerdictKind.PROCESS_EXITED]
    assert [i.open for i in scene.job.incidents] == [False, True]


def test_a_notice_waits_while_another_incident_is_open() -> None:
    scene = Scene().run(12).hang(1).until_found()
    notice(scene, 2)
    scene.until(lambda: scene.closings)
    assert scene.job.incidents[0].kind is VerdictKind.SECTION_OVERRUN
    scene.run(1)
    assert [i.kind for i in scene.job.incidents][1:] == [VerdictKind.WRONG_RESULT]


@pytest.mark.parametrize("kind", ["", "holiday", "last_words"])
def test_a_kind_that_is_not_known_is_passed_over(kind: str) -> None:
    scene = Scene().run(5)
    notice(scene, 2, kind=kind)
    assert scene.run(1).job.incidents == []


def test_a_notice_of_an_earlier_attempt_is_passed_over() -> None:
    scene = Scene().run(5)
    notice(scene, 2, attempt=0)
    assert scene.run(1).job.incidents == []
