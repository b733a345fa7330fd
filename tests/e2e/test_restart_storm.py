"""Restart after restart of one job over gloo: each works at the first try, and the launcher does not grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.training import PATIENCE, Launcher, Training
from support.console import restarts as restarts_of
from support.waiting import wait_for

RANKS = 4
RESTARTS = 25
DESCRIPTORS = RANKS + 3
"""Descriptors by which a launcher may hold more later on than early: connections come and go, and an early look may
fall between two attempts, when no slots are open. One kept at each restart would make twenty."""
GROWTH = 8 << 20
"""Bytes by which its memory may grow over a storm, whatever its length."""


def fault(attempt: int) -> tuple[int, int]:
    """Rank and step of an attempt's fault: a few steps after that attempt's first checkpoint."""
    return attempt % RANKS, checkpoint_after(attempt) + 3


def checkpoint_after(attempt: int) -> int:
    """The step of the checkpoint that an attempt leaves: each makes ten steps of progress before it is struck."""
    return 10 * attempt


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_restart_of_a_storm_works_at_the_first_try(watched: Training) -> None:
    restarts = RESTARTS
    faults = [(attempt, *fault(attempt)) for attempt in range(1, restarts + 1)]
    spec = ";".join(f"rank={rank},step={step},attempt={attempt},kind=kill" for attempt, rank, step in faults)
    launcher = watched.run("--max-restarts", str(restarts), ranks=RANKS, script=("--patient",), inject=spec)
    # A first restart is past: what a launcher makes once, for its first evidence for example, is there.
    looks = [Launched(watched, launcher, attempt) for attempt in (2, 3, 4)]
    for attempt in range(5, restarts + 1):
        until_started(watched, attempt)
    late = Launched(watched, launcher, restarts + 1)

    expected = {attempt: checkpoint_after(attempt - 1) for attempt in range(1, restarts + 2)}
    for rank, starts in watched.steps("start").items():
        assert starts == list(expected.items()), f"rank {rank} did not start once in each attempt, from its checkpoint"
    few = min(look.held for look in looks) + DESCRIPTORS
    wait_for(lambda: late.descriptors() <= few, f"no more than {few} descriptors are open")
    early = min(look.memory for look in looks)
    assert late.memory <= early + GROWTH, f"the launcher grew from {early} to {late.memory} bytes"
    # As many, not the same: the process of the next attempt's checks is another one each time.
    helpers = max(len(look.helpers) for look in looks)
    wait_for(lambda: len(late.processes() - late.ranks) <= helpers, "nothing is left of earlier attempts")
    assert len(list(late.slots.parent.iterdir())) == 1, "the slots of earlier attempts are gone"

    watched.until_running(RANKS, restarts + 1)
    assert watched.finish() == [0], launcher.printed()[-6000:]
    (end,) = {step for ends in watched.steps("end").values() for _, step in ends}
    assert watched.steps("end") == {rank: [(restarts + 1, end)] for rank in range(RANKS)}
    announced = restarts_of(launcher.printed())
    assert len(announced) == restarts
    assert all(f"({number} of {restarts})" in line for number, line in enumerate(announced, 1))
    incidents = until_closed(watched, restarts)
    struck = [[(culprit["rank"], culprit["class"]) for culprit in incident["culprits"]] for incident in incidents]
    assert struck == [[(rank, "dead")] for _, rank, _ in reversed(faults)], "each fault is an incident with its culprit"
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"]) == ("finished", restarts + 1, restarts)
    assert (job["iteration"], job["open_incidents"]) == (end - 1, 0)


def until_started(training: Training, attempt: int) -> None:
    """Wait until all ranks have reported that they begin this attempt, or a later one."""

    def started() -> bool:
        newest = [lines[-1]["attempt"] for lines in training.reported().values() if lines]
        return len(newest) == RANKS and min(newest) >= attempt

    training.until(f"{RANKS} ranks begin attempt {attempt}", started)


class Launched:
    """What a launcher holds once the ranks of an attempt have started."""

    def __init__(self, training: Training, launcher: Launcher, attempt: int) -> None:
        until_started(training, attempt)
        self._training, self._proc = training, Path("/proc") / str(launcher.process.pid)
        self.held = self.descriptors()
        status = dict(line.split(":", 1) for line in (self._proc / "status").read_text().splitlines())
        self.memory = int(status["VmRSS"].split()[0]) * 1024
        self.helpers = self.processes() - {line["pid"] for lines in training.reported().values() for line in lines}
        self.ranks = {lines[-1]["pid"] for lines in training.reported().values()}
        self.slots = Path(training.reported()[0][-1]["slots"])

    def descriptors(self) -> int:
        """Open descriptors of the launcher."""
        return len(list((self._proc / "fd").iterdir()))

    def processes(self) -> set[int]:
        """All that runs for the job: the launcher, its helpers, ranks."""
        return set(self._training.processes())


def until_closed(training: Training, number: int) -> list[dict[str, Any]]:
    """All incidents, the newest first, once there are so many and none is open."""

    def closed() -> list[dict[str, Any]]:
        incidents = training.incidents()
        return incidents if len(incidents) >= number and all(each["closed_at"] for each in incidents) else []

    return wait_for(closed, f"{number} incidents are over", PATIENCE)
