"""Derives the limits in force for a job: configured, learned in this run, or loaded from earlier runs.

How a section's limit is found
------------------------------
1.  Loaded (``ft_state.json``): overrides the configured one, as in NVRx. Once this run has learned a limit of the
    same section, the mean of both is in force; until then it is raised to cover durations observed in this run.
2.  Configured. With ``calculate_timeouts`` a shorter one that this run has learned applies beside it: the learned one
    raises a suspicion, the configured one acts.
3.  Learned in this run: ``learned_factor`` times the longest stretch without progress, not less than
    ``learned_minimum`` and :data:`FLOOR_STEPS` steps.
4.  Else ``first_time_timeout``: nothing is known yet.

The out-of-section limit is learned only at the end of a run, because long pauses outside sections are rare.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rankwatch.contract import ft_state, semconv
from rankwatch.contract.enums import LimitSource
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations

FLOOR_STEPS: Final = 5
"""No learned limit is shorter than this many steps of the job, whose length varies more than that of short sections."""
DEFAULTS: Final = Policy()
NOTICEABLE_CHANGE: Final = 0.1
"""Relative change of a learned limit above which it is sent to the ranks again."""


class Limits(NamedTuple):
    """Limits in force, in seconds; None or a missing section: no limit."""

    rank: RankLimits
    """Limits that ranks and launchers receive too: sections, heartbeat, out of section."""
    initial_heartbeat: float | None
    silence: float | None
    loaded: frozenset[str] = frozenset()
    """Sections whose learned limit comes only from an earlier run."""
    heartbeat_source: LimitSource = LimitSource.CONFIGURED
    out_of_section_source: LimitSource = LimitSource.CONFIGURED
    silence_source: LimitSource = LimitSource.CONFIGURED
    initial_heartbeat_source: LimitSource = LimitSource.CONFIGURED
    first_time_source: LimitSource = LimitSource.CONFIGURED
    seen: Mapping[str, float] = MappingProxyType({})
    """The longest run of each section so far."""
    signs: float | None = None
    """Learned for ranks that do not send the age of their progress: time between signs of life outside of sections."""

    def source_of(self, section: str, source: LimitSource) -> LimitSource:
        """Source of a section's limit; ``source`` is the one in the rank's :class:`RankLimits`."""
        return LimitSource.LOADED if source is LimitSource.LEARNED and section in self.loaded else source


def in_force(policy: Policy, durations: ObservedDurations | None = None) -> Limits:
    """The limits in force, from the policy and the durations observed."""
    durations = durations or ObservedDurations()
    loaded = durations.loaded if policy.learn_timeouts else LearnedTimeouts()
    fresh = learned_sections(policy, durations)
    earlier = {name: _not_below_what_was_seen(name, s, policy, durations) for name, s in loaded.sections.items()}
    sections = {**earlier, **{name: _merged(name, seconds, loaded) for name, seconds in fresh.items()}}
    configured = {name: s for name, s in policy.section_timeouts.items() if name not in loaded.sections}
    beside = {
        name
        for name in configured
        if policy.calculate_timeouts and sections.get(name, configured[name]) < configured[name]
    }
    heartbeat_source = _source(policy, "heartbeat", loaded.heartbeat)
    return Limits(
        rank=RankLimits(
            sections=configured,
            heartbeat=policy.heartbeat_timeout if loaded.heartbeat is None else loaded.heartbeat,
            heartbeat_outside=_every_section_has_a_limit(policy) and heartbeat_source is LimitSource.DEFAULT,
            out_of_section=policy.out_of_section_timeout if loaded.out_of_section is None else loaded.out_of_section,
            learned={name: s for name, s in sections.items() if name not in configured or name in beside},
            first_time=policy.first_time_timeout if policy.learn_timeouts else None,
            first_times=_long_first_times(policy, durations),
        ),
        initial_heartbeat=loaded.initial_heartbeat or policy.initial_heartbeat_timeout,
        silence=policy.silence_timeout,
        loaded=frozenset(set(loaded.sections) - set(fresh)),
        heartbeat_source=heartbeat_source,
        out_of_section_source=_source(policy, "out_of_section", loaded.out_of_section),
        silence_source=_source(policy, "silence"),
        initial_heartbeat_source=_source(policy, "initial_heartbeat", loaded.initial_heartbeat),
        first_time_source=_source(policy, "first_time"),
        seen={name: max(observed.first, observed.longest) for name, observed in durations.sections.items()},
        signs=_signs(policy, durations),
    )


def _signs(policy: Policy, durations: ObservedDurations) -> float | None:
    return (
        _limit(policy, durations, durations.signs.longest)
        if policy.learn_timeouts and durations.signs_known()
        else None
    )


def _every_section_has_a_limit(policy: Policy) -> bool:
    return policy.learn_timeouts and policy.first_time_timeout is not None


def learned_sections(policy: Policy, durations: ObservedDurations) -> dict[str, float]:
    """Limits learned in this run alone, by section."""
    if not policy.learn_timeouts:
        return {}
    known = {name: durations.basis(name) for name in durations.sections if durations.known(name)}
    return {name: _limit(policy, durations, longest) for name, longest in known.items() if longest > 0}


def state_to_keep(policy: Policy, durations: ObservedDurations, *, at_end: bool) -> dict[str, Any]:
    """The content of ``ft_state.json``: limits learned so far or, ``at_end``, in the whole run.

    The setup section counts only if it loaded a checkpoint; the out-of-section time only at the end of a run with setup
    and steps.
    """
    loaded = durations.loaded
    fresh = learned_sections(policy, durations)
    setup = durations.sections.get(semconv.SETUP_SECTION)
    if setup is not None and setup.first and durations.resumed and policy.learn_timeouts:
        fresh[semconv.SETUP_SECTION] = _limit(policy, durations, setup.first)
    outside = loaded.out_of_section
    idled = durations.idle_longest > 0
    if at_end and policy.learn_timeouts and idled and setup is not None and durations.known(semconv.STEP_SECTION):
        new = _limit(policy, durations, durations.idle_longest)
        outside = _mean(new, outside)
    sections = {**loaded.sections, **{name: _merged(name, seconds, loaded) for name, seconds in fresh.items()}}
    first_beat, beat = loaded.initial_heartbeat, loaded.heartbeat
    # A job without sections and steps sends heartbeats alone, so these are its limits.
    if not durations.sections and (learned_beat := _signs(policy, durations)) is not None:
        first_beat = _mean(_limit(policy, durations, durations.signs.first), first_beat)
        beat = _mean(learned_beat, beat)
    learned = LearnedTimeouts(
        {name: round(seconds, 3) for name, seconds in sections.items()},
        None if outside is None else round(outside, 3),
        None if first_beat is None else round(first_beat, 3),
        None if beat is None else round(beat, 3),
    )
    return ft_state.write(learned, policy.section_timeouts, policy.out_of_section_timeout) if learned else {}


def changed_noticeably(sent: RankLimits, now: RankLimits) -> bool:
    """Whether limits should be sent again: one was added, removed, or changed by over :data:`NOTICEABLE_CHANGE`."""
    if (sent.sections, sent.heartbeat, sent.out_of_section, sent.first_time) != (
        now.sections,
        now.heartbeat,
        now.out_of_section,
        now.first_time,
    ):
        return True
    pairs = ((sent.learned, now.learned), (sent.first_times, now.first_times))
    return any(
        set(old) != set(new) or any(abs(new[name] - old[name]) > NOTICEABLE_CHANGE * old[name] for name in old)
        for old, new in pairs
    )


def table(policy: Policy, durations: ObservedDurations) -> list[dict[str, Any]]:
    """One row per limit with its source, for display; seconds."""
    limits = in_force(policy, durations)
    fresh, loaded, rank = learned_sections(policy, durations), durations.loaded, limits.rank
    rows = []
    for name in sorted({*policy.section_timeouts, *loaded.sections, *durations.sections}):
        limit, source = rank.of_section(name, first=False)
        configured = policy.section_timeouts.get(name)
        row = _row("section", name, configured, fresh.get(name), loaded.sections.get(name), limit)
        rows.append({**row, "source": None if limit is None else str(limits.source_of(name, source))})
    others = (
        ("out_of_section", rank.out_of_section, loaded.out_of_section, limits.out_of_section_source),
        ("heartbeat", rank.heartbeat, loaded.heartbeat, limits.heartbeat_source),
        ("initial_heartbeat", limits.initial_heartbeat, loaded.initial_heartbeat, limits.initial_heartbeat_source),
        ("silence", limits.silence, None, limits.silence_source),
        ("first_time", rank.first_time, None, limits.first_time_source),
    )
    for what, limit, earlier, source in others:
        configured = None if _source(policy, what) is LimitSource.DEFAULT else getattr(policy, f"{what}_timeout")
        row = _row(what, None, configured, None, earlier, limit)
        rows.append({**row, "source": None if limit is None else str(source)})
    return rows


def _row(
    what: str,
    section: str | None,
    configured: float | None,
    learned: float | None,
    loaded: float | None,
    force: float | None,
) -> dict[str, Any]:
    return {
        "what": what,
        "section": section,
        "configured": configured,
        "learned": learned,
        "loaded": loaded,
        "in_force": force,
    }


def _limit(policy: Policy, durations: ObservedDurations, longest: float) -> float:
    return round(max(policy.learned_minimum, FLOOR_STEPS * durations.mean_step(), policy.learned_factor * longest), 1)


def _mean(new: float, earlier: float | None) -> float:
    return new if earlier is None else (new + earlier) / 2


def _merged(name: str, seconds: float, loaded: LearnedTimeouts) -> float:
    earlier: Mapping[str, float] = loaded.sections
    return (seconds + earlier[name]) / 2 if name in earlier else seconds


def _not_below_what_was_seen(name: str, seconds: float, policy: Policy, durations: ObservedDurations) -> float:
    observed = durations.sections.get(name)
    if observed is None:
        return seconds
    return max(seconds, observed.first, policy.learned_factor * observed.longest)


def _long_first_times(policy: Policy, durations: ObservedDurations) -> dict[str, float]:
    shortest = policy.first_time_timeout
    if shortest is None or not policy.learn_timeouts:
        return {}
    first = {name: policy.learned_factor * observed.first for name, observed in durations.sections.items()}
    return {name: seconds for name, seconds in first.items() if seconds > shortest}


def _source(policy: Policy, what: str, loaded: float | None = None) -> LimitSource:
    """Where a limit other than that of a section comes from; one that equals the default counts as such."""
    if loaded is not None:
        return LimitSource.LOADED
    name = f"{what}_timeout"
    return LimitSource.DEFAULT if getattr(policy, name) == getattr(DEFAULTS, name) else LimitSource.CONFIGURED
