"""Recorded or simulated events through the very same core as the monitor's, as fast as it goes.

How this works
--------------
A recorded event is applied at its recorded time, and the job is judged on a grid of ticks of 0.1 s, as the monitor's
loop does it. Most ticks cannot change anything, so they are left out: a tick is made only

*  after an event that was judged at once, or a report in which something is older than the shortest limit of its kind,
*  while something is wrong (a verdict that has not settled, an open incident),
*  when a moment comes at which silence, or a rank that never started, would be a verdict,
*  when learned limits are due to be handed down.

Nothing is delivered from here: whoever plays is told of every effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from rankwatch.contract.messages import Directive, NodeObservation, NodeRegistration
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.effects import Effect, Issue
from rankwatch_monitor.core.events import JobEvent, PolicyChanged, RankReport
from rankwatch_monitor.core.hang.limits import Limits
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.incident.phases import REPEAT_AFTER, STEPLESS_AFTER
from rankwatch_monitor.core.incident.settings_push import (
    PUSH_ALL_INTERVAL,
    PUSH_INTERVAL,
    push,
    push_if_changed,
    settings_of,
)
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import SILENT_INTERVALS
from rankwatch_monitor.core.ranks import EXITED
from rankwatch_monitor.core.straggler import detector
from rankwatch_monitor.replay.recording import Entry
from rankwatch_monitor.service.scheduler import TICK
from rankwatch_monitor.store import codec

SPARSE_TICK: Final = 1.0
"""Seconds between ticks while an incident is open in which no deadline is left to pass."""
NEVER: Final = math.inf
ROUNDING: Final = 1e-4
"""Of a tick: unix seconds are exact to a quarter of a microsecond only."""

OnEffect = Callable[[Job, float, Effect], None]


class Play:
    """One job that is played through the core: events in at their times, effects out. Deterministic."""

    def __init__(
        self, job: Job, start: float, policy: Mapping[str, Any] | None = None, *, every_tick: bool = False
    ) -> None:
        """Begin to play.

        Args:
            job: as it was at ``start``.
            start: unix seconds; the grid of ticks begins here.
            policy: settings that hold whatever the events say, as :meth:`Policy.changed` takes them.
            every_tick: leave no tick out; the result is the same, only later.
        """
        self.job = job
        self.refused = 0
        """Events that the core would not take; the monitor answered them with an error."""
        self._start = start
        self._overrides = dict(policy or {})
        self._every_tick = every_tick
        self._limits: Limits | None = None
        self._shortest = (NEVER, NEVER, NEVER, NEVER)
        self._taught: tuple[Any, ...] | None = None
        self._judged_at = start
        self._judged_by = self._learned()
        self.due: float = NEVER
        """When the next tick that could matter is to be made."""
        self._hold_policy()
        self._plan(start)

    def take(self, event: JobEvent, now: float) -> list[Effect]:
        """Apply an event, and judge the job at once if the loop would; ticks before ``now`` must have been made.

        Raises:
            ValueError: the policy that was given cannot hold together with the one in force.
        """
        if isinstance(event, RankReport):
            plain = self._is_calm(event)
            apply(self.job, event, now)
            if not plain or self._learned() != self._judged_by:
                self.due = min(self.due, self._tick_after(now))
            if event.window is not None and (at := detector.ready_at(self.job)) != NEVER:
                self.due = min(self.due, max(self._tick_after(now), self._tick_near(at)))
            return []
        try:
            apply(self.job, event, now)
        except ValueError:
            self.refused += 1
            return []
        if isinstance(event, NodeRegistration | PolicyChanged):
            self._hold_policy()
        if isinstance(event, NodeObservation) and not event.ranks and self.due > now and self._at_peace():
            return []  # a launcher's own beat
        effects = self.judge(now)
        if isinstance(event, PolicyChanged):
            effects.append(self._told(push(self.job, "the policy was changed", now)))
        return effects

    def judge(self, now: float) -> list[Effect]:
        """Judge the job now; return what follows, new settings for the launchers included."""
        effects = detector.score_now(self.job, advance(self.job, now))
        self._judged_at, self._judged_by = now, self._learned()
        effects += self._teach(now)
        self._plan(now)
        return effects

    def keep_time(self, ticked: float) -> None:
        """Lay the grid of ticks through a moment at which the recorded monitor made one."""
        self._start = ticked

    def _hold_policy(self) -> None:
        if self._overrides:
            self.job.policy = self.job.policy.changed(self._overrides)

    def _teach(self, now: float) -> list[Effect]:
        """What the loop does: hand down what was learned, when it matters and not too often."""
        if not nodes.acting(self.job) or self._nothing_new():
            return []
        directive, told = push_if_changed(self.job, now), self.job.last_settings
        if told is not None and now - told.at >= PUSH_INTERVAL and settings_of(self.job) == told.settings:
            self._taught = self._now_taught()
        return [] if directive is None else [self._told(directive)]

    def _told(self, directive: Directive) -> Issue:
        self._taught = self._now_taught()
        return Issue(directive)

    def _learned(self) -> tuple[int, bool]:
        """Changes when anything was learned that limits, or what is kept of them, may depend on."""
        return self.job.durations.version, self.job.durations.resumed

    def _nothing_new(self) -> bool:
        """Whether the launchers know all that could be handed down. What was learned makes new limits, equal or not."""
        taught = self._taught
        return taught is not None and taught[0] is self.job.limits and taught[1:] == self._now_taught()[1:]

    def _now_taught(self) -> tuple[Any, ...]:
        """What decides whether there is anything to hand down."""
        job = self.job
        return job.limits, job.durations.resumed, job.performance.stride, job.performance.trace

    def _at_peace(self) -> bool:
        job = self.job
        return job.open_incident is None and job.verdicts_since is None and not job.orders

    # Which ticks matter -----------------------------------------------------------------------------------------------

    def _tick_after(self, now: float) -> float:
        """The first tick of the grid that is not before ``now``."""
        return max(now, self._tick_near(now))

    def _tick_near(self, at: float) -> float:
        """The first tick of the grid that may be at or past a deadline, by the grid's own arithmetic."""
        return self._start + math.ceil((at - self._start) / TICK - ROUNDING) * TICK

    def _next_tick(self, now: float) -> float:
        return self._start + (math.floor((now - self._start) / TICK + ROUNDING) + 1) * TICK

    def _plan(self, now: float) -> None:
        """Find the next tick that could matter when no event comes before it."""
        job, soon = self.job, self._next_tick(now)
        incident = job.open_incident
        if self._every_tick or job.orders or (job.verdicts_since is not None and incident is None):
            self.due = soon
        elif incident is not None:
            policy = job.policy
            deadlines = (policy.capture_deadline, policy.stop_deadline, policy.confirmation_window)
            quiet_from = incident.phase_since + max(*deadlines, REPEAT_AFTER, STEPLESS_AFTER) + 1.0
            self.due = soon if now < quiet_from else self._tick_after(now + SPARSE_TICK)
        else:
            at = min(self._silence_at(now), self._teaching_at(), detector.ready_at(job))
            self.due = NEVER if at == NEVER else max(soon, self._tick_near(at))

    def _teaching_at(self) -> float:
        """When limits may be handed down next; never while nothing new was learned."""
        told = self.job.last_settings
        if self._nothing_new() or not nodes.acting(self.job):
            return NEVER
        if told is None:
            return self._judged_at
        first = told.at + PUSH_INTERVAL
        return first if self._judged_at < first else max(told.at + PUSH_ALL_INTERVAL, self._judged_at + PUSH_INTERVAL)

    def _silence_at(self, now: float) -> float:
        """The earliest moment at which a rank could be called silent, or one that never started."""
        job = self.job
        columns, limits = job.columns, job.limits
        if job.ended is not None or not job.policy.detection or not len(columns) or not columns.reported_R.any():
            return NEVER
        judged_R = ~columns.shut_down_R & (columns.process_R != EXITED)
        found = NEVER
        absent_R = judged_R & ~columns.reported_R
        if limits.initial_heartbeat is not None and absent_R.any():
            found = max(float(np.nanmin(columns.first_report_R)), job.silence_baseline) + limits.initial_heartbeat
        speaking_R = judged_R & columns.reported_R
        if limits.silence is None or not speaking_R.any():
            return found
        since_R = np.maximum(columns.last_heard_R, job.silence_baseline)[speaking_R]
        report_interval_R = np.nan_to_num(SILENT_INTERVALS * columns.report_interval_R[speaking_R])
        if now - float(since_R.max()) > max(limits.silence / 2, float(report_interval_R.max())) + TICK:
            return found  # nobody speaks, so nobody is silent; who speaks again is judged then
        return min(found, float(since_R.min()) + limits.silence)

    def _is_calm(self, report: RankReport) -> bool:
        """Whether this report can change no verdict: nothing in it is as old as any limit for it, and it is no news."""
        job, who = self.job, report.identity
        if report.ended or not self._at_peace():
            return False
        if who.rank >= len(job.columns) or job.columns.instances[who.rank] != who.instance:
            return False
        if (limits := job.limits) is not self._limits:
            self._limits, self._shortest = limits, _shortest(limits)
        configured, other, beat, outside = self._shortest
        ages = report.open_sections
        if ages is None and report.iteration is None and not report.beats:
            return False  # it shows nothing that it could be judged by but its first heartbeat
        if report.beats and (report.heartbeat_age is None or report.heartbeat_age > beat):
            return False
        if ages and configured != NEVER and max(ages.values()) > configured:
            return False
        if report.quiet is not None and report.quiet > other:
            return False
        return report.idle is None or report.idle <= outside


def _shortest(limits: Limits) -> tuple[float, float, float, float]:
    """The shortest limits: on a section's age, on the time without progress, on a beat's age, outside all sections."""
    rank = limits.rank
    return (
        min(rank.sections.values(), default=NEVER),
        min((*rank.learned.values(), rank.first_time or NEVER), default=NEVER),
        min(rank.heartbeat or NEVER, limits.initial_heartbeat or NEVER),
        rank.out_of_section or NEVER,
    )


class Replay:
    """All jobs of a recording, played. ``on_effect`` is called for everything that is decided."""

    def __init__(
        self,
        on_effect: OnEffect,
        *,
        policy: Mapping[str, Any] | None = None,
        only: str | None = None,
        every_tick: bool = False,
    ) -> None:
        self.jobs: dict[str, Play] = {}
        self.events = self.lost = 0
        self.first = self.last = math.nan
        self._on_effect = on_effect
        self._policy = policy
        self._only = only
        self._every_tick = every_tick

    def play(self, entries: Iterable[Entry]) -> None:
        """Play entries in their order, to the last one.

        Raises:
            ValueError: one of them cannot be played.
        """
        for entry in entries:
            self._until(entry.at)
            self.first = entry.at if math.isnan(self.first) else self.first
            self.last = entry.at
            self.lost += entry.lost
            if entry.job_id is None or self._only not in (None, entry.job_id):
                continue
            if entry.began is not None:
                self._begin(entry)
            elif entry.event is not None:
                self.events += 1
                if entry.ticked is not None and entry.job_id in self.jobs:
                    self.jobs[entry.job_id].keep_time(entry.ticked)
                self._take(entry.job_id, entry.event, entry.at)

    def _until(self, at: float) -> None:
        """Make every tick that matters before a moment, of all jobs in the order of time."""
        while True:
            first = min(self.jobs.values(), key=_due, default=None)
            if first is None or first.due >= at:
                return
            now = first.due
            self._deliver(first, now, first.judge(now))

    def _begin(self, entry: Entry) -> None:
        assert entry.job_id is not None
        assert entry.began is not None
        try:
            known = self.jobs.get(entry.job_id)
            if known is not None and known.job.created_at == entry.began["created_at"]:
                return  # told again
            job = codec.job_of(entry.began, entry.at)
            job.incidents = [codec.incident_of(row) for row in entry.open]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"job {entry.job_id} cannot be taken up: {error!r}") from None
        self.jobs[entry.job_id] = Play(job, entry.at, self._policy, every_tick=self._every_tick)

    def _take(self, job_id: str, event: JobEvent, at: float) -> None:
        play = self.jobs.get(job_id)
        if play is None:
            play = self.jobs[job_id] = Play(Job(job_id, at), at, self._policy, every_tick=self._every_tick)
        self._deliver(play, at, play.take(event, at))

    def _deliver(self, play: Play, now: float, effects: list[Effect]) -> None:
        for effect in effects:
            self._on_effect(play.job, now, effect)


def _due(play: Play) -> float:
    return play.due
