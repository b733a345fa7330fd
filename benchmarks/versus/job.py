"""A job of either side that does as instructed while it trains: orders go in as files, answers come back as files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _recovery_run
import _service
from _recovery_run import Arm

SCRIPT = Path(__file__).with_name("obedient_ranks.py")
ANSWER_SECONDS = 180.0
"""How long an order may take; the longest does 3 s of work."""
LIMIT = 600.0
"""Seconds that a section may be open on both sides: nothing here is to be called a hang."""
RANKWATCH, NVRX = "rankwatch", "nvrx"


def rankwatch() -> Arm:
    """Our side, with its own monitor."""
    command = [sys.executable, "-m", "rankwatch", "run", "--section-timeout", f"step={LIMIT}"]
    return Arm(RANKWATCH, command, "rankwatch")


def nvrx(ft_launcher: str) -> Arm:
    """The other side, with a rank monitor for each rank."""
    return Arm(NVRX, [ft_launcher, "--ft-rank-section-timeouts", f"step:{LIMIT}"], "nvrx")


class Job:
    """A job that runs under one side's launcher."""

    def __init__(self, arm: Arm, ranks: int, folder: Path, launcher: subprocess.Popen[bytes], mark: str) -> None:
        self.arm, self.ranks, self.folder, self._launcher, self._mark = arm, ranks, folder, launcher, mark
        self._orders = 0

    def order(self, what: str) -> None:
        """Send all ranks their next order."""
        self._orders += 1
        unfinished = self.folder / "order.new"
        unfinished.write_text(what)
        unfinished.replace(self.folder / f"order-{self._orders}")

    def answers(self) -> list[dict[str, Any]]:
        """What all ranks answer to the last order.

        Raises:
            TimeoutError: they do not, or the job has ended; the end of its log is in the words.
        """
        files = [self.folder / f"answer-{self._orders}-{rank}.json" for rank in range(self.ranks)]

        def there() -> bool | None:
            if self._launcher.poll() is not None:
                raise TimeoutError(f"the launcher ended with code {self._launcher.returncode}")
            return all(file.exists() for file in files) or None

        try:
            _service.wait_for(f"{self.ranks} ranks of {self.arm.name} to answer", there, ANSWER_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{(self.folder / 'log').read_text(errors='replace')[-3000:]}") from None
        return [json.loads(file.read_text()) for file in files]

    def do(self, what: str) -> list[dict[str, Any]]:
        """Order and wait for the answers."""
        self.order(what)
        return self.answers()

    def monitors(self) -> list[int]:
        """The processes that watch: Rankwatch's monitor; of the other side all that the launcher has besides ranks."""
        found = []
        for pid, command in _recovery_run.marked(self._mark).items():
            with contextlib.suppress(OSError):
                is_rank = b"\0RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
                ours = "rankwatch_monitor" in command
                theirs = self.arm.name == NVRX and not is_rank and pid != self._launcher.pid
                if (ours or theirs) and "resource_tracker" not in command:
                    found.append(pid)
        return found

    def monitor_answers(self) -> int | None:
        """How many ranks our monitor receives reports of, or None while it does not answer."""
        reported = json.loads((self.folder / "told-0.json").read_text())
        job = _service.get(f"{reported['RANKWATCH_MONITOR']}/api/v1/jobs/{reported['RANKWATCH_JOB_ID']}")
        return None if job is None else job["ranks_reporting"]


@contextlib.contextmanager
def running(arm: Arm, ranks: int, folder: Path) -> Iterator[Job]:
    """A job of one side, from its start to the end of everything that it started."""
    with _recovery_run.launched(arm, ranks, folder, SCRIPT) as (launcher, mark):
        yield Job(arm, ranks, folder, launcher, mark)


@contextlib.contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    """Processes under SIGSTOP; they go on at the end whatever happens."""
    try:
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
