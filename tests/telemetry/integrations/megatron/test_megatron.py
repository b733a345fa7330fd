from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankwatch
from rankwatch.contract import env, ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.faults import inject
from rankwatch.integrations import megatron
from rankwatch.integrations.megatron import hooks
from rankwatch.integrations.megatron.state import FaultToleranceState
from rankwatch.integrations.nvrx.timeouts import SectionTimeouts
from rankwatch.integrations.shared import state_file
from rankwatch.recording import sections, shared_slots
from rankwatch.recording.shared_slots import Reading
from support.waiting import wait_for


def bridge_state(**train: Any) -> SimpleNamespace:
    kept = SimpleNamespace(**vars(FaultToleranceState()))
    return SimpleNamespace(rank_monitor_client=None, fault_tolerance_state=kept, train_state=SimpleNamespace(**train))


def bridge_config(save: Path | None, **ft: Any) -> SimpleNamespace:
    folder = None if save is None else str(save)
    return SimpleNamespace(
        checkpoint=SimpleNamespace(save=folder, async_save=False), ft=SimpleNamespace(calc_ft_timeouts=True, **ft)
    )


def reading() -> Reading:
    recorder = sections.attached()
    assert recorder is not None
    found = shared_slots.read(recorder.slots)
    assert found is not None
    return found


def opened() -> set[str]:
    return set(reading().open_sections)


@pytest.fixture(params=["bridge", "alone"])
def state(request: pytest.FixtureRequest) -> Iterator[Any]:
    """What is passed as the global state: an object like Bridge's, or nothing."""
    made = bridge_state(step=0) if request.param == "bridge" else None
    yield made
    hooks.shutdown(made)


def test_all_hooks_do_nothing_before_setup(state: Any) -> None:
    for hook in (
        hooks.on_training_step_start,
        hooks.on_training_step_end,
        hooks.on_eval_step_start,
        hooks.on_eval_step_end,
        hooks.on_checkpointing_start,
        hooks.shutdown,
    ):
        hook(state)
    hooks.on_checkpointing_end(False, state)
    hooks.on_checkpoint_loaded(False, state)
    assert not rankwatch.is_initialized()


@pytest.mark.parametrize("config", [None, bridge_config(None)])
def test_the_folder_for_checkpoints_must_be_set(config: Any, state: Any) -> None:
    with pytest.raises(ValueError, match="checkpoint folder must be set"):
        hooks.setup(config, state)
    assert not rankwatch.is_initialized()


def test_straggler_settings_that_make_no_sense_are_refused_before_anything_begins(state: Any, tmp_path: Path) -> None:
    straggler = megatron.NVRxStragglerDetectionConfig(enabled=True, gpu_relative_perf_threshold=7.0)
    config = SimpleNamespace(nvrx_straggler=straggler)
    with pytest.raises(ValueError, match="gpu_relative_perf_threshold must be a score"):
        hooks.setup(config, state, checkpoint_dir=tmp_path)
    assert not rankwatch.is_initialized()


def test_switched_off_all_hooks_do_nothing(state: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_DISABLED", "1")
    straggler = megatron.NVRxStragglerDetectionConfig(enabled=True, report_time_interval=0.01)
    hooks.setup(SimpleNamespace(nvrx_straggler=straggler), state, checkpoint_dir=tmp_path, calc_ft_timeouts=True)
    for _ in range(16):
        hooks.on_training_step_start(state)
        hooks.on_training_step_end(state)
    hooks.on_checkpointing_start(state)
    hooks.on_checkpointing_end(False, state)
    assert not rankwatch.is_initialized()
    assert not [thread for thread in threading.enumerate() if thread.name == "rankwatch-scores"]
    hooks.shutdown(state)


def test_a_checkpoint_folder_that_hangs_delays_setup_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_file, "FILE_SECONDS", 0.05)
    go_on = threading.Event()
    monkeypatch.setattr(state_file, "read_file", lambda *_: go_on.wait(60))
    try:
        hooks.setup(checkpoint_dir=tmp_path)
        assert opened() == {"setup"}
        assert "takes longer than 0.05 s" in caplog.text
    finally:
        go_on.set()
        hooks.shutdown()


def test_the_sections_of_a_run(state: Any, tmp_path: Path) -> None:
    hooks.setup(bridge_config(tmp_path / "made"), state)
    assert (tmp_path / "made").is_dir()
    assert opened() == {"setup"}
    expected = ["warmup", "step", "step"]
    for number, section in enumerate(expected):
        hooks.on_training_step_start(state, iteration=10 + number)
        assert opened() == {section}
        hooks.on_training_step_end(state)
        assert opened() == set()
        assert reading().iteration == 10 + number, "a warm-up iteration counts too"
    for _ in range(2):
        for section in ("warmup", "step"):
            hooks.on_eval_step_start(state)
            assert opened() == {section}
            hooks.on_eval_step_end(state)
        hooks.on_training_step_start(state, iteration=13)
        hooks.on_training_step_end(state)
    assert reading().iteration == 13, "evaluation counts no iteration"
    hooks.on_checkpointing_start(state)
    assert opened() == {"checkpointing"}
    hooks.on_checkpointing_end(True, state)
    assert opened() == set()
    hooks.shutdown(state)
    assert not rankwatch.is_initialized()


def test_evaluation_may_come_first(state: Any, tmp_path: Path) -> None:
    hooks.setup(checkpoint_dir=tmp_path, global_state=state)
    hooks.on_eval_step_start(state)
    assert opened() == {"warmup"}


def test_the_iteration_is_that_of_the_global_state(tmp_path: Path) -> None:
    state = bridge_state(step=500)
    hooks.setup(bridge_config(tmp_path), state)
    assert state.rank_monitor_client.is_initialized
    hooks.on_training_step_start(state)
    hooks.on_training_step_end(state)
    assert reading().iteration == 500
    assert state.fault_tolerance_state.seen_tr_iters_cnt == 1
    hooks.shutdown(state)
    assert state.rank_monitor_client is None


def test_setup_again_begins_again(state: Any, tmp_path: Path) -> None:
    hooks.setup(checkpoint_dir=tmp_path, global_state=state)
    hooks.on_training_step_start(state)
    hooks.setup(checkpoint_dir=tmp_path, global_state=state)
    assert opened() == {"setup"}
    hooks.on_training_step_start(state)
    assert opened() == {"warmup"}


def test_timeouts_are_updated_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots_dir = tmp_path / "slots"
    slots_dir.mkdir()
    monkeypatch.setenv(env.SLOTS_DIR, str(slots_dir))
    learned = LearnedTimeouts({"setup": 60.0, "step": 10.0, "checkpointing": 40.0}, 20.0)
    (slots_dir / env.LEARNED_FILE).write_text(json.dumps(ft_state.write(learned, {}, None)))
    state, file = bridge_state(step=0), tmp_path / "save" / "ft_state.json"

    def kept() -> LearnedTimeouts:
        return ft_state.read(json.loads(file.read_text())) if file.exists() else LearnedTimeouts()

    def save(finalization: bool) -> None:
        hooks.on_checkpointing_start(state)
        hooks.on_checkpointing_end(is_async_finalization=finalization, global_state=state)

    hooks.setup(bridge_config(tmp_path / "save"), state)
    hooks.on_checkpoint_loaded(is_local_chkpt=True, global_state=state)
    for _ in range(16):
        hooks.on_training_step_start(state)
        hooks.on_training_step_end(state)
    save(finalization=True)
    assert not file.exists()
    save(finalization=False)
    wait_for(lambda: set(kept().sections) == {"step", "checkpointing"}, "what was seen so far is kept")
    hooks.on_checkpoint_loaded(is_local_chkpt=False, global_state=state)
    hooks.shutdown(state)
    assert kept() == learned, "at the end all of it"

    hooks.setup(bridge_config(tmp_path / "save"), state)
    expected = SectionTimeouts(learned.sections, 20.0, set(learned.sections), is_out_of_section_calculated=True)
    assert state.rank_monitor_client.section_timeouts == expected
    hooks.shutdown(state)


def test_timeouts_are_called_updated_only_when_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    slots_dir = tmp_path / "slots"
    slots_dir.mkdir()
    monkeypatch.setenv(env.SLOTS_DIR, str(slots_dir))

    def save() -> list[str]:
        caplog.clear()
        hooks.on_checkpointing_start()
        hooks.on_checkpointing_end(False)
        return [line for line in caplog.messages if line.startswith(("timeouts were updated", "the monitor has not"))]

    hooks.setup(checkpoint_dir=tmp_path / "save", calc_ft_timeouts=True)
    assert save() == ["the monitor has not learned limits yet of: checkpointing"]
    learned = ft_state.write(LearnedTimeouts({"checkpointing": 40.0}), {}, None)
    (slots_dir / env.LEARNED_FILE).write_text(json.dumps(learned))
    (reported,) = save()
    assert reported.startswith("timeouts were updated for checkpointing: ")
    hooks.shutdown()


def test_nothing_is_calculated_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks.setup(checkpoint_dir=tmp_path, calc_ft_timeouts=False)
    hooks.on_checkpointing_start()
    hooks.on_checkpointing_end(False)
    hooks.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_a_simulated_fault_is_armed_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    armed = []
    monkeypatch.setattr(inject, "simulate", lambda kind, **more: armed.append((kind, more)))
    hooks.maybe_setup_simulated_fault(SimpleNamespace(simulate_fault=False))
    hooks.maybe_setup_simulated_fault()
    assert armed == []
    config = SimpleNamespace(
        simulate_fault=True, simulated_fault_type="rank_hung", simulated_fault_rank=3, simulated_fault_base_delay=5
    )
    hooks.maybe_setup_simulated_fault(config)
    hooks.maybe_setup_simulated_fault(simulate_fault=True)
    assert armed == [("rank_hung", {"rank": 3, "delay": 5.0}), ("random", {"rank": "random", "delay": 0.0})]
    with pytest.raises(ValueError, match="rank_hung, rank_killed or random, not 'fire'"):
        hooks.maybe_setup_simulated_fault(config, simulated_fault_type="fire")
