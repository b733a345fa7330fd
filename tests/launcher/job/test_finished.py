"""The finished flag: when it is made, what is in it, and that it is left alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rankwatch_launcher.cli.options import Options
from rankwatch_launcher.job import finished
from rankwatch_launcher.job.outcome import FAILED, FINISHED, PREEMPTED, STOPPED, Outcome

DONE = Outcome(FINISHED, 0, job_id="j1", iteration=999, complete=True)


def test_it_says_which_job_was_complete_when_and_at_which_step(tmp_path: Path) -> None:
    flag = tmp_path / "checkpoints" / "finished"
    assert finished.note(DONE, Options(finished_flag=str(flag)))
    assert finished.exists(str(flag))
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
    assert finished.note(outcome, Options(finished_flag=str(flag), complete_on_success=on_success)) is made
    assert flag.exists() is made


def test_one_that_a_script_made_is_left_as_it_is(tmp_path: Path) -> None:
    flag = tmp_path / "finished"
    flag.touch()
    assert not finished.note(DONE, Options(finished_flag=str(flag)))
    assert flag.read_bytes() == b""


def test_a_job_without_one_needs_none() -> None:
    assert not finished.note(DONE, Options())
    assert not finished.exists("")


def test_one_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.ERROR, logger="rankwatch"):
        assert not finished.note(DONE, Options(finished_flag=str(tmp_path / "file" / "finished")))
    assert "a retry will train again" in caplog.text


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    nemo = {"FAULT_TOL_FINISHED_FLAG_FILE": "/shared/a"}
    assert finished.flag_file("", {}) == ""
    assert finished.flag_file("", nemo) == "/shared/a"
    assert finished.flag_file("", {**nemo, "RANKWATCH_FINISHED_FLAG": "/shared/b"}) == "/shared/b"
    assert finished.flag_file("c", nemo) == str(tmp_path / "c"), "ranks may work in another folder"
