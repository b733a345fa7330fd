"""Plays recorded or simulated events through the monitor's core, faster than real time.

A recorded event is applied at its recorded time, and the job is evaluated on a grid of 0.1 s ticks, like the monitor's
loop does. Most ticks cannot change anything and are skipped (a fifth of the CPU for a healthy job). A tick is evaluated

*  after an event that the loop would evaluate at once, or a report in which an age exceeds the shortest limit on it,
*  while something is wrong (an unconfirmed verdict, an open incident),
*  when silence, or a rank that never started, would become a verdict,
*  when observed limits are due to be pushed to the launchers.

Nothing is delivered: effects are returned, or passed to a callback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from rankwatch.contract.messages import Directive, NodeObservation, NodeRegistration
from rankwatch_monitor.core import console, nodes, straggler_detector
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.effects import Effect, Issue
from rankwatch_monitor.core.events import JobEvent, PolicyChanged, RankReport
from rankwatch_monitor.core.hang.limits import Limits
from rankwatch_monitor.core.incident.lifecycle import REPEAT_AFTER, STEPLESS_AFTER, advance
from rankwatch_monitor.core.incident.settings_push import (
    PUSH_ALL_INTERVAL,
    PUSH_INTERVAL,
    push,
    push_if_changed,
    settings_of,
)
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.rank_runs import MOST_RANKS
from rankwatch_monitor.core.ranks import EXITED, SILENT_INTERVALS
from rankwatch_monitor.replay.recording import Entry
from rankwatch_monitor.service.quotas import claimed_ranks
from rankwatch_monitor.service.scheduler import TICK
from rankwatch_monitor.store import codec

SPARSE_TICK: Final = 1.0
"""Seconds between ticks while an incident is open whose deadlines have all passed."""
NEVER: Final = math.inf
ROUNDING: Final = 1e-4
"""Fraction of a tick: unix seconds in a double are exact to a quarter of a microsecond."""

NO_HANG_DETECTION: Final[Mapping[str, Any]] = {
    "initial_heartbeat_timeout": None,
    "heartbeat_timeout": None,
    "silence_timeout": None,
    "first_time_timeout": None,
    "learn_timeouts": False,
}
"""Policy for windows alone, which are not enough to detect hangs."""

MOST_OF_ALL: Final = 16 * MOST_RANKS
"""Ranks of all jobs of a recording, of 0.2 KB each: a monitor has a sixteenth at a time."""
LONGEST_WATCH: Final = 86_400.0
"""Seconds after a line in which ticks are played; of more, nothing new is decided before the next line."""
OnEffect = Callable[[Job, float, Effect], None]


class JobPlayer:
    """Plays one job through the core: events in at their times, effects out. Deterministic."""

    def __init__(
        self, job: Job, start: float, policy: Mapping[str, Any] | None = None, *, every_tick: bool = False
    ) -> None:
        """Start.

        Args:
            job: as it was at ``start``.
            start: unix seconds; the grid of ticks begins here.
            policy: settings that override those of the events, as :meth:`Policy.changed` accepts them.
            every_tick: skip no tick; slower, with the same result.
        """
        self.job = job
        self.refused = 0
        """Events that the core rejected; the monitor answered them with an error."""
        self._start = start
        self._overrides = dict(policy or {})
        self._every_tick = every_tick
        self._limits: Limits | None = None
        self._shortest = (NEVER, NEVER, NEVER, NEVER)
        self._last_pushed: tuple[Any, ...] | None = None
        self._evaluated_at = start
        self._evaluated_with = self._durations_version()
        self.due: float = NEVER
        """When the next tick that cannot be skipped is due (unix seconds)."""
        self._override_policy()
        self._schedule(start)

    def apply(self, event: JobEvent, now: float) -> list[Effect]:
        """Apply an event, and evaluate the job at once if the loop would; ticks due before ``now`` come first.

        Raises:
            ValueError: the overriding settings conflict with the policy in force.
        """
        if isinstance(event, RankReport):
            calm = self._is_calm(event)
            apply(self.job, event, now)
            if not calm or self.job.pace.stalled or self._durations_version() != self._evaluated_with:
                self.due = min(self.due, self._tick_after(now))
            if event.window is not None and (at := straggler_detector.ready_at(self.job)) != NEVER:
                self.due = min(self.due, max(self._tick_after(now), self._tick_near(at)))
            return []
        try:
            apply(self.job, event, now)
        except ValueError:
            self.refused += 1
            return []
        if isinstance(event, NodeRegistration | PolicyChanged):
            self._override_policy()
        if isinstance(event, NodeObservation) and not event.ranks and self.due > now and self._is_quiet():
            return []  # a launcher's heartbeat
        effects = self.evaluate(now)
        if isinstance(event, PolicyChanged):
            effects.append(self._pushed(push(self.job, "the policy was changed", now)))
        return effects

    def evaluate(self, now: float) -> list[Effect]:
        """Evaluate the job now; returns the effects, including settings for the launchers."""
        decided = straggler_detector.score_now(self.job, advance(self.job, now))
        effects = [each for effect in decided for each in console.worded(self.job, effect)]
        self._evaluated_at, self._evaluated_with = now, self._durations_version()
        effects += self._push_settings(now)
        self._schedule(now)
        return effects

    def align_ticks(self, ticked: float) -> None:
        """Align the grid with a recorded tick, and the next due tick with it if it was the same one."""
        self._start = ticked
        if ticked < self.due < ticked + TICK:
            self.due = ticked

    def _override_policy(self) -> None:
        if self._overrides:
            self.job.policy = self.job.policy.changed(self._overrides)

    def _push_settings(self, now: float) -> list[Effect]:
        """Push observed limits when they changed enough, at the loop's intervals."""
        if not nodes.any_acting(self.job) or self._is_pushed():
            return []
        directive, last = push_if_changed(self.job, now), self.job.last_settings
        if last is not None and now - last.at >= PUSH_INTERVAL and settings_of(self.job) == last.settings:
            self._last_pushed = self._pushable()
        return [] if directive is None else [self._pushed(directive)]

    def _pushed(self, directive: Directive) -> Issue:
        self._last_pushed = self._pushable()
        return Issue(directive)

    def _durations_version(self) -> tuple[int, bool]:
        """Changes with every observed duration on which limits may depend."""
        return self.job.durations.version, self.job.durations.resumed

    def _is_pushed(self) -> bool:
        """Whether the launchers have the current settings. Every observed duration makes a new limits object."""
        last = self._last_pushed
        return last is not None and last[0] is self.job.limits and last[1:] == self._pushable()[1:]

    def _pushable(self) -> tuple[Any, ...]:
        """The state on which pushed settings depend."""
        job = self.job
        return job.limits, job.durations.resumed, job.performance.stride, job.performance.trace

    def _is_quiet(self) -> bool:
        job = self.job
        return job.open_incident is None and job.verdicts_since is None and not job.orders

    # Which ticks cannot be skipped ------------------------------------------------------------------------------------

    def _tick_after(self, now: float) -> float:
        """The first tick of the grid that is not before ``now``."""
        return max(now, self._tick_near(now))

    def _tick_near(self, at: float) -> float:
        """The first tick of the grid at or after a deadline, within the grid's rounding."""
        return self._start + math.ceil((at - self._start) / TICK - ROUNDING) * TICK

    def _next_tick(self, now: float) -> float:
        return self._start + (math.floor((now - self._start) / TICK + ROUNDING) + 1) * TICK

    def _schedule(self, now: float) -> None:
        """Find the next tick that cannot be skipped when no event comes before it."""
        job, soon = self.job, self._next_tick(now)
        incident = job.open_incident
        if self._every_tick or job.orders or (job.verdicts_since is not None and incident is None):
            self.due = soon
        elif incident is not None:
            policy = job.policy
            deadlines = (policy.capture_deadline, policy.stop_deadline)
            quiet_from = incident.phase_since + max(*deadlines, REPEAT_AFTER, STEPLESS_AFTER) + 1.0
            self.due = soon if not incident.confirmed or now < quiet_from else self._tick_after(now + SPARSE_TICK)
        else:
            at = min(self._silence_at(now), self._push_at(), straggler_detector.ready_at(job))
            self.due = NEVER if at == NEVER else max(soon, self._tick_near(at))

    def _push_at(self) -> float:
        """When settings may be pushed next; never while the launchers have the current ones."""
        last = self.job.last_settings
        if self._is_pushed() or not nodes.any_acting(self.job):
            return NEVER
        if last is None:
            return self._evaluated_at
        for soonest in (last.at + PUSH_INTERVAL, last.at + PUSH_ALL_INTERVAL):
            if self._evaluated_at < soonest:
                return soonest
        return self._evaluated_at + PUSH_INTERVAL

    def _silence_at(self, now: float) -> float:
        """The earliest time at which a rank may become silent, or be found never to have started."""
        job = self.job
        columns, limits = job.columns, job.limits
        if job.ended is not None or not job.policy.detection or not len(columns) or not columns.reported_R.any():
            return NEVER
        judged_R = ~columns.shut_down_R & (columns.process_R != EXITED)
        found = NEVER
        absent_R = judged_R & ~columns.reported_R
        if limits.initial_heartbeat is not None and absent_R.any():
            found = max(float(np.nanmin(columns.first_report_R)), job.silence_since) + limits.initial_heartbeat
        reporting_R = judged_R & columns.reported_R
        if limits.silence is None or not reporting_R.any():
            return found
        since_R = np.maximum(columns.last_heard_R, job.silence_since)[reporting_R]
        report_interval_R = np.nan_to_num(SILENT_INTERVALS * columns.report_interval_R[reporting_R])
        if now - float(since_R.max()) > max(limits.silence / 2, float(report_interval_R.max())) + TICK:
            return found  # no rank reports, so none is an outlier; the next report causes an evaluation
        return min(found, float(since_R.min()) + limits.silence)

    def _is_calm(self, report: RankReport) -> bool:
        """Whether this report cannot change a verdict: no age exceeds its limit, and it is neither first nor last."""
        job, identity = self.job, report.identity
        if report.ended or not self._is_quiet():
            return False
        if identity.rank >= len(job.columns) or job.columns.instances[identity.rank] != identity.instance:
            return False
        if (limits := job.limits) is not self._limits:
            self._limits, self._shortest = limits, _shortest(limits)
        configured, other, beat, outside = self._shortest
        ages = report.open_sections
        if ages is None and report.iteration is None and not report.beats:
            return False  # the first heartbeat is the only thing to evaluate
        if report.beats and (report.heartbeat_age is None or report.heartbeat_age > beat):
            return False
        if ages and configured != NEVER and max(ages.values()) > configured:
            return False
        if report.quiet is not None and report.quiet > other:
            return False
        return report.idle is None or report.idle <= outside


def _shortest(limits: Limits) -> tuple[float, float, float, float]:
    """The shortest limits: section age, time without progress, heartbeat age, time outside all sections."""
    rank = limits.rank
    return (
        min(rank.sections.values(), default=NEVER),
        min((*rank.learned.values(), rank.first_time or NEVER), default=NEVER),
        min(rank.heartbeat or NEVER, limits.initial_heartbeat or NEVER),
        rank.out_of_section or NEVER,
    )


class RecordingPlayer:
    """Plays all jobs of a recording; ``on_effect`` receives every effect."""

    def __init__(
        self,
        on_effect: OnEffect,
        *,
        policy: Mapping[str, Any] | None = None,
        only: str | None = None,
        every_tick: bool = False,
    ) -> None:
        self.jobs: dict[str, JobPlayer] = {}
        self.events = self.lost = 0
        self.first = self.last = math.nan
        self._on_effect = on_effect
        self._policy = policy
        self._only = only
        self._every_tick = every_tick
        self._ranks: dict[str, int] = {}

    def play(self, entries: Iterable[Entry]) -> None:
        """Play all entries in order.

        Raises:
            ValueError: an entry cannot be played.
        """
        for entry in entries:
            if entry.ticked is not None and entry.job_id in self.jobs:
                self.jobs[entry.job_id].align_ticks(entry.ticked)
            self._evaluate_until(entry.at)
            self.first = entry.at if math.isnan(self.first) else self.first
            self.last = entry.at
            self.lost += entry.lost
            if entry.job_id is None or self._only not in (None, entry.job_id):
                continue
            if entry.began is not None:
                self._load(entry)
            elif entry.event is not None:
                self.events += 1
                self._apply(entry.job_id, entry.event, entry.at)

    def _evaluate_until(self, at: float) -> None:
        """Evaluate the due ticks of all jobs before a time, in order."""
        until = at if math.isnan(self.last) else min(at, self.last + LONGEST_WATCH)
        while True:
            first = min(self.jobs.values(), key=lambda player: player.due, default=None)
            if first is None or first.due >= until:
                break
            now = first.due
            self._deliver(first, now, first.evaluate(now))
        if until < at:
            for player in self.jobs.values():
                player.due = max(player.due, at)

    def _load(self, entry: Entry) -> None:
        assert entry.job_id is not None
        assert entry.began is not None
        try:
            known = self.jobs.get(entry.job_id)
            if known is not None and known.job.created_at == entry.began["created_at"]:
                return  # recorded again
            self._claim(entry.job_id, entry.began["body"]["world_size"])
            job = codec.job_of(entry.began, entry.at)
            job.incidents = [codec.incident_of(row) for row in entry.open]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"job {entry.job_id} cannot be loaded: {error!r}") from None
        self.jobs[entry.job_id] = JobPlayer(job, entry.at, self._policy, every_tick=self._every_tick)

    def _apply(self, job_id: str, event: JobEvent, at: float) -> None:
        self._claim(job_id, claimed_ranks(event))
        player = self.jobs.get(job_id)
        if player is None:
            player = self.jobs[job_id] = JobPlayer(Job(job_id, at), at, self._policy, every_tick=self._every_tick)
        self._deliver(player, at, player.apply(event, at))

    def _claim(self, job_id: str, ranks: int) -> None:
        """Count the ranks of a job, whose memory is as large as it claims to be."""
        if not codec.is_world(ranks):
            raise ValueError(f"job {job_id} has more ranks than any job")
        if ranks > self._ranks.get(job_id, 0):
            self._ranks[job_id] = ranks
            if sum(self._ranks.values()) > MOST_OF_ALL:
                raise ValueError(f"with job {job_id} there are more than {MOST_OF_ALL} ranks")

    def _deliver(self, player: JobPlayer, now: float, effects: list[Effect]) -> None:
        for effect in effects:
            self._on_effect(player.job, now, effect)


def play_windows(windows: Iterable[tuple[float, list[RankReport]]], job: Job) -> Iterator[float]:
    """Play windows of steps, from a scene or a table; yields the time of each once the job was evaluated."""
    for at, reports in windows:
        if (due := straggler_detector.ready_at(job)) < at:
            straggler_detector.score_now(job, advance(job, due))
        for report in reports:
            apply(job, report, at)
        straggler_detector.score_now(job, advance(job, at))
        yield at
    if (due := straggler_detector.ready_at(job)) < float("inf"):
        straggler_detector.score_now(job, advance(job, due))
        yield due
