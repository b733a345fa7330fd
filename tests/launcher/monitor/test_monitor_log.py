"""What of the monitor's log reaches the user's console."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rankwatch.contract import text
from rankwatch_launcher.monitor import monitor_log
from rankwatch_launcher.monitor.monitor_log import MonitorLog
from rankwatch_monitor import cli

PREFIX = "2026-03-01 10:00:00,123 "
PLACE = ("rankwatch", "cli.py", 1)


@pytest.fixture(autouse=True)
def console(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "rankwatch")


def write(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(lines) + end)


def test_warnings_are_shown_once_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "job.log"
    write(path, f"{PREFIX}[rankwatch monitor] WARNING of an earlier run")
    log = MonitorLog(path)
    write(
        path,
        f"{PREFIX}[rankwatch monitor] INFO page, API and OTLP at http://127.0.0.1:1",
        f"{PREFIX}[rankwatch monitor] WARNING wandb is not installed",
        f"{PREFIX}[rankwatch monitor] WARNING job train: Rank 2 is slow",
        "Traceback (most recent call last):",
        f"{PREFIX}[rankwatch monitor] ERROR the disk is full",
    )
    log.show_warnings()
    write(path, f"{PREFIX}[rankwatch monitor] WARNING wandb is not installed")
    log.show_warnings()
    assert caplog.messages == ["monitor: wandb is not installed", "monitor: the disk is full"]


def test_the_monitor_writes_what_is_read_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = text.SafeFormatter(cli.LOG_FORMAT)
    name, file, line = PLACE
    log = MonitorLog(tmp_path / "job.log")
    for level in (logging.INFO, logging.WARNING):
        write(log.path, written.format(logging.LogRecord(name, level, file, line, "level %d", (level,), None)))
    log.show_warnings()
    assert caplog.messages == [f"monitor: level {logging.WARNING}"]


def test_half_a_line_waits_for_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MonitorLog(tmp_path / "job.log")
    write(log.path, f"{PREFIX}[rankwatch monitor] WARNING half", end="")
    log.show_warnings()
    assert caplog.messages == []
    write(log.path, " and half")
    log.show_warnings()
    assert caplog.messages == ["monitor: half and half"]


def test_a_line_without_end_does_not_stop_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MonitorLog(tmp_path / "job.log")
    write(log.path, "x" * (monitor_log._CHUNK + 7))
    write(log.path, f"{PREFIX}[rankwatch monitor] WARNING after it")
    log.show_warnings()
    log.show_warnings()
    assert caplog.messages == ["monitor: after it"]


def test_the_number_of_warnings_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MonitorLog(tmp_path / "job.log")
    write(log.path, *(f"{PREFIX}[rankwatch monitor] WARNING number {i}" for i in range(100)))
    log.show_warnings()
    assert len(caplog.messages) == monitor_log.SHOWN


def test_the_last_line_is_of_this_run(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    write(path, "an earlier run's")
    log = MonitorLog(path)
    assert log.last_line() == ""
    write(path, "this run's")
    assert log.last_line() == "this run's"


def test_a_large_log_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"x" * (monitor_log.LARGEST + 1))
    MonitorLog(path)
    assert not path.exists()
