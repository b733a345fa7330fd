"""Evaluates each complete window of a job: computes scores, and opens, updates and ends stragglers.

Each window gives one signal a rank: by which fraction of a step it is slower than its peers (see ``window``). A rank is
slow in a window when its signal is above the :func:`threshold`. Slow in k of the last n windows, the newest included,
it is a straggler; not slow in the last k windows known of it, it is none any more. With ``straggler_reference``
"fastest" the thresholds of nvidia-resiliency-ext decide instead, at once. Sentences are made by ``describe``, the
verdict about the job by ``diagnosis``; whether to act is decided by ``incident.straggler_actions``.

Shapes: R ranks, T windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from rankwatch.cli.formatting import gpu_time
from rankwatch.contract.enums import Cause, ScoreReference, StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.effects import Effect, Slowed
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import usual_report_interval
from rankwatch_monitor.core.nodes import places
from rankwatch_monitor.core.ranks import EXITED, Bools, Floats, Ints, RankColumns, live_ranks
from rankwatch_monitor.core.regression.sample import Sample
from rankwatch_monitor.core.slow_cause import Doubt, LateRank
from rankwatch_monitor.core.straggler import diagnosis, lateness
from rankwatch_monitor.core.straggler.describe import changed_much, describe, is_outdated
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.peers import column_medians
from rankwatch_monitor.core.straggler.scores import KernelScoreRequest, kernel_scores
from rankwatch_monitor.core.straggler.state import WINDOWS, Description, Performance
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
FEW_RANKS: Final = 64
RUN: Final = 4
"""Windows in a row that show a rank behind from which on they are evidence together."""
ALIKE: Final = 3.0
"""How many times as far behind it must be in each of them as any other rank was in as many."""
MEDIAN_ERROR: Final = 1.2533
"""Standard error of the median of n normal values, times sqrt(n), in standard deviations: sqrt(pi / 2)."""
USUAL: Final = 600.0
"""Seconds before a rank was slow, and of the last ones since, whose median step is the usual one."""
FEWEST: Final = 3
"""Samples of which there must be so many."""
GREW: Final = 0.5
"""Of what a rank is behind, the part by which its own work must have grown where its few peers may have become fast."""
ALONE: Final = 3.0
"""How many times as much a rank that is slow in some windows must cost as any that is not called so."""
SURE: Final = 2.0
"""Times as many windows as usual between two slow ones, without one, after which such a rank has recovered."""
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
    window = performance.close_window(len(job.columns), now, job.policy.straggler_slowdown)
    performance.add_sample(window, job.policy, job.attempt, job.columns.hosts)
    if (request := performance.score(window, job.policy)) is not None:
        effects.append(request)
    performance.charge(window)
    if _is_conclusive(window, job.policy):
        performance.add_signal(window, job.policy.straggler_slowdown)
        slowness = slow(job)
        _end_recovered(job, window, slowness, effects)
        _open(job, window, slowness, effects)
        _conclude(job, window, slowness, effects)
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
    if job.performance.findings or job.performance.late:
        job.performance.clear_findings()


# Which ranks are slow -------------------------------------------------------------------------------------------------


class Slowness(NamedTuple):
    """Which ranks are slow, and in which way."""

    slow_TR: Bools
    """In each of the windows that are kept, the newest last."""
    lasting_R: Bools
    """Most windows show it behind, by less than the noise of one of them."""
    nodes: tuple[str, ...] = ()
    """The nodes that are slow as a whole, of those with several ranks; theirs are among the slow ranks."""
    often_R: Bools | None = None
    """It is slow in some windows, again and again, and no other rank is."""

    def often(self, rank: int, needed: int, of: int) -> float | None:
        """The part of the windows in which a rank is slow, where it is not in most of the last ones."""
        slow_T = self.slow_TR[:, rank]
        if self.often_R is None or not self.often_R[rank] or self.lasting_R[rank] or slow_T[-of:].sum() >= needed:
            return None
        return float(slow_T.mean())


def threshold(job: Job) -> float:
    """The signal above which a rank is slow; infinity while the job's noise is unknown."""
    return _limit(job, _surveyed(job.performance.signal_TR), max(1, int(live_ranks(job.columns).sum())))


def _limit(job: Job, signal_TX: Floats, number: int) -> float:
    """The signal above which one of a ``number`` of ranks or nodes is slow; infinity while the noise is unknown.

    The highest of the slowdown that matters, what normal noise may show, and what healthy ones did show. Those that
    would be stragglers by the first two are left out of the last.
    """
    policy = job.policy
    sigma = lateness.noise(signal_TX)
    if np.isnan(sigma):
        return np.inf
    sigma = max(sigma, lateness.recent_noise(signal_TX[-policy.straggler_windows :]))
    sigma = float(np.hypot(sigma, lateness.spread(signal_TX)))
    chance = lateness.needed_chance(
        ranks=number,
        windows_a_day=DAY / job.performance.interval,
        needed=policy.straggler_windows_needed,
        of=policy.straggler_windows,
        alarms_a_day=policy.straggler_alarms_per_day,
    )
    at_least = max(policy.straggler_slowdown, lateness.needed_sigmas(chance) * sigma)
    with np.errstate(invalid="ignore"):
        often_X = (signal_TX[-policy.straggler_windows :] > at_least).sum(axis=0) >= policy.straggler_windows_needed
    return max(at_least, lateness.blips(signal_TX[:, ~often_X], chance))


def slow(job: Job) -> Slowness:
    """Judge all ranks by the windows that are kept: they stand out, and it costs the job as much as matters."""
    policy, performance = job.policy, job.performance
    if policy.straggler_reference is ScoreReference.FASTEST:
        below_R = _below_thresholds(job)
        return Slowness(below_R[None], np.zeros_like(below_R))
    signal_TR, limit = performance.signal_TR, threshold(job)
    with np.errstate(invalid="ignore"):
        costly_TR = performance.lost_TR > policy.straggler_slowdown
        slow_TR: Bools = (signal_TR > limit) & costly_TR
    unchanged_R = _unchanged(performance, signal_TR.shape[1])
    slow_TR &= ~unchanged_R[None]
    often_R = _often(policy, slow_TR, performance.lost_TR)
    nodes = tuple(_slow_nodes(job))
    for name in nodes:
        number = performance.hosts[name]
        with np.errstate(invalid="ignore"):
            slow_T = performance.node_TH[:, number] > policy.straggler_slowdown
        slow_TR |= slow_T[:, None] & (performance.node_R[: slow_TR.shape[1]] == number)[None]
    return Slowness(slow_TR, (lastingly_behind(job) | _in_a_row(job)) & ~unchanged_R, nodes, often_R)


def _unchanged(performance: Performance, ranks: int) -> Bools:
    """Ranks that are behind few peers and do not take longer than they did: the peers have become fast; shape (R,).

    Where that is unknown, as from the first windows on, a rank without any peer may just have more to do.
    """
    past = performance.past
    if len(past.grown_R) != ranks:
        return np.zeros(ranks, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        grown_R = past.grown_R > GREW * performance.signal_TR[-1] * past.step
        behind_R = performance.signal_TR[-1] > 0
    unknown_R = np.isnan(past.grown_R)
    found_R: Bools = behind_R & ~grown_R & ((past.few_R & ~unknown_R) | past.alone_R)
    return found_R


def _slow_nodes(job: Job) -> Iterator[str]:
    """The nodes whose ranks together are slow in k of the last n windows, the newest included."""
    policy, performance = job.policy, job.performance
    recent_TH = performance.node_TH[-policy.straggler_windows :]
    known_H = ~np.isnan(performance.node_TH).all(axis=0)
    if not known_H.any() or np.isinf(limit := _limit(job, performance.node_TH[:, known_H], int(known_H.sum()))):
        return
    with np.errstate(invalid="ignore"):
        slow_TH = recent_TH > limit
    names, past = list(performance.hosts), performance.past
    for node in np.flatnonzero(slow_TH[-1] & (slow_TH.sum(axis=0) >= policy.straggler_windows_needed)):
        member_R = performance.node_R[: performance.signal_TR.shape[1]] == node
        lost_R = column_medians(performance.lost_TR[-policy.straggler_windows :, member_R])
        if np.isnan(lost_R).all() or not np.nanmedian(lost_R) > policy.straggler_slowdown:
            continue
        grown_M = past.grown_R[member_R]
        unknown, stage = bool(np.isnan(grown_M).all()), bool(past.whole_H[node])
        grown = not unknown and np.nanmedian(grown_M) > GREW * float(recent_TH[-1, node]) * past.step
        if grown or (unknown and not stage) or (known_H.sum() > 2 and not stage):
            yield names[node]


def _often(policy: Policy, slow_TR: Bools, lost_TR: Floats) -> Bools:
    """Ranks that are slow in some windows only, and cost as much as matters all in all; shape (R,).

    Where others are so too, ranks take turns.
    """
    times_R = slow_TR.sum(axis=0)
    if len(slow_TR) < LASTING or not (times_R >= policy.straggler_windows_needed).any():
        return np.zeros(slow_TR.shape[1], dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        behind_TR = np.where(lost_TR > policy.straggler_slowdown, lost_TR, 0.0)
    lost_R = behind_TR.sum(axis=0) / np.maximum(1, (~np.isnan(lost_TR)).sum(axis=0))
    found_R: Bools = (lost_R > policy.straggler_slowdown) & (times_R >= policy.straggler_windows_needed)
    others = float(lost_R[~found_R].max(initial=0.0))
    found_R &= lost_R > ALONE * others
    return found_R


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
    chance = _chance(job, LASTING)
    error_R = np.hypot(MEDIAN_ERROR * sigma / np.sqrt(np.maximum(known_R, 1)), lateness.spread(_surveyed(signal_TR)))
    limit_R = np.maximum(policy.straggler_slowdown, lateness.needed_sigmas(chance) * error_R)
    with np.errstate(invalid="ignore"):
        lasting_R: Bools = (known_R >= LASTING) & (column_medians(signal_TR) > limit_R)
        recent_TR = job.performance.lost_TR[-policy.straggler_windows :]
        still_R: Bools = column_medians(recent_TR) > policy.straggler_slowdown
    return lasting_R & still_R


def _chance(job: Job, windows: int) -> float:
    """The chance at which so many windows together may show a healthy rank as slow."""
    return lateness.needed_chance(
        ranks=max(1, int(live_ranks(job.columns).sum())),
        windows_a_day=DAY / job.performance.interval / windows,
        needed=1,
        of=1,
        alarms_a_day=job.policy.straggler_alarms_per_day,
    )


def _in_a_row(job: Job) -> Bools:
    """Ranks that were behind in :data:`RUN` windows in a row, as no other rank was, and are known to be since; (R,).

    Their mean varies by half the noise of one window. So where that is large a rank need not wait for ten windows.
    """
    policy, signal_TR = job.policy, job.performance.signal_TR
    none_R, surveyed_TR = np.zeros(signal_TR.shape[1], dtype=np.bool_), _surveyed(signal_TR)
    sigma = lateness.noise(surveyed_TR)
    if policy.straggler_reference is ScoreReference.FASTEST or len(signal_TR) < 2 * RUN or np.isnan(sigma):
        return none_R
    with np.errstate(invalid="ignore"):
        behind_TR = (signal_TR > policy.straggler_slowdown) & (job.performance.lost_TR > policy.straggler_slowdown)
    recent_TR = behind_TR[-RUN - policy.straggler_windows_needed + 1 :]
    chosen = np.flatnonzero(recent_TR.sum(axis=0) >= RUN)
    if not len(chosen):
        return none_R
    chance = _chance(job, RUN)
    sigmas = lateness.needed_sigmas(chance) / np.sqrt(RUN)
    run_TXR = np.lib.stride_tricks.sliding_window_view(signal_TR[:, chosen], RUN, axis=0)
    recent = slice(-policy.straggler_windows_needed, None)
    least_X, mean_X = run_TXR[recent].min(axis=-1), run_TXR[recent].mean(axis=-1)
    others_TR = np.lib.stride_tricks.sliding_window_view(surveyed_TR, RUN, axis=0).min(axis=-1)
    most_R = np.fmax.reduce(others_TR, axis=0)
    numbers = _surveyed(np.arange(float(signal_TR.shape[1]))[None])[0]
    for place, rank in enumerate(chosen):
        others = float(np.nanmax(most_R[numbers != rank], initial=0.0))
        # Its own variation is no noise of the others: of few ranks it would be a large part of it.
        known = lateness.noise(surveyed_TR[:, numbers != rank]) if len(numbers) <= FEW_RANKS else sigma
        limit = sigmas * (sigma if np.isnan(known) else known)
        alone = max(policy.straggler_slowdown, ALIKE * others)
        none_R[rank] = bool(((least_X[:, place] > alone) & (mean_X[:, place] > limit)).any())
    return none_R


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


def _open(job: Job, window: Window, slowness: Slowness, effects: list[Effect]) -> None:
    """Open stragglers for ranks that have become slow, and update those that are slow already.

    Where ranks send to each other and have declared no stage, a rank that was behind from the beginning may just have
    more to do: it is part of the job's finding instead.
    """
    performance = job.performance
    known = {s.rank: s for s in performance.stragglers if s.open}
    slow_TR = slowness.slow_TR[-job.policy.straggler_windows :]
    slow_R = (slow_TR[-1] & (slow_TR.sum(axis=0) >= _needed(job.policy))) | slowness.lasting_R
    if slowness.often_R is not None:
        slow_R |= slow_TR[-1] & slowness.often_R
    if performance.undeclared_pipeline and job.policy.straggler_reference is ScoreReference.ROBUST:
        slow_R &= ~performance.always_behind(len(slow_R))
    recent = _samples(job, window.now) if known or slow_R.any() else []
    hosts = job.columns.hosts
    slow_of_host = Counter(host for rank in np.flatnonzero(slow_R) if (host := hosts[rank]))

    def seen_now(straggler: Straggler) -> Description:
        average = _average_loss(performance, slowness, straggler.rank) if straggler.often is not None else None
        alike, whole = slow_of_host[straggler.host], straggler.host in slowness.nodes
        seen = describe(performance, job.policy, window, straggler, alike, average, whole=whole)
        performance.see_straggler(straggler, window.now, seen.score, _usual_step(recent, straggler.since))
        return seen

    usual_R = column_medians(performance.lost_TR[-job.policy.straggler_windows :]) if known else window.lost_R
    for rank, straggler in known.items():
        if slow_TR[-1, rank]:
            seen = seen_now(straggler)
            usual = float(usual_R[rank]) if straggler.often is None else _average_loss(performance, slowness, rank)
            if is_outdated(straggler, seen, usual):
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
        straggler = _new_straggler(job, window, rank, slowness)
        performance.describe_straggler(straggler, seen_now(straggler))
        performance.add_straggler(straggler)
        found.append(straggler)
        effects.append(Slowed(straggler, straggler.reason if number < LOGGED else ""))
    performance.charge_since_found(found, window)
    more = len(new) - min(len(named), LOGGED)
    if more and (len(named) > LOGGED or not performance.unnamed):
        effects.append(Slowed(None, f"{more} more ranks are slow too; 'rankwatch report --scores' names the slowest."))
    performance.set_unnamed(len(new) - len(named))


def _average_loss(performance: Performance, slowness: Slowness, rank: int) -> float:
    """What a rank that is slow in some windows costs in all of them, as a fraction of the step."""
    lost_T = performance.lost_TR[:, rank]
    slow_T, known_T = slowness.slow_TR[:, rank], ~np.isnan(lost_T)
    # Of a step that is longer by it: in units of the usual step it is 1 / (1 - share).
    length_T = np.where(slow_T, 1.0 / np.maximum(1.0 - lost_T, 0.05), 1.0)
    return float(np.sum((length_T - 1.0)[known_T]) / np.sum(length_T[known_T]))


def _slowness(job: Job, window: Window) -> Floats:
    """By how much each rank is slow, for ordering; shape (R,), known for every slow rank."""
    scores = job.performance.scores
    if job.policy.straggler_reference is ScoreReference.ROBUST or scores is None:
        return window.lost_R
    lowest_R: Floats = np.fmin(scores.gpu_relative_R, scores.gpu_individual_R)
    judged_S = list(scores.judged.values())
    for score_RS in (scores.section_relative_RS, scores.section_individual_RS):
        lowest_R = np.fmin(lowest_R, np.fmin.reduce(score_RS[:, judged_S], axis=1, initial=np.nan))
    return 1.0 - lowest_R


def _new_straggler(job: Job, window: Window, rank: int, slowness: Slowness) -> Straggler:
    performance, slow_TR = job.performance, slowness.slow_TR
    since = window.now - _windows_since(slow_TR[:, rank], job.policy.straggler_windows) * performance.interval
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
        often=slowness.often(rank, _needed(job.policy), job.policy.straggler_windows),
        step_before=_usual_step(_samples(job, since)),
    )


def _windows_since(slow_T: Bools, of: int) -> int:
    """Windows since a rank's first slow one; between two slow ones there are less than ``of`` others."""
    late_T = np.flatnonzero(slow_T[::-1])
    if not len(late_T):
        return min(of, len(slow_T))
    gaps = np.flatnonzero(np.diff(late_T) > of)
    return int(late_T[gaps[0]] if len(gaps) else late_T[-1]) + 1


def _samples(job: Job, until: float) -> list[Sample]:
    """The steps of this attempt in the minutes up to a moment (unix seconds)."""
    samples = job.performance.history.window(until - USUAL, until)
    return [sample for sample in samples if sample.attempt == job.attempt]


def _usual_step(samples: Iterable[Sample], since: float = -np.inf) -> float | None:
    """Seconds of a step in samples that ended after ``since`` (unix seconds); None: they are too few."""
    steps = [sample.step for sample in samples if sample.at > since]
    return median(steps) if len(steps) >= FEWEST else None


def _end_recovered(job: Job, window: Window, slowness: Slowness, effects: list[Effect]) -> None:
    """End the stragglers that are as fast as their peers again, or are gone."""
    reference, gone_R, slow_TR = job.policy.straggler_reference, _gone(job.columns), slowness.slow_TR
    for straggler in job.performance.open_stragglers:
        why = ""
        if straggler.rank >= slow_TR.shape[1] or gone_R[straggler.rank]:
            why = "it is gone"
        elif straggler.reference is not reference:
            why = f"ranks are judged by the {reference} reference now"
        elif reference is not ScoreReference.FASTEST:
            why = _recovered(job, straggler, slowness)
        elif not slow_TR[-1, straggler.rank]:
            why = "no score of it is below the thresholds any more"
        if why:
            _end(job, straggler, window.now, why, effects)


def _recovered(job: Job, straggler: Straggler, slowness: Slowness) -> str:
    """Why a rank is no straggler any more; empty: it still is, or that is unknown. A missing window proves nothing."""
    policy, rank = job.policy, straggler.rank
    signal_T = job.performance.signal_TR[:, rank]
    known_T = ~np.isnan(signal_T)
    if not known_T.any() and len(signal_T) >= WINDOWS:
        return f"it has reported no steps in {len(signal_T)} windows"
    slow_T = slowness.slow_TR[:, rank]
    if slowness.lasting_R[rank]:
        slow_T = slow_T | (signal_T > policy.straggler_slowdown)
    needed = policy.straggler_windows_needed
    if straggler.often is not None:
        needed = min(WINDOWS, max(needed, round(SURE / straggler.often)))
    slow_T = slow_T[known_T][-needed:]
    if len(slow_T) < needed or slow_T.any() or np.isinf(threshold(job)):
        return ""
    if np.median(job.performance.lost_TR[known_T, rank][-needed:]) > policy.straggler_slowdown:
        return "it does not stand out any more, for other ranks are as slow or the job is as uneven"
    return "it is as fast as its peers again"


def _end(job: Job, straggler: Straggler, at: float, why: str, effects: list[Effect]) -> None:
    job.performance.end_straggler(straggler, at)
    cost = f", which cost {gpu_time(3600.0 * straggler.cost_gpu_hours)}" if straggler.cost_gpu_hours >= 0.005 else ""
    effects.append(Slowed(straggler, f"Rank {straggler.rank} is no straggler any more: {why}{cost}."))


# The job as a whole ---------------------------------------------------------------------------------------------------


def _conclude(job: Job, window: Window, slowness: Slowness, effects: list[Effect]) -> None:
    """Set the job's findings as of this window."""
    performance, policy, before = job.performance, job.policy, job.performance.findings
    performance.observed.append(_observe(job, window))
    step_R = window.step_R[~np.isnan(window.step_R)]
    found = diagnosis.findings(
        list(performance.observed),
        performance.open_stragglers,
        _whole_nodes(job, window, slowness),
        diagnosis.Newest(
            int(window.fresh_R.sum()),
            noise=lateness.noise(_surveyed(performance.signal_TR)),
            step=float(np.median(step_R)) if len(step_R) else np.nan,
            often_behind=_often_behind(performance.signal_TR, policy.straggler_slowdown),
        ),
        diagnosis.Criteria(policy.straggler_slowdown, policy.straggler_windows_needed, policy.straggler_windows),
        places(job),
    )
    was, past = performance.finding, {each.verdict: each for each in reversed(before)}
    performance.set_findings([_continued(each, past.get(each.verdict), window.now) for each in found])
    performance.set_late(_late_rank(job, window.now))
    now = performance.finding
    # Stragglers are logged one by one when they begin and end, so a worker verdict is not.
    if now.verdict is not was.verdict and StragglerVerdict.WORKER not in (now.verdict, was.verdict):
        effects.append(Slowed(None, now.reason or f"The job is healthy again: no {was.verdict} slows it any more."))


def _late_rank(job: Job, now: float) -> LateRank | None:
    """The rank that is late in the newest window, of those that are not named, and why it is not."""
    policy, performance = job.policy, job.performance
    if policy.straggler_reference is ScoreReference.FASTEST:
        return None
    signal_TR = performance.signal_TR[-policy.straggler_windows :]
    with np.errstate(invalid="ignore"):
        behind_TR = signal_TR > policy.straggler_slowdown
    ranks = behind_TR.shape[1]
    behind_TR[:, [each.rank for each in performance.open_stragglers if each.rank < ranks]] = False
    behind_TR[:, performance.past.alone_R[:ranks]] = False  # what they have to do may be theirs
    if not behind_TR[-1].any():
        return None
    slow_R = behind_TR.sum(axis=0)
    rank = int(np.lexsort((np.where(behind_TR[-1], signal_TR[-1], -1.0), np.where(behind_TR[-1], slow_R, -1)))[-1])
    slow, others = int(slow_R[rank]), int(np.delete(slow_R, rank).max(initial=0))
    doubt = Doubt.NOISE if slow >= policy.straggler_windows_needed else Doubt.FEW_WINDOWS
    if _unchanged(performance, ranks)[rank]:
        doubt = Doubt.FAST_PEER
    elif slow > 1 and 2 * others >= slow:
        doubt = Doubt.TURNS
    since = now - _windows_since(behind_TR[:, rank], len(behind_TR)) * performance.interval
    of, needed, share = len(behind_TR), policy.straggler_windows_needed, float(signal_TR[-1, rank])
    suspected = slow > 1 and doubt in (Doubt.FEW_WINDOWS, Doubt.NOISE)
    return LateRank(rank, job.columns.hosts[rank], slow, needed, of, share, since, doubt, suspected)


def _continued(found: Finding, before: Finding | None, now: float) -> Finding:
    """A finding with the beginning of the same one before, and its sentence unless that has changed much."""
    if before is None:
        return replace(found, since=found.since or now)
    same = (found.ranks, found.cause, found.host) == (before.ranks, before.cause, before.host)
    # The sentence of a straggler is kept with its figures.
    kept = same and found.verdict is not StragglerVerdict.WORKER and not changed_much(before.share, found.share)
    return replace(found, since=before.since, reason=before.reason if kept else found.reason)


def _observe(job: Job, window: Window) -> diagnosis.Observed:
    """What a window shows of stages, the last rank and links."""
    performance, policy, late = job.performance, job.policy, window.late
    ranks = len(late.late_R)
    named_R = np.zeros(ranks, dtype=np.bool_)
    named_R[[each.rank for each in performance.open_stragglers if each.rank < ranks]] = True
    if performance.undeclared_pipeline:
        always_R = performance.always_behind(ranks)
        stage = diagnosis.undeclared_stage(late, window.signal_R, always_R, policy.straggler_slowdown)
    else:
        stage = diagnosis.heaviest_stage(window, performance.layout.pipeline_R[:ranks], named_R, job.columns.hosts)
    waited_R = performance.cpu_waited_R[:ranks]
    performance.transfer_times.take(window.transfers)
    link = performance.transfer_times.slowest()
    if link is not None:
        link = performance.bandwidths.explained(link)
    if link is not None and not np.isnan(waited_R).all():
        starved = float(np.nanmedian(waited_R)) > diagnosis.STARVED * (link.seconds - link.usual)
        link = link._replace(starved=starved)
    return diagnosis.Observed(stage, diagnosis.last_rank(window, waited_R), link)


def _whole_nodes(job: Job, window: Window, slowness: Slowness) -> dict[str, tuple[int, ...]]:
    """The nodes, of several, that are slow as a whole or all whose ranks are stragglers, with those ranks."""
    performance, node_R = job.performance, job.performance.node_R[: len(window.fresh_R)]
    here_H = np.bincount(node_R[window.fresh_R & (node_R >= 0)], minlength=len(performance.hosts))
    slow = Counter(straggler.host for straggler in performance.open_stragglers)
    found = {}
    for host, number in slow.items():
        if (node := performance.hosts.get(host)) is None or np.count_nonzero(here_H) < 2 or here_H[node] < 2:
            continue
        if host in slowness.nodes or number >= here_H[node]:
            found[host] = tuple(np.flatnonzero(node_R == node).tolist())
    return found


def _often_behind(signal_TR: Floats, slowdown: float) -> Ints:
    """Ranks that are behind by more than the slowdown that matters in this window and in most of those before."""
    with np.errstate(invalid="ignore"):
        behind = np.flatnonzero(signal_TR[-1] > slowdown)
        return behind[column_medians(signal_TR[:, behind]) > slowdown]
