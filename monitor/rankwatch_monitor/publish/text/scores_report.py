"""The text report of a job's performance, in the format of nvidia-resiliency-ext with additions.

First the GPU scores in exactly nvidia-resiliency-ext's format, including ``Straggler report processing time``, so that
scripts which parse it keep working; then the same for each section; then what that format lacks: robust scores,
lateness, stragglers with their reasons, the verdict, and the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rankwatch.cli.formatting import count, duration, gpu_time, printable, ranks, when, whole_percent, wrapped
from rankwatch.contract.enums import ScoreReference, StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler.describe import seconds
from rankwatch_monitor.core.straggler.findings import Straggler, cost_rate
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.core.views import rankings
from rankwatch_monitor.core.views.job_verdict import findings

DEFAULT_SHOWN: Final = 5
"""Ranks shown if the policy's number is 0, with which the log shows the report only if there are stragglers."""
SHOWN_SECTIONS: Final = 8
OLD: Final = 3.0
"""Report intervals after which GPU scores are called old."""
SHOWN_STRAGGLERS: Final = 20

_FINDING: Final = {
    StragglerVerdict.HEALTHY: "no rank delays the others again and again",
    StragglerVerdict.SUSPECTED: "a rank may be slow",
    StragglerVerdict.WORKER: "some ranks are slow by their own fault",
    StragglerVerdict.STAGE: "a whole pipeline stage is slow: the stages are unbalanced, no node is to blame",
    StragglerVerdict.WORKLOAD: "ranks take turns in being slow: the workload is uneven, no node is to blame",
    StragglerVerdict.LINK: "the network between the members of a process group is slow, and none of them is late",
    StragglerVerdict.UNEXPLAINED: "time is lost, and no measurement explains it",
    StragglerVerdict.NO_STEP: "no step completes",
}


def scores_text(job: Job, now: float, shown: int | None = None, *, each_section: bool = True) -> str:
    """The report on request, ending in a line feed, with ``shown`` worst and best ranks (default: the policy's number).

    ``each_section``: also list the worst and best ranks of each section; the worst rank of each is named in any case.
    """
    shown = shown or job.policy.num_gpu_perf_scores_to_print or DEFAULT_SHOWN
    scores = job.performance.scores
    parts: list[list[str]]
    if scores is None:
        parts = [wrapped(_no_scores(job.policy), "")]
    else:
        sections = _sections(job, scores, shown) if each_section else []
        parts = [*_nvrx_scores(job, scores, shown), *sections, *_details(job, scores, shown, now)]
    parts.append(stragglers(job, now) or ["STRAGGLERS none known"])
    return "\n\n".join("\n".join(map(printable, lines)) for lines in parts if lines) + "\n"


def scores_log(job: Job, now: float) -> str:
    """The short report for the log, once per report interval; empty if there is nothing to report."""
    performance = job.performance
    wanted = job.policy.num_gpu_perf_scores_to_print > 0 or bool(performance.open_stragglers)
    return scores_text(job, now, each_section=False) if wanted and performance.scores is not None else ""


def stragglers(job: Job, now: float) -> list[str]:
    """The lines about stragglers; none while nothing is known."""
    performance = job.performance
    if performance.scores is None and not performance.stragglers:
        return [] if job.policy.straggler_detection else ["STRAGGLERS are not detected: straggler_detection is off"]
    every = rankings.stragglers(job)
    lines = [_counted(job, every)]
    if not job.policy.straggler_detection:
        lines.append("  straggler_detection is off: these are the last that were detected")
    for each in every[:SHOWN_STRAGGLERS]:
        lines += _straggler(each, now)
    if len(every) > SHOWN_STRAGGLERS:
        lines.append(f"  and {len(every) - SHOWN_STRAGGLERS} more: /api/v1/jobs/{job.id}/stragglers")
    lines += _verdict(job, now) if job.ended is None else []
    if performance.cost_gpu_hours > 0:
        lines.append(f"  cost so far: {_hours(performance.cost_gpu_hours)}")
    return lines


def _counted(job: Job, every: Sequence[Straggler]) -> str:
    """The heading; of a job that has ended there is no now."""
    if job.ended is not None:
        return f"STRAGGLERS {len(every) or 'none'} in this run"
    still = sum(each.open for each in every)
    earlier = f"; {len(every) - still} earlier" if len(every) > still else ""
    return f"STRAGGLERS {f'{still} now, the costliest first' if still else 'none now'}{earlier}"


# The form of nvidia-resiliency-ext ------------------------------------------------------------------------------------


def _nvrx_scores(job: Job, scores: Scores, shown: int) -> list[list[str]]:
    parts = []
    if job.policy.calc_relative:
        parts.append(_ranking(job, "GPU relative performance:", scores.gpu_relative_R, shown))
    if job.policy.calc_individual:
        parts.append(_ranking(job, "GPU individual performance:", scores.gpu_individual_R, shown))
    return [*parts, [f" Straggler report processing time: {scores.seconds:.3f} sec."]]


def _ranking(job: Job, title: str, score_R: Floats, shown: int) -> list[str]:
    known = int(np.sum(~np.isnan(score_R)))
    lines = [title]
    if not known:  # kernel timings come later than windows
        return [title, " no scores yet"]
    for what, order in (("Worst", rankings.lowest), ("Best", rankings.highest)):
        lines.append(f" {what} performing {min(shown, known)}/{known} ranks:")
        lines += _rows(job, order(score_R, shown), lambda rank: f"Score={score_R[rank]:.2f}")
    unknown = len(score_R) - known
    return lines + ([f" {count(unknown, 'rank')} without a score"] if unknown else [])


def _rows(job: Job, members: Sequence[int], figure: Callable[[int], str]) -> list[str]:
    return [f"  Rank={rank} Node={rankings.host_of(job, rank) or '?'} {figure(rank)}" for rank in members]


def _sections(job: Job, scores: Scores, shown: int) -> list[list[str]]:
    """The same form for each section; of many sections those in which a rank is furthest behind."""
    policy, parts = job.policy, []
    wanted = {"relative": policy.calc_relative, "individual": policy.calc_individual}
    for index in _slowest_sections(scores):
        by_kind = rankings.section_scores(scores, index)
        parts += [
            _ranking(job, f"Section '{scores.sections[index]}' {kind} performance:", by_kind[kind], shown)
            for kind, true in wanted.items()
            if true and not np.all(np.isnan(by_kind[kind]))
        ]
    more = len(scores.sections) - SHOWN_SECTIONS
    return parts + ([[f"and {count(more, 'more section')}: /api/v1/jobs/{job.id}/scores"]] if more > 0 else [])


def _slowest_sections(scores: Scores) -> list[int]:
    if not scores.sections:
        return []
    lowest_S = np.fmin.reduce(scores.section_robust_RS, axis=0, initial=np.inf)
    first = sorted(np.argsort(lowest_S, kind="stable")[:SHOWN_SECTIONS])
    return [int(index) for index in first]


# Details --------------------------------------------------------------------------------------------------------------


def _details(job: Job, scores: Scores, shown: int, now: float) -> list[list[str]]:
    policy = job.policy
    decides = (
        "robust scores and lateness, against the noise of this job"
        if policy.straggler_reference is ScoreReference.ROBUST
        else f"these thresholds: relative {policy.relative_threshold:g}, individual {policy.individual_threshold:g}"
    )
    which = (
        "Scores: relative compares a rank with the fastest one and individual with its own best, as "
        "nvidia-resiliency-ext does; robust compares it with the median of its peers, the slower half of the calls "
        f"included. In this job stragglers are named by {decides} (straggler_reference={policy.straggler_reference})."
    )
    parts = [wrapped(which, ""), *_basis(job, scores, now)]
    parts.append(_ranking(job, "GPU robust performance:", scores.gpu_robust_R, shown))
    parts.append(_section_figures(job, scores))
    parts.append(_lateness(job, shown))
    return parts


def _basis(job: Job, scores: Scores, now: float) -> list[list[str]]:
    """What the GPU scores rest on, how old they are, and where lateness contradicts them."""
    if scores.gpu_at is None:
        return []
    age = max(0.0, now - scores.gpu_at)
    text = "GPU scores rest on at least 3 profiled steps of each rank, fewer where it has ended; "
    text += f"the newest are {duration(age)} old"
    text += ", which is old: ranks report no kernels." if age > OLD * job.policy.report_interval else "."
    lowest_R = np.fmin(scores.gpu_relative_R, scores.gpu_individual_R)
    with np.errstate(invalid="ignore"):
        low_R = (lowest_R < min(job.policy.relative_threshold, job.policy.individual_threshold)) & scores.contradicted(
            job.policy.straggler_slowdown
        )
    if low_R.any():
        found = np.flatnonzero(low_R).tolist()
        text += f" Low scores of {count(len(found), 'rank')} ({ranks(found)}) are contradicted by lateness: "
        text += "others are waited for, so these scores name no straggler."
    return [wrapped(text, "")]


def _section_figures(job: Job, scores: Scores) -> list[str]:
    lines = []
    for index in _slowest_sections(scores):
        score_R = scores.section_robust_RS[:, index]
        found = rankings.min_median_max(score_R)
        if found is not None:
            (rank,) = rankings.lowest(score_R, 1)
            where = f"rank {rank} on {rankings.host_of(job, rank) or '?'}"
            name = f"Section '{scores.sections[index]}'"
            lines.append(f" {name}: worst {found['min']:.2f} ({where}), median {found['median']:.2f}")
    return ["Sections, robust performance:", *lines] if lines else []


def _lateness(job: Job, shown: int) -> list[str]:
    late_R, share_R = rankings.lateness(job)
    known = int(np.sum(~np.isnan(late_R)))
    if not known:
        return ["Lateness (how long the others wait for a rank in each step):", " not known for any rank"]
    members = [rank for rank in rankings.highest(late_R, shown) if late_R[rank] > 0]
    lines = ["Lateness (how long the others wait for a rank in each step):"]
    lines.append(f" Latest {len(members)}/{known} ranks:" if members else " no rank is waited for")

    def figure(rank: int) -> str:
        share = "" if np.isnan(share_R[rank]) else f" Share={100 * share_R[rank]:.0f} %"
        return f"Lateness={late_R[rank]:.3f} s{share}"

    return lines + _rows(job, members, figure)


def _straggler(straggler: Straggler, now: float) -> list[str]:
    where = f" on {straggler.host}" if straggler.host else ""
    facts = [
        str(straggler.cause),
        f"by the {straggler.reference} reference",
        f"for {duration(max(0.0, now - straggler.since))}"
        if straggler.ended is None
        else f"from {when(straggler.since)} for {duration(max(0.0, straggler.ended - straggler.since))}",
    ]
    facts += [] if straggler.score is None else [f"score {straggler.score:.2f}"]
    if straggler.lateness is not None:
        share = "" if straggler.stated_share is None else f" ({whole_percent(straggler.stated_share)})"
        facts.append(f"the others wait {seconds(straggler.lateness)} of each step{share}")
    rate = cost_rate(straggler) if straggler.open else ""
    facts.append(_hours(straggler.cost_gpu_hours) + (f" so far, {rate}" if rate else ""))
    lines = wrapped(f"rank {straggler.rank}{where}: {', '.join(facts)}", "  ")
    lines += wrapped(straggler.reason, "    ") if straggler.reason else []
    action = str(straggler.action).replace("_", " ")
    return lines + wrapped(
        f"action: {action}" + (f"; {straggler.action_reason}" if straggler.action_reason else ""), "    "
    )


def _verdict(job: Job, now: float) -> list[str]:
    found, *others = findings(job, now)
    text = f"verdict: {found.verdict}, {_FINDING[found.verdict]}"
    if found.verdict is StragglerVerdict.HEALTHY:
        waits = rankings.longest_wait(job)
        return wrapped(f"{text}{f'; {waits}' if waits else ''}", "  ")
    facts = [f"{whole_percent(found.share)} of each step"] if found.share > 0 else []
    facts += [f"{count(len(found.ranks), 'rank')} ({ranks(found.ranks)})"] if found.ranks else []
    facts += [f"cause: {found.cause}"] if found.verdict is not StragglerVerdict.NO_STEP else []
    facts += [f"since {when(found.since)}"] if found.since is not None else []
    lines = wrapped(f"{text}; {', '.join(facts)}", "  ")
    listed = [(s.rank,) for s in job.performance.open_stragglers[:SHOWN_STRAGGLERS]]
    one_rank = found.verdict is StragglerVerdict.WORKER and not found.host and not found.place
    lines += wrapped(found.reason, "    ") if found.reason and not (one_rank and found.ranks in listed) else []
    for each in others:
        lines += wrapped(f"also: {each.verdict}, {whole_percent(each.share)} of each step; {each.reason}", "  ")
    return lines


def _no_scores(policy: Policy) -> str:
    if not policy.straggler_detection:
        return "There are no scores: straggler_detection is off. Switch it on in the policy, also while the job runs."
    return (
        "There are no scores yet: they need the first windows of steps of at least two ranks, and kernel timings come "
        f"once in {duration(policy.report_interval)} (report_interval). Ranks without rankwatch.step() have neither."
    )


def _hours(gpu_hours: float) -> str:
    return gpu_time(3600.0 * gpu_hours)
