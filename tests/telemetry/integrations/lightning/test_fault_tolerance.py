"""FaultToleranceCallback in real runs of two ranks: sections, the finished flag, faults, limits that are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankwatch.wire import ft_state
from telemetry.integrations.lightning.conftest import Fit

pytestmark = pytest.mark.timeout(240)

NAME = "FaultToleranceCallback"
PLAIN = {"autoresume": True, "calculate_timeouts": False}


def sections_of(watched: Fit) -> set[str]:
    return {row["section"] for row in watched.summary()["timeouts"] if row["section"]}


def test_sections_progress_and_the_finished_flag(watched: Fit) -> None:
    flag = watched.folder / "flags" / "finished"
    launcher = watched.launch({NAME: PLAIN}, "--steps", "90", flags=("--finished-flag", str(flag)))
    assert launcher.wait() == 0, launcher.said()
    assert {"setup", "step", "evaluation", "checkpointing"} <= sections_of(watched)
    summary = watched.summary()
    assert (summary["state"], summary["iteration"]) == ("finished", 89)
    assert watched.api is not None
    assert all(rank["heartbeat_age"] is not None for rank in watched.api.ranks(watched.job)), "they have beaten"
    assert watched.incidents() == []
    assert flag.exists()
    assert f"Training is complete: created {flag}" in launcher.said()

    again = watched.launch({NAME: PLAIN}, "--steps", "90", flags=("--finished-flag", str(flag)))
    assert again.wait() == 0
    assert "training is complete" in again.said()
    assert watched.lines("begins.*") == []


@pytest.mark.long
def test_an_order_to_stop_leaves_a_checkpoint_and_no_flag(watched: Fit) -> None:
    flag = watched.folder / "finished"
    launcher = watched.launch({NAME: PLAIN}, flags=("--finished-flag", str(flag)))
    watched.begun()
    watched.until_running(2)
    watched.order("save_and_stop", "a person wants it")
    assert launcher.wait() == 0, launcher.said()
    ends = {line.partition("ends with ")[2] for line in watched.lines("ends.*")}
    assert len(ends) == 1, f"the ranks stopped after different steps: {ends}"
    (end,) = ends
    (step,) = watched.checkpoint_steps()
    assert end == f"step {step}, should_stop=True"
    assert "Asked to stop, saving checkpoint and exiting" in launcher.said()
    assert not flag.exists()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rank_killed", "rank_hung"])
def test_a_simulated_fault_is_mended_and_training_completes(watched: Fit, kind: str) -> None:
    flag = watched.folder / "finished"
    fault = {"fault_type": kind, "base_delay": 2.5, "rank_to_fail": 1}
    callbacks = {NAME: {**PLAIN, "simulated_fault_params": fault}}
    flags = ("--finished-flag", str(flag), "--section-timeout", "step=4", "--out-of-section-timeout", "6")
    launcher = watched.launch(callbacks, "--steps", "250", flags=flags)
    assert launcher.wait() == 0, launcher.said()
    assert "injecting a fault on purpose" in launcher.said()
    (resumed,) = {line.partition("step ")[2] for line in watched.lines("begins.*") if "attempt 2" in line}
    assert int(resumed) > 0, "it went on from a checkpoint"
    incident = watched.incident()
    assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
    assert len(watched.lines("ends with step 250.*")) == 2
    assert flag.exists()


@pytest.mark.long
def test_limits_are_kept_at_the_end_of_a_run_that_loaded_and_saved(watched: Fit) -> None:
    folder = watched.folder / "kept"
    callbacks = {NAME: {**PLAIN, "autoresume": False, "calculate_timeouts": True, "exp_dir": str(folder)}}
    file = folder / ft_state.FILE_NAME
    flags = ("--learned-minimum", "2")

    first = watched.launch(callbacks, "--steps", "100", flags=flags)
    assert first.wait() == 0, first.said()
    assert not file.exists(), "it saved, but loaded nothing"

    second = watched.launch(callbacks, "--steps", "250", flags=flags)
    assert second.wait() == 0, second.said()
    assert file.exists(), second.said()
    kept = ft_state.read(json.loads(file.read_text()))
    assert {"step", "checkpointing"} <= set(kept.sections)
    assert all(seconds >= 2 for seconds in kept.sections.values())
    assert "Updated timeouts: " in second.said()

    file.write_text(json.dumps(ft_state.write(ft_state.LearnedTimeouts({"step": 77.0}), {}, None)))
    third = watched.launch(
        callbacks, "--steps", "100000", flags=("--learned-minimum", "2", "--section-timeout", "step=5")
    )
    watched.until("they are in force again", lambda: configured(watched, "step") == 77.0)
    assert "Learned timeouts of earlier jobs are in force: step 77.0 s" in third.said()
    watched.until_running(2)
    watched.order("save_and_stop", "seen")
    assert third.wait() == 0, third.said()


def configured(watched: Fit, section: str) -> Any:
    rows = {row["section"]: row for row in watched.summary().get("timeouts", ())}
    return rows.get(section, {}).get("configured")


@pytest.mark.long
def test_without_a_launcher_training_runs_just_the_same(fit: Fit) -> None:
    flag = fit.folder / "finished"
    process = fit.start(
        fit.command({NAME: PLAIN}, "--steps", "25", "--background"), FAULT_TOL_FINISHED_FLAG_FILE=str(flag)
    )
    assert process.wait() == 0, process.said()
    assert fit.checkpoint_steps() == {20}
    assert flag.exists()
