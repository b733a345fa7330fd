"""Stragglers: each window of a job is judged here; who is slow again and again gets a name, a cause and a cost.

How this works
--------------
When a window is complete, one signal a rank says by which part of a step it is slower than its peers (``signals``). A
rank is slow in a window when its signal is above what matters and what noise may show (``straggler_limits``). Slow in k
of the last n windows, the newest included, it is a straggler; not slow in the last k windows that are known of it, it
is one no more. With ``straggler_reference`` "fastest" the thresholds of nvidia-resiliency-ext decide instead, at once.
What is said of it stands in ``straggler_facts``. Nothing here acts: see ``straggler_actions``.

Shapes: R ranks, T windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rankwatch.contract.enums import Cause, ScoreReference, StragglerVerdict
from rankwatch_monitor.core.effects import Effect, Slowed
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.regression import sampling
from rankwatch_monitor.core.straggler import diagnosis, lateness, limits
from rankwatch_monitor.core.straggler.facts import changed_much, describe, hosts_of
from rankwatch_monitor.core.straggler.limits import measured, needed
from rankwatch_monitor.core.straggler.peers import column_medians
from rankwatch_monitor.core.straggler.scores import Finding, Straggler
from rankwatch_monitor.core.straggler.scoring import score_window
from rankwatch_monitor.core.straggler.signals import Window, expected, gone, usual_gap, window_of
from rankwatch_monitor.core.straggler.state import WINDOWS, Performance
from rankwatch_monitor.core.straggler.window import Gathering

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

KEPT: Final = 200
"""Stragglers kept in memory, ended ones included."""
NAMED: Final = 100
"""Stragglers that are open at once, the slowest: by the fastest reference one lucky rank makes all others slow."""
SAID: Final = 10
"""New stragglers of one window that get a line each in the log."""
STALE: Final = 1800.0
"""Seconds without a window after which nobody knows whether a straggler is still slow."""


def judge(job: Job, now: float) -> list[Effect]:
    """Judge the window that is being gathered, if it is complete; return what follows."""
    performance, effects = job.performance, list[Effect]()
    if performance.begun:  # a straggler of the attempt before is neither shown, charged nor acted on in this one
        performance.begun = False
        _close_all(job, job.attempt_since, f"attempt {job.attempt} has begun", effects)
    if job.ended is not None:
        return _over(job, job.ended.at, f"the job is {job.ended.state}", effects)
    if performance.gathering.since is None:
        if now - (performance.judged_at or job.silence_baseline) > STALE:
            _close_all(job, now, f"the ranks have told nothing of their steps for {STALE / 60:.0f} minutes", effects)
        return effects
    if not job.policy.straggler_detection:
        return _over(job, now, "straggler_detection was switched off", effects)
    if ready_at(job) > now:
        return effects
    window = window_of(job, now)
    sampling.remember(job, window)
    score_window(job, window, effects)
    _cost(job, window)
    if _tells(job, window):
        _remember(performance, window)
        limit = limits.threshold(job)
        slow_TR = limits.slow(job, limit)
        _end(job, window, slow_TR, limit, effects)
        _begin(job, window, slow_TR, effects)
        _conclude(job, window, effects)
    performance.judged += 1
    performance.settle_stride(job.policy.profiling_interval, window.fresh_R)
    performance.gathering = Gathering(dict(window.later), now if window.later else None)
    return effects


def _tells(job: Job, window: Window) -> bool:
    """Whether a window says anything of the ranks' speed."""
    if job.policy.straggler_reference is ScoreReference.FASTEST or not np.isnan(window.signal_R).all():
        return True
    # No rank has a peer, as with one rank a pipeline stage: stages and links can still be judged.
    return not np.isnan(window.late.work_R).all() and bool((window.group_R < 0).all())


def _over(job: Job, at: float, why: str, effects: list[Effect]) -> list[Effect]:
    """End what is open, and let go what was being gathered."""
    job.performance.gathering = Gathering()
    _close_all(job, at, why, effects)
    return effects


def _close_all(job: Job, at: float, why: str, effects: list[Effect]) -> None:
    """End what is open: nobody looks any more whether it still holds."""
    told = job.performance.told
    for straggler in told.open_stragglers:
        _ended(straggler, at, why, effects)
    if told.finding.verdict is not StragglerVerdict.HEALTHY:
        told.finding = Finding()


def ready_at(job: Job) -> float:
    """When the window that is being gathered can be judged; infinity: nothing is being gathered."""
    gathering = job.performance.gathering
    if gathering.since is None:
        return np.inf
    return gathering.ready_at(expected(job, gathering.since), usual_gap(job))


def _remember(performance: Performance, window: Window) -> None:
    """Keep the signal of the last windows, all of one width."""
    kept_TR: Any = performance.share_TR
    ranks = len(window.signal_R)
    if kept_TR.shape[1] != ranks:
        wider_TR = np.full((len(kept_TR), ranks), np.nan, dtype=np.float32)
        wider_TR[:, : min(ranks, kept_TR.shape[1])] = kept_TR[:, :ranks]
        kept_TR = wider_TR
    performance.share_TR = np.concatenate([kept_TR[-(WINDOWS - 1) :], window.signal_R[None].astype(np.float32)])


# Who is slow ----------------------------------------------------------------------------------------------------------


def _begin(job: Job, window: Window, slow_TR: Bools, effects: list[Effect]) -> None:
    """Name the ranks that have become stragglers, and say anew what has changed much of those that are."""
    performance = job.performance
    known = {s.rank: s for s in performance.told.stragglers if s.open}
    slow_R = slow_TR[-1] & (slow_TR.sum(axis=0) >= needed(job.policy))
    slow_of_host = hosts_of(job, slow_R)
    for rank, straggler in known.items():
        if slow_TR[-1, rank]:
            before, reason, cause = straggler.share, straggler.reason, straggler.cause
            describe(job, window, straggler, slow_of_host)
            straggler.seen = window.now
            if straggler.cause is cause and not changed_much(before, straggler.share):
                straggler.reason = reason
            else:
                effects.append(Slowed(straggler, straggler.reason))
    new = [int(rank) for rank in np.flatnonzero(slow_R) if rank not in known]
    if new:
        slowness_R = _slowness(job, window)
        new.sort(key=lambda rank: -slowness_R[rank])
    named = new[: max(0, NAMED - len(known))]
    for number, rank in enumerate(named):
        straggler = _named(job, window, rank, slow_TR)
        describe(job, window, straggler, slow_of_host)
        performance.found[straggler.cause] = performance.found.get(straggler.cause, 0) + 1
        effects.append(Slowed(straggler, straggler.reason if number < SAID else ""))
    more = len(new) - min(len(named), SAID)
    if more and (len(named) > SAID or not performance.unnamed):
        effects.append(Slowed(None, f"{more} more ranks are slow too; 'rankwatch report --scores' names the slowest."))
    performance.unnamed = len(new) - len(named)


def _slowness(job: Job, window: Window) -> Floats:
    """By how much each rank is slow, for ordering; shape (R,), known for every one that is slow."""
    scores = job.performance.told.scores
    if job.policy.straggler_reference is ScoreReference.ROBUST or scores is None:
        return window.signal_R
    lowest_R: Floats = np.fmin(scores.gpu_relative_R, scores.gpu_individual_R)
    judged_S = list(scores.judged.values())
    for score_RS in (scores.section_relative_RS, scores.section_individual_RS):
        lowest_R = np.fmin(lowest_R, np.fmin.reduce(score_RS[:, judged_S], axis=1, initial=np.nan))
    return 1.0 - lowest_R


def _named(job: Job, window: Window, rank: int, slow_TR: Bools) -> Straggler:
    performance = job.performance
    performance.last_straggler += 1
    first = len(slow_TR) - 1 - int(np.argmax(slow_TR[:, rank]))
    straggler = Straggler(
        id=f"{job.id}-{job.created_at:.0f}-s{performance.last_straggler}",
        rank=rank,
        host=job.columns.hosts[rank],
        device=performance.device_of(rank),
        cause=Cause.UNEXPLAINED,
        reference=job.policy.straggler_reference,
        reason="",
        since=window.now - first * performance.interval,
        seen=window.now,
        attempt=job.attempt,
    )
    performance.told.stragglers.append(straggler)
    if len(performance.told.stragglers) > KEPT:
        performance.told.stragglers.remove(next(s for s in performance.told.stragglers if not s.open))
    return straggler


def _end(job: Job, window: Window, slow_TR: Bools, limit: float, effects: list[Effect]) -> None:
    """End the stragglers that are as fast as their peers again, or are gone."""
    policy, gone_R = job.policy, gone(job)
    for straggler in job.performance.told.open_stragglers:
        if straggler.rank >= slow_TR.shape[1] or gone_R[straggler.rank]:
            _ended(straggler, window.now, "it is gone", effects)
        elif straggler.reference is not policy.straggler_reference:
            _ended(
                straggler, window.now, f"ranks are judged by the {policy.straggler_reference} reference now", effects
            )
        elif straggler.reference is ScoreReference.FASTEST:
            if not slow_TR[-1, straggler.rank]:
                _ended(straggler, window.now, "no score of it is below the thresholds any more", effects)
        elif why := _quiet(job, straggler.rank, limit):
            _ended(straggler, window.now, why, effects)


def _quiet(job: Job, rank: int, limit: float) -> str:
    """Why a straggler is none any more; empty: it still is, or that is not known. A missing window is no proof."""
    policy, share_T = job.policy, job.performance.share_TR[:, rank]
    known_T = share_T[~np.isnan(share_T)][-policy.straggler_windows_needed :]
    if not len(known_T) and len(share_T) >= WINDOWS:
        return f"it has told nothing of its steps in {len(share_T)} windows"
    if np.isinf(limit) or len(known_T) < policy.straggler_windows_needed or (known_T > limit).any():
        return ""
    if np.median(known_T) > policy.straggler_slowdown:
        return "it does not stand out any more, for other ranks are as slow or the job is as uneven"
    return "it is as fast as its peers again"


def _ended(straggler: Straggler, now: float, why: str, effects: list[Effect]) -> None:
    straggler.ended = now
    cost = f", which cost {straggler.cost_gpu_hours:.2f} GPU-hours" if straggler.cost_gpu_hours >= 0.005 else ""
    effects.append(Slowed(straggler, f"Rank {straggler.rank} is no straggler any more: {why}{cost}."))


def _cost(job: Job, window: Window) -> None:
    """Add what the open stragglers cost since the window before: what the others waited, for all ranks.

    Where a rank did not tell of a profiled step, what was seen last counts. Ranks cannot have waited for longer than
    the time that has passed, whatever the profiled step was like.
    """
    performance, ranks, dearest = job.performance, int(window.fresh_R.sum()), 0.0
    steps = performance.steps_R[: len(window.fresh_R)][window.fresh_R]
    usual = float(np.median(steps[~np.isnan(steps)])) if not np.isnan(steps).all() else 0.0
    for straggler in performance.told.open_stragglers:
        late = float(window.late.late_R[straggler.rank]) if straggler.rank < len(window.fresh_R) else np.nan
        late = (straggler.lateness or 0.0) if np.isnan(late) else max(0.0, late)
        waited = late * (window.steps or usual)
        if window.lasted is not None:
            waited = min(waited, window.lasted)
        straggler.cost_gpu_hours += waited * ranks / 3600.0
        dearest = max(dearest, waited * ranks / 3600.0)
    performance.told.cost_gpu_hours += dearest  # those that wait for two of them at once wait once


# What is told -------------------------------------------------------------------------------------------------------


def _conclude(job: Job, window: Window, effects: list[Effect]) -> None:
    """Whose doing it is, as of this window."""
    performance, policy, told = job.performance, job.policy, job.performance.told
    memory, late = performance.windows, window.late
    memory.stages.append(
        diagnosis.heaviest_stage(late, performance.layout.pipeline_R[: len(late.late_R)], policy.straggler_slowdown)
    )
    memory.turns.append(diagnosis.last_one(late, window.signal_R))
    performance.links.take(performance.gathering.transfers)
    memory.links.append(performance.links.slowest())
    sigma = lateness.noise(measured(performance.share_TR))
    step_R = window.step_R[~np.isnan(window.step_R)]
    criteria = diagnosis.Criteria(policy.straggler_slowdown, policy.straggler_windows_needed, policy.straggler_windows)
    step = float(np.median(step_R)) if len(step_R) else np.nan
    often = _often_behind(performance.share_TR, policy.straggler_slowdown)
    found = diagnosis.finding(memory, told.open_stragglers, int(window.fresh_R.sum()), sigma, step, criteria, often)
    before = told.finding
    found.since = before.since if before.verdict is found.verdict else found.since or window.now
    same = (found.verdict, found.ranks, found.cause) == (before.verdict, before.ranks, before.cause)
    if same and not changed_much(before.share, found.share):
        found.reason = before.reason
    told.finding = found
    performance.verdicts[found.verdict] = performance.verdicts.get(found.verdict, 0) + 1
    # Of workers the stragglers' own sentences tell, when they begin and when they end.
    if found.verdict is not before.verdict and StragglerVerdict.WORKER not in (found.verdict, before.verdict):
        effects.append(Slowed(None, _job_words(found, before)))


def _often_behind(share_TR: Floats, slowdown: float) -> Ints:
    """Ranks that are further behind than what matters in this window and in most of those before."""
    with np.errstate(invalid="ignore"):
        behind = np.flatnonzero(share_TR[-1] > slowdown)
        return behind[column_medians(share_TR[:, behind]) > slowdown]


def _job_words(found: Finding, before: Finding) -> str:
    return found.reason or f"The job is healthy again: no {before.verdict} slows it any more."
