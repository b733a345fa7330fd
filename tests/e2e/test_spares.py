"""One launcher more than the job needs: whatever fails, the spare takes its place, and it costs exactly one restart."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import pytest

from e2e.training import Launcher, Training
from support.console import restarts
from support.ports import free_port, listens

NODES = 2
"""Launchers that run a rank each; one more waits."""
EVERY_THIRD = 3
"""Of the failures, the part that befalls a rank, of each node in turn; the others end a whole launcher."""


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("peers", ["--patient", ""], ids=["waiting-peers", "failing-peers"])
def test_each_failure_costs_one_restart_while_there_is_a_spare(watched: Training, peers: str) -> None:
    failures = 2 * EVERY_THIRD + 1
    job = Spared(watched, failures, peers)
    for attempt in range(1, failures + 1):
        job.until_well(attempt)
        if attempt % EVERY_THIRD == 0:
            # Ranks of both nodes in turn; no place becomes free, so the same two launchers go on.
            job.kill_rank(attempt // EVERY_THIRD % NODES)
        else:
            job.kill_launcher()
    job.until_well(failures + 1)

    killed = [launcher.process.pid for launcher in watched.launchers if launcher.process.poll() is not None]
    assert len(killed) == failures - failures // EVERY_THIRD
    codes = watched.finish()
    assert codes == [-signal.SIGKILL if launcher.process.pid in killed else 0 for launcher in watched.launchers], (
        job.host.printed()[-6000:]
    )
    for rank, starts in watched.steps("start").items():
        assert [number for number, _ in starts] == list(range(1, failures + 2)), f"rank {rank} began {starts}"
        assert all(before < after for (_, before), (_, after) in pairwise(starts)), f"not from checkpoints: {starts}"
    (end,) = {step for ends in watched.steps("end").values() for _, step in ends}
    assert watched.steps("end") == {rank: [(failures + 1, end)] for rank in range(NODES)}
    announced = restarts(job.host.printed())
    assert len(announced) == failures, "one counted restart a failure"
    assert all(f"({number} of {failures})" in line for number, line in enumerate(announced, 1))
    summary = watched.summary()
    assert (summary["state"], summary["attempt"], summary["restarts"]) == ("finished", failures + 1, failures)


class Spared:
    """A job of two launchers and a spare. The first launcher holds the store: it is none of those that are killed."""

    def __init__(self, training: Training, failures: int, peers: str) -> None:
        self._training = training
        self._port = free_port()
        self._flags = ("--nnodes", str(NODES), "--spares", "1", "--max-restarts", str(failures))
        self._script = tuple(filter(None, [peers]))
        self.host = self._launch()
        training.until("the first launcher holds the store", lambda: listens(self._port))
        for _ in range(NODES):
            self._launch()

    def until_well(self, attempt: int) -> None:
        """Wait until an attempt has made progress that is saved, and a spare stands by."""

        def saved() -> bool:
            newest = [lines[-1] for lines in self._training.reported().values() if lines]
            here = len(newest) == NODES and all(line["attempt"] == attempt for line in newest)
            return here and self._training.checkpoint() > max(line["step"] for line in newest)

        self._training.until(f"attempt {attempt} has made progress", saved)
        self._training.until("a spare stands by", self._has_spare)
        assert self._launcher_of(0) is self.host, "one that was there before keeps its place"

    def kill_rank(self, rank: int) -> None:
        """SIGKILL a rank."""
        os.kill(self._training.reported()[rank][-1]["pid"], signal.SIGKILL)

    def kill_launcher(self) -> None:
        """SIGKILL the launcher of the last rank, whose rank ends with it; a new one comes at once."""
        launcher = self._launcher_of(NODES - 1)
        launcher.process.kill()
        launcher.process.wait()
        self._launch()

    def _launch(self) -> Launcher:
        place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", "spared")
        return self._training.run(*self._flags, *place, ranks=1, script=self._script)

    def _launcher_of(self, rank: int) -> Launcher:
        pid = self._training.reported()[rank][-1]["launcher"]
        (found,) = [launcher for launcher in self._training.launchers if launcher.process.pid == pid]
        return found

    def _has_spare(self) -> bool:
        active = {self._launcher_of(rank).process.pid for rank in range(NODES)}
        alive = [each for each in self._training.launchers if each.process.poll() is None]
        waiting = [each for each in alive if each.process.pid not in active]
        return [("this node is a spare" in each.printed()) for each in waiting] == [True]
