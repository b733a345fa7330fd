"""Summarises the verdicts over a whole recording or table into one. Pure.

The core evaluates each window by the last few, so its verdict changes as stragglers come and go. Over the whole time

*  the verdict is ``worker`` if a straggler was present for :data:`MOSTLY` of the windows, even if it ended, or is slow
   at the end for a while (:data:`AT_END` of them, or :data:`AT_END_WINDOWS`);
*  or a job-wide verdict if it held for :data:`OFTEN` of the windows; of several, the one that costs most;
*  else ``healthy``; ``no_step`` for a recorded job that neither completed a step nor showed other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import named, plain
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.state import Performance
from rankwatch_monitor.core.views.job_verdict import finding
from rankwatch_monitor.core.words import slow as words

MOSTLY: Final = 0.5
AT_END: Final = 0.25
AT_END_WINDOWS: Final = 20
OFTEN: Final = 0.34
JOB_WIDE: Final = (
    StragglerVerdict.STAGE,
    StragglerVerdict.WORKLOAD,
    StragglerVerdict.LINK,
    StragglerVerdict.UNEXPLAINED,
)
WORST_FIRST: Final = (
    StragglerVerdict.NO_STEP,
    StragglerVerdict.WORKER,
    StragglerVerdict.LINK,
    StragglerVerdict.UNEXPLAINED,
    StragglerVerdict.STAGE,
    StragglerVerdict.WORKLOAD,
    StragglerVerdict.SUSPECTED,
    StragglerVerdict.HEALTHY,
)
"""By urgency for the operator."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The verdict over the whole recording or table."""

    verdict: StragglerVerdict
    cause: Cause
    reason: str
    stragglers: tuple[Straggler, ...]
    """Ranks that were slow by themselves, costliest first; the longest straggler of each rank."""
    ranks: tuple[int, ...]
    """The ranks that the verdict concerns; those of a stage or link are not culprits."""
    share: float
    """Lost fraction of a step."""
    host: str
    """The node all of whose ranks are slow; of a stage the node that may as well be the reason."""
    findings: tuple[Finding, ...]
    """All that lasted, the costliest first."""
    cost_gpu_hours: float
    windows: dict[str, int]
    """Evaluated windows by verdict."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**plain(self), "stragglers": [named(each, _OF_STRAGGLER) for each in self.stragglers]}


_OF_STRAGGLER: Final = (
    *("rank", "host", "score", "lateness", "share", "cause", "reason", "since", "ended", "cost_gpu_hours"),
)
"""What is shown of each."""


def summarize(performance: Performance) -> Summary:
    """Summarise why a job was slower than possible."""
    verdicts = performance.verdicts
    judged = max(1, sum(verdicts.values()))
    stragglers = _lasting(performance.stragglers, judged, performance.interval)
    findings = _findings(performance, stragglers, judged)
    first = findings[0] if findings else Finding()
    if not findings:
        passing = {v: n for v, n in verdicts.items() if v is not StragglerVerdict.HEALTHY and n}
        if passing:
            counts = ", ".join(f"{v} in {n}" for v, n in passing.items())
            late = performance.late
            at_end = f"; at the end {words.late(late)}" if late is not None and late.suspected else ""
            first = replace(first, reason=f"Nothing lasted: of {judged} windows the verdict was {counts}{at_end}.")
    return Summary(
        verdict=first.verdict,
        cause=first.cause,
        reason=first.reason,
        stragglers=stragglers,
        ranks=first.ranks,
        share=first.share,
        host=first.host,
        findings=findings,
        cost_gpu_hours=performance.cost_gpu_hours,
        windows={str(v): n for v, n in verdicts.items()},
    )


def _findings(performance: Performance, stragglers: tuple[Straggler, ...], judged: int) -> tuple[Finding, ...]:
    """What lasted, the costliest first."""
    tallies = sorted(performance.lasted.values(), key=lambda tally: -tally.windows)
    named = {straggler.rank for straggler in stragglers}
    found = []
    if stragglers:
        costs = [s.share or 0.0 for s in stragglers]
        reason = " ".join(s.reason for s in stragglers[:3])
        reason += f" {len(stragglers) - 3} more ranks are slow." if len(stragglers) > 3 else ""
        found = [Finding(StragglerVerdict.WORKER, stragglers[0].cause, reason, None, tuple(sorted(named)), max(costs))]
        whole = [t.last for t in tallies if t.last.verdict is StragglerVerdict.WORKER and set(t.last.ranks) == named]
        if whole and whole[0].host:
            found = [replace(found[0], reason=whole[0].reason, host=whole[0].host)]
    for verdict in JOB_WIDE:
        of_verdict = [tally for tally in tallies if tally.last.verdict is verdict]
        windows = sum(tally.windows for tally in of_verdict)
        if windows >= OFTEN * judged:
            found.append(replace(of_verdict[0].last, share=sum(tally.share for tally in of_verdict) / windows))
        elif not stragglers and (windows := performance.verdicts.get(verdict, 0)) >= OFTEN * judged:
            found.append(Finding(verdict, reason=f"The verdict was {verdict} in {windows} of {judged} windows."))
    return tuple(sorted(found, key=lambda each: -each.share))


def of_recording(job: Job) -> Summary:
    """The same for a job of a recording, which shows more than windows."""
    whole = summarize(job.performance)
    if whole.verdict is not StragglerVerdict.HEALTHY or job.performance.verdicts:
        return whole
    found = finding(job, job.last_heard)
    return replace(whole, verdict=found.verdict, reason=found.reason)


def worst(verdicts: Sequence[Summary]) -> Summary:
    """The most urgent summary: by verdict, then by cost; that of a healthy job when there is none."""
    if not verdicts:
        return summarize(Performance())
    return min(verdicts, key=lambda each: (WORST_FIRST.index(each.verdict), -each.cost_gpu_hours))


def _lasting(stragglers: list[Straggler], judged: int, interval: float) -> tuple[Straggler, ...]:
    """The stragglers that count over the whole time, one for each rank, costliest first."""
    windows: dict[int, float] = {}
    longest: dict[int, Straggler] = {}
    for each in stragglers:
        windows[each.rank] = windows.get(each.rank, 0.0) + _windows(each, interval)
        known = longest.get(each.rank)
        if known is None or each.open or (not known.open and _windows(each, interval) >= _windows(known, interval)):
            longest[each.rank] = each
    counted = [
        each
        for rank, each in longest.items()
        if windows[rank] >= MOSTLY * judged or (each.open and windows[rank] >= min(AT_END_WINDOWS, AT_END * judged))
    ]
    return tuple(sorted(counted, key=lambda each: -each.cost_gpu_hours))


def _windows(straggler: Straggler, interval: float) -> float:
    return 1 + (straggler.seen - straggler.since) / interval
