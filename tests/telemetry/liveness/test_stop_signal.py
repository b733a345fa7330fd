"""What a rank does with the scheduler's signal; its worker processes are the matter of test_worker_signals.py."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import rankwatch
from rankwatch.contract import env
from rankwatch.liveness import worker_signals
from rankwatch.recording.shared_slots import Slots, read
from support.signalled_rank import SignalledRank

USR2 = signal.SIGUSR2  # for what happens in the tests' own process


@pytest.fixture
def slots_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(env.SLOTS_DIR, str(tmp_path))
    monkeypatch.setenv(env.STOP_SIGNAL, str(int(USR2)))
    yield tmp_path
    rankwatch.shutdown()
    signal.signal(USR2, signal.SIG_DFL)


def signalled(slots_dir: Path) -> bool:
    seen = read(Slots.open(slots_dir / "0.slots"))
    assert seen is not None
    return seen.stop_signalled


def test_the_signal_is_noted_in_the_slots_and_does_nothing_else(slots_dir: Path) -> None:
    rankwatch.init()
    assert not signalled(slots_dir)
    signal.raise_signal(USR2)
    assert signalled(slots_dir)
    assert not rankwatch.should_stop(), "only what all ranks agreed on stops one"


def test_shutdown_puts_back_what_was_there(slots_dir: Path) -> None:
    rankwatch.init()
    assert callable(signal.getsignal(USR2))
    rankwatch.shutdown()
    assert signal.getsignal(USR2) is signal.SIG_DFL
    rankwatch.init()
    signal.raise_signal(USR2)
    assert signalled(slots_dir), "a new session takes it again"


def test_after_a_shutdown_in_another_thread_the_signal_does_what_it_always_did(tmp_path: Path) -> None:
    rank = SignalledRank(
        tmp_path,
        """
        import os, signal, threading, rankwatch
        rankwatch.init()
        thread = threading.Thread(target=rankwatch.shutdown)
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGTERM)
        """,
    )
    try:
        assert rank.end() == (-signal.SIGTERM, "")
    finally:
        rank.close()


def nothing(_: int, __: FrameType | None) -> None:
    pass


def test_a_handler_of_the_scripts_own_is_left_alone(slots_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    signal.signal(USR2, nothing)
    rankwatch.init()
    assert signal.getsignal(USR2) is nothing
    assert f"the script handles signal {int(USR2)}" in caplog.text
    rankwatch.shutdown()
    assert signal.getsignal(USR2) is nothing


def test_a_handler_that_the_script_sets_later_stays_after_shutdown(slots_dir: Path) -> None:
    rankwatch.init()
    signal.signal(USR2, nothing)
    rankwatch.shutdown()
    assert signal.getsignal(USR2) is nothing


def test_a_handler_in_c_counts_too(slots_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.register(USR2, file=file)
        try:
            assert signal.getsignal(USR2) is signal.SIG_DFL, "Python does not know of it"
            rankwatch.init()
            signal.raise_signal(USR2)
        finally:
            faulthandler.unregister(USR2)
    assert "test_a_handler_in_c_counts_too" in (tmp_path / "stacks").read_text()
    assert not signalled(slots_dir)
    assert "the script handles signal" in caplog.text


def test_init_in_another_thread_leaves_the_signal_alone(slots_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    thread = threading.Thread(target=rankwatch.init)
    thread.start()
    thread.join()
    assert signal.getsignal(USR2) is signal.SIG_DFL
    assert "does not run in the main thread" in caplog.text


def test_without_a_launcher_that_reads_it_the_signal_keeps_its_meaning(
    slots_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.delenv(env.SLOTS_DIR)
    rankwatch.init()
    assert signal.getsignal(USR2) is signal.SIG_DFL
    assert f"signal {int(USR2)} is left as it is" in caplog.text


def test_a_signal_that_cannot_be_handled_is_reported(
    slots_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(env.STOP_SIGNAL, str(int(signal.SIGKILL)))
    rankwatch.init()
    assert f"{env.STOP_SIGNAL}: signal 9 cannot be handled" in caplog.text
    with rankwatch.step():
        pass
    seen = read(Slots.open(slots_dir / "0.slots"))
    assert seen is not None
    assert seen.iteration == 0


def test_a_forked_child_has_what_was_there_before_and_writes_nothing(slots_dir: Path) -> None:
    rankwatch.init()
    child = os.fork()
    if child == 0:
        signal.raise_signal(USR2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -USR2
    assert not signalled(slots_dir)


def test_without_the_variable_nothing_of_it_exists() -> None:
    program = f"""
import signal, sys, tempfile, os
with tempfile.TemporaryDirectory() as folder:
    os.environ["{env.SLOTS_DIR}"] = folder
    import rankwatch
    rankwatch.init()
    ours = {{"rankwatch.liveness.stop_signal", "rankwatch.liveness.worker_signals"}}
    assert not {{*ours, "multiprocessing"}} & set(sys.modules)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    rankwatch.shutdown()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_sheltered_after_shutdown(slots_dir: Path) -> None:
    rankwatch.init()
    assert worker_signals._number == USR2
    rankwatch.shutdown()
    assert worker_signals._number is None
