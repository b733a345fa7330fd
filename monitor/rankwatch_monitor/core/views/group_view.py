"""One group of the parallel layout: which of its ranks is behind or slow, its ranks, and their collectives.

A group of one rank is left out wherever groups are listed: it is that rank.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.nodes import format_ranks
from rankwatch_monitor.core.ranks import Ints
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.headline import headline
from rankwatch_monitor.core.views.node_view import (
    add_stragglers,
    coordinates_of,
    group_sizes,
    lateness_of,
    layout_column,
    of_states,
    worst_first,
)

SHOWN: Final = 200
"""Ranks of a group in one answer, the worst first."""
COLLECTIVES_SHOWN: Final = 200
BESIDE_SHOWN: Final = 256
"""Groups of a dimension in one answer, in the order of their numbers."""
NOTABLE: Final = 0.05
"""Share of a step for which the others wait for a rank, from which a sentence names it."""


def group(job: Job, dimension: str, number: int, now: float) -> dict[str, Any] | None:
    """The ranks at one coordinate of a dimension; None: there are none.

    Args:
        job: the job.
        dimension: one of :data:`~rankwatch_monitor.core.views.node_view.DIMENSIONS`.
        number: the coordinate.
        now: unix seconds.
    """
    column_R = layout_column(job, dimension)
    ranks = np.flatnonzero(column_R == number)
    if not len(ranks):
        return None
    codes_R = job_view.rank_states(job, verdicts_of(job, now), now)
    codes = codes_R[ranks]
    late, known = lateness_of(job, ranks), job.performance.scores is not None
    shown, sizes = worst_first(job, ranks.tolist(), now)[:SHOWN], group_sizes(job)
    rows = job_view.ranks(job, now, shown)
    for row in rows:
        row["groups"] = coordinates_of(job, row["rank"], sizes)
    add_stragglers(job, rows)
    iteration = job.columns.iteration_R[ranks]
    counts = np.bincount(codes, minlength=len(job_view.RANK_STATES))
    numbers = np.flatnonzero(sizes[dimension] > 1).tolist()
    incident = job.open_incident if job.open_incident and job.open_incident.attempt == job.attempt else None
    states = [str(state) for code, state in enumerate(job_view.RANK_STATES) for _ in range(int(counts[code]))]
    return {
        "job": job.id,
        "name": job.name,
        "dimension": dimension,
        "number": number,
        "numbers": numbers,
        "attempt": job.attempt,
        "total_ranks": len(ranks),
        "hosts": len({job.columns.hosts[rank] for rank in ranks.tolist()} - {""}),
        "states": {str(job_view.RANK_STATES[code]): int(count) for code, count in enumerate(counts) if count},
        "iterations": {
            "min": int(iteration[iteration >= 0].min()) if (iteration >= 0).any() else None,
            "max": int(iteration.max()) if (iteration >= 0).any() else None,
        },
        "sentences": [*_standing(job, incident, ranks, late, known_late=known), f"{of_states(states)}."],
        "beside": _beside(job, column_R, codes_R, numbers[:BESIDE_SHOWN]),
        "incident": None if incident is None else {"id": incident.id, "headline": headline(incident)},
        "ranks": rows,
        "collectives": _collectives(job, ranks),
    }


def _standing(
    job: Job, incident: Incident | None, ranks: Ints, late: np.ndarray[Any, Any], *, known_late: bool
) -> list[str]:
    """Which rank is behind or slow, the sentence that matters most first."""
    inside = set(ranks.tolist())
    if incident is not None and incident.culprits:
        what = headline(incident).rstrip(".")
        culprits = sorted(inside & {culprit.rank for culprit in incident.culprits})
        if not culprits:
            return ["No rank of this group is named by the open incident.", f"{what}."]
        kind = "suspected" if not incident.confirmed else "the culprit" if len(culprits) == 1 else "culprits"
        return [f"{what}.", f"{_capital(format_ranks(culprits))} {'is' if len(culprits) == 1 else 'are'} {kind}."]
    slow = [each for each in job.performance.open_stragglers if each.rank in inside]
    if slow:
        lead, others = _capital(slow[0].reason.rstrip(".")), len(slow) - 1
        named = lead if lead.startswith("Rank") else f"Rank {slow[0].rank} is slow: {lead}"
        too = f" {others} more of its ranks {'is' if others == 1 else 'are'} slow." if others else ""
        return [f"{named}.{too}"]
    if not known_late:
        return []
    slowest = int(np.argmax(late))
    if late[slowest] < NOTABLE:
        return ["No rank of this group makes the others wait."]
    count = int(np.sum(late >= NOTABLE))
    more = f" {count} of its ranks do so for {NOTABLE:.0%} or more." if count > 1 else ""
    return [f"The others wait for rank {int(ranks[slowest])} for {late[slowest]:.0%} of each step.{more}"]


def _beside(job: Job, column_R: Ints, codes_R: np.ndarray[Any, Any], numbers: list[int]) -> list[dict[str, Any]]:
    """All groups of the dimension: the state of the worst rank of each, and how many are slow."""
    slow_R = np.zeros(len(column_R), dtype=bool)
    slow_R[[each.rank for each in job.performance.open_stragglers if each.rank < len(slow_R)]] = True
    known_R = column_R >= 0
    worst = np.zeros(int(column_R.max(initial=-1)) + 1, dtype=np.uint8)
    np.maximum.at(worst, column_R[known_R], job_view.SEVERITY[codes_R[known_R]])
    slow = np.bincount(column_R[known_R & slow_R], minlength=len(worst))
    state_of = {int(severity): str(job_view.RANK_STATES[code]) for code, severity in enumerate(job_view.SEVERITY)}
    return [{"number": number, "state": state_of[int(worst[number])], "slow": int(slow[number])} for number in numbers]


def _collectives(job: Job, ranks: Ints) -> dict[str, Any]:
    """How far the ranks of the group are in their process groups, by the evidence of the newest incident that has any.

    The ranks of a row are those of this group.
    """
    inside = set(ranks.tolist())
    for incident in reversed(job.incidents):
        if incident.attempt != job.attempt:
            break
        rows = [
            {
                "group": each.group,
                "operation": each.operation,
                "enqueued": each.enqueued,
                "completed": each.completed,
                "ranks": sorted(inside & set(each.ranks)),
            }
            for each in incident.stacks.group_progress()
            if not inside.isdisjoint(each.ranks)
        ]
        if rows:
            return {"incident": incident.id, "at": incident.timeline.captured, "rows": rows[:COLLECTIVES_SHOWN]}
    return {"incident": None, "at": None, "rows": []}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
