"""Goodput: every second of a job's life in exactly one bucket, and how much of it was spent on new steps.

How this works
--------------
:func:`account` is called about once a second and at transitions. Time is first *pending*, with what it seems to be
spent on; it is *settled*, and never changes again, once it is known what it was:

====================================  =================================================================================
what happens                          the pending time until then was
====================================  =================================================================================
a step is completed                   productive or, up to the furthest step ever done, recomputed; less checkpoints,
                                      evaluation, and what was stalled
the first step of an attempt          startup, or a restart
an attempt begins                     hang and handling, as the incident's timeline says; the step that was cut short
the run ends                          the same, else shutdown
====================================  =================================================================================

The buckets sum to the time accounted for by construction: a span is only ever cut, joined or renamed. What incidents
say is laid over pending time when it is shown or settled, so a hang counts from where it began, not from where it was
found. Steps prove more than words: time in which they went on at the usual pace is productive, whatever was suspected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from rankwatch.contract.enums import JobState
from rankwatch.contract.semconv import CHECKPOINTING_SECTION, EVALUATION_SECTIONS, STEP_SECTION
from rankwatch_monitor.core import liveness, nodes
from rankwatch_monitor.core.goodput import intervals
from rankwatch_monitor.core.goodput.intervals import Bucket, Span
from rankwatch_monitor.core.goodput.ledger import Ledger, Mark, into_minutes
from rankwatch_monitor.core.goodput.troubles import overlaid
from rankwatch_monitor.core.ranks import UNKNOWN, RankColumns

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

__all__ = ["Bucket", "Ledger", "account", "ratio", "spent", "window"]

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at a job in which nothing changes."""
AWAY: Final = 15.0
"""Seconds without a look after which the monitor was away; a busy one still looks every few seconds."""
USUAL: Final = 0.8
"""Steps go on at the usual pace when they fill at least this part of the time: a little jitter is no stall."""
SMOOTHING: Final = 0.2
"""Weight of the newest sample in the usual time of a step."""
KEPT_PENDING: Final = 256
"""Pending spans; a run that never completes a step but checkpoints for ever has its older half settled."""

_BETWEEN: Final = {CHECKPOINTING_SECTION: Bucket.CHECKPOINTING, **dict.fromkeys(EVALUATION_SECTIONS, Bucket.EVALUATION)}


def of(job: Job) -> Ledger:
    """The ledger of a job."""
    return job.ledger


# Accounting -----------------------------------------------------------------------------------------------------------


def account(job: Job, now: float) -> None:
    """Attribute the time up to ``now`` (unix seconds, never going back). Cheap to call more often than it matters."""
    ledger = of(job)
    incident = job.incidents[-1] if job.incidents else None
    key = (job.attempt_since, job.ended is None, incident and incident.id, incident and incident.phase)
    if key == ledger._key and now - ledger.looked_at < LOOK_INTERVAL:
        return
    away = now - ledger.looked_at > AWAY
    ledger.looked_at, ledger._key = max(now, ledger.looked_at), key
    if job.attempt_since != ledger.attempt_since:
        _turn(job, ledger, now, away=away)
    ledger.peopled |= job.instrumented or bool(np.any(job.columns.process_R != UNKNOWN))
    end = _end(job)
    if end is not None:
        _finish(job, ledger, min(end, now), away=away)
    elif liveness.lost(job, now):
        # It may have ended when it was last heard of; if not, what came after is filled in when it is back.
        ledger.pending, ledger.lost = intervals.split(ledger.pending, job.last_heard)[0], True
    else:
        _go_on(job, ledger, now, away=away)
    ledger.count(now)


def _go_on(job: Job, ledger: Ledger, now: float, *, away: bool) -> None:
    if ledger.over:  # processes of the same attempt number have come after the end, without a launcher to say so
        speaking_R = job.columns.reported_R & ~job.columns.shut_down_R
        again = float(np.min(job.columns.first_report_R[speaking_R], initial=now))
        ledger.settle(intervals.one(ledger.until, again, Bucket.DOWN))
        ledger.over = ledger.first = False
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
    """Add the time since the last look, as what it seems to be spent on."""
    until = ledger.until
    if ledger.mark is None:
        intervals.append(ledger.pending, until, now, ledger.waiting_for)
        return
    before = ledger.pending[-1].bucket if ledger.pending else Bucket.PRODUCTIVE
    intervals.append(ledger.pending, until, now, Bucket.PRODUCTIVE)
    doing, since = _between_steps(columns)
    if doing is not None:
        # It began where the ranks say, which may be before the last look.
        ledger.pending = intervals.relabel(ledger.pending, intervals.instead({Bucket.PRODUCTIVE: doing}), since, now)
    elif before in _BETWEEN.values():
        left = _left_at(columns)
        ledger.pending = intervals.relabel(ledger.pending, intervals.instead({Bucket.PRODUCTIVE: before}), until, left)


def _progress(job: Job, ledger: Ledger) -> None:
    """Settle what completed steps have decided."""
    columns, furthest = job.columns, job.furthest_iteration
    stepped_R = np.flatnonzero(columns.first_iteration_R >= 0)
    if furthest is None or not len(stepped_R):
        return
    at_R = columns.first_step_R[stepped_R]
    first = int(np.argmin(at_R))
    begun = Mark(float(at_R[first]), int(columns.first_iteration_R[stepped_R[first]]))
    mark = ledger.mark
    if mark is not None and furthest < mark.iteration and begun.at > mark.at:
        # Other processes, of the same attempt: whoever restarted them did not say so.
        ledger.pending = _cut_short(ledger.pending, ledger.step_seconds, Bucket.RESTART)
        ledger.first, mark = False, None
    if mark is None:
        _first_step(job, ledger, begun)
        mark = ledger.mark
    if mark is not None and furthest > mark.iteration:
        _stepped(job, ledger, furthest, mark)


def _first_step(job: Job, ledger: Ledger, begun: Mark) -> None:
    at = min(max(begun.at, ledger.settled_until), ledger.until)
    done, rest = intervals.split(ledger.pending, at)
    ledger.settle(overlaid(done, job.incidents, went_on=True))
    # The first step is part of getting there; from now on it is told from steps what was done again.
    ledger.pending = intervals.relabel(rest, intervals.instead({ledger.waiting_for: Bucket.PRODUCTIVE}))
    ledger.mark = Mark(at, begun.iteration)
    if ledger.furthest < 0:
        ledger.furthest = begun.iteration


def _stepped(job: Job, ledger: Ledger, iteration: int, mark: Mark) -> None:
    """Settle the time until the last step: steps were made in it."""
    at = min(max(_last_sign(job.columns, iteration), mark.at), ledger.until)
    done, ledger.pending = intervals.split(ledger.pending, at)
    gained = iteration - mark.iteration
    work = gained * ledger.step_seconds
    busy, hidden = intervals.total(done, Bucket.PRODUCTIVE), intervals.total(done, Bucket.UNSEEN)
    if hidden:
        credit = work - busy
        done = intervals.fill(done, Bucket.UNSEEN, hidden if credit >= USUAL * hidden else credit, Bucket.PRODUCTIVE)
    laid = done if work >= USUAL * busy > 0 else overlaid(done, job.incidents, went_on=True)
    if laid == done and not hidden and busy > 0:
        sample = busy / gained
        ledger.step_seconds += (sample - ledger.step_seconds) * (SMOOTHING if ledger.step_seconds else 1.0)
    again = min(max(min(iteration, ledger.furthest) - mark.iteration, 0), gained)
    seconds = intervals.total(laid, Bucket.PRODUCTIVE) * again / gained
    ledger.settle(intervals.fill(laid, Bucket.PRODUCTIVE, seconds, Bucket.RECOMPUTED))
    ledger.furthest = max(ledger.furthest, iteration)
    ledger.mark = Mark(at, iteration)


def _turn(job: Job, ledger: Ledger, now: float, *, away: bool) -> None:
    """Another attempt has begun: what led to it is known now."""
    at = min(max(job.attempt_since, ledger.settled_until), now)
    if ledger.until < at:
        between = Bucket.DOWN if ledger.over or ledger.lost else Bucket.UNSEEN if away else None
        if between is None:
            between = Bucket.PRODUCTIVE if ledger.mark else ledger.waiting_for
        intervals.append(ledger.pending, ledger.until, at, between)
    done, rest = intervals.split(ledger.pending, at)
    laid = overlaid(done, job.incidents)
    ledger.settle(_cut_short(laid, ledger.step_seconds, Bucket.HANDLING) if ledger.mark else laid)
    if ledger.attempt > 0 or ledger.peopled:
        ledger.first = False
    ledger.attempt, ledger.attempt_since = job.attempt, job.attempt_since
    ledger.mark, ledger.peopled, ledger.over, ledger.lost = None, False, False, False
    ledger.pending = intervals.relabel(rest, lambda _: ledger.waiting_for)


def _finish(job: Job, ledger: Ledger, end: float, *, away: bool) -> None:
    """The run is over: time stands still until another one begins."""
    if ledger.over:
        return
    if away or ledger.lost:
        intervals.append(ledger.pending, ledger.until, end, Bucket.UNSEEN)
    else:
        _extend(job.columns, ledger, max(end, ledger.until))
    ledger.pending = intervals.split(ledger.pending, end)[0]
    _progress(job, ledger)
    laid = overlaid(ledger.pending, job.incidents)
    after = {Bucket.PRODUCTIVE: Bucket.SHUTDOWN}
    well = job.ended is None or job.ended.state is JobState.FINISHED
    if well and ledger.furthest < 0:
        after = {Bucket.STARTUP: Bucket.UNMEASURED, Bucket.RESTART: Bucket.UNMEASURED}
    ledger.settle(intervals.relabel(laid, intervals.instead(after)))
    ledger.pending, ledger.mark, ledger.over, ledger.lost = [], None, True, False


def _cut_short(done: list[Span], step_seconds: float, rest: Bucket) -> list[Span]:
    """The same time, with its unfinished step among what is done again; what lasted longer than a step was no step."""
    done = intervals.fill(done, Bucket.PRODUCTIVE, step_seconds, Bucket.RECOMPUTED)
    return intervals.relabel(done, intervals.instead({Bucket.PRODUCTIVE: rest}))


def _end(job: Job) -> float | None:
    """When the run ended; None while it goes on."""
    if job.ended is not None:
        return job.ended.at
    if liveness.all_shut_down(job) and not nodes.acting(job):
        return float(np.fmax.reduce(job.columns.last_report_R, initial=job.attempt_since))
    return None


# What the ranks say ---------------------------------------------------------------------------------------------------


def _between_steps(columns: RankColumns) -> tuple[Bucket | None, float]:
    """The checkpoint or evaluation that most ranks are in, outside of a step, and since when; None: neither."""
    speaking_R = columns.reported_R & ~columns.shut_down_R
    most = int(np.count_nonzero(speaking_R)) / 2
    for s, name in enumerate(columns.sections):
        if name not in _BETWEEN:
            continue
        inside_R = speaking_R & ~np.isnan(columns.open_since_RS[:, s])
        if STEP_SECTION in columns.sections:
            inside_R &= np.isnan(columns.open_since_RS[:, columns.sections.index(STEP_SECTION)])
        if np.count_nonzero(inside_R) > most:
            return _BETWEEN[name], float(np.median(columns.open_since_RS[inside_R, s]))
    return None, 0.0


def _left_at(columns: RankColumns) -> float:
    """When most ranks left what they were in last: the next section was entered then, or none is open since then."""
    since_R = np.fmin(np.fmin.reduce(columns.open_since_RS, axis=1), columns.idle_since_R)
    since_R = since_R[~np.isnan(since_R)]
    return float(np.median(since_R)) if len(since_R) else 0.0


def _last_sign(columns: RankColumns, iteration: int) -> float:
    """When the ranks that are furthest last showed progress; infinite when they do not tell."""
    quiet_R = columns.last_progress_R[columns.iteration_R == iteration]
    quiet_R = quiet_R[~np.isnan(quiet_R)]
    return float(np.max(quiet_R)) if len(quiet_R) else float("inf")


# Reading --------------------------------------------------------------------------------------------------------------


def spent(job: Job) -> dict[Bucket, float]:
    """Seconds by bucket since the job was created; pending time counts as what it seems to be now."""
    seconds = dict(of(job).settled)
    for span in _seeming(job):
        seconds[span.bucket] += span.seconds
    return seconds


def ratio(job: Job) -> float | None:
    """Effective-time ratio: the part of the job's life that was spent on new steps; None before the first step."""
    return _ratio(spent(job)) if of(job).furthest >= 0 else None


def window(job: Job) -> tuple[float, float | None]:
    """Seconds of the last hour that are accounted for, and their effective-time ratio; None before the first step."""
    ledger = of(job)
    minutes = {m: dict(seconds) for m, seconds in ledger.minutes.items()}
    for span in _seeming(job):
        into_minutes(minutes, span)
    seconds = dict.fromkeys(Bucket, 0.0)
    for each in minutes.values():
        for bucket, more in each.items():
            seconds[bucket] += more
    return sum(seconds.values()), _ratio(seconds) if ledger.furthest >= 0 else None


def _seeming(job: Job) -> list[Span]:
    ledger = of(job)
    shown = overlaid(ledger.pending, job.incidents)
    again = ledger.mark is not None and ledger.mark.iteration < ledger.furthest
    return intervals.relabel(shown, intervals.instead({Bucket.PRODUCTIVE: Bucket.RECOMPUTED})) if again else shown


def _ratio(seconds: Mapping[Bucket, float]) -> float | None:
    lived = sum(seconds.values())
    return seconds[Bucket.PRODUCTIVE] / lived if lived > 0 else None
