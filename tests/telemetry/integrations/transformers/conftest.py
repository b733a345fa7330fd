"""Jobs of a real Hugging Face Trainer under the real launcher and a real monitor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from e2e.training import Launcher, Training
from support.forked_ranks import run_command
from support.monitor_fixtures import monitor
from support.monitor_process import RunningMonitor

if not (find_spec("transformers") and find_spec("accelerate")):
    pytest.skip("the Trainer is not installed: pip install transformers accelerate", allow_module_level=True)

__all__ = ["monitor"]

SCRIPT = Path(__file__).with_name("trainer.py")


class Fit(Training):
    """A job whose script is ``trainer.py``."""

    def launch(self, *flags: str, ranks: int = 2, steps: int = 0, callback: bool = True) -> Launcher:
        """Start it by ``rankwatch run``, watched by the monitor that is followed."""
        assert self.api is not None
        ours = [
            *run_command("transformers.trainer"),
            "--nproc-per-node",
            str(ranks),
            "--monitor",
            str(self.api.base_url),
        ]
        script = [str(SCRIPT), "--folder", str(self.folder), *(["--steps", str(steps)] if steps else [])]
        quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hub"), "TRANSFORMERS_VERBOSITY": "error"}
        return self.start(
            [*ours, "--job-id", self.job, *flags, *script, *([] if callback else ["--no-callback"])], **quiet
        )

    def lines(self, word: str) -> list[str]:
        """What the ranks of the newest launcher printed that they begin or end with, in order of rank."""
        return sorted(re.findall(f"<(rank \\d {word} with [^>]*)>", self.launchers[-1].printed()))

    def sections(self) -> set[str]:
        """The sections that the monitor knows of."""
        return {row["section"] for row in self.summary().get("timeouts", []) if row["section"]}

    def saved(self) -> list[int]:
        """The steps of which there are checkpoints."""
        return sorted(int(each.name.partition("-")[2]) for each in (self.folder / "checkpoints").glob("checkpoint-*"))


@pytest.fixture
def fit(tmp_path: Path, request: pytest.FixtureRequest, monitor: RunningMonitor) -> Iterator[Fit]:
    """A job that is still to be started; whatever it starts is ended."""
    job = Fit(tmp_path, re.sub(r"\W+", "-", request.node.name).strip("-"))
    job.follow(monitor.url)
    try:
        yield job
    finally:
        job.close()
