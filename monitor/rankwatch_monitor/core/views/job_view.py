"""Views of a job: its state, its ranks, launchers, time and incidents as REST, page and publishers show them.

All of it is derived when it is read; nothing is stored. Shapes: R ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from rankwatch.contract.enums import CulpritClass, JobState, Proof, RankState, VerdictKind
from rankwatch.contract.node_checks import failed, unfit
from rankwatch_monitor.core import goodput_accounting, liveness, nodes
from rankwatch_monitor.core.hang.blame import exit_of
from rankwatch_monitor.core.hang.stacks import of_script
from rankwatch_monitor.core.hang.verdict import Common, Verdicts
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.incident_record import Incident, Phase, shown_check
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.ranks import EXITED, STOPPED, Floats, live_ranks
from rankwatch_monitor.core.views import downtime, ended, goodput_note, phases, rankings, responses, verdict
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.job_verdict import steps_per_second
from rankwatch_monitor.core.views.lag import explained
from rankwatch_monitor.core.views.quiet_host import quiet_host, quiet_ranks
from rankwatch_monitor.core.views.stated import stated
from rankwatch_monitor.core.words.causes import reason as exit_reason

RANK_STATES: Final = tuple(RankState)
_CODE: Final = {state: code for code, state in enumerate(RANK_STATES)}
WORST_FIRST: Final = (
    RankState.DEAD,
    RankState.HUNG,
    RankState.SUSPECTED,
    RankState.STOPPED,
    RankState.SILENT,
    RankState.UNSEEN,
    RankState.WAITING,
    RankState.RUNNING,
    RankState.ENDED,
    RankState.FINISHED,
)
SEVERITY: Final = np.array([len(WORST_FIRST) - WORST_FIRST.index(state) for state in RANK_STATES], dtype=np.uint8)
"""By code of :func:`rank_states`; the higher, the worse."""


def rank_states(job: Job, verdicts: Verdicts, now: float) -> npt.NDArray[np.uint8]:
    """One code for each rank, an index into :data:`RANK_STATES`; shape (R,).

    The ranks of a lost job are silent, except those of an open incident, whose last state is kept: that none of them
    reports is no verdict on a rank. So are those of a quiet host that others wait for, already before its limit. Where
    a rank crashed or a node was lost, the others wait for the restart: their processes may run, and complete no step.
    Those of an ended job: :func:`.ended.rank_states`.
    """
    if job.ended is not None:
        return ended.rank_states(job, job.ended, _CODE)
    columns = job.columns
    codes_R = np.where(columns.reported_R, _CODE[RankState.RUNNING], _CODE[RankState.UNSEEN]).astype(np.uint8)
    incident = job.open_incident
    named = incident.culprits if incident and incident.attempt == job.attempt else ()
    blamed = {culprit.rank for culprit in named}
    busy = blamed if incident is not None and incident.proof == Proof.BUSY else set()
    certain = incident.confirmed if incident is not None else verdicts.act_at_once
    hung = _CODE[RankState.HUNG if certain else RankState.SUSPECTED]
    code_V = np.array([_code_of(common, hung) for common in verdicts.commons], dtype=np.uint8)[verdicts.common_V]
    blamed_V, over_V = np.isin(verdicts.rank_V, list(blamed)), code_V == hung
    if blamed:
        code_V[over_V & ~blamed_V] = _CODE[RankState.WAITING]
    shown_V = ~(over_V & blamed_V) if busy else np.ones(len(verdicts), dtype=np.bool_)
    codes_R[verdicts.rank_V[shown_V]] = code_V[shown_V]
    for rank in blamed - busy:
        if rank < len(codes_R) and codes_R[rank] not in (_CODE[RankState.SILENT], _CODE[RankState.DEAD]):
            codes_R[rank] = hung
    if silent := [each.rank for each in named if each.kind is CulpritClass.HOST_SILENT]:
        # Also where the others are not heard lately either, and silence is no verdict any more.
        silent_R = quiet_ranks(job, now) & np.isin(np.arange(len(columns)), silent) & (codes_R == hung)
        codes_R[silent_R] = _CODE[RankState.SILENT]
    if (quiet := quiet_host(job, now)) is not None:
        codes_R[np.isin(codes_R, (_CODE[RankState.HUNG], _CODE[RankState.SUSPECTED]))] = _CODE[RankState.WAITING]
        codes_R[list(quiet.ranks)] = _CODE[RankState.SILENT]
    if liveness.lost(job, now):
        codes_R[codes_R == _CODE[RankState.RUNNING]] = _CODE[RankState.SILENT]
    over = incident is not None and _attempt_is_over(job, incident)
    if over:
        codes_R[codes_R == _CODE[RankState.RUNNING]] = _CODE[RankState.WAITING]
    codes_R[columns.process_R == STOPPED] = _CODE[RankState.STOPPED]
    gone_R = columns.process_R == EXITED
    # After a crash those that shut down have raised, or are about to be ended: how they exit is not known.
    codes_R[columns.shut_down_R] = _CODE[RankState.ENDED if over else RankState.FINISHED]
    codes_R[columns.exit_known_R & (columns.exit_code_R == 0)] = _CODE[RankState.FINISHED]
    codes_R[gone_R & (columns.exit_code_R != 0)] = _CODE[RankState.DEAD]
    return codes_R


def _code_of(common: Common, hung: int) -> int:
    """The state of a rank over a limit, if it is not found to wait for another one."""
    if common.node_loss:
        return _CODE[RankState.DEAD]
    return _CODE[RankState.SILENT] if common.kind in (VerdictKind.SILENT, VerdictKind.NODE_LOST) else hung


def _attempt_is_over(job: Job, incident: Incident) -> bool:
    """Whether the attempt that runs ended with a crash or with the loss of a node, and no new one has begun."""
    return (
        incident.attempt == job.attempt
        and incident.kind in (VerdictKind.PROCESS_EXITED, VerdictKind.NODE_LOST)
        and incident.phase is not Phase.RECOVERING
    )


def summary(job: Job, now: float, activity: HostActivity | None = None) -> responses.JobSummary:
    """The job as ``GET /jobs`` shows it.

    Args:
        activity: from which hosts all jobs are heard; None: not known.
    """
    found = stated(job, now, activity)
    state, speed = found["state"], steps_per_second(job, now)
    return {
        **found,  # type: ignore[typeddict-item]  # "monitor" is added by the route
        "id": job.id,
        "no_restart": ended.no_restart(job),
        "repeated": None if (again := ended.repeated(job)) is None else again.to_json(),
        "world_size": job.world_size,
        "ranks_reporting": _reporting(job, now),
        "attempt": job.attempt,
        "started_at": job.created_at,
        "goodput_notes": [] if found["goodput"] is None else list(goodput_note.notes(job, state, now)),
        "waited": "" if found["goodput"] is None else goodput_note.waiting(job),
        "unsaved": goodput_note.without_save(job) if state is JobState.FINISHED else "",
        "steps_thrown_away": sum(each.steps_lost or 0 for each in job.incidents),
        "iteration_before": _iteration_before(job),
        "iterations_per_second": speed,
        # While no step completes alone, as with `last_heard`.
        "step_seconds": _usual_step(job) if speed == 0 else None,
        "checkpoint": _checkpoint(job),
        # Of a lost job alone: it would change with every report, and with it all that is sent only when it changes.
        "last_heard": job.last_heard if state is JobState.LOST else None,
        "instrumented": job.instrumented,
        "observe_only": job.policy.observe_only,
        "open_stragglers": len(job.performance.open_stragglers),
        "incidents": len(job.incidents),
        "restarts": job.restarts,
        "max_restarts": job.restart_budget,
        "nodes_by_role": nodes.counts(job),
    }


def _reporting(job: Job, now: float) -> int:
    """Number of live ranks that are not silent and not on a lost node; a silent rank opens an incident.

    None of an ended job, whether or not its end is known from more than its record.
    """
    if job.ended is not None or liveness.lost(job, now):
        return 0
    live_R = live_ranks(job.columns)
    if job.open_incident is not None:
        codes_R = rank_states(job, verdicts_of(job, now), now)
        live_R &= ~np.isin(codes_R, [_CODE[RankState.SILENT], _CODE[RankState.DEAD]])
    return int(np.sum(live_R))


def _iteration_before(job: Job) -> int | None:
    """While an attempt after an incident has completed no step: the furthest step of the attempt before."""
    incident = job.open_incident
    return incident.furthest_iteration if incident is not None and job.furthest_iteration is None else None


def _usual_step(job: Job) -> float | None:
    """Seconds of productive time that a step usually took, in three digits; None: unknown."""
    return float(f"{job.ledger.step_seconds:.3g}") or None


def _checkpoint(job: Job) -> responses.Checkpoint | None:
    """The last checkpoint that is known: after which step, None for scripts that count none, and when it was saved."""
    if (known := job.ledger.checkpoint) is None:
        return None
    return {"step": known.iteration if known.iteration >= 0 else None, "at": known.at, "exact": known.loaded}


def ages_as_of(job: Job, now: float) -> Floats:
    """The moment of which each rank's ages are, in unix seconds; shape (R,).

    A rank that makes progress has gone on since its last report: its ages are as of that.
    """
    return _as_of(job, rank_states(job, verdicts_of(job, now), now), now)


def _as_of(job: Job, codes_R: npt.NDArray[np.uint8], now: float) -> Floats:
    running_R = codes_R == _CODE[RankState.RUNNING]
    return np.where(running_R, np.fmin(now, job.columns.last_update_R), now)


def launchers(job: Job, now: float) -> list[responses.Launcher]:
    """All launchers as ``GET /jobs/{id}`` shows them."""
    return [launcher(name, node, now) for name, node in job.nodes.items()]


def launcher(name: str, node: Node, now: float) -> responses.Launcher:
    """One launcher."""
    return {
        "node": name,
        "host": node.registration.host,
        "launcher_pid": node.registration.launcher_pid,
        "local_world_size": node.registration.local_world_size,
        "min_nodes": node.registration.min_nodes or None,
        "last_seen": node.seen,
        "last_seen_age": max(0.0, now - node.seen),
        "attempt": node.attempt,
        "ranks": sorted(node.ranks),
        "role": node.role,
        "role_reason": node.role_reason,
        "lost": node.lost.reason if node.lost else None,
        "topology": list(node.registration.topology),
        "facts": dict(node.registration.facts),
        "checks": cast("list[responses.NodeCheck]", [shown_check(each) for each in node.registration.checks]),
        "unfit": unfit(failures) if (failures := failed(node.registration.checks)) and node.ended is None else "",
        "ended": str(node.ended.kind) if node.ended else None,
        "ended_reason": node.ended.reason if node.ended else "",
    }


def ranks(job: Job, now: float, chosen: Iterable[int] | None = None) -> list[responses.RankReport]:
    """Ranks as ``GET /jobs/{id}/ranks`` shows them: the chosen ones, or all. Those of an ended job as of its end."""
    now = now if job.ended is None else min(now, job.ended.at)
    codes_R = rank_states(job, verdicts_of(job, now), now)
    columns = job.columns
    incident = job.open_incident
    reasons: dict[int, str] = {}
    functions: dict[int, str] = {}
    if incident is not None and incident.attempt == job.attempt:
        reasons = {c.rank: explained(incident, c, columns) for c in incident.culprits}
        groups = incident.stacks.groups()
        functions = {rank: each.frames[0].function for each in groups if each.frames for rank in each.ranks}
    if job.ended is not None:
        reasons = {c.rank: c.reason for c in ended.crashed(job, job.ended)}
    scores, at_R = rankings.rank_scores(job), _as_of(job, codes_R, now)
    rows: list[responses.RankReport] = []
    for rank in range(len(columns)) if chosen is None else chosen:
        dead = columns.process_R[rank] == EXITED and columns.exit_code_R[rank] != 0
        state = RANK_STATES[codes_R[rank]]
        stands = state in (RankState.HUNG, RankState.SUSPECTED, RankState.WAITING)
        at = float(at_R[rank])
        rows.append(
            {
                "rank": rank,
                "local_rank": _non_negative(columns.local_rank_R[rank]),
                "host": columns.hosts[rank],
                "pid": _non_negative(columns.pid_R[rank]),
                "state": state,
                "iteration": _non_negative(columns.iteration_R[rank]),
                "progress": _non_negative(columns.progress_R[rank]),
                "heartbeat_age": _age(at, columns.last_heartbeat_R[rank]),
                "report_age": _age(now, columns.last_heard_R[rank]),
                "open_sections": {name: round(age, 3) for name, age in columns.open_sections(rank, at).items()},
                "function": (functions.get(rank) or None) if stands else None,
                "idle": _age(at, columns.idle_since_R[rank]),
                "scores": scores[rank],
                "reason": exit_reason(exit_of(columns, rank)) if dead else reasons.get(rank, ""),
            }
        )
    return rows


def goodput(job: Job, now: float) -> responses.Goodput:
    """A job's time as ``GET /jobs/{id}/goodput`` shows it: seconds by bucket, and what each incident took so far."""
    lasted, lately = goodput_accounting.last_hour(job)
    spent = goodput_accounting.spent(job)
    return {
        "ratio": verdict.goodput(job),
        "waited_for": goodput_note.waited_for(job),
        "notes": list(goodput_note.notes(job, verdict.job_state(job, now)[0], now)),
        "seconds": sum(spent.values()),
        "window": {"seconds": lasted, "ratio": lately},
        "buckets": {str(bucket): seconds for bucket, seconds in spent.items()},
        "incidents": [
            {
                "id": each.id,
                "kind": each.kind,
                "opened_at": each.opened_at,
                "phases": phases.phases(job, each, now),
                "cost": downtime.cost(job, each, now),
                "lost_steps_s": downtime.of_lost_steps(job, each),
                "steps_lost": each.steps_lost,
                "outcome": each.outcome,
            }
            for each in reversed(job.incidents)
        ],
    }


def stack_groups(incident: Incident) -> list[responses.StackGroup]:
    """The grouped stacks of an incident, those of culprits first."""
    named = {c.rank for c in incident.culprits}
    rows: list[responses.StackGroup] = [
        {
            "ranks": list(g.ranks),
            "label": g.label,
            "frames": [
                {"function": f.function, "file": f.file, "line": f.line, "of_script": of_script(f)} for f in g.frames
            ],
            "is_culprit": bool(named & set(g.ranks)),
            "waits": g.waits,
            "process_state": g.process_state,
            "method": g.method,
            "note": g.note,
        }
        for g in incident.stacks.groups()
    ]
    return sorted(rows, key=lambda row: not row["is_culprit"])


def _non_negative(value: np.int64) -> int | None:
    return int(value) if value >= 0 else None


def _age(now: float, at: np.float64) -> float | None:
    return None if np.isnan(at) else round(max(0.0, now - float(at)), 3)
