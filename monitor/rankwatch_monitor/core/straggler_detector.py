"""Evaluates each complete window of a job: computes scores, and opens, updates and ends stragglers.

How this works
--------------
Each window gives one signal a rank: by which fraction of a step it is slower than its peers (see ``window``). A rank is
slow in a window when its signal is above the :func:`threshold`. Slow in k of the last n windows, the newest included,
it is a straggler; not slow in the last k windows known of it, it is none any more. With ``straggler_reference``
"fastest" the thresholds of nvidia-resiliency-ext decide instead, at once. Sentences are made by ``describe``, the
verdict about the job by ``diagnosis``; whether to act is decided by ``incident.straggler_actions``.

Shapes: R ranks, T windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np

from rankwatch.cli.formatting import gpu_time
from rankwatch.contract.enums import Cause, ScoreReference, StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.effects import Effect, Slowed
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import usual_report_interval
from rankwatch_monitor.core.ranks import EXITED, Bools, Floats, Ints, RankColumns, live_ranks
from rankwatch_monitor.core.regression.sample import Sample
from rankwatch_monitor.core.straggler import diagnosis, lateness
from rankwatch_monitor.core.straggler.describe import changed_much, describe, is_outdated
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.peers import column_medians
from rankwatch_monitor.core.straggler.scores import KernelScoreRequest, kernel_scores
from rankwatch_monitor.core.straggler.state import WINDOWS
from rankwatch_monitor.core.straggler.window import Window

NAMED: Final = 100
"""Stragglers open at once, the slowest: by the fastest reference one lucky rank makes all others slow."""
LOGGED: Final = 10
"""New stragglers of one window that get a log line each."""
STALE: Final = 1800.0
"""Seconds without a window after which it is unknown whether a straggler is still slow."""
SETTLED: Final = 60.0
"""Seconds into an attempt after which the ranks that have reported are all that will."""
DAY: Final = 86_400.0
LASTING: Final = 10
"""Windows from which on their median is a signal of its own."""
MEDIAN_ERROR: Final = 1.2533
"""Standard error of the median of n normal values, times sqrt(n), in standard deviations: sqrt(pi / 2)."""
USUAL: Final = 600.0
"""Seconds before a rank was slow, and of the last ones since, whose median step is the usual one."""
FEWEST: Final = 3
"""Samples of which there must be so many."""
SURVEYED: Final = 4_096
"""Ranks from which the noise is measured, evenly spread over the job: more make it no more certain."""


# Windows --------------------------------------------------------------------------------------------------------------


def judge(job: Job, now: float, *, windows: bool = True) -> list[Effect]:
    """Evaluate the window being assembled, if it is complete; return what follows.

    Without ``windows`` only what no longer holds is ended.
    """
    performance, effects = job.performance, list[Effect]()
    if performance.acknowledge_attempt():  # stragglers of the attempt before are not shown, charged or acted on
        _end_all(job, job.attempt_since, f"attempt {job.attempt} has begun", effects)
    if job.ended is not None:
        return _stop(job, job.ended.at, f"the job is {job.ended.state}", effects)
    if performance.assembly.since is None:
        if now - (performance.judged_at or job.silence_baseline) > STALE:
            _end_all(job, now, f"the ranks have reported no steps for {STALE / 60:.0f} minutes", effects)
        return effects
    if not job.policy.straggler_detection:
        return _stop(job, now, "straggler_detection was switched off", effects)
    if not windows or ready_at(job) > now:
        return effects
    window = performance.close_window(len(job.columns), now)
    performance.add_sample(window, job.policy, job.attempt, job.columns.hosts)
    if (request := performance.score(window, job.policy)) is not None:
        effects.append(request)
    performance.charge(window)
    if _is_conclusive(window, job.policy):
        performance.add_signal(window.signal_R, job.policy.straggler_slowdown)
        limit = threshold(job)
        slow_TR, lasting_R = slow(job, limit), lastingly_behind(job)
        _end_recovered(job, window, slow_TR, lasting_R, limit, effects)
        _open(job, window, slow_TR, lasting_R, effects)
        _conclude(job, window, effects)
    performance.finish_window(window, job.policy.profiling_interval)
    return effects


def score_now(job: Job, effects: Iterable[Effect]) -> list[Effect]:
    """Compute requested kernel scores at once, as a replay does; return the other effects."""
    others: list[Effect] = []
    for effect in effects:
        if isinstance(effect, KernelScoreRequest):
            job.performance.take_kernel_scores(kernel_scores(effect))
        else:
            others.append(effect)
    return others


def ready_at(job: Job) -> float:
    """When the window being assembled can be evaluated (unix seconds); infinity while no rank has reported it."""
    assembly, columns = job.performance.assembly, job.columns
    if assembly.since is None:
        return np.inf
    # In the first minute all ranks may still come: the first one that reports is not the whole job.
    settled = assembly.since - job.silence_baseline > SETTLED
    expected = int(np.sum(live_ranks(columns) if settled else ~_gone(columns)))
    return assembly.ready_at(expected, usual_report_interval(job))


def _gone(columns: RankColumns) -> Bools:
    gone_R: Bools = columns.shut_down_R | (columns.process_R == EXITED)
    return gone_R


def _is_conclusive(window: Window, policy: Policy) -> bool:
    """Whether a window shows anything about the ranks' speed."""
    if policy.straggler_reference is ScoreReference.FASTEST or not np.isnan(window.signal_R).all():
        return True
    # No rank has a peer, as with one rank a pipeline stage: stages and links can still be compared.
    return not np.isnan(window.late.work_R).all() and bool((window.group_R < 0).all())


def _stop(job: Job, at: float, why: str, effects: list[Effect]) -> list[Effect]:
    """End what is open, and drop the window being assembled."""
    job.performance.discard_window()
    _end_all(job, at, why, effects)
    return effects


def _end_all(job: Job, at: float, why: str, effects: list[Effect]) -> None:
    """End what is open: from now on nothing checks whether it still holds."""
    for straggler in job.performance.open_stragglers:
        _end(job, straggler, at, why, effects)
    if job.performance.finding.verdict is not StragglerVerdict.HEALTHY:
        job.performance.clear_finding()


# Which ranks are slow -------------------------------------------------------------------------------------------------


def threshold(job: Job) -> float:
    """The signal above which a rank is slow; infinity while the job's noise is unknown.

    The highest of the slowdown that matters, what normal noise may show, and what healthy ranks did show. Ranks that
    would be stragglers by the first two are left out of the last.
    """
    policy, performance = job.policy, job.performance
    signal_TR = _surveyed(performance.signal_TR)
    sigma = lateness.noise(signal_TR)
    if np.isnan(sigma):
        return np.inf
    sigma = max(sigma, lateness.recent_noise(signal_TR[-policy.straggler_windows :]))
    sigma = float(np.hypot(sigma, lateness.spread(signal_TR)))
    chance = lateness.needed_chance(
        ranks=max(1, int(live_ranks(job.columns).sum())),
        windows_a_day=DAY / performance.interval,
        needed=policy.straggler_windows_needed,
        of=policy.straggler_windows,
        alarms_a_day=policy.straggler_alarms_per_day,
    )
    at_least = max(policy.straggler_slowdown, lateness.needed_sigmas(chance) * sigma)
    with np.errstate(invalid="ignore"):
        often_R = (signal_TR[-policy.straggler_windows :] > at_least).sum(axis=0) >= policy.straggler_windows_needed
    return max(at_least, lateness.blips(signal_TR[:, ~often_R], chance))


def slow(job: Job, limit: float) -> Bools:
    """Which ranks are slow in each of the last n windows, the newest last; shape (n, R). ``limit``: the threshold."""
    policy = job.policy
    if policy.straggler_reference is ScoreReference.FASTEST:
        return _below_thresholds(job)[None]
    recent_TR = job.performance.signal_TR[-policy.straggler_windows :]
    with np.errstate(invalid="ignore"):
        slow_TR: Bools = recent_TR > limit
    return slow_TR


def lastingly_behind(job: Job) -> Bools:
    """Ranks that most windows of some minutes show behind, the last ones too, by more than their noise; shape (R,).

    The median of n windows is known 1.25 / sqrt(n) of the noise well (the asymptotic error of a median), so that a rank
    which is little slower than its peers, in a job whose single windows vary by more than that, is named after all.
    """
    policy, signal_TR = job.policy, job.performance.signal_TR
    none_R = np.zeros(signal_TR.shape[1], dtype=np.bool_)
    sigma = lateness.noise(_surveyed(signal_TR))
    if policy.straggler_reference is ScoreReference.FASTEST or len(signal_TR) < LASTING or np.isnan(sigma):
        return none_R
    known_R = (~np.isnan(signal_TR)).sum(axis=0)
    chance = lateness.needed_chance(
        ranks=max(1, int(live_ranks(job.columns).sum())),
        windows_a_day=DAY / job.performance.interval / LASTING,
        needed=1,
        of=1,
        alarms_a_day=policy.straggler_alarms_per_day,
    )
    error_R = np.hypot(MEDIAN_ERROR * sigma / np.sqrt(np.maximum(known_R, 1)), lateness.spread(_surveyed(signal_TR)))
    limit_R = np.maximum(policy.straggler_slowdown, lateness.needed_sigmas(chance) * error_R)
    with np.errstate(invalid="ignore"):
        lasting_R: Bools = (known_R >= LASTING) & (column_medians(signal_TR) > limit_R)
        still_R: Bools = column_medians(signal_TR[-policy.straggler_windows :]) > policy.straggler_slowdown
    return lasting_R & still_R


def _surveyed(signal_TR: Floats) -> Floats:
    """The columns of the ranks from which the noise is measured."""
    ranks = signal_TR.shape[1]
    return signal_TR if ranks <= SURVEYED else signal_TR[:, np.linspace(0, ranks - 1, SURVEYED, dtype=np.int64)]


def _below_thresholds(job: Job) -> Bools:
    """Ranks strictly below a threshold, as in nvidia-resiliency-ext; NaN never is. Shape (R,).

    Ranks whose lateness contradicts their scores are left out: another one is waited for.
    """
    policy, scores = job.policy, job.performance.scores
    assert scores is not None
    judged_S = list(scores.judged.values())
    with np.errstate(invalid="ignore"):
        relative_R = (scores.gpu_relative_R < policy.relative_threshold) | np.any(
            scores.section_relative_RS[:, judged_S] < policy.relative_threshold, axis=1
        )
        individual_R = (scores.gpu_individual_R < policy.individual_threshold) | np.any(
            scores.section_individual_RS[:, judged_S] < policy.individual_threshold, axis=1
        )
    below_R: Bools = (relative_R | individual_R) & ~scores.contradicted(policy.straggler_slowdown)
    return below_R


def _needed(policy: Policy) -> int:
    """Windows in which a rank must be slow to be a straggler."""
    return 1 if policy.straggler_reference is ScoreReference.FASTEST else policy.straggler_windows_needed


# Stragglers -----------------------------------------------------------------------------------------------------------


def _open(job: Job, window: Window, slow_TR: Bools, lasting_R: Bools, effects: list[Effect]) -> None:
    """Open stragglers for ranks that have become slow, and update those that are slow already.

    Where ranks send to each other and have declared no stage, a rank that was behind from the beginning may just have
    more to do: it is part of the job's finding instead.
    """
    performance = job.performance
    known = {s.rank: s for s in performance.stragglers if s.open}
    slow_R = (slow_TR[-1] & (slow_TR.sum(axis=0) >= _needed(job.policy))) | lasting_R
    if performance.undeclared_pipeline and job.policy.straggler_reference is ScoreReference.ROBUST:
        slow_R &= ~performance.always_behind(len(slow_R))
    recent = _samples(job, window.now) if known or slow_R.any() else []
    hosts = job.columns.hosts
    slow_of_host = Counter(host for rank in np.flatnonzero(slow_R) if (host := hosts[rank]))
    usual_R = column_medians(performance.signal_TR[-job.policy.straggler_windows :]) if known else window.signal_R
    for rank, straggler in known.items():
        if slow_TR[-1, rank]:
            seen = describe(performance, job.policy, window, straggler, slow_of_host[straggler.host])
            performance.see_straggler(straggler, window.now, seen.score, _usual_step(recent, straggler.since))
            if is_outdated(straggler, seen, usual_R[rank]):
                is_news = seen.cause is not straggler.cause or changed_much(straggler.share, seen.share)
                performance.describe_straggler(straggler, seen)
                if is_news:
                    effects.append(Slowed(straggler, straggler.reason))
    new = [int(rank) for rank in np.flatnonzero(slow_R) if rank not in known]
    if new:
        slowness_R = _slowness(job, window)
        new.sort(key=lambda rank: -slowness_R[rank])
    named, found = new[: max(0, NAMED - len(known))], list[Straggler]()
    for number, rank in enumerate(named):
        straggler = _new_straggler(job, window, rank, slow_TR)
        seen = describe(performance, job.policy, window, straggler, slow_of_host[straggler.host])
        performance.describe_straggler(straggler, seen)
        performance.see_straggler(straggler, window.now, seen.score, _usual_step(recent, straggler.since))
        performance.add_straggler(straggler)
        found.append(straggler)
        effects.append(Slowed(straggler, straggler.reason if number < LOGGED else ""))
    performance.charge_since_found(found, window)
    more = len(new) - min(len(named), LOGGED)
    if more and (len(named) > LOGGED or not performance.unnamed):
        effects.append(Slowed(None, f"{more} more ranks are slow too; 'rankwatch report --scores' names the slowest."))
    performance.set_unnamed(len(new) - len(named))


def _slowness(job: Job, window: Window) -> Floats:
    """By how much each rank is slow, for ordering; shape (R,), known for every slow rank."""
    scores = job.performance.scores
    if job.policy.straggler_reference is ScoreReference.ROBUST or scores is None:
        return window.signal_R
    lowest_R: Floats = np.fmin(scores.gpu_relative_R, scores.gpu_individual_R)
    judged_S = list(scores.judged.values())
    for score_RS in (scores.section_relative_RS, scores.section_individual_RS):
        lowest_R = np.fmin(lowest_R, np.fmin.reduce(score_RS[:, judged_S], axis=1, initial=np.nan))
    return 1.0 - lowest_R


def _new_straggler(job: Job, window: Window, rank: int, slow_TR: Bools) -> Straggler:
    performance = job.performance
    first = len(slow_TR) - 1 - int(np.argmax(slow_TR[:, rank]))
    since = window.now - (first + 1) * performance.interval  # its first slow window began then
    return Straggler(
        id=f"{job.id}-{job.created_at:.0f}-s{performance.last_straggler + 1}",
        rank=rank,
        host=job.columns.hosts[rank],
        device=performance.device_of(rank),
        cause=Cause.UNEXPLAINED,
        reference=job.policy.straggler_reference,
        reason="",
        always=bool(performance.always_behind(rank + 1)[rank]),
        since=since,
        seen=window.now,
        attempt=job.attempt,
        step_before=_usual_step(_samples(job, since)),
    )


def _samples(job: Job, until: float) -> list[Sample]:
    """The steps of this attempt in the minutes up to a moment (unix seconds)."""
    samples = job.performance.history.window(until - USUAL, until)
    return [sample for sample in samples if sample.attempt == job.attempt]


def _usual_step(samples: Iterable[Sample], since: float = -np.inf) -> float | None:
    """Seconds of a step in samples that ended after ``since`` (unix seconds); None: they are too few."""
    steps = [sample.step for sample in samples if sample.at > since]
    return median(steps) if len(steps) >= FEWEST else None


def _end_recovered(
    job: Job, window: Window, slow_TR: Bools, lasting_R: Bools, limit: float, effects: list[Effect]
) -> None:
    """End the stragglers that are as fast as their peers again, or are gone."""
    reference, gone_R = job.policy.straggler_reference, _gone(job.columns)
    for straggler in job.performance.open_stragglers:
        why = ""
        if straggler.rank >= slow_TR.shape[1] or gone_R[straggler.rank]:
            why = "it is gone"
        elif straggler.reference is not reference:
            why = f"ranks are judged by the {reference} reference now"
        elif reference is not ScoreReference.FASTEST:
            lasting = bool(lasting_R[straggler.rank])
            why = _recovered(job, straggler.rank, job.policy.straggler_slowdown if lasting else limit)
        elif not slow_TR[-1, straggler.rank]:
            why = "no score of it is below the thresholds any more"
        if why:
            _end(job, straggler, window.now, why, effects)


def _recovered(job: Job, rank: int, limit: float) -> str:
    """Why a rank is no straggler any more; empty: it still is, or that is unknown. A missing window proves nothing."""
    policy, signal_T = job.policy, job.performance.signal_TR[:, rank]
    known_T = signal_T[~np.isnan(signal_T)][-policy.straggler_windows_needed :]
    if not len(known_T) and len(signal_T) >= WINDOWS:
        return f"it has reported no steps in {len(signal_T)} windows"
    if np.isinf(limit) or len(known_T) < policy.straggler_windows_needed or (known_T > limit).any():
        return ""
    if np.median(known_T) > policy.straggler_slowdown:
        return "it does not stand out any more, for other ranks are as slow or the job is as uneven"
    return "it is as fast as its peers again"


def _end(job: Job, straggler: Straggler, at: float, why: str, effects: list[Effect]) -> None:
    job.performance.end_straggler(straggler, at)
    cost = f", which cost {gpu_time(3600.0 * straggler.cost_gpu_hours)}" if straggler.cost_gpu_hours >= 0.005 else ""
    effects.append(Slowed(straggler, f"Rank {straggler.rank} is no straggler any more: {why}{cost}."))


# The job as a whole ---------------------------------------------------------------------------------------------------


def _conclude(job: Job, window: Window, effects: list[Effect]) -> None:
    """Set the job's finding as of this window."""
    performance, policy, late = job.performance, job.policy, window.late
    pipeline_R = performance.layout.pipeline_R[: len(late.late_R)]
    heaviest = diagnosis.heaviest_stage(late, pipeline_R, policy.straggler_slowdown)
    if performance.undeclared_pipeline:
        always_R = performance.always_behind(len(late.late_R))
        heaviest = diagnosis.undeclared_stage(late, window.signal_R, always_R, policy.straggler_slowdown)
    waited_R = performance.cpu_waited_R[: len(late.late_R)]
    performance.add_observations(window, heaviest, diagnosis.last_rank(late, window.signal_R, waited_R))
    step_R = window.step_R[~np.isnan(window.step_R)]
    before = performance.finding
    found = diagnosis.finding(
        performance.record,
        performance.open_stragglers,
        ranks=int(window.fresh_R.sum()),
        noise=lateness.noise(_surveyed(performance.signal_TR)),
        step=float(np.median(step_R)) if len(step_R) else np.nan,
        criteria=diagnosis.Criteria(
            policy.straggler_slowdown, policy.straggler_windows_needed, policy.straggler_windows
        ),
        often_behind=_often_behind(performance.signal_TR, policy.straggler_slowdown),
    )
    same = (found.verdict, found.ranks, found.cause) == (before.verdict, before.ranks, before.cause)
    since = before.since if before.verdict is found.verdict else found.since or window.now
    kept = same and found.verdict is not StragglerVerdict.WORKER and not changed_much(before.share, found.share)
    reason = before.reason if kept else found.reason  # that of a straggler is kept with its figures
    found = replace(found, since=since, reason=reason)
    performance.set_finding(found)
    # Stragglers are logged one by one when they begin and end, so a worker verdict is not.
    if found.verdict is not before.verdict and StragglerVerdict.WORKER not in (found.verdict, before.verdict):
        effects.append(Slowed(None, _log_line(found, before)))


def _often_behind(signal_TR: Floats, slowdown: float) -> Ints:
    """Ranks that are behind by more than the slowdown that matters in this window and in most of those before."""
    with np.errstate(invalid="ignore"):
        behind = np.flatnonzero(signal_TR[-1] > slowdown)
        return behind[column_medians(signal_TR[:, behind]) > slowdown]


def _log_line(found: Finding, before: Finding) -> str:
    return found.reason or f"The job is healthy again: no {before.verdict} slows it any more."
