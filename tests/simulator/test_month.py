"""A long time in good health, with everything in it that takes its time: not one alarm."""

from __future__ import annotations

from typing import Any

import pytest

from rankwatch.contract.policy import Policy
from support.simulator.outcome import evaluate
from support.simulator.plan import Fault, FaultKind, Plan
from support.simulator.scene import Scene

DAY = 86_400.0
MONTH: dict[str, Any] = {
    "world": 8,
    "nodes": 2,
    "interval": 10.0,
    "step": 4.0,
    "setup": 30.0,
    "compilation": 240.0,
    "checkpoint_every": 500,
    "checkpoint": 45.0,
    "evaluate_every": 1500,
    "evaluation": 310.0,
    "stall_every": 700,
    "stall": 60.0,
    "relaunch_every": 14_000,
    "delay": 0.0,
}
"""About 40 checkpoints, 13 evaluations and 30 data stalls a day, and two relaunches that compile again in three days.
Evaluations last longer than the heartbeat limit, though each rank beats only once a step. A data stall may last as long
as the confirmation window."""


DENSER = 3
"""How many times as often these occur in some tests: the time between them is only steps."""
OFTEN = {each: MONTH[each] // DENSER for each in MONTH if each.endswith("_every")}


def plan(days: float, *faults: Fault, **changes: Any) -> Plan:
    return Plan(**{**MONTH, "seconds": days * DAY, "faults": faults, **changes})


def healthy(days: float, seed: int, **changes: Any) -> None:
    outcome = evaluate(Scene(plan(days, seed=seed, **changes)))
    assert outcome.events > 60_000 * days
    assert outcome.seconds >= 0.99 * days * DAY
    assert outcome.false_alarms == []
    assert outcome.alarms == 0


def test_a_shift_without_a_fault_is_a_shift_without_an_alarm() -> None:
    """Eight hours: 12 checkpoints, 4 evaluations, 9 data stalls and two relaunches."""
    healthy(1 / 3, seed=5, relaunch_every=2500)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_takes_its_time_in_a_month_raises_no_alarm() -> None:
    """All of a month's checkpoints, evaluations, data stalls and relaunches, with fewer steps between them."""
    healthy(15.0 / DENSER, seed=1, **OFTEN)


@pytest.mark.parametrize("section", ["checkpointing", "evaluation", "data", "forward"])
def test_a_hang_in_the_same_job_is_found(section: str) -> None:
    """After as many pauses as in hours of the job that raises no alarm; its silent twin is above.

    The shortest patience: how long it lasts is tested elsewhere (core/incident/test_patience.py).
    """
    fault = Fault(FaultKind.HANG, (5,), step=2300 // DENSER, section=section)
    scene = Scene(plan(0.07, fault, seed=5, **{**OFTEN, "relaunch_every": 0}))
    outcome = evaluate(scene, {"longest_patience": Policy().confirmation_window})
    (finding,) = outcome.findings
    assert finding.right, finding
    assert finding.latency is not None
    assert finding.latency < 5.5 * 60.0
    assert outcome.false_alarms == []
