from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rankwatch
from rankwatch.contract import env as environment
from rankwatch_launcher.procfs import catches

SIGNAL = signal.SIGRTMIN + 4


@pytest.mark.parametrize("kind", ["hang", "gil"])
def test_a_signal_writes_the_stack_of_a_stuck_rank_into_the_slots_folder(tmp_path: Path, kind: str) -> None:
    with stuck_rank(tmp_path, kind) as pid:
        stacks = tmp_path / "0.stack"
        both = {"in train", f"in rankwatch_injected_{'hang' if kind == 'hang' else 'held_gil'}"}
        for _ in range(2):
            os.kill(pid, SIGNAL)
            wait_until(lambda: both <= set(re.findall(r"in \w+", stacks.read_text())))
            os.truncate(stacks, 0)  # as a launcher does between two captures


BUSY = """
import sys, threading
from pathlib import Path
from rankwatch.liveness.stack_dump import write_stack_on
kept = write_stack_on(int(sys.argv[1]), Path(sys.argv[2]))

def deep(left):
    return left if left == 0 else deep(left - 1)

def work():
    while True:
        deep(300)

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
"""


def test_any_number_of_looks_at_a_rank_whose_threads_run_do_it_no_harm(tmp_path: Path) -> None:
    stack, tgkill = tmp_path / "0.stack", ctypes.CDLL(None).tgkill
    command = [sys.executable, "-c", BUSY, str(int(SIGNAL)), str(stack)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            wait_until(lambda: process.poll() is not None or catches(process.pid, SIGNAL))
            assert re.match("Main thread 0x[0-9a-f]+\n", stack.read_text())
            for _ in range(3000):
                before = stack.stat().st_size
                tgkill(process.pid, process.pid, int(SIGNAL))  # as a launcher does: faulthandler drops a signal that
                while stack.stat().st_size == before:  # one thread gets while another still writes
                    assert process.poll() is None
        finally:
            process.kill()


def test_py_spy_may_read_a_rank_that_it_is_no_ancestor_of(tmp_path: Path) -> None:
    py_spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if py_spy is None:
        pytest.skip("py-spy is missing")
    with stuck_rank(tmp_path, "hang") as pid:
        dump = subprocess.run(
            [py_spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, check=False
        )
        if "ermission" in dump.stderr:
            pytest.skip(f"py-spy may not trace here: {dump.stderr.strip()}")
        assert "rankwatch_injected_hang" in dump.stdout


def test_a_signal_that_cannot_be_used_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(environment.SLOTS_DIR, str(tmp_path))
    monkeypatch.setenv(environment.STACK_SIGNAL, str(int(signal.SIGSEGV)))
    rankwatch.init()
    assert "signal 11 cannot write the stack" in caplog.text


class stuck_rank:  # noqa: N801 - used like a function
    """A process stuck in ``train`` as the fault states; yields its pid."""

    def __init__(self, folder: Path, kind: str) -> None:
        program = (
            "import rankwatch\nfrom rankwatch import faults\nrankwatch.init()\n"
            "def train():\n    with rankwatch.step():\n        faults.maybe_inject(0)\ntrain()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ
            | {
                environment.SLOTS_DIR: str(folder),
                environment.STACK_SIGNAL: str(int(SIGNAL)),
                "RANKWATCH_INJECT": f"rank=0,step=0,kind={kind}",
            },
        )
        self._folder = folder

    def __enter__(self) -> int:
        from rankwatch.recording.shared_slots import Slots, read

        def inside() -> bool:
            try:
                seen = read(Slots.open(self._folder / "0.slots"))
            except (OSError, ValueError):
                return False
            # The fault is imported after the step was entered; that takes milliseconds.
            return seen is not None and seen.open_sections.get("step", 0.0) > 0.3

        wait_until(inside)
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < end
        tick.wait(0.01)
