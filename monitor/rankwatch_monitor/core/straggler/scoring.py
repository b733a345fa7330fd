"""The scores that are shown: sections at once, kernels when their report was scored, which may be on another thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from rankwatch_monitor.core.effects import Effect, Score
from rankwatch_monitor.core.ranks import Ints
from rankwatch_monitor.core.straggler import score
from rankwatch_monitor.core.straggler.kernel_scores import KernelScores, scored
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.core.straggler.signals import Window, enough
from rankwatch_monitor.core.straggler.state import SPARSE

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

OFTEN: Final = 1_000_000
SELDOM: Final = 30.0
"""Of more kernel medians than that, what has come is scored at most every so many seconds: ranks of a large job report
one after the other, and each time all of it must be copied."""


def score_window(job: Job, window: Window, effects: list[Effect]) -> None:
    """Make the scores of this window; those of kernels are asked for when a report has come."""
    performance, policy, ranks = job.performance, job.policy, len(job.columns)
    table = performance.sections
    scores = Scores.empty(ranks, window.now, tuple(table.names))
    median_RS, tail_RS = table["median"][:ranks].astype(np.float64), table["tail"][:ranks].astype(np.float64)
    if policy.calc_relative:
        scores.section_relative_RS = score.each(score.fastest(median_RS), median_RS)
    if policy.calc_individual:
        best_RS = performance.best_sections_of_ranks()[:ranks]
        scores.section_individual_RS = score.each(np.fmin(best_RS, median_RS), median_RS)
    scores.section_robust_RS = score.each_robust(median_RS, tail_RS, window.group_R, enough(window.group_R))
    scores.lateness_R, scores.step_R = window.late.late_R, window.late.step_R
    before = performance.told.scores
    performance.told.scores = scores
    if before is not None:
        scores.seconds = before.seconds
        if np.isnan(scores.lateness_R).all() and len(before.lateness_R) == ranks and performance.unprofiled < SPARSE:
            scores.lateness_R, scores.step_R = before.lateness_R, before.step_R  # of the last step that was profiled
    if performance.kernel_scores is not None:
        _show_kernels(scores, performance.kernel_scores)
    due = performance.kernels["median"].size <= OFTEN or window.now - performance.kernels_scored_at >= SELDOM
    if performance.kernels_changed and due:
        performance.kernels_changed, performance.kernels_scored_at = False, window.now
        effects.append(kernel_score(job, window.group_R))


def kernel_score(job: Job, group_R: Ints) -> Score:
    """What is to be computed of the kernels now."""
    performance, ranks = job.performance, len(group_R)
    performance.kernel_reports += 1
    best_RK = performance.best_kernels_of_ranks()
    table = performance.kernels
    asked = Score(
        number=performance.kernel_reports,
        median_RK=table["median"][:ranks].copy(),
        tail_RK=table["tail"][:ranks].copy(),
        spent_RK=table["spent"][:ranks].copy(),
        best_RK=best_RK[:ranks],
        group_R=group_R,
        relative=job.policy.calc_relative,
        individual=job.policy.calc_individual,
    )
    performance.keep_best_kernels()
    return asked


def settle(job: Job, effects: Iterable[Effect]) -> list[Effect]:
    """Score at once what is asked for, as a replay does it; return the other effects."""
    others: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Score):
            take_kernel_scores(job, scored(effect))
        else:
            others.append(effect)
    return others


def take_kernel_scores(job: Job, told: KernelScores) -> None:
    """Show the scores that were asked for, unless newer ones are there already, or another attempt runs by now."""
    performance = job.performance
    if told.number <= performance.reports_before:
        return
    if performance.kernel_scores is not None and performance.kernel_scores.number >= told.number:
        return
    performance.kernel_scores = told
    if performance.told.scores is not None:
        _show_kernels(performance.told.scores, told)


def _show_kernels(scores: Scores, told: KernelScores) -> None:
    if len(told.relative_R) == len(scores.gpu_relative_R):
        scores.gpu_relative_R, scores.gpu_individual_R, scores.gpu_robust_R = told[1:4]
