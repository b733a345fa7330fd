from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rankwatch
from rankwatch import session
from rankwatch.contract import env as environment
from rankwatch.recording import sections
from rankwatch.recording.shared_slots import (
    ATTEMPT,
    LOCAL_RANK,
    PHASE,
    PHASE_RUNNING,
    PHASE_SHUT_DOWN,
    STOP_PREEMPTS,
    STOP_STEP,
    WORLD_SIZE,
    Slots,
    read,
)


@pytest.fixture
def slots_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environment.SLOTS_DIR, str(tmp_path))
    return tmp_path


def test_the_launcher_reads_where_the_rank_is(slots_dir: Path) -> None:
    rankwatch.init(rank=5, local_rank=1, world_size=8, attempt=3)
    rankwatch.heartbeat()
    with rankwatch.section("forward"):
        seen, words = read(slots := Slots.open(slots_dir / "1.slots")), slots.words
    assert seen is not None
    place = (words[LOCAL_RANK], words[WORLD_SIZE], words[ATTEMPT])
    assert (seen.pid, seen.rank, place) == (os.getpid(), 5, (1, 8, 3))
    assert (seen.beats, list(seen.open_sections), seen.phase) == (1, ["forward"], PHASE_RUNNING)
    rankwatch.shutdown()
    assert Slots.open(slots_dir / "1.slots").words[PHASE] == PHASE_SHUT_DOWN


def test_what_the_launcher_handed_down_before_the_rank_began_stays(slots_dir: Path) -> None:
    launcher = Slots.create(slots_dir / "0.slots")
    launcher.write_settings({"heartbeat_timeout": 5})
    launcher.words[STOP_STEP] = 1
    rankwatch.init()
    with rankwatch.step():
        assert not rankwatch.should_stop()
    assert rankwatch.should_stop()
    handed = launcher.settings()
    assert handed is not None
    assert handed[1] == {"heartbeat_timeout": 5}


def test_slots_left_by_a_dead_process_are_taken_over(slots_dir: Path) -> None:
    program = "import rankwatch, os; rankwatch.init(); rankwatch.section('old').__enter__(); os._exit(0)"
    subprocess.run(
        [sys.executable, "-c", program], check=True, env=os.environ | {environment.SLOTS_DIR: str(slots_dir)}
    )
    left = read(Slots.open(slots_dir / "0.slots"))
    assert left is not None
    assert list(left.open_sections) == ["old"]
    rankwatch.init()
    with rankwatch.section("n"):
        seen = read(Slots.open(slots_dir / "0.slots"))
    assert seen is not None
    assert (seen.pid, list(seen.open_sections)) == (os.getpid(), ["n"])


def test_slots_of_a_living_process_are_left_alone(slots_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    parent = Slots.create(slots_dir / "0.slots")
    parent.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    parent.words[1] = os.getppid()
    rankwatch.init()
    rankwatch.heartbeat()
    seen = read(parent)
    assert seen is not None
    assert (seen.pid, seen.beats) == (os.getppid(), 0)
    assert f"process {os.getppid()} already records" in caplog.text


def test_a_slots_folder_that_cannot_be_is_reported_and_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(environment.SLOTS_DIR, str(tmp_path / "file"))
    rankwatch.init()
    with rankwatch.step():
        pass
    assert "the launcher cannot see this rank" in caplog.text


def test_a_second_init_does_nothing_and_after_shutdown_a_third_starts_again(slots_dir: Path) -> None:
    rankwatch.init(rank=0, world_size=9)
    rankwatch.init(rank=7, world_size=9)
    rankwatch.heartbeat()
    seen = read(Slots.open(slots_dir / "0.slots"))
    assert seen is not None
    assert (seen.rank, seen.beats) == (0, 1)
    rankwatch.shutdown()
    rankwatch.shutdown()
    rankwatch.heartbeat()
    rankwatch.init(rank=7, world_size=9)
    seen = read(Slots.open(slots_dir / "0.slots"))
    assert seen is not None
    assert (seen.rank, seen.beats) == (7, 0)


def test_a_section_open_during_shutdown_ends_quietly(slots_dir: Path) -> None:
    rankwatch.init()
    with rankwatch.step():
        rankwatch.shutdown()
    seen = read(Slots.open(slots_dir / "0.slots"))
    assert seen is not None
    assert (list(seen.open_sections), seen.finished) == (["step"], 0)


def test_disabled_means_nothing_at_all(slots_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_DISABLED", "1")
    rankwatch.init()
    assert sections.attach(None) is None
    assert list(slots_dir.iterdir()) == []


def test_without_a_receiver_the_slots_still_work_and_one_line_reports_it(
    slots_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rankwatch.init()
    rankwatch.heartbeat()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "nothing is exported" in caplog.text
    assert read(Slots.open(slots_dir / "0.slots")) is not None


def test_the_standard_switch_turns_the_export_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    rankwatch.init(monitor="http://127.0.0.1:1")
    assert session._session is not None
    assert session._session.exporter is None


def test_wrong_settings_are_reported_once_and_init_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "first")
    rankwatch.init()
    rankwatch.init()
    assert caplog.text.count("RANK must be a whole number") == 1
    assert session._session is not None


def test_a_failure_to_start_does_not_reach_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(session, "LivenessThread", fail)
    rankwatch.init()
    rankwatch.heartbeat()
    assert "this rank trains without monitoring" in caplog.text


def test_a_child_forked_with_a_section_open_leaves_the_slots_alone(slots_dir: Path) -> None:
    rankwatch.init()
    section = rankwatch.section("loading").__enter__()
    child = os.fork()
    if child == 0:
        section.__exit__(None, None, None)
        rankwatch.heartbeat()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seen = read(Slots.open(slots_dir / "0.slots"))
    assert seen is not None
    assert (list(seen.open_sections), seen.beats, seen.finished) == (["loading"], 0, 0)
    section.__exit__(None, None, None)


def test_a_child_forked_while_opentelemetry_is_being_imported_can_import_it() -> None:
    """Without the wait before a fork, the child would inherit locked modules and hang for ever."""
    program = """
import os, rankwatch
rankwatch.init(monitor="http://127.0.0.1:1")
child = os.fork()
if child == 0:
    import opentelemetry.sdk.metrics, requests
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
rankwatch.shutdown()
os._exit(status)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_nothing_is_imported_after_what_a_fork_waits_for() -> None:
    program = """
import sys, time, rankwatch
from rankwatch import session
rankwatch.init(monitor="http://127.0.0.1:1", export_interval=0.05)
with rankwatch.step(): pass
session._session.exporter.settle(60)
before = set(sys.modules)
with rankwatch.step(): pass
time.sleep(0.5)
rankwatch.shutdown()
late = set(sys.modules) - before
assert not late, late
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_rankwatch_imports_nothing_heavy_and_init_nothing_on_the_main_thread() -> None:
    program = """
import sys, threading, rankwatch
heavy = {"torch", "numpy", "opentelemetry", "requests", "google"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
release = threading.Event()
import rankwatch.export.exporter as export_thread
run = export_thread.Exporter._run
export_thread.Exporter._run = lambda self: (release.wait(), run(self))
rankwatch.init(monitor="http://127.0.0.1:1")
assert not heavy & set(sys.modules), heavy & set(sys.modules)
release.set()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_script_that_ends_sends_its_last_report_without_a_word() -> None:
    program = "import rankwatch; rankwatch.init(); rankwatch.heartbeat()"
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert time.monotonic() - begin < 20


def test_a_python_without_the_gil_is_refused_in_one_line(
    slots_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Counters are increased by ``words[i] += n``, of which two threads at once would lose one."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    rankwatch.init()
    assert not rankwatch.is_initialized()
    assert not list(slots_dir.iterdir())
    (record,) = [each for each in caplog.records if each.name == "rankwatch"]
    assert "PYTHON_GIL=1" in record.getMessage()
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    rankwatch.init()
    assert rankwatch.is_initialized()


def test_a_stop_is_requested_and_told_apart_from_an_order(slots_dir: Path) -> None:
    rankwatch.request_stop()
    assert not rankwatch.preempted(), "nothing happens before init()"
    rankwatch.init()
    slots = Slots.open(slots_dir / "0.slots")
    rankwatch.request_stop()
    seen = read(slots)
    assert seen is not None
    assert seen.stop_signalled
    assert not rankwatch.preempted()
    slots.words[STOP_PREEMPTS] = 1
    assert rankwatch.preempted()
