"""One group of the parallel layout: whether it causes the job's trouble or waits, its ranks, and their collectives.

A group of one rank is left out wherever groups are listed: it is that rank.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch.cli.formatting import uncapital, whole_percent
from rankwatch.contract.enums import RankState
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.straggler.lateness import OWN
from rankwatch_monitor.core.views import job_view, responses
from rankwatch_monitor.core.views.headline import headline, without_subject
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.node_view import (
    all_of,
    group_sizes,
    in_groups,
    labels,
    lateness_of,
    layout_column,
    of_states,
    worst_first,
)
from rankwatch_monitor.core.views.quiet_host import QuietHost, quiet_host
from rankwatch_monitor.core.views.slow_headline import slow_headline
from rankwatch_monitor.core.views.throttling import throttle_of

SHOWN: Final = 200
"""Ranks of a group in one answer, the worst first."""
COLLECTIVES_SHOWN: Final = 200
BESIDE_SHOWN: Final = 256
"""Groups of a dimension in one answer, in the order of their numbers."""
NOTABLE: Final = 0.05
"""Share of a step for which the others wait for a rank, from which a sentence names it."""


class Role(StrEnum):
    """What a group has to do with the trouble of its job."""

    CAUSE = "cause"
    WAITS = "waits"
    CALM = "calm"
    UNKNOWN = "unknown"


class Standing(NamedTuple):
    """Whether a group is the cause of what is wrong with its job, in a sentence."""

    role: Role
    text: str
    blamed: tuple[int, ...] = ()
    """The ranks that the others wait for, the first one first."""
    detail: str = ""
    """What was measured of the first of them, if it is slow, as a sentence; empty: the text has it."""

    def to_json(self, column_R: Ints) -> responses.Standing:
        """For the API, with the group of the first of these ranks; ``column_R``: the group of each rank."""
        first = self.blamed[0] if self.blamed else None
        at = int(column_R[first]) if first is not None and first < len(column_R) and column_R[first] >= 0 else None
        return {"role": self.role.value, "text": self.text, "detail": self.detail, "rank": first, "number": at}


def group(
    job: Job, dimension: responses.Dimension, number: int, now: float, activity: HostActivity | None = None
) -> responses.GroupDetail | None:
    """The ranks at one coordinate of a dimension; None: there are none.

    Args:
        job: the job.
        dimension: one of :data:`~rankwatch_monitor.core.views.node_view.DIMENSIONS`.
        number: the coordinate.
        now: unix seconds.
        activity: from which hosts all jobs are heard; None: not known.
    """
    column_R = layout_column(job, dimension)
    ranks = np.flatnonzero(column_R == number)
    if not len(ranks):
        return None
    codes_R = job_view.rank_states(job, verdicts_of(job, now), now)
    codes = codes_R[ranks]
    late, known = lateness_of(job, ranks), job.performance.scores is not None
    shown, sizes = worst_first(job, ranks.tolist(), now)[:SHOWN], group_sizes(job)
    rows = in_groups(job, job_view.ranks(job, now, shown), sizes)
    summary = job_view.summary(job, now, activity)
    standing = _standing(job, ranks, late, quiet_host(job, now, activity), known_late=known)
    iteration = job.columns.iteration_R[ranks]
    counts = np.bincount(codes, minlength=len(job_view.RANK_STATES))
    numbers = np.flatnonzero(sizes[dimension] > 1).tolist()
    incident = job.open_incident
    states = [str(state) for code, state in enumerate(job_view.RANK_STATES) for _ in range(int(counts[code]))]
    inside = set(ranks.tolist())
    words = _waiting(job, standing, states)
    words = words or of_states(states, [each.rank for each in job.performance.open_stragglers if each.rank in inside])
    return {
        "job": job.id,
        "name": job.name,
        "dimension": dimension,
        "number": number,
        "numbers": numbers,
        "attempt": job.attempt,
        "total_ranks": len(ranks),
        "hosts": len({job.columns.hosts[rank] for rank in ranks.tolist()} - {""}),
        "states": {job_view.RANK_STATES[code]: int(count) for code, count in enumerate(counts) if count},
        "iterations": {
            "min": int(iteration[iteration >= 0].min()) if (iteration >= 0).any() else None,
            "max": int(iteration.max()) if (iteration >= 0).any() else None,
        },
        "label": labels(summary),
        "advice": summary["advice"],
        "standing": standing.to_json(column_R),
        "summary": f"{words}.",
        "sentences": [standing.text, f"{words}."],
        "beside": _beside(job, column_R, codes_R, numbers[:BESIDE_SHOWN]),
        "incident": None if incident is None else {"id": incident.id, "headline": headline(incident)},
        "ranks": rows,
        "collectives": _collectives(job, ranks),
    }


def _standing(job: Job, ranks: Ints, late: Floats, quiet: QuietHost | None, *, known_late: bool) -> Standing:
    """Whether the group is the cause of what is wrong with the job."""
    inside = set(ranks.tolist())
    incident = job.open_incident
    if incident is not None and incident.attempt != job.attempt:
        return Standing(Role.UNKNOWN, "The job restarts: no rank of the new attempt is named.")
    if incident is not None:
        blamed = tuple(culprit.rank for culprit in incident.culprits) if quiet is None else quiet.ranks
        what = headline(incident).rstrip(".") if quiet is None else quiet.headline
        if not blamed:
            return Standing(Role.UNKNOWN, f"No rank is named as the cause yet: {_lower(what)}.")
        if inside.isdisjoint(blamed):
            return Standing(Role.WAITS, f"This group waits, it is not the cause: {_lower(what)}.", blamed)
        named = sorted(inside.intersection(blamed))
        is_cause = ("is" if len(named) == 1 else "are") if incident.confirmed else "may be"
        lead = f"{'Rank' if len(named) == 1 else 'Ranks'} {as_ranges(named)} of this group {is_cause} the cause"
        if blamed == tuple(named) and quiet is None:
            what = without_subject(incident, "it" if len(named) == 1 else "they") or what
        return Standing(Role.CAUSE, f"{lead}: {_lower(what)}.", blamed)
    if job.ended is not None:
        return Standing(Role.UNKNOWN, "The job is over: its ranks are shown as last reported.")
    if slow := job.performance.open_stragglers:
        own = [each for each in slow if each.rank in inside]
        blamed, first = tuple(each.rank for each in own or slow), (own or slow)[0]
        line, reason = (each.rstrip(".") for each in (slow_headline(first, throttle_of(job, first)), first.reason))
        what = _lower(line if line.startswith("Rank") else f"rank {first.rank} is slow: {_lower(line)}")
        detail = "" if line == reason else f"{reason}."
        if not own:
            return Standing(Role.WAITS, f"This group waits, it is not the cause: {what}.", blamed, detail)
        more = f" {len(own) - 1} more of its ranks {'is' if len(own) == 2 else 'are'} slow." if len(own) > 1 else ""
        return Standing(Role.CAUSE, f"This group makes the others wait: {what}.{more}", blamed, detail)
    if not known_late:
        return Standing(Role.CALM, "Nothing is wrong with a rank of this group.")
    slowest = int(np.argmax(late))
    if late[slowest] < NOTABLE:
        return Standing(Role.CALM, "No rank of this group makes the others wait.")
    count = int(np.sum(late >= NOTABLE))
    more = f" {count} of its ranks do so for {whole_percent(NOTABLE)} or more." if count > 1 else ""
    rank, share = int(ranks[slowest]), whole_percent(float(late[slowest]))
    return Standing(
        Role.CALM,
        f"The others wait for rank {rank} for {share} of each step.{more}",
        (rank,),
    )


def _waiting(job: Job, standing: Standing, states: list[str]) -> str:
    """For how much of each step ranks that all run wait for a slow rank of another group; empty: they do not."""
    slow = next((each for each in job.performance.open_stragglers if each.rank in standing.blamed[:1]), None)
    if standing.role is not Role.WAITS or slow is None or set(states) != {RankState.RUNNING}:
        return ""
    subject, verbs = ("Its rank", "runs and waits") if len(states) == 1 else (all_of(len(states)), "run and wait")
    return f"{subject} {verbs} {whole_percent(slow.stated_share or 0.0)} of each step for rank {slow.rank}"


def _beside(job: Job, column_R: Ints, codes_R: npt.NDArray[np.uint8], numbers: list[int]) -> list[responses.Beside]:
    """All groups of the dimension: the state of the worst rank of each, how many are slow, step and time of a step."""
    slow_R = np.zeros(len(column_R), dtype=bool)
    slow_R[[each.rank for each in job.performance.open_stragglers if each.rank < len(slow_R)]] = True
    known_R = column_R >= 0
    size = int(column_R.max(initial=-1)) + 1
    worst = np.zeros(size, dtype=np.uint8)
    np.maximum.at(worst, column_R[known_R], job_view.SEVERITY[codes_R[known_R]])
    slow = np.bincount(column_R[known_R & slow_R], minlength=size)
    state_of = {int(severity): job_view.RANK_STATES[code] for code, severity in enumerate(job_view.SEVERITY)}
    iteration_R = job.columns.iteration_R
    reached = _greatest(size, column_R, known_R & (iteration_R >= 0), iteration_R.astype(np.float64))
    work_R, step_R = _own_work(job, len(column_R))
    work = _greatest(size, column_R, known_R & np.isfinite(work_R), work_R)
    step = _greatest(size, column_R, known_R & np.isfinite(step_R), step_R)
    return [
        {
            "number": number,
            "state": state_of[int(worst[number])],
            "slow": int(slow[number]),
            "iteration": None if np.isnan(reached[number]) else int(reached[number]),
            "work": None if np.isnan(work[number]) else float(work[number]),
            "step": None if np.isnan(step[number]) else float(step[number]),
        }
        for number in numbers
    ]


def _own_work(job: Job, size: int) -> tuple[Floats, Floats]:
    """Seconds of each rank's own work in its last profiled step, and of that step; NaN: not known; shape (R,)."""
    parts_RP = job.performance.parts_RP[:size]
    work_R, step_R = np.full(size, np.nan), np.full(size, np.nan)
    work_R[: len(parts_RP)] = parts_RP[:, OWN].sum(axis=1)
    step_R[: len(parts_RP)] = parts_RP.sum(axis=1)
    return work_R, step_R


def _greatest(size: int, column_R: Ints, chosen_R: Bools, value_R: Floats) -> Floats:
    """The greatest value of each group over the chosen ranks; NaN: there is none."""
    found = np.full(size, -np.inf)
    np.maximum.at(found, column_R[chosen_R], value_R[chosen_R])
    return np.where(np.isfinite(found), found, np.nan)


def _collectives(job: Job, ranks: Ints) -> responses.GroupCollectives:
    """How far the ranks of the group are in their process groups, by the evidence of the newest incident that has any.

    The ranks of a row are those of this group.
    """
    inside = set(ranks.tolist())
    rows: list[responses.GroupProgress]
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


def _lower(text: str) -> str:
    """A sentence as a part of another."""
    return uncapital(text) if text[1:2].islower() else text
