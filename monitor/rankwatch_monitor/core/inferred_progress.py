"""Infers when ranks made progress that do not send it, and how long their sections take, from one report to the next.

These are ranks of other emitters, which need not send ages of progress or durations, and ranks that only send
heartbeats. A section whose age shrank, or is below half the time since the last report, was entered again; one that is
gone was left; a higher iteration or count is progress. What happened between two reports took at most the time between
them, and this upper bound is learned: an emitter that exports once a minute gets limits of minutes.
"""

from __future__ import annotations

from math import isnan
from typing import NamedTuple

from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations
from rankwatch_monitor.core.ranks import RankColumns


class Stretch(NamedTuple):
    """What happened from a rank's last report to this one."""

    begin: float
    end: float
    steps: int
    quiet: float
    """Seconds without progress before this report."""
    first: bool
    """Until the first movement, and the first step, it may compile or load."""


def infer(columns: RankColumns, durations: ObservedDurations, report: RankReport, now: float) -> float:
    """Seconds since a rank's last progress; learns from it. To be called before the report is applied.

    Args:
        columns: the ranks, as of the reports before.
        durations: takes in the stretches that ended with this report.
        report: of a rank that does not send the age of its progress.
    """
    rank = report.identity.rank
    reported_at = columns.last_report_R.item(rank)
    if isnan(reported_at):
        return 0.0
    since = columns.inferred_progress_R.item(rank)
    quiet = 0.0 if isnan(since) else now - since
    before = columns.iteration_R.item(rank)
    steps = max(0, report.iteration - before) if report.iteration is not None and before >= 0 else 0
    moved = report.iteration is not None and report.iteration != before
    moved |= report.progress is not None and report.progress != columns.progress_R.item(rank)
    beats = 0 if report.beats is None else max(0, report.beats - columns.heartbeats_R.item(rank))
    beaten = beats > 0
    first = since == columns.first_report_R.item(rank) or (before < 0 and report.iteration is not None)
    if beaten and columns.heartbeats_R.item(rank) <= 0:
        durations.add_first_sign(now - columns.first_report_R.item(rank))
    if report.open_sections is not None:
        moved |= _learn_sections(columns, durations, report, Stretch(reported_at, now, steps, quiet, first))
    if (moved or beaten) and not first and not isnan(since):
        durations.add_sign(quiet, count=1 if report.foreign else max(1, beats))
    return 0.0 if moved or (beaten and not report.open_sections) else quiet


def _learn_sections(
    columns: RankColumns,
    durations: ObservedDurations,
    report: RankReport,
    since: Stretch,
) -> bool:
    """Take in the runs of sections that ended since the last report; whether a section was entered or left."""
    present, rank, steps = report.open_sections or {}, report.identity.rank, since.steps
    interval = since.end - since.begin
    earlier = columns.open_sections(rank, since.begin)
    moved = present.keys() != earlier.keys()
    runs: dict[str, int] = {}
    for name, age in earlier.items():
        again = name in present and (present[name] < max(age, interval / 2) or (name == STEP_SECTION and steps > 0))
        if again or name not in present:
            runs[name] = max(1, steps) if again else 1
    if steps and STEP_SECTION not in earlier:
        runs[STEP_SECTION] = steps  # too short to be seen open
    for name, count in runs.items():
        longest = earlier.get(name, since.quiet) + interval
        durations.add_runs(name, count)
        durations.add_longest(name, 0.0 if since.first else longest, first=longest if since.first else 0.0)
    return moved or bool(runs)
