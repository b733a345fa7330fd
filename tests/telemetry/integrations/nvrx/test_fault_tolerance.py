from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.contract import env, ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.contract.limits import RankLimits
from rankwatch.integrations.nvrx import fault_tolerance
from rankwatch.integrations.nvrx.fault_tolerance import (
    HeartbeatTimeouts,
    RankMonitorClient,
    SectionTimeouts,
    WorkloadAction,
    WorkloadControlRequest,
)
from rankwatch.recording import shared_slots
from rankwatch.recording.shared_slots import Reading, Slots
from support.waiting import wait_for


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The slots folder of a launcher that reads nothing, with this process as rank 0 of 2."""
    made = tmp_path / "slots"
    made.mkdir()
    monkeypatch.setenv(env.SLOTS_DIR, str(made))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(fault_tolerance, "POLL_INTERVAL", 0.01)
    return made


@pytest.fixture
def client(folder: Path) -> Iterator[RankMonitorClient]:
    made = RankMonitorClient()
    made.init_workload_monitoring()
    yield made
    made.shutdown_workload_monitoring()


def reading(folder: Path) -> Reading:
    found = shared_slots.read(Slots.open(folder / "0.slots"))
    assert found is not None
    return found


def requests(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """All that was stated to the launcher."""
    files = sorted(folder.glob(f"{rank}.request.*"), key=lambda file: int(file.suffix[1:]))
    return [json.loads(file.read_text()) for file in files]


def teach(folder: Path, sections: dict[str, float], outside: float | None = None) -> None:
    """The launcher shows what the monitor has learned."""
    content = ft_state.write(LearnedTimeouts(sections, outside), {}, None)
    unfinished = folder / "unfinished"
    unfinished.write_text(json.dumps(content))
    unfinished.replace(folder / env.LEARNED_FILE)


def test_sections_heartbeats_and_steps_are_recorded(client: RankMonitorClient, folder: Path) -> None:
    client.send_heartbeat()
    client.start_section("setup")
    client.start_section("anything at all")
    assert set(reading(folder).open_sections) == {"setup", "anything at all"}
    client.end_all_sections()
    client.start_section("step")
    client.end_section("step")
    seen = reading(folder)
    assert (set(seen.open_sections), seen.beats, seen.iteration) == (set(), 1, 0)


def test_the_session_ends_with_the_client_that_began_it(folder: Path) -> None:
    client = RankMonitorClient()
    assert (client.is_initialized, client.section_timeouts, client.hb_timeouts) == (False, None, None)
    client.init_workload_monitoring(num_warmup_iters=5)
    assert (client.is_initialized, rankwatch.is_initialized(), fault_tolerance.counts_steps()) == (True, True, True)
    client.start_section("step")
    client.shutdown_workload_monitoring()
    assert (client.is_initialized, rankwatch.is_initialized(), fault_tolerance.counts_steps()) == (False, False, False)
    assert reading(folder).iteration is None, "the step was broken off"
    client.init_workload_monitoring()
    assert rankwatch.is_initialized(), "and it may begin again"
    client.shutdown_workload_monitoring()


def test_a_session_of_the_script_goes_on(folder: Path) -> None:
    rankwatch.init()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()
    assert rankwatch.is_initialized()


def test_what_was_configured_is_shown(client: RankMonitorClient, folder: Path) -> None:
    limits = RankLimits(sections={"setup": 600.0, "step": 180.0}, out_of_section=300.0, heartbeat=200.0)
    Slots.open(folder / "0.slots").write_settings(limits.to_settings())
    assert client.section_timeouts == SectionTimeouts({"setup": 600.0, "step": 180.0}, 300.0)
    assert client.cfg is not None
    assert set(client.cfg.rank_section_timeouts) == {"setup", "step"}


def test_calculated_limits_are_put_in_force_and_kept(client: RankMonitorClient, folder: Path) -> None:
    teach(folder, {"setup": 60.0, "step": 10.0}, 20.0)
    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    assert [(each["action"], each["policy"]) for each in requests(folder)] == [
        ("change_policy", {"section_timeouts": {"step": 10.0}})
    ]
    assert client.section_timeouts == SectionTimeouts({"step": 10.0}, None, {"step"})
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    assert len(requests(folder)) == 1, "there is nothing new"
    assert client.calculate_and_set_section_timeouts()
    kept = ft_state.read(json.loads(json.dumps(client.state_dict())))
    assert kept == LearnedTimeouts({"setup": 60.0, "step": 10.0}, 20.0)
    assert requests(folder)[-1]["policy"]["out_of_section_timeout"] == 20.0


def test_only_rank_0_has_them_put_in_force_and_speaks_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "RankMonitorClient")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert not client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    teach(folder, {"step": 10.0})
    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    assert client.section_timeouts is not None
    assert client.section_timeouts.section == {"step": 10.0}
    assert requests(folder, 1) == []
    assert caplog.messages == [], "a line of each of a thousand ranks would be a thousand lines"
    client.shutdown_workload_monitoring()


def test_what_comes_late_is_taken_when_it_comes(client: RankMonitorClient, folder: Path) -> None:
    assert not client.calculate_and_set_section_timeouts(["step", "checkpointing"], calc_out_of_section=False)
    assert requests(folder) == []
    teach(folder, {"step": 10.0, "data": 3.0})
    wait_for(lambda: len(requests(folder)) == 1, "the first is put in force")
    teach(folder, {"step": 10.0, "checkpointing": 40.0, "data": 3.0})
    wait_for(lambda: len(requests(folder)) == 2, "the second too")
    assert requests(folder)[-1]["policy"] == {"section_timeouts": {"step": 10.0, "checkpointing": 40.0}}
    wait_for(lambda: client._pending_stopped is None, "nothing more is looked for")


def test_a_state_is_loaded_before_or_after_init(folder: Path) -> None:
    state = ft_state.write(LearnedTimeouts({"step": 42.0}, None, 900.0, 120.0), {"setup": 600.0}, None)
    for early in (True, False):
        client = RankMonitorClient()
        if early:
            client.load_state_dict(state)
        client.init_workload_monitoring()
        if not early:
            client.load_state_dict(state)
        assert client.section_timeouts is not None
        assert client.section_timeouts.section == {"step": 42.0}, "what was only configured then is not taken"
        assert client.hb_timeouts is not None
        assert (client.hb_timeouts.initial, client.hb_timeouts.subsequent) == (900.0, 120.0)
        assert ft_state.read(client.state_dict()) == LearnedTimeouts({"step": 42.0}, None, 900.0, 120.0)
        printed = [each["policy"] for each in requests(folder)]
        assert {"section_timeouts": {"step": 42.0}} in printed
        assert {"initial_heartbeat_timeout": 900.0, "heartbeat_timeout": 120.0} in printed
        client.shutdown_workload_monitoring()


def test_a_state_that_is_none_is_reported(client: RankMonitorClient, caplog: pytest.LogCaptureFixture) -> None:
    client.load_state_dict({"something": "else"})
    assert "the state cannot be used" in caplog.text
    assert client.state_dict() == {"current_timeouts": {}}


def test_heartbeat_limits_that_are_learned_later_are_applied_then(client: RankMonitorClient, folder: Path) -> None:
    assert client.calculate_and_set_hb_timeouts() is False
    (folder / env.LEARNED_FILE).write_text(json.dumps(ft_state.write(LearnedTimeouts({}, None, 30.0, 10.0), {}, None)))
    wanted = {"initial_heartbeat_timeout": 30.0, "heartbeat_timeout": 10.0}
    wait_for(lambda: [each["policy"] for each in requests(folder)] == [wanted], "they are applied")
    assert client.hb_timeouts == HeartbeatTimeouts(30.0, 10.0, were_calculated=True)


def test_heartbeat_limits_of_an_earlier_run_are_applied_at_once(client: RankMonitorClient, folder: Path) -> None:
    assert client.calculate_and_set_hb_timeouts(skip_if_not_ready=True) is False
    content = ft_state.write(LearnedTimeouts({}, None, 900.0, 120.0), {}, None)
    (folder / env.LEARNED_FILE).write_text(json.dumps(content))
    assert client.calculate_and_set_hb_timeouts()
    assert requests(folder)[-1]["policy"] == {"initial_heartbeat_timeout": 900.0, "heartbeat_timeout": 120.0}


@pytest.mark.parametrize(
    ("action", "asked"),
    [
        (WorkloadAction.ExcludeThisNode, ["exclude_node"]),
        (WorkloadAction.ShutdownWorkload, ["stop_job"]),
        (WorkloadAction.Continue, []),
    ],
)
def test_requests_reach_the_launcher(
    client: RankMonitorClient, folder: Path, action: WorkloadAction, asked: list[str]
) -> None:
    client.send_workload_control_request(WorkloadControlRequest(action, "the device is broken"))
    assert [each["action"] for each in requests(folder)] == asked
    assert all(each["reason"] == "the device is broken" for each in requests(folder))


def test_misuse_is_reported_and_raises_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = RankMonitorClient()
    client.start_section("step")
    client.end_all_sections()
    client.send_heartbeat()
    assert not client.calculate_and_set_section_timeouts()
    assert [each for each in caplog.messages if "init_workload_monitoring() was not called" in each]
    client.init_workload_monitoring()
    client.init_workload_monitoring()
    assert "was called twice" in caplog.text
    client.shutdown_workload_monitoring()


def test_a_client_that_was_forgotten_counts_no_steps(folder: Path) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    del client
    assert not fault_tolerance.counts_steps()


def test_variables_that_make_no_sense_end_no_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("LOCAL_RANK", "")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.rank_info is not None
    assert (client.rank_info.global_rank, client.rank_info.local_rank) == (0, -1)
    client.shutdown_workload_monitoring()


def test_switched_off_nothing_is_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_DISABLED", "1")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("step")
    client.end_section("step")
    assert not client.calculate_and_set_section_timeouts(["step"])
    client.shutdown_workload_monitoring()
    assert list(folder.iterdir()) == []


def test_without_a_launcher_everything_is_quietly_of_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "RankMonitorClient")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("setup")
    client.end_section("setup")
    assert not client.calculate_and_set_section_timeouts(["setup"])
    assert client.state_dict() == {"current_timeouts": {}}
    client.shutdown_workload_monitoring()
    assert caplog.messages == []


def test_a_client_that_is_initialised_again_takes_limits_that_are_learned_late(folder: Path) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert not client.calculate_and_set_section_timeouts(["step"])
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    try:
        assert not client.calculate_and_set_section_timeouts(["step"])
        teach(folder, {"step": 12.5})
        wait_for(lambda: (client.section_timeouts or SectionTimeouts()).section.get("step") == 12.5, "it is applied")
    finally:
        client.shutdown_workload_monitoring()
