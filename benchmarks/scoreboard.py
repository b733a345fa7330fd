"""Stragglers with known answers, judged by both references; P17, false alarms a day, and P8.

    python benchmarks/scoreboard.py [--seeds N] [--worlds 8 64 512] [--days D] [--large 4096] [--json FILE]

Scenes of ``support.simulator.straggler_plan`` are played through the monitor's core: each kind of fault, at
doses of 5, 10, 20 and 50 % of a step, in worlds of several sizes, with random layouts, and each with its silent twin.
Columns:

precision  of all ranks that were called stragglers, those that are
recall     of all ranks that are, those that were called so within 20 windows
windows    from the first slow one to the first right name, median
verdict    scenes with the right verdict over the whole time (worker, stage, workload, link, healthy)
node/job   scenes in which rightly a rank, or rightly none, was blamed
cause      of the scenes with right names, those with the right cause for all of them

All references judge the same scenes. ``fastest`` has the formulas and thresholds (0.7) of nvidia-resiliency-ext for
kernels, by which its callbacks judge; ``fastest, sections`` scores step, input, forward, backward and optimizer too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import _table
import numpy as np

from rankwatch.contract.enums import ScoreReference
from rankwatch.contract.policy import Policy
from rankwatch.contract.statistics import KernelStatistics
from rankwatch_monitor.core import straggler_detector
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import NO_HANG_DETECTION
from support.simulator.straggler_outcome import StragglerOutcome, evaluate
from support.simulator.straggler_plan import NO_CULPRIT, Layout, Slow, Slowdown, StragglerPlan, random_plan
from support.simulator.straggler_scene import START, StragglerScene

DOSES: Final = (0.05, 0.1, 0.2, 0.5)
WITHIN: Final = 20
"""Windows in which a straggler is to be named."""
DAY: Final = 86_400.0
P8_RANKS: Final = 100_000
P8_KERNELS: Final = 100

REFERENCES: Final = {
    "robust": (ScoreReference.ROBUST, True),
    "fastest": (ScoreReference.FASTEST, False),
    "fastest, sections": (ScoreReference.FASTEST, True),
}
"""What decides, and whether the script has sections."""

Played = list[tuple[StragglerPlan, StragglerOutcome]]


def play(plans: Iterable[StragglerPlan], name: str) -> Played:
    """Judge plans by one of the references."""
    reference, sections = REFERENCES[name]
    policy = {"straggler_reference": str(reference)}
    return [(plan, evaluate(replace(plan, sections=sections), policy)) for plan in plans]


def row(played: Played) -> dict[str, float]:
    """One line of the table; NaN where there is nothing to count."""
    right = sum(len(o.right) for _, o in played)
    named = right + sum(o.alarms for _, o in played)
    slow = sum(len(plan.answer().ranks) for plan, _ in played)
    latencies = [float(latency) for _, o in played for latency in o.latencies]
    in_time = sum(latency <= WITHIN for latency in latencies)
    causes = [o.cause_right for _, o in played if o.cause_right is not None]
    return {
        "scenes": len(played),
        "precision": _table.share(right, named),
        "recall": _table.share(in_time, slow),
        "windows": _table.percentile(latencies, 0.5),
        "verdict": _table.share(sum(o.verdict_right for _, o in played), len(played)),
        "node/job": _table.share(sum(o.node_or_job_right for _, o in played), len(played)),
        "cause": _table.share(sum(causes), len(causes)),
    }


def p17(seeds: int) -> list[StragglerPlan]:
    """A persistent straggler that costs 10 % of a step among 512 ranks with 2 % noise, of each kind with one rank."""
    kinds = (Slow.COMPUTE, Slow.HOST, Slow.INPUT, Slow.BACKWARD, Slow.HALF, Slow.MASKED)
    return [random_plan(kind, 0.1, 512, seed, noise=0.02) for kind in kinds for seed in range(seeds)]


def false_alarms(days: float) -> dict[str, dict[str, float]]:
    """Alarms of healthy jobs, by size, over simulated days together."""
    rows = {}
    for world, layout, share in ((8, Layout(), 0.7), (64, Layout(tensor=4, pipeline=4), 0.25), (512, Layout(8), 0.05)):
        windows = max(50, round(days * share * DAY / 10))
        plan = StragglerPlan(world=world, layout=layout, step=1.25, window=8, windows=windows, seed=world)
        outcome = evaluate(plan)
        simulated = windows * plan.interval / DAY
        rows[f"{world} ranks"] = {
            "days": simulated,
            "alarms": outcome.alarms,
            "a day": outcome.alarms / simulated,
            "verdict": float(outcome.verdict_right),
        }
    return rows


def p8(ranks: int = P8_RANKS, kernels: int = P8_KERNELS, windows: int = 7) -> dict[str, float]:
    """Milliseconds that one judgement takes, and of those that come with a report of all kernels, the scoring of them.

    Of few different statistics; how long it takes does not depend on the numbers.
    """
    plan = StragglerPlan(world=ranks, kernels=0, windows=windows, window=2)
    rng = np.random.default_rng(0)
    variants = [
        {
            f"kernel_{k}": KernelStatistics(48, m, 1.02 * m, m, 0.97 * m, 1.05 * m, 0.01 * m)
            for k, m in enumerate((1e-4 * rng.uniform(0.98, 1.02, kernels)).tolist())
        }
        for _ in range(64)
    ]
    job = Job(plan.job_id, START, policy=Policy().changed(NO_HANG_DETECTION))
    plain: list[float] = []
    scored: list[float] = []
    for window, (at, reports) in enumerate(StragglerScene(plan).windows()):
        with_kernels = window % 2 == 0
        for rank, report in enumerate(reports):
            reported = variants[rank % len(variants)] if with_kernels else None
            apply(job, report._replace(kernels=reported, kernel_source="cupti"), at)
        began = time.perf_counter()
        effects = advance(job, at)
        between = time.perf_counter()
        straggler_detector.score_now(job, effects)
        if window >= 2:  # the first ones make room
            plain.append(1000 * (between - began))
            if with_kernels:
                scored.append(1000 * (time.perf_counter() - between))
    return {
        "judged p50": _table.percentile(plain, 0.5),
        "max": max(plain),
        "scored p50": _table.percentile(scored, 0.5),
    }


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__,
        seeds=(3, "scenes of each kind, dose and size"),
        worlds=([8, 64, 512], "sizes of the jobs"),
        days=(2.0, "simulated days in good health, over all sizes"),
        large=(4096, "size of one large job for each reference; 0: none"),
        p17_seeds=(10, "scenes of each kind for P17"),
    )
    reported: dict[str, Any] = {}
    wrong: list[str] = []
    _table.head()
    for reference in REFERENCES:
        began = time.perf_counter()
        table = _references(reference, asked.worlds, asked.seeds, asked.large, wrong)
        reported[reference] = table
        _table.show(table, f"{reference} ({time.perf_counter() - began:.0f} s)")
    reported["P17"] = {r: row(play(p17(asked.p17_seeds), r)) for r in REFERENCES}
    _table.show(reported["P17"], "P17: 10 % among 512 ranks with 2 % noise")
    if asked.days:
        reported["healthy"] = false_alarms(asked.days)
        _table.show(reported["healthy"], "healthy, robust")
    reported["P8"] = {"one judgement": p8()}
    _table.show(reported["P8"], f"P8: {P8_RANKS} ranks x {P8_KERNELS} kernels, ms")
    for each in wrong[:40]:
        print(f"not right (robust): {each}")
    _table.write(asked.json, **reported)


def _references(
    reference: str, worlds: list[int], seeds: int, large: int, wrong: list[str]
) -> dict[str, dict[str, float]]:
    """All scenes by one reference: by kind, by dose, by size, of their silent twins, and all together."""
    plans = [
        random_plan(slow, dose, world, seed)
        for slow in Slow
        for dose in DOSES
        for world in worlds
        for seed in range(seeds)
    ]
    if large:
        plans += [random_plan(Slow.COMPUTE, 0.2, large, 0, windows=20)]
    played = play(plans, reference)
    twins = play([replace(plan.healthy(), seed=plan.seed) for plan in plans[:: len(DOSES)]], reference)
    if reference == "robust":
        wrong += [_words(plan, o) for plan, o in played if not (o.verdict_right and o.node_or_job_right) or o.alarms]
        wrong += [_words(plan, o) for plan, o in twins if not o.verdict_right or o.alarms]
    table = {f"{slow}": row([each for each in played if _fault(each[0]).slow is slow]) for slow in Slow}
    blamed = [each for each in played if _fault(each[0]).slow not in NO_CULPRIT]
    table |= {f"somebody, {100 * d:.0f} %": row([e for e in blamed if _fault(e[0]).dose == d]) for d in DOSES}
    sizes = [*worlds, *([large] if large else [])]
    table |= {f"somebody, {world} ranks": row([e for e in blamed if e[0].world == world]) for world in sizes}
    table["silent twins"] = row(twins)
    table["all"] = row([*played, *twins])
    return table


def _fault(plan: StragglerPlan) -> Slowdown:
    assert plan.fault is not None
    return plan.fault


def _words(plan: StragglerPlan, outcome: StragglerOutcome) -> str:
    what = "healthy" if plan.fault is None else f"{plan.fault.slow} {plan.fault.dose:.0%}"
    layout = f"{plan.world} ranks, tp {plan.layout.tensor} pp {plan.layout.pipeline}, seed {plan.seed}"
    wrong = sorted(outcome.blamed - outcome.right)[:5]
    return f"{what}, {layout}: {outcome.verdict}; wrongly {wrong}, missed {sorted(outcome.missed)[:5]}"


if __name__ == "__main__":
    main()
