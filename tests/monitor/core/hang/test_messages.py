"""The sentences, read for how they sound."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, ProcessEventKind


def _ends(kind: ProcessEventKind, reason: str) -> Callable[[], Scene]:
    def play() -> Scene:
        scene = Scene(on_hang="log").run(10).hang(2).until_found()
        scene.finish(kind, reason)
        return scene

    return play


def _ordered(action: Action, reason: str) -> Callable[[], Scene]:
    def play() -> Scene:
        scene = Scene(stop_deadline=20.0).run(10)
        scene.order(action, reason)
        return scene.run(15)

    return play


SCENES: dict[str, Callable[[], Scene]] = {
    "hang": lambda: Scene().run(10).hang(2).until_found().run(10),
    "hang, two behind": lambda: Scene(ranks=8).run(10).hang(2).hang(3).until_found().run(10),
    "outside": lambda: Scene(out_of_section_timeout=5.0).run(10).hang(2, outside=True).until_found().run(10),
    "stall": lambda: Scene().run(10).stall().until_found().run(10),
    "heartbeat": lambda: Scene(sections=False, heartbeat_timeout=20.0).run(10).hang(1).until_found().run(10),
    "stopped": lambda: Scene().run(10).stop(2).until_found().run(10),
    "gil": lambda: Scene().run(10).hold_gil(2).until_found().run(10),
    "silent": lambda: Scene(silence_timeout=9.0).run(10).cut(2).until_found().run(10),
    "silent host": lambda: Scene(ranks=8, hosts=2, silence_timeout=9.0).run(10).cut_host(1).until_found().run(10),
    "killed": lambda: Scene().run(10).die(2, signal="SIGKILL").run(3),
    "exited": lambda: Scene().run(10).die(2, exit_code=3).run(3),
    "only watched": lambda: Scene(launchers=False).run(10).hang(2).until_found().run(10),
    "observe-only": lambda: Scene(observe_only=True).run(10).hang(2).until_found().run(10),
    "log": lambda: Scene(on_hang="log").run(10).hang(2).until_found().resume().run(10),
    "capture": lambda: Scene(on_hang="capture").run(10).hang(2).until_found().run(3).resume().run(10),
    "stop": lambda: Scene(on_hang="stop").run(10).hang(2).until_found().run(10),
    "save and stop": lambda: Scene(on_hang="save_and_stop", stop_deadline=9.0).run(10).hang(2).until_found().run(20),
    "budget": lambda: Scene(max_restarts=0).run(10).hang(2).until_found().run(10),
    "finished": _ends(ProcessEventKind.FINISHED, ""),
    "failed": _ends(ProcessEventKind.FAILED, "rank 1 exited with code 1."),
    "ordered restart": _ordered(Action.RESTART, "new data"),
    "ordered restart, with a full stop": _ordered(Action.RESTART, "New data."),
    "ordered save and stop": _ordered(Action.SAVE_AND_STOP, ""),
    "ordered capture": _ordered(Action.CAPTURE, ""),
    "a long limit": lambda: Scene(section_timeouts={"step": 1_234_567}).run(10).hang(2).ages(1_234_570).until_found(),
}


@pytest.mark.parametrize("name", SCENES)
def test_every_sentence_can_be_read_aloud(name: str) -> None:
    scene = SCENES[name]()
    assert scene.printed
    sentences = [*scene.printed, *(i.reason for i in scene.job.incidents), *(d.reason for d in scene.issued)]
    for printed in sentences:
        assert printed[0].isupper(), printed
        assert printed.endswith("."), printed
        assert not printed.endswith(".."), printed
        assert "_" not in re.sub(r"'[^']*'|\w+ \(\w+\.py:\d+\)", "", printed), f"a word of the code: {printed}"
        assert not re.search(r"\b(nan|None|inf|True|False)\b|  |: :|\(\)|e\+\d", printed), printed
        assert not re.search(r"\b1 (steps|ranks|more are)\b", printed), printed
        assert len(printed) < 600, printed


@pytest.mark.parametrize("name", SCENES)
def test_the_reason_of_a_directive_is_the_reason_of_its_incident(name: str) -> None:
    scene = SCENES[name]()
    known = {i.id for i in scene.job.incidents}
    assert {d.incident_id for d in scene.issued} <= known
    for directive in scene.issued[-1:]:
        incident = next(i for i in scene.job.incidents if i.id == directive.incident_id)
        assert directive.reason == incident.reason


def test_thousands_of_culprits_make_a_short_sentence() -> None:
    scene = Scene(ranks=64, hosts=2, silence_timeout=9.0).run(10).cut_host(1).until_found()
    assert len(scene.incident.culprits) == 32
    assert "and 23 more" in scene.incident.reason
    assert len(scene.incident.reason) < 250


def test_a_rank_of_an_unknown_host_is_reported() -> None:
    scene = Scene(launchers=False)
    for rank in scene.ranks:
        rank.identity = rank.identity._replace(host="")
    scene.run(10).hang(2).until_found()
    assert "an unknown host" in scene.incident.reason
    assert "on :" not in scene.incident.reason


def test_the_host_of_a_rank_is_known_after_a_restart_of_the_monitor_before_it_has_reported() -> None:
    scene = Scene(ranks=4, hosts=2).run(10).reload()
    assert not scene.job.columns.reported_R.any()
    assert scene.job.columns.hosts == ["host-0", "host-0", "host-1", "host-1"]


def test_while_no_rank_is_to_blame_the_sentence_names_none() -> None:
    scene = Scene(section_timeouts={}, reports_durations=True).run(40)
    for rank in range(4):
        scene.hang(rank)
    scene.until(lambda: scene.job.incidents, within=400)
    assert re.match(
        r"Limits were passed by 4 ranks: one of them has made no progress in section '\w+' for [\d.]+ s, over its "
        r"learned limit of [\d.]+ s; ",
        scene.incident.reason,
    )
    assert "ank 0" not in scene.incident.reason
    assert scene.incident.limit_source == scene.incident.to_json()["limit_source"] == "learned"


def test_a_limit_is_stated_with_its_source() -> None:
    configured = Scene().run(10).hang(2).until_found().incident
    assert (configured.limit_source, "over its configured limit of 10 s" in configured.reason) == ("configured", True)
    silent = Scene(ranks=8, hosts=2, silence_timeout=9.0).run(10).cut_host(1).until_found().incident
    assert silent.limit_source == "configured"
