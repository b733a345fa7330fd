"""A scene whose time is accounted for as the monitor's loop does it; what must always hold is checked at every look."""

from __future__ import annotations

import itertools
import json

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, ProcessEventKind
from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.core.goodput.ledger import KEPT, Ledger
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.account import clauses

STARTUP = 1.5
"""Seconds until the first step in every scene: it is completed half a second before the second tick."""


def account(job: Job, now: float) -> list[str]:
    """The clauses on how a job trains, or has trained."""
    return [each["text"] for each in clauses(job, now)]


class Accounted(Scene):
    """``spent`` is what the time went into so far."""

    def judge(self) -> None:
        super().judge()
        ledger = self.job.ledger
        settled, totals, counted = dict(ledger.settled), dict(ledger.totals), dict(ledger.counted)
        until = ledger.until
        goodput_accounting.account(self.job, self.now)
        if ledger.until == until:
            return
        assert all(ledger.settled[b] >= settled[b] for b in Bucket if b not in KEPT), "what is settled stays settled"
        assert all(totals[b] >= ledger.counted[b] >= counted[b] for b in Bucket), "a counter never goes down"
        self.check()

    def check(self) -> None:
        ledger, spent = self.job.ledger, goodput_accounting.spent(self.job)
        assert min(spent.values()) >= 0.0
        assert ledger.settled_until <= ledger.until <= self.now
        assert sum(spent.values()) == pytest.approx(ledger.until - ledger.began, abs=1e-6)
        assert sum(ledger.totals.values()) == pytest.approx(sum(ledger.settled.values()), abs=1e-6)
        assert ledger.reached <= ledger.furthest
        for one, next_one in itertools.pairwise(ledger.pending):
            assert one.end == next_one.start, "no gap"
        ratio = goodput_accounting.ratio(self.job)
        assert ratio is None or 0.0 <= ratio <= 1.0

    def reload(self, away: int = 0) -> Accounted:
        row = json.loads(json.dumps(self.job.ledger.to_json()))
        super().reload(away)
        vars(self.job)["ledger"] = Ledger.of_json(row)
        return self

    @property
    def spent(self) -> dict[str, float]:
        """Seconds by bucket, those without any left out."""
        return {str(bucket): s for bucket, s in goodput_accounting.spent(self.job).items() if s > 1e-9}

    @property
    def lived(self) -> float:
        return sum(self.spent.values())


def about(**seconds: float) -> dict[str, float]:
    return {name: pytest.approx(s, abs=1e-6) for name, s in seconds.items()}


def rerun(scene: Accounted) -> None:
    """The same job is launched again, by a new launcher."""
    scene.submit(NodeRegistration("node-9", "host-9", 11, 4, "gpt"))
    scene.launch(attempt=1)


def checkpoints(scene: Accounted, seconds: int) -> None:
    """Whoever works saves a checkpoint that takes so long."""
    scene.busy = True
    for rank in scene.ranks:
        rank.stand(scene.now, "checkpointing")
    scene.run(seconds)
    for rank in scene.ranks:
        rank.stand(scene.now)
    scene.busy = False


def freely(scene: Accounted, what: str, seconds: int) -> None:
    """One thing that may happen, whenever it may."""
    rank = seconds % len(scene.ranks)
    match what:
        case "run":
            scene.run(seconds)
        case "hang":
            scene.hang(rank)
        case "stall":
            scene.stall()
        case "stop":
            scene.stop(rank)
        case "cut":
            scene.cut(rank)
        case "cut all":
            scene.cut(*range(len(scene.ranks)))
        case "resume":
            scene.resume()
        case "die" if scene.launchers and scene.job.ended is None:
            scene.die(rank, exit_code=1).restart()
        case "restart" if scene.launchers and scene.job.ended is None:
            scene.restart()
        case "replace" if not scene.launchers:
            scene.launch(attempt=0)
        case "checkpoint" if scene.job.ended is None:
            checkpoints(scene, seconds)
        case "finish" if scene.launchers:
            scene.finish()
        case "rerun" if scene.launchers and scene.job.ended is not None:
            rerun(scene)
        case "away":
            scene.reload(seconds)
        case "order" if scene.launchers and scene.job.ended is None:
            scene.order(Action.RESTART)
        case "save" if scene.launchers and scene.job.ended is None:
            scene.event(ProcessEventKind.STOPPING, reason="preempted")
        case "preempt" if scene.launchers and scene.job.ended is None:
            scene.event(ProcessEventKind.STOPPING, reason="preempted")
            scene.run(seconds)
            scene.finish(ProcessEventKind.STOPPED, "preempted")
        case "lose" if scene.launchers and scene.job.ended is None:
            scene.event(ProcessEventKind.NODE_LOST, scene.nodes[0], lost_node=scene.nodes[-1])


THINGS = (
    "run", "hang", "stall", "stop", "cut", "cut all", "resume", "die", "restart", "replace", "checkpoint", "finish",
    "rerun", "away", "order", "save", "preempt", "lose",
)  # fmt: skip
