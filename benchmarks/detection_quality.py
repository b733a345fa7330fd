"""P12, P15, P16: simulated jobs with known answers: how soon, how rightly, and how often for nothing.

    python benchmarks/detection_quality.py [--scenes N] [--days D] [--json FILE]

Random scenes of each kind of fault (ranks, nodes, step time, export interval, pauses and the moment of the fault are
drawn from a seed) are played through the monitor's core with no limit configured. ``named first`` is the share of
faults whose first culprit is right (or where rightly nobody is named), ``named all`` that of those with exactly the
right ranks and cause; latency is from the fault to the incident, in seconds and, in the last column, as a share of the
goal, max(10 s, 5 steps). The last row is a healthy job of ``--days`` with everything that takes its time in it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import replace
from typing import Any

import _table

from rankwatch_monitor.scenes.outcome import Outcome, evaluate
from rankwatch_monitor.scenes.plan import Fault, FaultKind, Plan
from rankwatch_monitor.scenes.scene import Scene

KNOWN = 40
"""Steps before a fault strikes at the earliest: the job is known by then."""
DAY = 86_400.0


def drawn(kind: FaultKind, seed: int) -> Plan:
    """A random job with one fault of a kind."""
    rng = random.Random(f"{kind}/{seed}")
    nodes = rng.choice((2, 3, 4, 8))
    world = nodes * rng.choice((2, 4, 8))
    step = rng.choice((0.3, 1.0, 2.0, 4.0))
    struck = rng.randrange(KNOWN, KNOWN + 60)
    several = rng.random() < 0.2 and kind in (FaultKind.HANG, FaultKind.STOP)
    ranks = tuple(rng.sample(range(world), max(1, world // 8) if several else 1))
    wait = 2000.0 if kind is FaultKind.NEVER_STARTED else 150.0
    plan = Plan(
        world=world,
        nodes=nodes,
        seed=seed,
        step=step,
        noise=rng.uniform(0.02, 0.2),
        interval=rng.choice((1.0, 1.0, 5.0, 10.0)),
        compilation=rng.uniform(0.0, 60.0),
        checkpoint_every=rng.choice((0, 30, 70)),
        checkpoint=rng.uniform(1.0, 30.0),
        launchers=kind is not FaultKind.NETWORK,  # where there are some, they speak for a rank that is cut off
    )
    begun = plan.boot + plan.setup + plan.compilation
    seconds = begun + struck * step * 1.3 + 4 * plan.checkpoint + wait
    return replace(plan, seconds=seconds, faults=(Fault(kind, ranks, struck),))


def row(outcomes: list[tuple[Plan, Outcome]]) -> dict[str, float]:
    """One line of the table."""
    findings = [(plan, finding) for plan, outcome in outcomes for finding in outcome.findings]
    found = [(plan, each) for plan, each in findings if each.latency is not None]
    nan = float("nan")
    late = [each.latency for _, each in found if each.latency is not None]
    share = [(each.latency or 0.0) / max(10.0, 5 * plan.step) for plan, each in found]
    return {
        "scenes": len(outcomes),
        "found %": 100 * len(found) / len(findings) if findings else nan,
        "first %": 100 * sum(each.first_right for _, each in findings) / len(findings) if findings else nan,
        "all %": 100 * sum(each.right for _, each in findings) / len(findings) if findings else nan,
        "false": sum(len(outcome.false_alarms) for _, outcome in outcomes),
        "suspicions": sum(outcome.suspicions for _, outcome in outcomes),
        "p50 s": _table.percentile(late, 0.5) if late else nan,
        "max s": max(late, default=nan),
        "p50/goal": _table.percentile(share, 0.5) if share else nan,
    }


def healthy(days: float) -> Plan:
    """A job in good health, with everything that takes its time."""
    return Plan(
        world=8,
        nodes=2,
        seconds=days * DAY,
        interval=10.0,
        step=4.0,
        setup=30.0,
        compilation=240.0,
        checkpoint_every=500,
        checkpoint=45.0,
        evaluate_every=1500,
        evaluation=310.0,
        stall_every=700,
        stall=60.0,
        relaunch_every=14_000,
        delay=0.0,
    )


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, scenes=(20, "scenes of each kind"), days=(30.0, "days in good health"))
    rows: dict[str, dict[str, float]] = {}
    wrong: list[dict[str, Any]] = []
    for kind in FaultKind:
        outcomes = [(plan, evaluate(Scene(plan))) for plan in (drawn(kind, seed) for seed in range(asked.scenes))]
        rows[str(kind)] = row(outcomes)
        for seed, (_, outcome) in enumerate(outcomes):
            wrong += [{"seed": seed, **fault} for fault in outcome.to_json()["faults"] if not fault["right"]]
    if asked.days:
        began = time.perf_counter()
        plan = healthy(asked.days)
        rows[f"{asked.days:g} days in good health"] = row([(plan, evaluate(Scene(plan)))])
        sys.stderr.write(f"{asked.days:g} days took {time.perf_counter() - began:.0f} s\n")
    _table.report(rows, "fault", asked.json)
    for each in wrong[:20]:
        print(f"not right: {json.dumps(each)[:400]}")


if __name__ == "__main__":
    main()
