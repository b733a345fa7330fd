"""Goodput accounting: puts every second of a job's life into exactly one bucket.

:func:`account` is called about once a second and at transitions. Time is first *pending* in a provisional bucket; it is
*settled*, and never changes again, once an event decides its bucket:

====================================  =================================================================================
event                                 bucket of the pending time until then
====================================  =================================================================================
a step is completed                   productive, or waiting for a slow rank; except checkpoints, evaluation, and
                                      stalled time
the first step of an attempt          startup, or a restart
an attempt begins                     hang and handling by the incident's timeline; lost for the interrupted step
the run ends                          the same, else shutdown
====================================  =================================================================================

One event changes settled time: an attempt that resumes before the last step throws the steps after its first one away,
so that their time is no longer productive but lost. They are new steps when they are done again.

The buckets sum to the time accounted for by construction: a span is only ever split, joined or relabeled. Incidents are
laid over pending time when it is shown or settled (:func:`overlaid`), so a hang counts from its beginning, not from its
detection. Completed steps outweigh suspicions: time in which they continued at the usual pace is productive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from rankwatch.contract.enums import RESTARTS, Action, JobState, VerdictKind
from rankwatch.contract.semconv import CHECKPOINTING_SECTION, EVALUATION_SECTIONS, STEP_SECTION
from rankwatch_monitor.core import liveness, nodes
from rankwatch_monitor.core.goodput import intervals
from rankwatch_monitor.core.goodput.intervals import Bucket, Span
from rankwatch_monitor.core.goodput.ledger import CompletedStep, Ledger, into_minutes
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import UNKNOWN, RankColumns

INTERVAL: Final = 1.0
"""Seconds between two evaluations of a job in which nothing changes."""
AWAY: Final = 15.0
"""Seconds without an evaluation after which the monitor was away; a busy one still evaluates every few seconds."""
USUAL: Final = 0.8
"""Steps continue at the usual pace when they fill at least this fraction of the time: a little jitter is no stall."""
SMOOTHING: Final = 0.2
"""Weight of the newest sample in the usual duration of a step."""
KEPT_PENDING: Final = 256
"""Pending spans; beyond that the older half is settled, as for a run that checkpoints and never completes a step."""

_ACTING: Final = (*RESTARTS, Action.SAVE_AND_STOP, Action.STOP)
_BETWEEN: Final = {CHECKPOINTING_SECTION: Bucket.CHECKPOINTING, **dict.fromkeys(EVALUATION_SECTIONS, Bucket.EVALUATION)}


# Accounting -----------------------------------------------------------------------------------------------------------


def account(job: Job, now: float) -> None:
    """Account for the time up to ``now`` (unix seconds, non-decreasing). Cheap when nothing has changed."""
    ledger = job.ledger
    incident = job.incidents[-1] if job.incidents else None
    key = (job.attempt_since, job.ended is None, incident and incident.id, incident and incident.phase)
    if key == ledger.evaluated and now - ledger.accounted_at < INTERVAL:
        return
    away = now - ledger.accounted_at > AWAY
    ledger.accounted_at, ledger.evaluated = max(now, ledger.accounted_at), key
    if job.attempt_since != ledger.attempt_since:
        _settle_attempt(job, ledger, now, away=away)
    ledger.waited += job.performance.take_waited()
    ledger.had_ranks |= job.instrumented or bool(np.any(job.columns.process_R != UNKNOWN))
    end = _end(job)
    if end is not None:
        _settle_run(job, ledger, min(end, now), away=away)
    elif liveness.lost(job, now):
        # It may have ended after its last message; if not, the time after that is filled in when it is back.
        ledger.pending, ledger.lost = intervals.split(ledger.pending, job.last_heard)[0], True
    else:
        _continue(job, ledger, now, away=away)
    ledger.count(now)


def _continue(job: Job, ledger: Ledger, now: float, *, away: bool) -> None:
    if ledger.ended:  # ranks of the same attempt number reported after the end, without a launcher
        reporting_R = job.columns.reported_R & ~job.columns.shut_down_R
        again = float(np.min(job.columns.first_report_R[reporting_R], initial=now))
        ledger.settle(intervals.one(ledger.until, again, Bucket.DOWN))
        ledger.ended = ledger.first_attempt = False
    if away or ledger.lost:
        intervals.append(ledger.pending, ledger.until, now, Bucket.UNSEEN)
    else:
        _extend(job.columns, ledger, now)
    ledger.lost = False
    _progress(job, ledger)
    if len(ledger.pending) > KEPT_PENDING:
        older, ledger.pending = intervals.split(ledger.pending, ledger.pending[KEPT_PENDING // 2].start)
        ledger.settle(overlaid(older, job.incidents))


def _extend(columns: RankColumns, ledger: Ledger, now: float) -> None:
    """Add the time since the last evaluation, in a provisional bucket."""
    until = ledger.until
    if ledger.last_step is None:
        intervals.append(ledger.pending, until, now, ledger.waiting_for)
        return
    before = ledger.pending[-1].bucket if ledger.pending else Bucket.PRODUCTIVE
    intervals.append(ledger.pending, until, now, Bucket.PRODUCTIVE)
    doing, since = _between_steps(columns)
    if doing is not None:
        # It began when the ranks report, which may be before the last evaluation.
        ledger.pending = intervals.relabel(ledger.pending, intervals.replacing({Bucket.PRODUCTIVE: doing}), since, now)
    elif before in _BETWEEN.values():
        left = _left_at(columns)
        ledger.pending = intervals.relabel(
            ledger.pending, intervals.replacing({Bucket.PRODUCTIVE: before}), until, left
        )


def _progress(job: Job, ledger: Ledger) -> None:
    """Settle the time that completed steps decide."""
    if job.furthest_iteration is None or (first := _first_step(job.columns)) is None:
        return
    begun, counted = first
    furthest, last = job.furthest_iteration + ledger.offset, ledger.last_step
    if last is not None and furthest < last.iteration and begun.at > last.at:
        # Other processes of the same attempt: they were restarted without a new attempt.
        ledger.pending = _with_interrupted_step(ledger.pending, ledger.step_seconds, Bucket.RESTART)
        ledger.first_attempt, last = False, None
    if last is None:
        _settle_startup(job, ledger, begun, counted=counted)
        last, furthest = ledger.last_step, job.furthest_iteration + ledger.offset
    if last is not None and furthest > last.iteration:
        _settle_steps(job, ledger, furthest, last)


def _first_step(columns: RankColumns) -> tuple[CompletedStep, bool] | None:
    """The first step of the ranks here, and whether it is of a script that counts from 0; None: there is none."""
    stepped_R = np.flatnonzero(columns.first_iteration_R >= 0)
    if not len(stepped_R):
        return None
    first = stepped_R[np.argmin(columns.first_step_R[stepped_R])]
    at, step = float(columns.first_step_R[first]), int(columns.first_iteration_R[first])
    return CompletedStep(at, step), bool(columns.counted_R[first])


def _settle_startup(job: Job, ledger: Ledger, begun: CompletedStep, *, counted: bool) -> None:
    at = min(max(begun.at, ledger.settled_until), ledger.until)
    done, rest = intervals.split(ledger.pending, at)
    ledger.settle(overlaid(done, job.incidents, went_on=True))
    first = ledger.resume(begun.at, begun.iteration, counted=counted)  # which belongs to the startup
    ledger.pending = intervals.relabel(rest, intervals.replacing({ledger.waiting_for: Bucket.PRODUCTIVE}))
    ledger.last_step = CompletedStep(at, first)


def _settle_steps(job: Job, ledger: Ledger, iteration: int, last: CompletedStep) -> None:
    """Settle the time until the last completed step."""
    at = min(max(_last_progress_at(job.columns, iteration - ledger.offset), last.at), ledger.until)
    done, ledger.pending = intervals.split(ledger.pending, at)
    gained = iteration - last.iteration
    work = gained * ledger.step_seconds
    busy, hidden = intervals.total(done, Bucket.PRODUCTIVE), intervals.total(done, Bucket.UNSEEN)
    if hidden:
        credit = work - busy
        done = intervals.fill(done, Bucket.UNSEEN, hidden if credit >= USUAL * hidden else credit, Bucket.PRODUCTIVE)
    labeled = done if work >= USUAL * busy > 0 else overlaid(done, job.incidents, went_on=True)
    if labeled == done and not hidden and busy > 0:
        sample = busy / gained
        ledger.step_seconds += (sample - ledger.step_seconds) * (SMOOTHING if ledger.step_seconds else 1.0)
    waited = min(ledger.waited, intervals.total(labeled, Bucket.PRODUCTIVE))
    ledger.waited -= waited
    ledger.settle(intervals.fill(labeled, Bucket.PRODUCTIVE, waited, Bucket.WAITING))
    ledger.mark(iteration)
    ledger.last_step = CompletedStep(at, iteration)


def _settle_attempt(job: Job, ledger: Ledger, now: float, *, away: bool) -> None:
    """Settle the time before a new attempt."""
    at = min(max(job.attempt_since, ledger.settled_until), now)
    if ledger.until < at:
        between = Bucket.DOWN if ledger.ended or ledger.lost else Bucket.UNSEEN if away else None
        if between is None:
            between = Bucket.PRODUCTIVE if ledger.last_step else ledger.waiting_for
        intervals.append(ledger.pending, ledger.until, at, between)
    done, rest = intervals.split(ledger.pending, at)
    labeled = overlaid(done, job.incidents)
    ledger.settle(
        _with_interrupted_step(labeled, ledger.step_seconds, Bucket.HANDLING) if ledger.last_step else labeled
    )
    if ledger.attempt > 0 or ledger.had_ranks:
        ledger.first_attempt = False
    ledger.attempt, ledger.attempt_since = job.attempt, job.attempt_since
    ledger.last_step, ledger.had_ranks, ledger.ended, ledger.lost = None, False, False, False
    ledger.waited = 0.0
    ledger.pending = intervals.relabel(rest, lambda _: ledger.waiting_for)


def _late_steps(job: Job, ledger: Ledger) -> None:
    """Note the steps of a run that has ended: the last report of a rank may come after the end, and be its only one."""
    if job.furthest_iteration is None or (first := _first_step(job.columns)) is None:
        return
    begun, counted = first
    if not ledger.resumes or ledger.resumes[-1].at < begun.at:
        ledger.resume(begun.at, begun.iteration, counted=counted)
    ledger.reach(job.furthest_iteration + ledger.offset)


def _settle_run(job: Job, ledger: Ledger, end: float, *, away: bool) -> None:
    """Settle the time of a run that ended; nothing is accounted for until another one begins."""
    if ledger.ended:
        _late_steps(job, ledger)
        return
    if away or ledger.lost:
        intervals.append(ledger.pending, ledger.until, end, Bucket.UNSEEN)
    else:
        _extend(job.columns, ledger, max(end, ledger.until))
    ledger.pending = intervals.split(ledger.pending, end)[0]
    _progress(job, ledger)
    labeled = overlaid(ledger.pending, job.incidents)
    after = {Bucket.PRODUCTIVE: Bucket.SHUTDOWN}
    well = job.ended is None or job.ended.state is JobState.FINISHED
    if well and ledger.furthest < 0:
        after = {Bucket.STARTUP: Bucket.UNMEASURED, Bucket.RESTART: Bucket.UNMEASURED}
    ledger.settle(intervals.relabel(labeled, intervals.replacing(after)))
    ledger.pending, ledger.last_step, ledger.ended, ledger.lost = [], None, True, False


def _with_interrupted_step(done: list[Span], step_seconds: float, rest: Bucket) -> list[Span]:
    """The same time with the interrupted step as lost; what lasted longer than a step was no step."""
    done = intervals.fill(done, Bucket.PRODUCTIVE, step_seconds, Bucket.LOST_STEPS)
    return intervals.relabel(done, intervals.replacing({Bucket.PRODUCTIVE: rest}))


def _end(job: Job) -> float | None:
    """When the run ended; None while it goes on."""
    if job.ended is not None:
        return job.ended.at
    if liveness.all_shut_down(job) and not nodes.any_acting(job):
        return float(np.fmax.reduce(job.columns.last_report_R, initial=job.attempt_since))
    return None


# Incident overlay -----------------------------------------------------------------------------------------------------


def overlaid(done: list[Span], incidents: Sequence[Incident], *, went_on: bool = False) -> list[Span]:
    """Lay incidents over spans of time.

    Args:
        incidents: of the job, the oldest first.
        went_on: the time ended with a completed step of the same attempt.
    """
    if not done:
        return done
    start, end = done[0].start, done[-1].end
    for incident in reversed(incidents):
        if incident.closed_at is not None and incident.closed_at <= start:
            break
        done = _overlay(done, incident, end, went_on=went_on)
    return done


def _overlay(done: list[Span], incident: Incident, end: float, *, went_on: bool) -> list[Span]:
    if incident.elective and (incident.action not in _ACTING or not incident.directive):
        return done  # nothing stands still; a stop requested by launchers is accounted for at the end of the run
    timeline = incident.timeline
    began = incident.opened_at if timeline.since is None or incident.elective else timeline.since
    over = next((at for at in (timeline.restarted, incident.closed_at) if at is not None), end)
    by_itself = incident.closed_at is not None and timeline.restarted is None and incident.closed_at < end
    if went_on or by_itself:
        return intervals.relabel(done, _unless_away(Bucket.STALLED), began, over)
    found = incident.opened_at if timeline.detected is None else timeline.detected
    if incident.elective or incident.kind is VerdictKind.PROCESS_EXITED:
        found = began  # nothing hung: a process exited, or an operator ordered it
    elif incident.action not in _ACTING:
        found = over  # no action is taken
    done = intervals.relabel(done, _unless_away(Bucket.HANG), began, found)
    return intervals.relabel(done, _unless_away(Bucket.HANDLING), found, over)


def _unless_away(bucket: Bucket) -> Callable[[Bucket], Bucket]:
    return lambda known: known if known in (Bucket.UNSEEN, Bucket.DOWN) else bucket


# Signals of the ranks -------------------------------------------------------------------------------------------------


def _between_steps(columns: RankColumns) -> tuple[Bucket | None, float]:
    """The checkpoint or evaluation most ranks are in, outside of a step, and since when; None: neither."""
    reporting_R = columns.reported_R & ~columns.shut_down_R
    most = int(np.count_nonzero(reporting_R)) / 2
    for s, name in enumerate(columns.sections):
        if name not in _BETWEEN:
            continue
        inside_R = reporting_R & ~np.isnan(columns.open_since_RS[:, s])
        if STEP_SECTION in columns.sections:
            inside_R &= np.isnan(columns.open_since_RS[:, columns.sections.index(STEP_SECTION)])
        if np.count_nonzero(inside_R) > most:
            return _BETWEEN[name], float(np.median(columns.open_since_RS[inside_R, s]))
    return None, 0.0


def _left_at(columns: RankColumns) -> float:
    """When most ranks left their last section: they entered the next one, or have none open since."""
    since_R = np.fmin(np.fmin.reduce(columns.open_since_RS, axis=1), columns.idle_since_R)
    since_R = since_R[~np.isnan(since_R)]
    return float(np.median(since_R)) if len(since_R) else 0.0


def _last_progress_at(columns: RankColumns, iteration: int) -> float:
    """When the ranks that are furthest last showed progress; infinity when unknown."""
    quiet_R = columns.last_progress_R[columns.iteration_R == iteration]
    quiet_R = quiet_R[~np.isnan(quiet_R)]
    return float(np.max(quiet_R)) if len(quiet_R) else float("inf")


# Reading --------------------------------------------------------------------------------------------------------------


def spent(job: Job) -> dict[Bucket, float]:
    """Seconds by bucket since the job was created; pending time counts in its provisional bucket."""
    seconds = dict(job.ledger.settled)
    for span in _pending(job):
        seconds[span.bucket] += span.seconds
    return seconds


def ratio(job: Job) -> float | None:
    """Goodput: the share of a job's life in steps that were kept, without waiting for slow ranks.

    None before the first step.
    """
    return _share(spent(job)) if job.ledger.furthest >= 0 else None


def lost_steps(job: Job) -> int:
    """Steps that were completed, and that the newest attempt has not done again."""
    return job.ledger.furthest - job.ledger.reached


def steps_at_risk(job: Job) -> int | None:
    """Steps that are kept so far, and after the last checkpoint, thus lost by a restart; None: none is known."""
    return job.ledger.at_risk


def last_hour(job: Job) -> tuple[float, float | None]:
    """Accounted seconds of the last hour, and their goodput; None before the first step."""
    ledger = job.ledger
    minutes = {m: dict(seconds) for m, seconds in ledger.minutes.items()}
    for span in _pending(job):
        into_minutes(minutes, span)
    seconds = dict.fromkeys(Bucket, 0.0)
    for each in minutes.values():
        for bucket, more in each.items():
            seconds[bucket] += more
    return sum(seconds.values()), _share(seconds) if ledger.furthest >= 0 else None


def _pending(job: Job) -> list[Span]:
    return overlaid(job.ledger.pending, job.incidents)


def _share(seconds: Mapping[Bucket, float]) -> float | None:
    lived = sum(seconds.values())
    return seconds[Bucket.PRODUCTIVE] / lived if lived > 0 else None
