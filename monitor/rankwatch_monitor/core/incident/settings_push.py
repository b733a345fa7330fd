"""When launchers and ranks are told what is in force, and what: the loop delivers it, a replay only shows it.

How this works
--------------
All of it goes down together, in one SETTINGS directive, whenever a part of it has changed; the launcher keeps its own
part and writes the rest into the slots of its ranks.

=============  ========================================================================================================
``limits``     on what a rank does (:class:`~rankwatch.contract.limits.RankLimits`)
``profiling``  what it measures: ``source`` of kernel timings, ``interval`` (steps, 0: it finds its own), ``ranks`` that
               do so, ``report_interval`` (s); ``stride`` (steps) of the windows once the job has one; ``trace``
               (``rank`` and ``id``) while a trace of a rank is wanted
``launcher``,  what stays with the launcher: budgets, and the content of ``ft_state.json`` now and at the end
``ft_state``,
...
=============  ========================================================================================================

The slots have 7 KiB for limits and profiling, which the limits of 200 sections with names of 15 letters fill. Of more,
the launcher says that they do not fit, and its ranks keep what they had: no rank ever has half of a set.
"""

from __future__ import annotations

from typing import Any, Final

from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_monitor.core import liveness, nodes
from rankwatch_monitor.core.hang.limits import changed_noticeably, state_to_keep
from rankwatch_monitor.core.job import Job, SettingsPush

PUSH_INTERVAL: Final = 5.0
"""Seconds at least between two sets of settings for the same ranks, unless a person changed the policy."""
PUSH_ALL_INTERVAL: Final = 60.0
"""Seconds after which even small changes are handed down, for the launcher that keeps ``ft_state.json``."""


def settings_of(job: Job) -> dict[str, Any]:
    """What the ranks of a job are told through their slots, and what its launcher is to keep."""
    settings = job.limits.rank.to_settings()
    kept, at_end = (state_to_keep(job.policy, job.durations, at_end=end) for end in (False, True))
    settings["profiling"] = _profiling(job)
    settings["launcher"] = _of_launcher(job)
    return {**settings, **({"ft_state": kept} if kept else {}), **({"ft_state_at_end": at_end} if at_end else {})}


def _profiling(job: Job) -> dict[str, Any]:
    """What the ranks measure, and how often. Where nothing is scored, nothing is profiled either."""
    policy, performance = job.policy, job.performance
    profiling: dict[str, Any] = {
        "source": str(policy.kernel_timings),
        "interval": policy.profiling_interval,
        "ranks": policy.profiled_ranks if policy.straggler_detection else "none",
        "report_interval": policy.report_interval,
    }
    if performance.stride is not None:
        profiling["stride"] = performance.stride
    if performance.trace is not None:
        profiling["trace"] = dict(performance.trace)
    return profiling


def _of_launcher(job: Job) -> dict[str, Any]:
    """What the launchers hold to by themselves: their budgets, and how soon they would be missed."""
    policy = job.policy
    return {
        "max_restarts": policy.max_restarts,
        "max_no_progress": policy.max_no_progress,
        "silence_timeout": policy.silence_timeout,
    }


def push(job: Job, reason: str, now: float) -> Directive:
    """Make the directive that tells the launchers of a job what is in force at ``now``."""
    settings = settings_of(job)
    job.last_settings = SettingsPush(now, job.limits.rank, settings)
    return job.new_directive(DirectiveKind.SETTINGS, reason, settings=settings)


def push_if_changed(job: Job, now: float) -> Directive | None:
    """Hand down what the job has taught of itself or asks of its ranks, if it matters and not too often; else None."""
    told = job.last_settings
    if told is None:  # launchers hear them in the answer to their registration
        job.last_settings = SettingsPush(now, job.limits.rank, settings_of(job)) if nodes.acting(job) else None
        return None
    reason = _reason_to_push(job, told, now)
    return push(job, reason, now) if reason and nodes.acting(job) else None


def _reason_to_push(job: Job, told: SettingsPush, now: float) -> str:
    """Why to tell the launchers anew; empty: there is nothing to tell, or it is too soon."""
    waited = now - told.at
    if waited >= PUSH_INTERVAL and _profiling(job) != told.settings.get("profiling"):
        return "what the ranks are to measure was changed"
    changed = waited >= PUSH_INTERVAL and changed_noticeably(told.limits, job.limits.rank)
    if not changed:
        # All of it, for the file: now and then, and before the launchers end with the ranks.
        to_keep = waited >= PUSH_ALL_INTERVAL or liveness.all_shut_down(job)
        changed = to_keep and settings_of(job) != told.settings
    return "limits were learned" if changed else ""
