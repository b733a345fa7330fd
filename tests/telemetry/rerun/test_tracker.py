"""The file of rejected results: what is written, and which steps it advises to leave out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rankwatch.rerun import RerunStateMachine
from rankwatch.rerun.device import Device
from rankwatch.rerun.tracker import LINE, RejectionTracker
from rankwatch.rerun.verdicts import RerunValidationStatus as Status

GPU = Device("node7", "GPU-5e1f")


def test_a_line_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    tracker = RejectionTracker(tmp_path / "rejected")
    tracker.append(Status.INITIAL_RUN, 3, 120, GPU, "nan", "the loss\nis NaN")
    line = (tmp_path / "rejected").read_text()
    found = LINE.match(line)
    assert found is not None
    assert found.groups() == ("42", "3", "120", "initial_run")
    assert "node=node7 device=GPU-5e1f" in line
    assert line.endswith("result=nan message='the loss is NaN'\n")


@pytest.mark.parametrize(
    ("notes", "skipped"),
    [
        ([("1", 0, 5, Status.RERUN_DISABLED)] * 2, [5]),
        ([("1", 0, 5, Status.FIRST_RERUN_REPRODUCIBLE), ("2", 0, 5, Status.SECOND_RERUN_REPRODUCIBLE)], [5]),
        ([("1", 0, 5, Status.RERUN_DISABLED)], []),
        ([("1", 0, 5, Status.INITIAL_RUN), ("1", 0, 5, Status.FIRST_RERUN_NOT_REPRODUCIBLE)], []),
        ([("1", 0, 5, Status.RERUN_DISABLED), ("2", 1, 5, Status.RERUN_DISABLED)], []),
        ([("1", rank, 5, Status.RERUN_DISABLED) for rank in (0, 0, 1)], []),
    ],
    ids=["twice", "both re-runs", "once", "a device that errs", "other ranks", "several ranks of a job"],
)
def test_steps_to_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[tuple[str, int, int, Status]], skipped: list[int]
) -> None:
    for job, rank, step, status in notes:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        RejectionTracker(tmp_path / "rejected").append(status, rank, step, GPU, "nan", "NaN")
    with (tmp_path / "rejected").open("a") as file:
        file.write("some other line\n")
    assert RerunStateMachine.get_skipped_iterations_from_tracker_file(str(tmp_path / "rejected")) == skipped


def test_a_line_of_megatron_is_understood(tmp_path: Path) -> None:
    line = (
        "ts=2025-07-01 10:00:00.1 node=n1 device=3 jobID=77 rank=9 iteration=31 "
        "status=RerunValidationStatus.RERUN_DISABLED result=tensor(nan, device='cuda:3') message='found NaN'\n"
    )
    (tmp_path / "rejected").write_text(line * 2)
    assert RerunStateMachine.get_skipped_iterations_from_tracker_file(str(tmp_path / "rejected")) == [31]


def test_files_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"rejected results cannot be appended to .*missing"):
        RerunStateMachine(result_rejected_tracker_filename=str(tmp_path / "missing" / "file"))
    with caplog.at_level(logging.WARNING):
        assert RerunStateMachine.get_skipped_iterations_from_tracker_file(str(tmp_path / "none")) == []
    assert "cannot be read" in caplog.text
    tracker = RejectionTracker(tmp_path / "rejected")
    (tmp_path / "rejected").unlink()
    (tmp_path / "rejected").mkdir()
    tracker.append(Status.INITIAL_RUN, 0, 0, GPU, "nan", "NaN")
    assert "cannot be appended" in caplog.text
