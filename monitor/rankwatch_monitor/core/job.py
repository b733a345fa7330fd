"""One job as the monitor knows it: ``apply`` takes an event in, everything else is derived when asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import nan
from typing import assert_never

import numpy as np

from rankwatch.contract.enums import AckState, DirectiveKind, ProcessState, VerdictKind
from rankwatch.contract.messages import Directive, Evidence, NodeObservation, NodeRegistration, ProcessEvent
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core import nodes, processes
from rankwatch_monitor.core.events import (
    Acknowledged,
    JobEvent,
    Order,
    PolicyChanged,
    RankIdentity,
    RankReport,
)
from rankwatch_monitor.core.facts import Drops, Ending, Node, Pace, Stop, Told
from rankwatch_monitor.core.goodput.ledger import Ledger
from rankwatch_monitor.core.hang.detect import FOREIGN_REPORT_INTERVAL, SILENT_INTERVALS
from rankwatch_monitor.core.hang.limits import Limits, in_force
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations
from rankwatch_monitor.core.incident import notices
from rankwatch_monitor.core.incident.incident import Incident, Phase, about
from rankwatch_monitor.core.ranks import ALIVE, EXITED, PROCESS_CODES, UNINTERRUPTIBLE, RankColumns
from rankwatch_monitor.core.straggler.state import Performance

STALE_OBSERVATION = 2.0
"""Seconds after which a launcher's observation that waited on its way says nothing about now."""
KEPT_INCIDENTS = 200
"""Incidents kept in memory for each job; older ones are in the store."""
OWNER_SILENCE = 30.0
"""Seconds without a report (one comes every 1 to 15 s) after which a process no longer keeps others out of its rank."""
KEPT_DIRECTIVES = 100


class Job:
    """All that is known of one job. Facts come in by :meth:`apply`; decisions are taken in ``decide``."""

    def __init__(self, job_id: str, now: float, *, name: str = "", policy: Policy | None = None) -> None:
        self.id = job_id
        self.name = name or job_id
        self.created_at = now
        self.policy = policy or Policy()
        self.world_size = 0
        self.attempt = 0
        self.attempt_since = now
        self.silence_baseline = now
        self.columns = RankColumns()
        self.nodes: dict[str, Node] = {}
        self.nodes_version = 0
        """Counts what has changed of them."""
        self.ended: Ending | None = None
        self.stopping: Stop | None = None
        self.restarts = 0
        self.launches = 0
        """How often the job was launched again after it had ended, or was gone."""
        self.restarting_attempt = 0
        self.instrumented_before = self.stepped_before = False
        """A rank of an earlier attempt of this run has spoken, has completed a step."""
        self.incidents: list[Incident] = []
        self.directives: list[Directive] = []
        self.last_directive = 0
        self.last_incident = 0
        self.incident_counts: dict[VerdictKind, int] = {}
        self.orders: deque[Order] = deque(maxlen=16)
        self.notices: deque[notices.Notice] = deque(maxlen=notices.KEPT)
        self.refused_step: int | None = None
        self.durations = ObservedDurations()
        self.ledger = Ledger(now)
        self.performance = Performance()
        self._limits: tuple[Policy, int, Limits] | None = None
        self.told: Told | None = None
        self.drops = Drops()
        self.stale_reports = 0
        self.pace = Pace()
        self.last_heard = now
        self.verdicts_since: float | None = None
        """Since when there have been verdicts; ``decide`` keeps it."""

    # Events -----------------------------------------------------------------------------------------------------------

    def apply(self, event: JobEvent, now: float) -> None:
        """Take one event in. ``now`` is unix seconds and never goes back."""
        if not isinstance(event, Order | PolicyChanged):  # a person's word is no sign of life
            self._heard(now)
        match event:
            case RankReport():
                self._report(event, now)
            case NodeObservation():
                self._observation(event, now)
            case ProcessEvent():
                processes.take(self, event, now)
                self.nodes_version += 1
            case NodeRegistration():
                nodes.register(self, event, now)
                self.nodes_version += 1
            case Acknowledged():
                self._acknowledged(event, now)
            case Evidence():
                self._evidence(event, now)
            case Order():
                self.orders.append(event)
            case PolicyChanged():
                self.policy = event.policy
            case _:
                assert_never(event)

    def asked(self, node: Node, now: float) -> None:
        """A launcher asks what to do: a sign of life of its and of the job."""
        node.seen = now
        self._heard(now)

    def _heard(self, now: float) -> None:
        pause, self.last_heard = now - self.last_heard, max(self.last_heard, now)
        silence = self.policy.silence_timeout
        if silence is None or pause <= silence / 2:
            return
        report_interval_R = self.columns.report_interval_R
        usual = float(np.nanmedian(report_interval_R)) if np.any(~np.isnan(report_interval_R)) else 0.0
        if pause > SILENT_INTERVALS * usual:
            # The whole job was out of sight (as after a pause of the monitor): silence counts from here.
            self.silence_baseline = now

    def _report(self, report: RankReport, now: float) -> None:
        who = report.identity
        if not self._belongs(who, now):
            self.stale_reports += 1
            return
        columns, rank = self.columns, who.rank
        # item() gives Python's own numbers, several times as fast as numpy's: this runs 20,000 times a second.
        if not columns.reported_R.item(rank):
            columns.reported_R[rank] = True
            columns.first_report_R[rank] = now
            columns.report_interval_R[rank] = FOREIGN_REPORT_INTERVAL if report.foreign else nan
        elif now > (before := columns.last_report_R.item(rank)):
            columns.report_interval_R[rank] = now - before
        columns.last_update_R[rank] = columns.last_heard_R[rank] = columns.last_report_R[rank] = now
        columns.liveness_tick_R[rank] = nan
        if columns.process_R.item(rank) not in (EXITED, UNINTERRUPTIBLE):
            # Its other threads speak while the main one is stuck in the kernel; its launcher tells when it is out.
            columns.process_R[rank] = ALIVE
        columns.pid_R[rank], columns.local_rank_R[rank] = who.pid, who.local_rank
        columns.hosts[rank] = who.host
        if report.beats is not None:
            columns.beat(rank, report.beats, report.heartbeat_age, now)
        self._progress(rank, report.iteration, report.progress, now)
        columns.first_step(rank, report.first_iteration, report.first_iteration_age, now)
        if report.open_sections is not None:
            columns.set_sections(rank, now, report.open_sections, report.idle, report.quiet, report.first_time)
        columns.shut_down_R[rank] = report.ended
        if report.finished or report.longest or report.first_durations or report.idle_longest is not None:
            self._learn(report)
        self.durations.resumed |= bool(report.first_iteration)
        self.performance.take(report, now)
        for reason, count in report.dropped.items():
            self.drops.add(reason, who, count)

    def _observation(self, observation: NodeObservation, now: float) -> None:
        nodes.heard(self, observation, now)
        if observation.attempt != self.attempt or observation.age > STALE_OBSERVATION:
            return
        columns = self.columns
        for seen in observation.ranks:
            self.make_room(seen.rank)
            rank = seen.rank
            if columns.process_R[rank] == EXITED:
                continue
            columns.last_heard_R[rank] = now
            columns.process_R[rank] = PROCESS_CODES.index(ProcessState(seen.process_state))
            if seen.pulse_age is None:
                continue
            columns.liveness_tick_R[rank] = now - seen.pulse_age
            columns.last_update_R[rank] = now
            if not columns.reported_R[rank]:
                columns.reported_R[rank], columns.first_report_R[rank] = True, now
            if seen.beats:
                columns.beat(rank, seen.beats, seen.heartbeat_age, now)
            self._progress(rank, seen.iteration, seen.progress, now)
            columns.first_step(rank, seen.first_iteration, seen.first_iteration_age, now)
            if seen.uses_sections:
                columns.set_sections(rank, now, seen.open_sections, seen.idle, seen.quiet, seen.first_time)

    def _learn(self, report: RankReport) -> None:
        durations = self.durations
        for name, statistics in report.finished.items():
            durations.finished(name, statistics.count)
        for name, seconds in report.longest.items():
            durations.took(name, seconds)
        for name, seconds in report.first_durations.items():
            durations.took(name, first=seconds)
        if report.idle_longest is not None:
            durations.idled(report.idle_longest)

    def _acknowledged(self, event: Acknowledged, now: float) -> None:
        if (node := self.nodes.get(event.ack.node)) is not None:
            node.seen = now
        incident = self.open_incident
        if incident is None or incident.directive != event.directive:
            return
        if event.ack.state not in (AckState.REFUSED, AckState.FAILED):
            return
        incident.outcome = event.ack.detail or incident.outcome
        incident.refusals = tuple({*incident.refusals, event.ack.node})
        if event.ack.state == AckState.REFUSED and event.ack.max_iteration is not None:
            self.refused_step = max(self.refused_step or 0, event.ack.max_iteration)

    def _evidence(self, evidence: Evidence, now: float) -> None:
        if (node := self.nodes.get(evidence.node)) is not None:
            node.seen = now
        incident = about(self.incidents, evidence)
        if incident is None:
            return
        for stack in evidence.stacks:
            incident.stacks.add(stack)
        if incident.timeline.captured is None and incident.phase in (Phase.ACTING, Phase.RECOVERING):
            # Of a crash: the launcher took them by itself, before it ended the ranks. Ages are rounded on their way.
            incident.timeline.captured = max(now - evidence.age, incident.timeline.decided or 0.0)
        incident.heard_nodes.add(evidence.node)

    # Facts ------------------------------------------------------------------------------------------------------------

    def _belongs(self, who: RankIdentity, now: float) -> bool:
        """Whether this process is the one that owns its rank now; makes room for it when it is."""
        if self._older_than_owner(who, now) or (who.attempt < self.attempt and not self._out_of_sight(now)):
            return False
        if who.attempt < self.attempt:
            self.begin_run(now)
        if who.attempt > self.attempt:
            self.begin_attempt(who.attempt, now, who.world_size)
        self.world_size = max(self.world_size, who.world_size, who.rank + 1)
        self.durations.grown(self.world_size)
        self.columns.grow(self.world_size)
        columns, rank = self.columns, who.rank
        owner = columns.instances[rank]
        if who.instance == owner:
            return True
        if owner and who.instance == columns.retired[rank]:
            return False
        if owner:
            columns.retired[rank] = owner
            columns.clear(rank)
        columns.instances[rank] = who.instance
        columns.started_R[rank] = who.started_at or np.nan
        if who.job_name:
            self.name = who.job_name
        return True

    def _older_than_owner(self, who: RankIdentity, now: float) -> bool:
        """Whether the process that owns this rank was started after this one, as far as clocks can tell.

        Start times of two hosts say nothing about each other, and a clock may have been set back between two starts on
        one: an owner that no longer speaks keeps nobody out.
        """
        columns, rank = self.columns, who.rank
        if rank >= len(columns) or who.instance == columns.instances[rank] or who.host != columns.hosts[rank]:
            return False
        if now - columns.last_report_R.item(rank) > OWNER_SILENCE:
            return False
        return bool(0 < who.started_at < columns.started_R.item(rank))

    def _out_of_sight(self, now: float) -> bool:
        """No launcher runs this job and no rank of it speaks any more: whoever speaks next begins a new run."""
        if self.acting_nodes():
            return False
        columns, silence = self.columns, self.policy.silence_timeout
        silent_R = now - columns.last_heard_R > (np.inf if silence is None else silence)
        return bool(np.all(~columns.reported_R | columns.shut_down_R | silent_R))

    def make_room(self, rank: int) -> None:
        """Have columns for this rank."""
        if rank >= len(self.columns):
            self.columns.grow(max(rank + 1, self.world_size))

    def begin_attempt(self, attempt: int, at: float, world_size: int | None = None) -> None:
        """A new attempt runs since ``at``: what was known of the ranks was about others."""
        self.instrumented_before, self.stepped_before = self.ever_instrumented, self.counts_steps
        self.attempt, self.attempt_since, self.silence_baseline = attempt, at, at
        self.world_size = world_size or self.world_size  # an elastic job may come back smaller
        self.durations.begun(world_size)
        self.columns = RankColumns(self.world_size)
        self.pace = Pace()
        self.performance.begin_attempt()
        self.ended = self.stopping = None
        nodes.turn(self)
        self.nodes_version += 1

    def begin_run(self, now: float) -> None:
        """The same job is launched again after it ended: its attempts count from the beginning, its history stays."""
        self.nodes.clear()
        self.launches += 1
        self.restarts = self.restarting_attempt = 0
        self.begin_attempt(0, now)
        self.instrumented_before = self.stepped_before = False

    def launched_anew(self, now: float) -> None:
        """A new rendezvous counts attempts from 1: the launchers before it are gone, whether they said so or not."""
        fresh = {name: node for name, node in self.nodes.items() if node.attempt == 0}
        self.begin_run(now)
        self.nodes.update(fresh)

    def _progress(self, rank: int, iteration: int | None, progress: int | None, now: float) -> None:
        if iteration is not None:
            self.columns.iteration_R[rank] = iteration
            if self.pace.due(now) and (furthest := self.furthest_iteration) is not None:
                self.pace.add(now, furthest)
        if progress is not None:
            self.columns.progress_R[rank] = progress

    # Derived ----------------------------------------------------------------------------------------------------------

    @property
    def open_incident(self) -> Incident | None:
        """The incident that is open now; there is one at a time, and what follows from it joins it."""
        return self.incidents[-1] if self.incidents and self.incidents[-1].open else None

    @property
    def limits(self) -> Limits:
        """The limits in force; made anew only when the policy or what the job has taught has changed."""
        known = self._limits
        if known is None or known[0] is not self.policy or known[1] != self.durations.version:
            known = self._limits = (self.policy, self.durations.version, in_force(self.policy, self.durations))
        return known[2]

    @property
    def instrumented(self) -> bool:
        """Whether any rank has spoken in this attempt."""
        return bool(self.columns.reported_R.any())

    @property
    def ever_instrumented(self) -> bool:
        """Whether its ranks call ``rankwatch.init()``: one has spoken in this run."""
        return self.instrumented_before or self.instrumented

    @property
    def counts_steps(self) -> bool:
        """Whether any rank has completed a step in this run."""
        return self.stepped_before or self.furthest_iteration is not None

    @property
    def furthest_iteration(self) -> int | None:
        """The last step that any rank of this attempt completed."""
        iteration_R = self.columns.iteration_R
        return int(iteration_R.max()) if len(iteration_R) and iteration_R.max() >= 0 else None

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second, lately; None when there is nothing to tell it from."""
        return self.pace.steps_per_second

    @property
    def dropped(self) -> dict[str, int]:
        """What the ranks' telemetry lost, by reason, over all ranks."""
        return dict(self.drops.counts)

    def acting_nodes(self) -> dict[str, Node]:
        """Launchers that take part in the current attempt (see ``nodes``) and have not ended, by name."""
        return {node.registration.node: node for node in nodes.taking_part(self) if node.ended is None}

    def new_directive(
        self,
        kind: DirectiveKind,
        reason: str,
        *,
        incident_id: str | None = None,
        deadline: float = 5.0,
        stop_step: int | None = None,
        settings: Mapping[str, object] | None = None,
        exclude: tuple[str, ...] = (),
    ) -> Directive:
        """Make the next directive of this job and remember it."""
        self.last_directive += 1
        directive = Directive(
            id=self.last_directive,
            kind=kind,
            attempt=self.attempt,
            reason=reason,
            incident_id=incident_id,
            deadline=deadline,
            stop_step=stop_step,
            settings=dict(settings or {}),
            exclude=exclude,
        )
        self.directives.append(directive)
        del self.directives[:-KEPT_DIRECTIVES]
        return directive
