"""Sends settings to launchers and ranks: builds the SETTINGS directive and decides when it is due.

One SETTINGS directive holds all settings and is issued whenever a part has changed. The launcher keeps its own part and
writes the rest into the slots of its ranks.

=============  ========================================================================================================
``limits``     of a rank (:class:`~rankwatch.contract.limits.RankLimits`)
``profiling``  ``source`` of kernel timings, ``interval`` (steps, 0: chosen by the rank), profiled ``ranks``,
               ``report_interval`` (s); ``stride`` (steps) of the windows once the job has one; ``trace`` (``rank``
               and ``id``) while a trace of a rank is requested
``launcher``,  kept by the launcher: budgets, and the content of ``ft_state.json`` now and at the end
``ft_state``,
...
=============  ========================================================================================================

A slot has 7 KiB for limits and profiling: the limits of about 200 sections with names of 15 letters. Larger settings
are rejected as a whole: the launcher reports it, and its ranks keep the previous ones.
"""

from __future__ import annotations

from typing import Any, Final

from rankwatch.contract import ft_state
from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_monitor.core import liveness, nodes
from rankwatch_monitor.core.hang.limits import changed_noticeably, state_to_keep
from rankwatch_monitor.core.job import Job, SettingsPush

PUSH_INTERVAL: Final = 5.0
"""Minimum seconds between two directives, unless the policy was changed by request."""
FIRST_PUSH_INTERVAL: Final = 1.0
"""The same before the first learned limits, without which a hang is noticed only at the limit for unknown sections."""
PUSH_ALL_INTERVAL: Final = 60.0
"""Seconds after which small changes are sent too, so that ``ft_state.json`` is current."""


def settings_of(job: Job) -> dict[str, Any]:
    """The settings in force: those that the ranks receive through their slots, and those of the launcher."""
    settings = job.limits.rank.to_settings()
    kept, at_end = (state_to_keep(job.policy, job.durations, at_end=end) for end in (False, True))
    settings["profiling"] = _profiling(job)
    settings["launcher"] = _of_launcher(job)
    return {**settings, **({"ft_state": kept} if kept else {}), **({"ft_state_at_end": at_end} if at_end else {})}


def _first_heartbeat_limit(job: Job, last: SettingsPush) -> bool:
    """Whether a limit for heartbeats was learned, which launchers only keep, and they have none yet."""
    if job.limits.signs is None or job.durations.sections:
        return False
    return ft_state.read(last.settings.get("ft_state", {})).heartbeat is None


def _profiling(job: Job) -> dict[str, Any]:
    """What the ranks measure, and how often; without straggler detection no rank is profiled."""
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
    """Limits that launchers enforce themselves: restart budgets and the silence timeout."""
    policy = job.policy
    return {
        "max_restarts": policy.max_restarts,
        "max_no_progress": policy.max_no_progress,
        "silence_timeout": policy.silence_timeout,
    }


def push(job: Job, reason: str, now: float) -> Directive:
    """Make the directive with the settings in force at ``now``."""
    settings = settings_of(job)
    job.last_settings = SettingsPush(now, job.limits.rank, settings)
    return job.new_directive(DirectiveKind.SETTINGS, reason, settings=settings)


def push_if_changed(job: Job, now: float) -> Directive | None:
    """Make a directive if limits or profiling changed noticeably and the last one is old enough; else None."""
    last = job.last_settings
    if last is None:  # launchers receive them in the response to their registration
        job.last_settings = SettingsPush(now, job.limits.rank, settings_of(job)) if nodes.any_acting(job) else None
        return None
    reason = _reason_to_push(job, last, now)
    return push(job, reason, now) if reason and nodes.any_acting(job) else None


def _reason_to_push(job: Job, last: SettingsPush, now: float) -> str:
    """Why settings are due; empty: nothing has changed, or it is too soon."""
    elapsed = now - last.at
    if elapsed >= PUSH_INTERVAL and _profiling(job) != last.settings.get("profiling"):
        return "what the ranks are to measure was changed"
    first = bool(job.limits.rank.learned) and not last.limits.learned
    changed = elapsed >= (FIRST_PUSH_INTERVAL if first else PUSH_INTERVAL) and (
        changed_noticeably(last.limits, job.limits.rank) or _first_heartbeat_limit(job, last)
    )
    if not changed:
        # Small changes too, for ``ft_state.json``: periodically, and before the launchers end with the ranks.
        to_keep = elapsed >= PUSH_ALL_INTERVAL or liveness.all_shut_down(job)
        changed = to_keep and settings_of(job) != last.settings
    return "limits were learned" if changed else ""
