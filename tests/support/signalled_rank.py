"""A rank in a process of its own, signalled as a scheduler does: the rank and all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

from rankwatch.contract import env as environment
from rankwatch.recording.shared_slots import STOP_STEP, Reading, Slots, read
from support.forked import ForkedPopen
from support.processes import MARK, end_marked, marked
from support.waiting import wait_for

PATIENCE = 100.0
"""Seconds: importing torch, in the rank and in what it spawns, takes half a minute on a machine that is busy."""


class SignalledRank:
    """Runs a program as rank 0 of a launcher that is the test: the slots in ``folder`` are read and written by it."""

    def __init__(self, folder: Path, program: str, stop_signal: int | None = signal.SIGTERM) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        (folder / "rank.py").write_text(textwrap.dedent(program))
        variables = {MARK: self.mark, environment.SLOTS_DIR: str(folder), "OMP_NUM_THREADS": "1"}
        if stop_signal is not None:
            variables[environment.STOP_SIGNAL] = str(int(stop_signal))
        popen = ForkedPopen if "torch" in program else subprocess.Popen
        self.process = popen(
            [sys.executable, str(folder / "rank.py")],
            env=os.environ | variables,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def reading(self) -> Reading:
        """What the slots hold; fails the test when the rank has made none."""
        found = read(Slots.open(self.folder / environment.slots_file(0)))
        assert found is not None
        return found

    def steps(self) -> int:
        """Steps completed; -1 before there are slots. Fails the test when the rank has ended."""
        assert self.process.poll() is None, self.output()
        with contextlib.suppress(OSError, ValueError, AssertionError):
            iteration = self.reading().iteration
            return -1 if iteration is None else iteration + 1
        return -1

    def train(self, steps: int) -> None:
        """Wait until this many more steps are completed."""
        goal = max(0, self.steps()) + steps
        wait_for(lambda: self.steps() >= goal, f"the rank completes step {goal}", PATIENCE)

    def wait_for_file(self, name: str) -> str:
        """Wait until the program has written a file, and return what is in it."""

        def written() -> str:
            assert self.process.poll() is None or (self.folder / name).exists(), self.output()
            return (self.folder / name).read_text() if (self.folder / name).exists() else ""

        return wait_for(written, f"the rank writes {name}", PATIENCE)

    def others(self) -> set[int]:
        """The living processes that the rank started, however deep."""
        return set(marked(self.mark)) - {self.process.pid}

    def signal_all(self, number: int = signal.SIGTERM) -> None:
        """Signal the rank and its descendants."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until_signalled(self) -> None:
        """Wait until the rank has noted the signal in its slots, and none of its children has one waiting any more."""
        wait_for(lambda: self.reading().stop_signalled, "the rank notes the signal", PATIENCE)
        wait_for(lambda: not any(map(self._waits, self.others())), "every child has looked at the signal", PATIENCE)

    @staticmethod
    def _waits(pid: int) -> bool:
        try:
            return in_mask(pid, "ShdPnd", signal.SIGTERM)
        except (OSError, StopIteration):
            return False  # it has ended

    def report(self, line: str = "") -> None:
        """Send the program a line on its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop_soon(self) -> None:
        """Hand down a stop step, as launchers do, a few steps ahead."""
        ahead = self.reading().iteration or 0
        Slots.open(self.folder / environment.slots_file(0)).words[STOP_STEP] = ahead + 20

    def end(self, seconds: float = 60) -> tuple[int, str]:
        """Wait for the rank's end; nothing that it started may live on. Returns exit code and output."""
        assert self.process.stdin is not None
        began = time.monotonic()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdin = None
        output, _ = self.process.communicate(timeout=seconds)
        wait_for(lambda: not marked(self.mark), "nothing of the rank is left", seconds - (time.monotonic() - began))
        return self.process.returncode, output

    def output(self) -> str:
        """What the rank has written; only once it has ended."""
        return self.process.stdout.read() if self.process.stdout and self.process.poll() is not None else ""

    def close(self) -> None:
        """End all that is left."""
        end_marked(self.mark)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def in_mask(pid: int, mask: str, number: int) -> bool:
    """Whether a signal is in one of a process's masks, ``SigBlk`` for example, as /proc shows them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    value = next(line.split()[1] for line in lines if line.startswith(mask + ":"))
    return bool(int(value, 16) >> (number - 1) & 1)
