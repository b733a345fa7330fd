"""FaultToleranceCallback in real runs of two ranks: sections, the finished flag, faults, limits that are kept."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract import env, ft_state
from telemetry.integrations.lightning.conftest import DETECTED, Fit, pid_of, stopped_together

pytestmark = pytest.mark.timeout(240)

NAME = "FaultToleranceCallback"
PLAIN = {"autoresume": True, "calculate_timeouts": False}


def sections_of(watched: Fit) -> set[str]:
    return {row["section"] for row in watched.summary()["timeouts"] if row["section"]}


@pytest.mark.long
def test_sections_progress_and_the_finished_flag(watched: Fit) -> None:
    flag = watched.folder / "flags" / "finished"
    launcher = watched.launch({NAME: PLAIN}, "--steps", "90", flags=("--finished-flag", str(flag)))
    assert launcher.wait() == 0, launcher.printed()
    assert {"setup", "step", "evaluation", "checkpointing"} <= sections_of(watched)
    summary = watched.summary()
    assert (summary["state"], summary["iteration"]) == ("finished", 89)
    assert watched.api is not None
    assert all(rank["heartbeat_age"] is not None for rank in watched.api.ranks(watched.job)), "they have beaten"
    assert watched.incidents() == []
    assert flag.exists()
    assert f"Training is complete: created {flag}" in launcher.printed()

    again = watched.launch({NAME: PLAIN}, "--steps", "90", flags=("--finished-flag", str(flag)))
    assert again.wait() == 0
    assert "training is complete" in again.printed()
    assert watched.lines("begins.*") == []


@pytest.mark.long
def test_a_hang_and_a_crash_are_mended_and_training_completes(watched: Fit) -> None:
    """One fault of the callback's, and one of the launcher's in the attempt after it."""
    flag = watched.folder / "finished"
    fault = {"fault_type": "rank_hung", "base_delay": 3.0, "rank_to_fail": 1}
    callbacks = {NAME: {**PLAIN, "simulated_fault_params": fault}}
    limits = ("--section-timeout", "step=4", "--out-of-section-timeout", "6")
    crash = ("--inject", "kind=kill,rank=1,attempt=2,delay=0.5")
    training = ("--steps", "300", "--save-every", "2")
    launcher = watched.launch(callbacks, *training, flags=("--finished-flag", str(flag), *limits, *crash))
    assert launcher.wait() == 0, launcher.printed()
    assert launcher.printed().count("injecting a fault on purpose") == 2
    begins = [line.partition("step ")[2] for line in watched.lines("begins.*") if "attempt 3" in line]
    assert len(begins) == 2
    assert len(set(begins)) == 1
    assert int(begins[0]) > 0, "it went on from a checkpoint"
    assert [[culprit["rank"] for culprit in each["culprits"]] for each in watched.incidents()] == [[1], [1]]
    assert len(watched.lines("ends with step 300.*")) == 2
    assert flag.exists()


@pytest.mark.long
def test_a_chain_of_jobs(watched: Fit) -> None:
    """Preempted; resumed, and preempted again; resumed with the limits of before, and stopped by a person's order."""
    folder = watched.folder / "kept"
    parameters = {"autoresume": True, "calculate_timeouts": True, "exp_dir": str(folder)}
    file = folder / ft_state.FILE_NAME
    flag = watched.folder / "finished"
    flags = ("--learned-minimum", "2", "--finished-flag", str(flag))

    first = watched.launch({NAME: parameters, "PreemptionCallback": {}}, flags=flags)
    watched.begun()
    watched.until_running(2)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 0, first.printed()
    assert DETECTED in first.printed()
    step = stopped_together(watched)
    assert not file.exists(), "it saved, but loaded nothing"

    second = watched.launch({NAME: parameters, "PreemptionCallback": {}}, flags=flags)
    wanted = {"setup", "step", "checkpointing"}
    watched.begun()
    watched.until_running(2)
    watched.until("all of it is learned", lambda: wanted <= learned(watched).keys())
    os.kill(pid_of(watched, 1), signal.SIGTERM)
    assert second.wait() == 0, second.printed()
    assert {line.partition("begins with ")[2] for line in watched.lines("begins.*")} == {f"step {step}"}
    assert "Received signal 15, initiating graceful stop" in second.printed()
    assert DETECTED in second.printed()
    assert "preempted" in second.printed()
    assert stopped_together(watched) > step
    kept = ft_state.read(json.loads(file.read_text())).sections
    assert wanted <= kept.keys()
    assert all(seconds >= 2 for seconds in kept.values())
    assert "Updated FT timeouts. New values: " in second.printed()

    file.write_text(json.dumps(ft_state.write(ft_state.LearnedTimeouts({"step": 77.0}), {}, None)))
    third = watched.launch({NAME: parameters, "PreemptionCallback": {}}, flags=(*flags, "--section-timeout", "step=5"))
    watched.until("they are in force again", lambda: loaded(watched, "step") == 77.0)
    assert "Learned timeouts of earlier jobs are in force: step 77.0 s" in third.printed()
    watched.until_running(2)
    watched.order("save_and_stop", "a person wants it")
    assert third.wait() == 0, third.printed()
    assert "Asked to stop, saving checkpoint and exiting" in third.printed()
    assert DETECTED not in third.printed(), "no signal has come"
    stopped_together(watched)
    assert not flag.exists(), "none of them is complete"


@pytest.mark.long
@pytest.mark.parametrize("action", ["ShutdownWorkload", "Continue"])
def test_the_policy_for_exceptions_decides(watched: Fit, action: str) -> None:
    flag = watched.folder / "finished"
    parameters = {"FaultToleranceSectionsCallback": PLAIN}
    flags = ("--finished-flag", str(flag), "--max-restarts", "1")
    launcher = watched.launch(parameters, "--steps", "90", "--on-exception", action, flags=flags)
    launcher.wait()
    attempts = {line for line in watched.lines("begins.*") if "rank 1" in line}
    if action == "ShutdownWorkload":
        assert len(attempts) == 1, launcher.printed()
        assert flag.exists()
        assert "ArithmeticError: a loss that no restart cures" in launcher.printed()
        assert watched.summary()["state"] == "stopped"
    else:
        assert len(attempts) == 2, launcher.printed()
        assert not flag.exists()


def learned(watched: Fit) -> dict[str, float]:
    """The limits that the launcher has sent to its ranks."""
    (slots,) = re.findall(f"\0{env.SLOTS_DIR}=([^\0]+)", Path(f"/proc/{pid_of(watched, 1)}/environ").read_text())
    file = Path(slots) / env.LEARNED_FILE
    return dict(ft_state.read(json.loads(file.read_text())).sections) if file.exists() else {}


def loaded(watched: Fit, section: str) -> Any:
    rows = {row["section"]: row for row in watched.summary().get("timeouts", ())}
    return rows.get(section, {}).get("loaded")


@pytest.mark.long
def test_without_a_launcher_training_runs_just_the_same(fit: Fit) -> None:
    flag = fit.folder / "finished"
    fault = {"fault_type": "rank_killed", "base_delay": 0.6}
    process = fit.start(fit.command({NAME: {**PLAIN, "simulated_fault_params": fault}}))
    assert process.wait() == -signal.SIGKILL, process.printed()
    process = fit.start(
        fit.command({NAME: PLAIN}, "--steps", "55", "--background"), FAULT_TOL_FINISHED_FLAG_FILE=str(flag)
    )
    assert process.wait() == 0, process.printed()
    assert fit.checkpoint_steps() == {50}
    assert flag.exists()
