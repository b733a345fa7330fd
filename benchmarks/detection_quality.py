"""P12, P15, P16: simulated jobs with known answers: how soon, how rightly, and how often for nothing.

    python benchmarks/detection_quality.py [--scenes N] [--days D] [--large-days D] [--large N] [--json FILE]

Random scenes of each kind of fault (ranks, nodes, step time, export interval, pauses and the moment of the fault are
drawn from a seed) are played through the monitor's core with no limit configured. ``named first`` is the share of
faults whose first culprit is right (or where rightly no rank is named), ``named all`` that of those with exactly the
right ranks and cause; latency is from the fault to the incident, in seconds and, in the last column, as a share of the
goal, max(10 s, 5 steps).

Then a job in good health (``month.py``: noise, checkpoints, evaluation, compilation, data stalls, relaunches, nodes
that are replaced, clocks that are wrong) is judged for hangs and for stragglers at once: ``--days`` with 8 ranks,
``--large-days`` with ``--large`` of them. No hang may be stated; false stragglers count against ``budget``, which is
what ``straggler_alarms_per_day`` allows in that time. ``MB 1/5`` to ``MB 5/5`` is the memory of the whole process as
time goes by. The last row is the proof that the judge is awake: the same with a rank that is slower by 10 % of a step
from some time on (``blamed``: ranks named, all launches together) and another that hangs (``hangs``: incidents).

30 days of 8 ranks take about 20 minutes of one core, a day of 512 ranks about 12.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from typing import Any

import _table  # it adds tests/ to the path, where the simulator is

from support.simulator import month
from support.simulator.outcome import Outcome, evaluate
from support.simulator.plan import Fault, FaultKind, Plan
from support.simulator.scene import Scene

KNOWN = 40
"""Steps before a fault strikes at the earliest: the job is known by then."""
SMALL = 8
SICK_DAYS = 0.2
"""Days of the job that is not in good health: one launch."""


def drawn(kind: FaultKind, seed: int) -> Plan:
    """A random job with one fault of a kind."""
    rng = random.Random(f"{kind}/{seed}")
    nodes = rng.choice((2, 3, 4, 8))
    world = nodes * rng.choice((2, 4, 8))
    step = rng.choice((0.3, 1.0, 2.0, 4.0))
    struck = rng.randrange(KNOWN, KNOWN + 60)
    several = rng.random() < 0.2 and kind in (FaultKind.HANG, FaultKind.STOP)
    ranks = tuple(rng.sample(range(world), max(1, world // 8) if several else 1))
    wait = 2000.0 if kind is FaultKind.NEVER_STARTED else 600.0
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
    late = [each.latency for _, each in found if each.latency is not None]
    share = [(each.latency or 0.0) / max(10.0, 5 * plan.step) for plan, each in found]
    return {
        "scenes": len(outcomes),
        "found %": 100 * _table.share(len(found), len(findings)),
        "first %": 100 * _table.share(sum(each.first_right for _, each in findings), len(findings)),
        "all %": 100 * _table.share(sum(each.right for _, each in findings), len(findings)),
        "false": sum(len(outcome.false_alarms) for _, outcome in outcomes),
        "suspicions": sum(outcome.suspicions for _, outcome in outcomes),
        "p50 s": _table.percentile(late, 0.5),
        "max s": max(late, default=float("nan")),
        "p50/goal": _table.percentile(share, 0.5),
    }


def months(days: float, large: int, large_days: float) -> dict[str, dict[str, float]]:
    """The table of jobs in good health, and of the one that is not."""
    rows = {}
    for world, length in ((SMALL, days), (large, large_days)):
        if length:
            judged = month.play(month.healthy(world, length))
            rows[f"{world} ranks"] = month_row(length, judged)
            sys.stderr.write(f"{length:g} days of {world} ranks took {judged.cpu:.0f} s of CPU time\n")
            if judged.outcome.false_alarms or judged.named:
                sys.stderr.write(f"named {sorted(judged.named)}; {judged.outcome.false_alarms[:5]}\n")
    if rows:
        judged = month.sick(month.healthy(SMALL, SICK_DAYS), rank=3, dose=0.1)
        rows["not healthy"] = month_row(SICK_DAYS, judged)
    return rows


def month_row(days: float, judged: month.Judged) -> dict[str, float]:
    """One line of the second table."""
    outcome = judged.outcome
    return {
        "days": days,
        "launches": judged.launches,
        "events": outcome.events,
        "hangs": outcome.alarms,
        "false": len(outcome.false_alarms),
        "suspicions": outcome.suspicions,
        "windows": judged.windows,
        "stragglers": judged.stragglers,
        "blamed": len(judged.named),
        "budget": judged.budget,
        **{f"MB {n}/{len(judged.memory)}": value for n, value in enumerate(judged.memory, 1)},
    }


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__,
        scenes=(20, "scenes of each kind"),
        days=(30.0, "days in good health with 8 ranks; 0: none"),
        large_days=(1.0, "days in good health of a large job; 0: none"),
        large=(512, "its ranks"),
    )
    rows: dict[str, dict[str, float]] = {}
    wrong: list[dict[str, Any]] = []
    for kind in FaultKind:
        outcomes = [(plan, evaluate(Scene(plan))) for plan in (drawn(kind, seed) for seed in range(asked.scenes))]
        rows[str(kind)] = row(outcomes)
        for seed, (_, outcome) in enumerate(outcomes):
            wrong += [{"seed": seed, **fault} for fault in outcome.to_json()["faults"] if not fault["right"]]
    _table.head()
    _table.show(rows, "fault")
    for each in wrong[:20]:
        print(f"not right: {json.dumps(each)[:400]}")
    healthy = months(asked.days, asked.large, asked.large_days)
    if healthy:
        _table.show(healthy, "in good health")
    _table.write(asked.json, figures=rows, in_good_health=healthy)


if __name__ == "__main__":
    main()
