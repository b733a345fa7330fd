"""A command typed in a folder that others may write to runs no Python of theirs."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch.cli import past
from rankwatch.cli.doctor import package_checks
from rankwatch.contract import interpreter
from rankwatch.inprocess.store import StoreProcess
from rankwatch_launcher.monitor.process import LocalMonitor
from rankwatch_monitor.diagnose import nodes
from support.ports import free_port

PLANTED = "import os\nopen({mark!r}, 'w').close()\nos._exit(3)\n"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has packages of another user, which leave this file when one is imported."""
    found = tmp_path / "ran"
    for name in ("rankwatch", "rankwatch_monitor", "torch", "json", "subprocess", "tempfile"):
        package = tmp_path / "shared" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(PLANTED.format(mark=str(found)))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(interpreter, "archive", None)
    monkeypatch.chdir(tmp_path / "shared")
    return found


def the_monitor_of_a_job(_: Path) -> None:
    monitor = LocalMonitor("job")
    monitor.start()
    monitor.wait_ready()
    monitor.close()


def the_reader_of_a_record(folder: Path) -> None:
    with pytest.raises(past.MonitorError), past.reader(folder / "none.db"):
        pass


def the_probe_of_doctor(_: Path) -> None:
    assert "died" not in package_checks.probe()


def the_store_of_a_rank(_: Path) -> None:
    store = StoreProcess(free_port(), 60.0, 60.0)
    store._process.kill()
    store._process.wait()


def the_receiver_of_a_collector(folder: Path) -> None:
    interpreter.archive = str(folder / "rankwatch.pyz")  # taken back by the fixture
    with zipfile.ZipFile(interpreter.archive, "w") as file:
        file.writestr("__main__.py", "raise SystemExit('it is run')")
    for python in (None, sys.executable):
        command, is_sent = nodes._remote((), None, python)
        assert nodes.ask([nodes.Place("node", tuple(command), is_sent)], 0.0).failed == [("node", "it is run")]


@pytest.mark.parametrize(
    "start",
    [
        the_monitor_of_a_job,
        the_reader_of_a_record,
        the_probe_of_doctor,
        the_store_of_a_rank,
        the_receiver_of_a_collector,
    ],
)
def test_no_interpreter_looks_into_the_current_folder(start: Callable[[Path], None], mark: Path) -> None:
    start(mark.parent)
    assert not mark.exists()
