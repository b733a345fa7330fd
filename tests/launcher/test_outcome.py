"""The finished flag: when it is made, what is in it, and that it is left alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rankwatch_launcher.outcome import (
    FAILED,
    FINISHED,
    PREEMPTED,
    STOPPED,
    Outcome,
    finished_flag_path,
    training_complete,
    write_finished_flag,
)

DONE = Outcome(FINISHED, 0, job_id="j1", iteration=999, complete=True)


def test_it_states_which_job_was_complete_when_and_at_which_step(tmp_path: Path) -> None:
    flag = tmp_path / "checkpoints" / "finished"
    assert write_finished_flag(DONE, str(flag))
    assert training_complete(str(flag))
    body = json.loads(flag.read_text())
    assert (body["job_id"], body["iteration"]) == ("j1", 999)
    assert body["completed_at"].endswith("+00:00")
    assert list(flag.parent.iterdir()) == [flag], "nothing half written is left"


@pytest.mark.parametrize(
    ("outcome", "on_success", "made"),
    [
        (Outcome(FINISHED, 0), False, False),
        (Outcome(FINISHED, 0), True, True),
        (Outcome(STOPPED, 0), True, False),
        (Outcome(PREEMPTED, 0), True, False),
        (Outcome(PREEMPTED, 0, complete=True), False, True),
        (Outcome(STOPPED, 1, complete=True), True, False),
        (Outcome(FAILED, 1, complete=True), True, False),
    ],
)
def test_only_a_job_that_is_complete_and_ended_well_leaves_it(
    tmp_path: Path, outcome: Outcome, on_success: bool, made: bool
) -> None:
    flag = tmp_path / "finished"
    assert write_finished_flag(outcome, str(flag), complete_on_success=on_success) is made
    assert flag.exists() is made


def test_one_that_a_script_made_is_left_as_it_is(tmp_path: Path) -> None:
    flag = tmp_path / "finished"
    flag.touch()
    assert not write_finished_flag(DONE, str(flag))
    assert flag.read_bytes() == b""


def test_a_job_without_one_needs_none() -> None:
    assert not write_finished_flag(DONE, "")
    assert not training_complete("")


def test_one_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.ERROR, logger="rankwatch"):
        assert not write_finished_flag(DONE, str(tmp_path / "file" / "finished"))
    assert "a retry will train again" in caplog.text


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    nemo = {"FAULT_TOL_FINISHED_FLAG_FILE": "/shared/a"}
    assert finished_flag_path("", {}) == ""
    assert finished_flag_path("", nemo) == "/shared/a"
    assert finished_flag_path("", {**nemo, "RANKWATCH_FINISHED_FLAG": "/shared/b"}) == "/shared/b"
    assert finished_flag_path("c", nemo) == str(tmp_path / "c"), "ranks may work in another folder"
