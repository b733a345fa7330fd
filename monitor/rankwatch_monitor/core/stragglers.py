"""Stragglers: each window of a job is judged here; who is slow again and again gets a name, a cause and a cost.

How this works
--------------
When a window is complete, one signal a rank says by which part of a step it is slower than its peers (``signals``). A
rank is slow in a window when its signal is above both what matters (``straggler_slowdown``) and what noise may show
(``lateness.needed_sigmas`` times the job's own noise). Slow in k of the last n windows, the newest included, it is a
straggler; not slow in the last k windows, it is one no more. With ``straggler_reference`` "fastest" the thresholds of
nvidia-resiliency-ext decide instead, at once. Nothing here acts: see ``straggler_actions``.

Shapes: R ranks, T windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rankwatch.wire.names import DATA_SECTIONS
from rankwatch.wire.policy import Policy
from rankwatch.wire.vocabulary import Cause, ScoreReference, StragglerVerdict
from rankwatch_monitor.core import lateness, sampling, verdict
from rankwatch_monitor.core.columns import Bools
from rankwatch_monitor.core.effects import Effect, Slowed
from rankwatch_monitor.core.performance import WINDOWS, Gathering, Performance
from rankwatch_monitor.core.scores import Finding, Straggler
from rankwatch_monitor.core.scoring import score_window
from rankwatch_monitor.core.signals import Window, present, usual_gap, window_of
from rankwatch_monitor.core.straggler_words import Seen, below_words, kernel_words, sentence

if TYPE_CHECKING:
    from rankwatch_monitor.core.state import Job

KEPT: Final = 200
"""Stragglers kept in memory, ended ones included."""
SAY_AGAIN: Final = 1.5
"""The sentence of a straggler is made anew when its share has changed by more than this factor."""
DAY: Final = 86_400.0


def judge(job: Job, now: float) -> list[Effect]:
    """Judge the window that is being gathered, if it is complete; return what follows."""
    performance = job.performance
    if job.ended is not None:
        return _over(job, job.ended.at, f"the job is {job.ended.state}")
    if performance.gathering.since is None:
        return []
    if not job.policy.straggler_detection:
        return _over(job, now, "straggler_detection was switched off")
    if performance.ready_at(present(job), usual_gap(job)) > now:
        return []
    effects: list[Effect] = []
    window = window_of(job, now)
    sampling.remember(job, window)
    score_window(job, window, effects)
    _cost(job, window)
    if not np.isnan(window.signal_R).all() or job.policy.straggler_reference is ScoreReference.FASTEST:
        _remember(performance, window)
        slow_TR = _slow(job)
        _end(job, window, slow_TR, effects)
        _begin(job, window, slow_TR, effects)
        _conclude(job, window, effects)
    performance.judged += 1
    performance.settle_stride(job.policy.profiling_interval)
    performance.gathering = Gathering()
    return effects


def _over(job: Job, at: float, why: str) -> list[Effect]:
    """End what is open: nobody looks any more whether it still holds."""
    performance, effects = job.performance, list[Effect]()
    performance.gathering = Gathering()
    for straggler in performance.told.open_stragglers:
        _ended(straggler, at, why, effects)
    if performance.told.finding.verdict is not StragglerVerdict.HEALTHY:
        performance.told.finding = Finding()
    return effects


def ready_at(job: Job) -> float:
    """When the window that is being gathered can be judged; infinity: nothing is being gathered."""
    if job.performance.gathering.since is None:
        return np.inf
    return job.performance.ready_at(present(job), usual_gap(job))


def _remember(performance: Performance, window: Window) -> None:
    """Keep the signal of the last windows, all of one width."""
    kept_TR, ranks = performance.share_TR, len(window.signal_R)
    if kept_TR.shape[1] != ranks:
        wider_TR = np.full((len(kept_TR), ranks), np.nan)
        wider_TR[:, : min(ranks, kept_TR.shape[1])] = kept_TR[:, :ranks]
        kept_TR = wider_TR
    performance.share_TR = np.concatenate([kept_TR, window.signal_R[None]])[-WINDOWS:]


# Who is slow ----------------------------------------------------------------------------------------------------------


def threshold(job: Job) -> float:
    """The signal above which a rank is slow; infinity while the job's noise is not known."""
    policy, performance = job.policy, job.performance
    sigma = lateness.noise(performance.share_TR)
    if np.isnan(sigma):
        return np.inf
    sigma = float(np.hypot(sigma, lateness.spread(performance.share_TR)))
    sigmas = lateness.needed_sigmas(
        ranks=max(1, int(present(job).sum())),
        windows_a_day=DAY / performance.interval,
        needed=policy.straggler_windows_needed,
        of=policy.straggler_windows,
        alarms_a_day=policy.straggler_alarms_per_day,
    )
    return max(policy.straggler_slowdown, sigmas * sigma)


def _slow(job: Job) -> Bools:
    """Which ranks are slow in each of the last n windows, the newest last; shape (n, R)."""
    policy = job.policy
    if policy.straggler_reference is ScoreReference.FASTEST:
        return _below_thresholds(job, policy)[None]
    recent_TR = job.performance.share_TR[-policy.straggler_windows :]
    with np.errstate(invalid="ignore"):
        slow_TR: Bools = recent_TR > threshold(job)
    return slow_TR


def _below_thresholds(job: Job, policy: Policy) -> Bools:
    """Strictly below a threshold by the fastest reference, as nvidia-resiliency-ext has it; NaN never is."""
    scores = job.performance.told.scores
    assert scores is not None
    with np.errstate(invalid="ignore"):
        relative_R = (scores.gpu_relative_R < policy.relative_threshold) | np.any(
            scores.section_relative_RS < policy.relative_threshold, axis=1
        )
        individual_R = (scores.gpu_individual_R < policy.individual_threshold) | np.any(
            scores.section_individual_RS < policy.individual_threshold, axis=1
        )
    below_R: Bools = relative_R | individual_R
    return below_R


def _needed(policy: Policy) -> int:
    return 1 if policy.straggler_reference is ScoreReference.FASTEST else policy.straggler_windows_needed


def _begin(job: Job, window: Window, slow_TR: Bools, effects: list[Effect]) -> None:
    """Name the ranks that have become stragglers, and say anew what has changed much of those that are."""
    known = {s.rank: s for s in job.performance.told.stragglers if s.open}
    slow_R = slow_TR[-1] & (slow_TR.sum(axis=0) >= _needed(job.policy))
    for rank in np.flatnonzero(slow_R | np.isin(np.arange(len(slow_R)), list(known))):
        if not slow_TR[-1, rank]:
            continue
        straggler = known.get(int(rank))
        new = straggler is None
        if straggler is None:
            straggler = _named(job, window, int(rank), slow_TR)
        before, reason, cause = straggler.share, straggler.reason, straggler.cause
        _describe(job, window, straggler, slow_R)
        straggler.seen = window.now
        if new:
            job.performance.found[straggler.cause] = job.performance.found.get(straggler.cause, 0) + 1
        changed = straggler.cause is not cause or _changed_much(before, straggler.share)
        if not new and not changed:
            straggler.reason = reason
        if new or changed:
            effects.append(Slowed(straggler, straggler.reason))


def _named(job: Job, window: Window, rank: int, slow_TR: Bools) -> Straggler:
    performance = job.performance
    performance.last_straggler += 1
    first = len(slow_TR) - 1 - int(np.argmax(slow_TR[:, rank]))
    key = next((name for name, row in performance.devices.items() if row == performance.device_R[rank]), "")
    straggler = Straggler(
        id=f"{job.id}-{job.created_at:.0f}-s{performance.last_straggler}",
        rank=rank,
        host=job.columns.hosts[rank],
        device=key.rpartition(" ")[0],
        cause=Cause.UNEXPLAINED,
        reference=job.policy.straggler_reference,
        reason="",
        since=window.now - first * performance.interval,
        seen=window.now,
        attempt=job.attempt,
    )
    performance.told.stragglers.append(straggler)
    del performance.told.stragglers[:-KEPT]
    return straggler


def _describe(job: Job, window: Window, straggler: Straggler, slow_R: Bools) -> None:
    """Put down how late a straggler is, with what and why, as of this window."""
    performance, rank, late = job.performance, straggler.rank, window.late
    scores = performance.told.scores
    assert scores is not None
    section = _section_of(performance, window, rank)
    step = float(late.step_R[rank])
    if np.isnan(step):
        step = float(window.step_R[rank])
    share = float(window.signal_R[rank])
    seconds, own, usual = share * step, None, None
    if not np.isnan(late.late_R[rank]):
        excess_P = late.excess_RP[rank]
        straggler.cause = lateness.cause_of(excess_P, seconds)
        if straggler.cause is not Cause.UNEXPLAINED:
            part = lateness.CAUSES.index(straggler.cause)
            own = float(performance.parts_RP[rank, part])
            usual = own - float(excess_P[part])
    elif section is not None:
        s = performance.sections.names.index(section)
        own = float(window.section_RS[rank, s])
        usual = own - float(window.section_excess_RS[rank, s])
        straggler.cause = Cause.DATA if section in DATA_SECTIONS else Cause.UNEXPLAINED
    elif not np.isnan(scores.gpu_robust_R[rank]) or straggler.reference is ScoreReference.FASTEST:
        straggler.cause = Cause.COMPUTE
    fastest = straggler.reference is ScoreReference.FASTEST
    score_R = scores.gpu_relative_R if fastest else scores.gpu_robust_R
    straggler.score = None if np.isnan(score_R[rank]) else float(score_R[rank])
    known = not np.isnan(seconds)
    straggler.lateness, straggler.share = (seconds, share) if known else (None, None)
    if fastest:
        straggler.reason = below_words(job.policy, scores, rank, straggler.host)
        return
    if not known:
        straggler.reason = kernel_words(rank, straggler.host, straggler.score or 0.0)
        return
    host = straggler.host
    straggler.reason = sentence(
        Seen(
            rank=rank,
            host=host,
            others=int(window.fresh_R.sum()) - 1,
            late=seconds,
            step=step,
            cause=straggler.cause,
            own=own,
            peers=usual,
            section=section,
            cpu_waited=_known(performance.cpu_waited_R[rank]),
            device=performance.readings.get(rank),
            hosts_ranks=sum(job.columns.hosts[r] == host for r in np.flatnonzero(slow_R) if r != rank) if host else 0,
        )
    )


def _section_of(performance: Performance, window: Window, rank: int) -> str | None:
    """The section that holds more than half of a rank's excess, where one does."""
    excess_S, names = window.section_excess_RS[rank], performance.sections.names
    if not len(names) or np.isnan(excess_S).all():
        return None
    most = int(np.nanargmax(excess_S))
    late = window.late.late_R[rank]
    return names[most] if np.isnan(late) or excess_S[most] > lateness.EXPLAINS * late else None


def _end(job: Job, window: Window, slow_TR: Bools, effects: list[Effect]) -> None:
    """End the stragglers that are as fast as their peers again, or are gone."""
    quiet_TR = slow_TR[-_needed(job.policy) :]
    for straggler in job.performance.told.stragglers:
        if not straggler.open or straggler.attempt != job.attempt:
            if straggler.open:
                _ended(straggler, window.now, f"attempt {job.attempt} runs", effects)
            continue
        gone = straggler.rank >= quiet_TR.shape[1] or not present(job)[straggler.rank]
        if gone:
            _ended(straggler, window.now, "it is gone", effects)
        elif len(quiet_TR) >= _needed(job.policy) and not quiet_TR[:, straggler.rank].any():
            _ended(straggler, window.now, "it is as fast as its peers again", effects)


def _ended(straggler: Straggler, now: float, why: str, effects: list[Effect]) -> None:
    straggler.ended = now
    cost = f", which cost {straggler.cost_gpu_hours:.2f} GPU-hours" if straggler.cost_gpu_hours >= 0.005 else ""
    effects.append(Slowed(straggler, f"Rank {straggler.rank} is no straggler any more: {why}{cost}."))


def _cost(job: Job, window: Window) -> None:
    """Add what the open stragglers cost in this window: what the others wait, as it was seen last, for all ranks."""
    performance, ranks, dearest = job.performance, int(window.fresh_R.sum()), 0.0
    for straggler in performance.told.open_stragglers:
        steps = performance.steps_R[straggler.rank] if straggler.rank < len(window.fresh_R) else np.nan
        if straggler.lateness and straggler.lateness > 0 and not np.isnan(steps):
            cost = straggler.lateness * float(steps) * ranks / 3600.0
            straggler.cost_gpu_hours += cost
            dearest = max(dearest, cost)
    performance.told.cost_gpu_hours += dearest  # those that wait for two of them at once wait once


def _changed_much(before: float | None, now: float | None) -> bool:
    if not before or not now or before <= 0 or now <= 0:
        return False
    return max(now / before, before / now) > SAY_AGAIN


# What is told -------------------------------------------------------------------------------------------------------


def _conclude(job: Job, window: Window, effects: list[Effect]) -> None:
    """Whose doing it is, as of this window."""
    performance, policy, told = job.performance, job.policy, job.performance.told
    memory, late = performance.windows, window.late
    memory.stages.append(
        verdict.heaviest_stage(late, performance.layout.pipeline_R[: len(late.late_R)], policy.straggler_slowdown)
    )
    memory.turns.append(verdict.last_one(late, window.signal_R))
    performance.links.take(performance.gathering.transfers)
    memory.links.append(performance.links.slowest())
    sigma = lateness.noise(performance.share_TR)
    step_R = window.step_R[~np.isnan(window.step_R)]
    criteria = verdict.Criteria(policy.straggler_slowdown, policy.straggler_windows_needed, policy.straggler_windows)
    step = float(np.median(step_R)) if len(step_R) else np.nan
    found = verdict.finding(memory, told.open_stragglers, int(window.fresh_R.sum()), sigma, step, criteria)
    before = told.finding
    found.since = before.since if before.verdict is found.verdict else found.since or window.now
    if found.verdict is before.verdict and found.ranks == before.ranks and not _changed_much(before.share, found.share):
        found.reason = before.reason
    told.finding = found
    performance.verdicts[found.verdict] = performance.verdicts.get(found.verdict, 0) + 1
    # Of workers the stragglers' own sentences tell, when they begin and when they end.
    if found.verdict is not before.verdict and StragglerVerdict.WORKER not in (found.verdict, before.verdict):
        effects.append(Slowed(None, _job_words(found, before)))


def _job_words(found: Finding, before: Finding) -> str:
    return found.reason or f"The job is healthy again: no {before.verdict} slows it any more."


def _known(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
