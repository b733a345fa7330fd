"""The wrapper on several nodes whose launchers count different restarts: one joined late, one was a spare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.conftest import FakeMonitor, wait_for
from launcher.node_set import Nodes, Start
from telemetry.inprocess.conftest import FAST, PATIENCE, SCRIPT, Job


class WrappedJob:
    """Launchers whose ranks train inside the wrapper; they dawdle in a step of their first attempt until told to go."""

    def __init__(self, start: Start, folder: Path, monitor: FakeMonitor, nnodes: str) -> None:
        self.nodes, self.ranks = Nodes(start, folder, monitor, nnodes), Job(folder)
        text = json.dumps({"options": FAST, "faults": [[rank, 0, 2, "dawdle"] for rank in (0, 1)]})
        self._script = [str(SCRIPT), str(folder), text]

    def start(self, *names: str) -> None:
        self.nodes.start(*names, script=self._script)

    def until(self, event: str, *counts: int) -> None:
        """Wait until ranks 0, 1, ... have printed ``event`` so many times."""
        wait_for(lambda: [len(self.ranks.printed(r, event)) for r in range(len(counts))] == list(counts), PATIENCE)

    def ends(self, *names: str) -> list[str]:
        """The last results of ranks 0 and 1, once they may go on and have ended."""
        (self.nodes.folder / "go").touch()
        codes = [self.nodes.launchers[name].wait(PATIENCE) for name in names]
        assert codes == [0] * len(names), "\n".join(self.nodes.printed(""))
        return [str(self.ranks.printed(rank, "result")[-1]["value"]) for rank in (0, 1)]


@pytest.mark.long
def test_the_wrapper_meets_a_node_that_joins_late(start: Start, tmp_path: Path, monitor: FakeMonitor) -> None:
    job = WrappedJob(start, tmp_path, monitor, "1:2")
    job.start("a")
    job.until("fault", 1)
    job.start("b")
    job.until("start", 2, 1)
    assert job.ends("a", "b") == ["0 of 2 in iteration 0", "1 of 2 in iteration 0"]


@pytest.mark.long
def test_the_wrapper_meets_a_spare_that_takes_the_place_of_a_lost_node(
    start: Start, tmp_path: Path, monitor: FakeMonitor
) -> None:
    job = WrappedJob(start, tmp_path, monitor, "2")
    job.start("a")
    job.nodes.until("1 of at least 2 nodes are ready", "a")
    job.start("b")
    job.until("fault", 1, 1)
    job.start("c")
    job.nodes.until("this node is a spare", "c")
    job.nodes.launchers["b"].process.kill()
    job.until("start", 2, 2)
    assert job.ends("a", "c") == ["0 of 2 in iteration 0", "1 of 2 in iteration 0"]
