"""Jobs of scripts that were never touched, under ``rankwatch run --auto`` and a real monitor."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from e2e.training import Launcher, Training
from rankwatch_launcher.options import Options
from support.monitor_fixtures import monitor
from support.monitor_process import RunningMonitor

__all__ = ["monitor"]

SCRIPT = Path(__file__).with_name("untouched.py")


class Untouched(Training):
    """A job whose script is ``untouched.py``."""

    def launch(
        self, *flags: str, ranks: int = 2, module: bool = False, steps: int = 0, workers: int = 0, **variables: str
    ) -> Launcher:
        """Start it by ``rankwatch run --auto``, watched by the monitor that is followed."""
        assert self.api is not None
        ours = ["-m", "rankwatch", "run", "--auto", "--nproc-per-node", str(ranks), "--monitor", str(self.api.base_url)]
        script = ["-m", SCRIPT.stem] if module else [str(SCRIPT)]
        if module:
            variables["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]).strip(":")
        more = [*(["--steps", str(steps)] if steps else []), "--workers", str(workers)]
        return self.start(
            [*ours, "--job-id", self.job, *flags, *script, "--folder", str(self.folder), *more], **variables
        )

    def begun_with(self) -> list[tuple[int, int]]:
        """(rank, step) of every start of a rank, in order of rank."""
        printed = re.findall(r"<rank (\d) begins with step (\d+)>", self.launchers[-1].printed())
        return sorted((int(rank), int(step)) for rank, step in printed)

    def pid_of(self, rank: int) -> int:
        """The process of a rank; one that is parked for its successor has the same command line."""
        for pid, command in self.processes().items():
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parked = any(each.startswith(b"RANKWATCH_PARKED=") for each in variables)
            if f"RANK={rank}".encode() in variables and SCRIPT.stem in command and not parked:
                return pid
        raise AssertionError(f"no process of rank {rank}: {self.processes()}")

    def sections(self) -> set[str]:
        """The sections that the monitor knows of."""
        return {row["section"] for row in self.summary().get("timeouts", []) if row["section"]}


@pytest.fixture
def untouched(tmp_path: Path, request: pytest.FixtureRequest, monitor: RunningMonitor) -> Iterator[Untouched]:
    """A job that is still to be started; whatever it starts is ended."""
    if "auto" not in {option.name for option in fields(Options)}:
        pytest.skip("this launcher has no --auto")
    job = Untouched(tmp_path, re.sub(r"\W+", "-", request.node.name).strip("-"))
    job.follow(monitor.url)
    try:
        yield job
    finally:
        job.close()
