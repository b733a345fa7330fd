"""Detects ranks over their limits: columns, limits and ``now`` in, verdicts out.

Limits on what a rank does (heartbeat, section, outside all sections) are compared with its *last report*, never with an
extrapolation to ``now``: a section may have closed since. This delays nothing, because a rank reports at once when it
passes a limit it knows, and its launcher reports for it when it cannot. Only silence is measured by the clock. The
rules for sections are those of :mod:`rankwatch.contract.limits`, here for all ranks at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankwatch.contract.enums import LimitSource, VerdictKind
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.hang.limits import Limits
from rankwatch_monitor.core.hang.verdict import NONE, Common, Verdicts, joined, past
from rankwatch_monitor.core.ranks import (
    EXITED,
    Bools,
    Floats,
    RankColumns,
    failed_ranks,
    leaves,
    live_ranks,
    silence_limit,
    silent_for,
)

SEEN_FACTOR: Final = 2.0
"""Times the longest run of a section from which on another one raises a suspicion, until its limit is learned."""


def detect(
    columns: RankColumns, limits: Limits, now: float, *, silence_baseline: float, sample_after: float | None = None
) -> Verdicts:
    """All verdicts at ``now``, ordered by rank. While a rank is about to end, nothing is held against those who wait.

    Args:
        silence_baseline: silence counts from here at the earliest: when this monitor began to watch the attempt.
        sample_after: seconds without progress after which a first-time section is suspected before its limit, so that
            launchers sample the ranks; None: not before.
    """
    if leaves(columns, now):
        return joined(exited(columns, silence_baseline))
    judged_R = ~columns.shut_down_R & (columns.process_R != EXITED)
    live_R = live_ranks(columns)
    return joined(
        exited(columns, silence_baseline),
        *_heartbeats(columns, limits, live_R),
        *_sections(columns, limits, live_R, sample_after),
        _silent(columns, limits, live_R, now, silence_baseline),
        _never_started(columns, limits, judged_R, now, silence_baseline),
    )


def configured_deadline(columns: RankColumns, limits: Limits) -> float:
    """Unix seconds at which the first live rank passes a configured limit of what it does now; infinite: none does.

    A limit that was passed already counts from when it was: the verdict on it follows with the rank's next report.
    """
    live_R, updated_R, rank = live_ranks(columns), columns.sections_updated_R, limits.rank
    ends = []
    for s, name in enumerate(columns.sections):
        if (limit := rank.sections.get(name)) is not None:
            since_R = columns.open_since_RS[:, s]
            ends.append(since_R + _raised_in_the_first_step(columns, limit, updated_R - since_R, rank))
    if rank.out_of_section is not None and limits.out_of_section_source.acts_at_once:
        ends.append(np.where(columns.uses_sections_R, columns.idle_since_R + rank.out_of_section, np.nan))
    if rank.heartbeat is not None and limits.heartbeat_source.acts_at_once:
        ends.append(columns.last_heartbeat_R + rank.heartbeat)
    return float(min((np.fmin.reduce(end_R[live_R], initial=np.inf) for end_R in ends), default=np.inf))


def exited(columns: RankColumns, silence_baseline: float) -> Verdicts:
    """Ranks whose process failed; since the exit, or ``silence_baseline`` where its time is unknown."""
    ranks = np.flatnonzero(failed_ranks(columns))
    if not len(ranks):
        return NONE
    since_V = np.nan_to_num(columns.last_heard_R[ranks], nan=silence_baseline)
    return Verdicts(ranks, np.zeros(len(ranks)), np.zeros(len(ranks)), since_V, [Common(VerdictKind.PROCESS_EXITED)])


def _heartbeats(columns: RankColumns, limits: Limits, live_R: Bools) -> list[Verdicts]:
    verdicts: list[Verdicts] = []
    has_beaten_R = columns.heartbeats_R > 0
    if limits.rank.heartbeat is not None:
        elapsed_R = columns.last_update_R - columns.last_heartbeat_R
        judged_R = live_R & has_beaten_R
        if limits.rank.heartbeat_outside:
            # Every section has a limit, so this one counts outside of sections, since the last of them closed.
            elapsed_R = np.fmin(elapsed_R, columns.sections_updated_R - columns.last_progress_R)
            judged_R &= columns.outside_sections() | np.isnan(columns.last_progress_R)
        kind, source = VerdictKind.HEARTBEAT_OVERRUN, limits.heartbeat_source
        limit, end = limits.rank.heartbeat, columns.last_update_R
        verdicts.append(past(kind, elapsed_R, limit, judged_R, end=end, source=source))
    if limits.signs is not None:
        sign_R = np.fmax(columns.inferred_progress_R, columns.last_heartbeat_R)
        outside_R = live_R & columns.outside_sections() & ~np.isnan(columns.inferred_progress_R)
        elapsed_R, end, source = columns.last_update_R - sign_R, columns.last_update_R, LimitSource.LEARNED
        kind = VerdictKind.HEARTBEAT_OVERRUN
        verdicts.append(past(kind, elapsed_R, limits.signs, outside_R, end=end, source=source))
    any_beat = bool(has_beaten_R.any())
    source = limits.initial_heartbeat_source
    if limits.initial_heartbeat is not None and (any_beat or source is not LimitSource.DEFAULT):
        others_beat = np.fmin.reduce(columns.first_heartbeat_R) if any_beat else np.nan
        elapsed_R = columns.last_update_R - np.fmax(columns.first_report_R, others_beat)
        # A rank with other signs of progress need not send heartbeats: many scripts call heartbeat() on one rank.
        waiting_R = live_R & ~has_beaten_R & ~columns.uses_sections_R & (columns.iteration_R < 0)
        kind = VerdictKind.HEARTBEAT_OVERRUN
        limit, end = limits.initial_heartbeat, columns.last_update_R
        verdicts.append(past(kind, elapsed_R, limit, waiting_R, end=end, source=source))
    return verdicts


def _sections(columns: RankColumns, limits: Limits, live_R: Bools, sample_after: float | None) -> list[Verdicts]:
    verdicts: list[Verdicts] = []
    updated_R = columns.sections_updated_R
    for s, name in enumerate(columns.sections):
        limit = limits.rank.sections.get(name)
        if limit is not None:
            elapsed_R = updated_R - columns.open_since_RS[:, s]
            limit_R = _raised_in_the_first_step(columns, limit, elapsed_R, limits.rank)
            verdicts.append(past(VerdictKind.SECTION_OVERRUN, elapsed_R, limit_R, live_R, name, end=updated_R))
    if limits.rank.out_of_section is not None:
        elapsed_R, where_R = updated_R - columns.idle_since_R, live_R & columns.uses_sections_R
        kind, source = VerdictKind.OUT_OF_SECTION_OVERRUN, limits.out_of_section_source
        verdicts.append(past(kind, elapsed_R, limits.rank.out_of_section, where_R, end=updated_R, source=source))
    return verdicts + _without_progress(columns, limits, live_R, sample_after)


def _raised_in_the_first_step(columns: RankColumns, limit: float, elapsed_R: Floats, rank: RankLimits) -> Floats:
    """A section's configured limit for each rank: longer in the first step of a process, which compiles."""
    limit_R = np.full(len(columns), limit)
    if rank.first_time is None or rank.first_time <= limit or STEP_SECTION not in columns.sections:
        return limit_R
    s = columns.sections.index(STEP_SECTION)
    within_R = elapsed_R <= columns.sections_updated_R - columns.open_since_RS[:, s]
    limit_R[columns.first_RS[:, s] & within_R] = rank.first_time
    return limit_R


def _without_progress(
    columns: RankColumns, limits: Limits, live_R: Bools, sample_after: float | None
) -> list[Verdicts]:
    """Ranks without progress for longer than their section's limit of that time, which is never a configured one."""
    quiet_R = columns.sections_updated_R - columns.last_progress_R
    open_RS = columns.open_since_RS
    first_time = min(limits.rank.first_time or np.inf, sample_after or np.inf)
    shortest = min((*limits.rank.learned.values(), first_time), default=np.inf)
    ranks = np.flatnonzero(live_R & (quiet_R > shortest))
    if not len(ranks) or not len(ranks := ranks[~columns.outside_sections()[ranks]]):
        return []
    innermost_R = np.full(len(columns), -1)
    # Of two sections entered at the same time the one observed later is the inner one, so ties go to the last.
    innermost_R[ranks] = open_RS.shape[1] - 1 - np.fmax(open_RS[ranks, ::-1], -np.inf).argmax(axis=1)
    verdicts: list[Verdicts] = []
    for s in np.flatnonzero(np.bincount(innermost_R[ranks])):  # unique() imports numpy.ma when first called
        name, first_R = columns.sections[s], columns.first_RS[:, s]
        for first in (False, True):
            limit, source = limits.rank.without_progress(name, first=first)
            where_R = live_R & (innermost_R == s) & (first_R == first)
            if limit is None or not where_R.any():
                continue
            source = limits.source_of(name, source)
            elapsed_R = quiet_R
            if source is LimitSource.FIRST_TIME:
                # Nothing is known of this section, so a heartbeat in it counts as progress.
                elapsed_R = np.fmin(quiet_R, columns.last_update_R - columns.last_heartbeat_R)
                seen = SEEN_FACTOR * limits.seen.get(name, 0.0)
                limit = min(limit, max(sample_after, seen) if sample_after else np.inf)
            kind, end = VerdictKind.SECTION_OVERRUN, columns.sections_updated_R
            verdicts.append(past(kind, elapsed_R, limit, where_R, name, end=end, source=source))
    return verdicts


def _silent(columns: RankColumns, limits: Limits, live_R: Bools, now: float, silence_baseline: float) -> Verdicts:
    if limits.silence is None:
        return NONE
    elapsed_R = silent_for(columns, now, silence_baseline)
    limit_R = silence_limit(columns, limits.silence)
    # If no rank reports, the network to the monitor is the likelier cause: the job is lost, not hung. The last reports
    # before an outage lie up to an export interval apart, so "fresh" is well within the limit.
    fresh_R = elapsed_R <= silence_limit(columns, limits.silence / 2)
    if not (live_R & fresh_R).any():
        return NONE
    return past(VerdictKind.SILENT, elapsed_R, limit_R, live_R, end=now, source=limits.silence_source)


def _never_started(
    columns: RankColumns, limits: Limits, judged_R: Bools, now: float, silence_baseline: float
) -> Verdicts:
    absent_R = judged_R & ~columns.reported_R
    if limits.initial_heartbeat is None or not absent_R.any() or not columns.reported_R.any():
        return NONE
    first_report = max(float(np.nanmin(columns.first_report_R)), silence_baseline)
    elapsed_R, source = np.full(len(columns), now - first_report), limits.initial_heartbeat_source
    return past(VerdictKind.NEVER_STARTED, elapsed_R, limits.initial_heartbeat, absent_R, end=now, source=source)
