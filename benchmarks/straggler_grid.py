"""Slow jobs re-timed through their dependencies, judged by the monitor's core: what is named, at which level and cost.

    python benchmarks/straggler_grid.py [--seeds N] [--write docs/stragglers.md] [--json FILE]

Layouts of ``support.causal_job`` (nodes, data, pipeline and tensor parallel, experts) with each kind of fault and dose.
Columns:

precision  of all ranks that were named, those that are slow
recall     of all jobs in which slow ranks cost 5 % of a step or more, those in which each of them was named
level      of all jobs that lose 5 % or more, those with the right verdict: rank, node, stage, workload, link; where a
           stage is a node and has been slow from the beginning, both are right
cost p90   the 90th percentile of how far the stated cost is off, as a part of the true one
false      jobs in good health, or with nobody slow, in which something was found
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import _table

from rankwatch.contract.enums import StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import NO_HANG_DETECTION, play_windows
from rankwatch_monitor.replay.summary import Summary, summarize
from support.causal_job import START, CausalJob, Kind

LAYOUTS: Final = (
    CausalJob(data=2),
    CausalJob(data=2, nodes=2),
    CausalJob(data=4),
    CausalJob(data=4, nodes=2),
    CausalJob(data=16, nodes=2),
    CausalJob(data=32, nodes=4),
    CausalJob(data=64, nodes=8),
    CausalJob(data=128, nodes=32),
    CausalJob(data=8, experts=True),
    CausalJob(data=16, nodes=2, experts=True),
    CausalJob(data=1, pipeline=4, nodes=4),
    CausalJob(data=2, pipeline=2, nodes=2),
    CausalJob(data=2, pipeline=4),
    CausalJob(data=2, pipeline=4, nodes=2),
    CausalJob(data=2, pipeline=4, nodes=2, pipeline_first=True),
    CausalJob(data=4, pipeline=2, nodes=4),
    CausalJob(data=4, pipeline=4, nodes=2, pipeline_first=True),
    CausalJob(data=4, pipeline=4, tensor=2, nodes=4),
    CausalJob(data=4, pipeline=4, tensor=2, nodes=8, pipeline_first=True),
    CausalJob(data=4, pipeline=4, tensor=2, nodes=32),
    CausalJob(data=2, tensor=2, nodes=2),
    CausalJob(data=4, tensor=2, nodes=2),
)
DOSES: Final = (0.03, 0.15, 0.3, 0.5)
MATTERS: Final = 0.05
BEGIN, END = "<!-- figures: written by benchmarks/straggler_grid.py --write -->", "<!-- end of figures -->"


class Judged(NamedTuple):
    """A job and what was said of it."""

    job: CausalJob
    cost: float
    found: Summary
    blamed: frozenset[int]
    """Every rank that was ever named."""

    @property
    def expected(self) -> frozenset[int]:
        """The slow ranks; empty where they are a property of the job."""
        return frozenset() if self.job.kind == "stage" else frozenset(self.job.slow_ranks())

    @property
    def matters(self) -> bool:
        """Whether the fault costs as much as is reported."""
        return self.cost >= MATTERS

    @property
    def level_right(self) -> bool:
        """Whether the first finding is of the right level, or says that this cannot be told apart."""
        job, found = self.job, self.found
        alike = found.verdict is StragglerVerdict.STAGE and found.ranks == job.slow_ranks()
        match job.kind:
            case "rank" | "two ranks" | "intermittent":
                alone = alike and len(found.ranks) == 1
                return alone or (found.verdict is StragglerVerdict.WORKER and set(found.ranks) <= self.expected)
            case "node":
                whole = found.host == f"node{job.victim}" or len(job.slow_ranks()) == 1
                return (alike or found.verdict is StragglerVerdict.WORKER) and whole
            case "stage":
                return alike
            case "workload" | "link":
                return found.verdict == job.kind
        return found.verdict is StragglerVerdict.HEALTHY


def jobs(seed: int) -> Iterator[CausalJob]:
    """The grid with one seed."""
    for number, layout in enumerate(LAYOUTS):
        base = replace(layout, seed=1000 * seed + number, victim=(7 * seed + number) % layout.world)
        yield base
        for dose in DOSES:
            yield replace(base, kind="rank", dose=dose, since=(0, 12)[number % 2 if layout.world > 2 else 1])
            if layout.nodes > 1:
                yield replace(base, kind="node", dose=dose, victim=base.victim % layout.nodes)
        for kind, doses in _others(layout):
            for dose in doses:
                parts = layout.pipeline if kind in ("stage", "link") else layout.world
                yield replace(
                    base,
                    kind=kind,
                    dose=dose,
                    victim=base.victim % parts,
                    # Of two ranks without a past nobody knows which one is unusual.
                    since=12 if kind == "link" or (kind == "fast twin" and layout.pipeline == 1) else 0,
                )


def _others(layout: CausalJob) -> Iterator[tuple[Kind, tuple[float, ...]]]:
    if not layout.experts:
        yield "fast twin", (0.3,)
        yield "intermittent", (1.0,)
        if layout.data >= 4:
            yield "workload", (1.0,)
    if layout.world >= 8 and layout.data >= 4 and not layout.experts:
        yield "two ranks", (0.3,)
    if layout.pipeline > 1:
        yield "stage", (0.15, 0.3)
    if layout.nodes > 1 and layout.data > 1 and layout.pipeline == 1:
        yield "link", (0.3,)


def judge(job: CausalJob) -> Judged:
    """Play a job through the core."""
    played = Job("causal", START, policy=Policy().changed(NO_HANG_DETECTION))
    for _ in play_windows(job.windows(), played):
        pass
    blamed = frozenset(straggler.rank for straggler in played.performance.stragglers)
    return Judged(job, job.share if job.dose else 0.0, summarize(played.performance), blamed)


def row(judged: list[Judged]) -> dict[str, float]:
    """One line of the table; NaN where there is nothing to count."""
    nobody = [each for each in judged if each.job.kind in ("none", "fast twin")]
    slow = [each for each in judged if each.expected and each.matters]
    told = [each for each in judged if each.matters and each not in nobody]
    named = sum(len(each.blamed) for each in judged)
    off = [abs(each.found.share - each.cost) / each.cost for each in told if each.level_right]
    return {
        "jobs": len(judged),
        "precision": _table.share(sum(len(each.blamed & each.expected) for each in judged), named),
        "recall": _table.share(sum(each.expected <= each.blamed or _alike(each) for each in slow), len(slow)),
        "level": _table.share(sum(each.level_right for each in told), len(told)),
        "cost p90": _table.percentile(off, 0.9),
        "false": sum(each.found.verdict is not StragglerVerdict.HEALTHY or bool(each.blamed) for each in nobody),
    }


def _alike(each: Judged) -> bool:
    """Whether the ranks are named as a stage that cannot be distinguished from them."""
    return each.found.verdict is StragglerVerdict.STAGE and frozenset(each.found.ranks) == each.expected


def table(judged: list[Judged]) -> dict[str, dict[str, float]]:
    """By kind of fault, and all together."""
    kinds = dict.fromkeys(each.job.kind for each in judged)
    return {kind: row([each for each in judged if each.job.kind == kind]) for kind in kinds} | {"all": row(judged)}


def markdown(rows: dict[str, dict[str, float]]) -> str:
    """The table of the document."""
    heads = ["fault", *next(iter(rows.values()))]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, figures in rows.items():
        cells = [f"{figures['jobs']:.0f}"]
        cells += ["" if figures[h] != figures[h] else f"{figures[h]:.2f}" for h in heads[2:-1]]
        cells.append(f"{figures['false']:.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, seeds=(2, "how often each layout is tried"), write=(None, "the document"))
    judged = [judge(job) for seed in range(asked.seeds) for job in jobs(seed)]
    rows = table(judged)
    _table.report(rows, "fault", asked.json)
    for each in judged:
        nobody = each.job.kind in ("none", "fast twin")
        if not each.level_right if (each.matters or nobody) else each.blamed - each.expected:
            found = each.found
            print(f"not right: {each.job} cost {each.cost:.3f}: {found.verdict} {found.share:.3f} {found.reason[:150]}")
    _table.replace_between(asked.write, BEGIN, markdown(rows), END)


if __name__ == "__main__":
    main()
