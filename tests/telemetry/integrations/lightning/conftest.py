"""Lightning jobs of real ranks: under the real launcher and a real monitor, or by themselves."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e.training import Launcher, Training
from support.forked_ranks import run_command
from support.monitor_fixtures import monitor
from support.monitor_process import RunningMonitor
from support.processes import started_at

if importlib.util.find_spec("lightning") is None:  # it is imported where it is used: that takes 3 s
    pytest.skip("Lightning is not installed: pip install lightning", allow_module_level=True)

__all__ = ["monitor"]

DETECTED = "Preemption detected, saving checkpoint and exiting"
SCRIPT = Path(__file__).with_name("lightning_ranks.py")
USED = ("lightning.pytorch", "lightning.pytorch.loggers", "lightning.pytorch.plugins.io")
"""What the script imports, for the ranks to begin with."""


class Fit(Training):
    """A job whose script is ``lightning_ranks.py``."""

    def command(self, callbacks: Mapping[str, Mapping[str, Any]], *script: str) -> list[str]:
        return [str(SCRIPT), "--folder", str(self.folder), "--callbacks", json.dumps(callbacks), *script]

    def launch(
        self,
        callbacks: Mapping[str, Mapping[str, Any]],
        *script: str,
        flags: Sequence[str] = (),
        ranks: int = 2,
        **variables: str,
    ) -> Launcher:
        """Start it by ``rankwatch run``, watched by the monitor that is followed."""
        assert self.api is not None
        ours = [*run_command(*USED), "--nproc-per-node", str(ranks), "--monitor", str(self.api.base_url)]
        return self.start([*ours, "--job-id", self.job, *flags, *self.command(callbacks, *script)], **variables)

    def begun(self, ranks: int = 2) -> None:
        """Wait until all ranks have begun to train."""
        self.until("all ranks train", lambda: all((self.folder / f"started-{rank}").exists() for rank in range(ranks)))

    def printed(self) -> str:
        """What the newest launcher and its ranks wrote."""
        return self.launchers[-1].printed()

    def lines(self, pattern: str) -> list[str]:
        """What the ranks of the newest launcher stated of themselves."""
        return re.findall(f"<(rank \\d attempt \\d: {pattern})>", self.printed())

    def checkpoint_steps(self) -> set[int]:
        import torch

        files = (self.folder / "checkpoints").glob("last*.ckpt")
        return {torch.load(file, weights_only=False)["global_step"] for file in files}


def pid_of(fit: Fit, rank: int) -> int:
    """The process of a rank: the oldest one whose environment reports it; the others are workers of its data loader."""
    of_rank = []
    for pid in fit.processes():
        with contextlib.suppress(FileNotFoundError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if f"\0RANK={rank}\0".encode() in b"\0" + environment:
                of_rank.append(pid)
    assert of_rank, f"no process of rank {rank}: {fit.processes()}"
    return min(of_rank, key=started_at)


def stopped_together(fit: Fit, ranks: int = 2) -> int:
    """The step that all ranks ended with, of which there is a checkpoint."""
    ends = [line.partition("ends with ")[2] for line in fit.lines("ends.*")]
    assert len(ends) == ranks, fit.printed()
    assert len(set(ends)) == 1, f"the ranks stopped after different steps: {ends}"
    (step,) = fit.checkpoint_steps()
    assert ends[0] == f"step {step}, should_stop=True"
    return int(step)


@pytest.fixture
def fit(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fit]:
    """A job that is still to be started; whatever it starts is ended."""
    job = Fit(tmp_path, re.sub(r"\W+", "-", request.node.name).strip("-"))
    try:
        yield job
    finally:
        job.close()


@pytest.fixture
def watched(fit: Fit, monitor: RunningMonitor) -> Fit:
    """The same, to be watched by the monitor that the tests of this folder share."""
    fit.follow(monitor.url)
    return fit
