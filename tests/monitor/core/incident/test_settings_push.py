"""What launchers and ranks are sent, and that it is sent again only when it has changed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract import ft_state
from rankwatch.contract.enums import DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch.contract.policy import Policy
from rankwatch.recording.shared_slots import NAME_LIMIT, SETTINGS_BYTES, Slots
from rankwatch_launcher.node.slots import NodeSlots
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import PolicyChanged, RankIdentity, RankReport, SectionStatistics
from rankwatch_monitor.core.incident.settings_push import (
    FIRST_PUSH_INTERVAL,
    PUSH_INTERVAL,
    push,
    push_if_changed,
    settings_of,
)
from rankwatch_monitor.core.job import Job

NOW = 1000.0
DEFAULT = {"source": "auto", "interval": 0, "ranks": "all", "report_interval": 300.0}


def job(*, launcher: bool = True, **policy: Any) -> Job:
    """One rank; its launcher, if it has one, was sent what is in force at :data:`NOW`."""
    made = Job("job", NOW, policy=Policy().changed(policy))
    if launcher:
        apply(made, NodeRegistration("node", "host", 1, 1), NOW)
        apply(made, ProcessEvent("node", ProcessEventKind.STARTED, 1, rank=0, pid=7, world_size=1), NOW)
    assert push_if_changed(made, NOW) is None
    return made


def in_slots(settings: dict[str, Any]) -> int:
    """Bytes that settings take in the slots of a rank."""
    return len(json.dumps({name: settings[name] for name in ("limits", "profiling")}, separators=(",", ":")))


def test_what_the_ranks_are_sent_about_profiling() -> None:
    assert settings_of(job())["profiling"] == DEFAULT
    changed = job(kernel_timings="kineto", profiling_interval=8, profiled_ranks="0,8-15", report_interval=60)
    assert settings_of(changed)["profiling"] == {
        "source": "kineto",
        "interval": 8,
        "ranks": "0,8-15",
        "report_interval": 60.0,
    }


def test_where_nothing_is_scored_nothing_is_profiled() -> None:
    assert settings_of(job(straggler_detection=False))["profiling"] == {**DEFAULT, "ranks": "none"}


def test_a_stride_and_a_trace_go_down_once_each() -> None:
    training = job()
    training.performance.stride = 32
    assert push_if_changed(training, NOW + PUSH_INTERVAL / 2) is None, "not too often"
    directive = push_if_changed(training, NOW + PUSH_INTERVAL)
    assert directive is not None
    assert (directive.kind, directive.settings["profiling"]) == (DirectiveKind.SETTINGS, {**DEFAULT, "stride": 32})
    assert "limits" in directive.settings, "all of it goes down together"
    later = NOW + PUSH_INTERVAL
    assert [push_if_changed(training, later + seconds) for seconds in range(50)] == [None] * 50

    wanted = {"rank": 3, "id": "t1"}
    training.performance.trace = wanted
    asked = push_if_changed(training, later + 50)
    assert asked is not None
    assert asked.settings["profiling"] == {**DEFAULT, "stride": 32, "trace": wanted}
    training.performance.trace = None
    taken_back = push_if_changed(training, later + 50 + PUSH_INTERVAL)
    assert taken_back is not None
    assert taken_back.settings["profiling"] == {**DEFAULT, "stride": 32}


def test_a_changed_policy_is_reported_once() -> None:
    training = job()
    apply(training, PolicyChanged(training.policy.changed({"profiling_interval": 4})), NOW + 100)
    assert push(training, "the policy was changed", NOW + 100).settings["profiling"]["interval"] == 4
    assert [push_if_changed(training, NOW + 100 + seconds) for seconds in range(50)] == [None] * 50


def test_a_job_without_a_launcher_has_no_receiver_of_directives() -> None:
    watched = job(launcher=False)
    watched.performance.stride = 32
    assert push_if_changed(watched, NOW + 100) is None


def learned(sections: int, letters: int) -> dict[str, Any]:
    """Settings of a job that has learned the limits of so many sections, with names of so many letters."""
    training = job()
    names = [f"{i:0{letters}d}" for i in range(sections)]
    longest = {name: 100.123456789 + i for i, name in enumerate(names)}
    finished = {name: SectionStatistics(40, 40 * seconds, seconds, seconds) for name, seconds in longest.items()}
    identity = RankIdentity("job", 0, world_size=1, attempt=1, instance="a", started_at=1.0)
    first = dict.fromkeys(names, 1.0)
    apply(training, RankReport(identity, finished=finished, longest=longest, first_durations=first), NOW)
    settings = settings_of(training)
    assert len(settings["limits"]["learned"]) == sections, "this job has taught them all"
    return settings


def test_the_limits_of_as_many_sections_as_a_rank_has_names_for_fit_into_the_slots() -> None:
    assert in_slots(learned(NAME_LIMIT, 40)) < SETTINGS_BYTES
    assert in_slots(learned(200, 15)) < SETTINGS_BYTES


def test_ranks_keep_what_they_had_when_it_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with_room = settings_of(job())
    too_much = learned(256, 40)
    assert in_slots(too_much) > SETTINGS_BYTES
    rank = Slots.create(tmp_path / "0.slots")
    rank.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    node = NodeSlots(tmp_path, 1)
    try:
        node.write_settings(with_room)
        with caplog.at_level(logging.WARNING):
            node.write_settings(too_much)
            node.read()
        assert caplog.text.count("settings not written to local rank 0") == 1, "logged once"
        handed = rank.settings()
        assert handed is not None
        assert handed[1] == json.loads(json.dumps(with_room))
    finally:
        node.close()
        rank.close()


def test_the_first_learned_limits_are_sent_within_a_second_and_later_ones_at_most_every_five() -> None:
    training = job()
    identity = RankIdentity("job", 0, world_size=1, attempt=1, instance="a", started_at=1.0)

    def finished(name: str) -> None:
        runs = SectionStatistics(40, 40.0, 1.0, 1.0)
        apply(training, RankReport(identity, finished={name: runs}, longest={name: 1.0}), NOW)

    finished("step")
    assert push_if_changed(training, NOW + FIRST_PUSH_INTERVAL / 2) is None
    first = push_if_changed(training, NOW + FIRST_PUSH_INTERVAL)
    assert first is not None
    assert set(first.settings["limits"]["learned"]) == {"step"}
    finished("data")
    assert push_if_changed(training, NOW + FIRST_PUSH_INTERVAL + PUSH_INTERVAL / 2) is None
    assert push_if_changed(training, NOW + FIRST_PUSH_INTERVAL + PUSH_INTERVAL) is not None


def test_the_first_limit_of_heartbeats_is_sent_soon() -> None:
    """Launchers only keep it, so no limit of the ranks changes."""
    scene = Scene(sections=False, steps=False, heartbeat_timeout=None)
    assert push_if_changed(scene.job, scene.now) is None
    directives = []
    for _ in range(60):
        scene.tick()
        if (directive := push_if_changed(scene.job, scene.now)) is not None:
            directives.append(directive)
    assert ft_state.read(directives[0].settings["ft_state"]).heartbeat == 5.0
    assert len(directives) == 1
