"""Plays a scene through the core and compares its verdicts with the expected ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwatch.contract.enums import VerdictKind
from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core.effects import Changed, Effect, Issue
from rankwatch_monitor.core.events import JobEvent
from rankwatch_monitor.core.incident.settings_push import settings_of
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import JobPlayer
from support.simulator.actors import JOB_ID
from support.simulator.plan import FaultKind
from support.simulator.scene import START, ExpectedVerdict, Scene


@dataclass(frozen=True, slots=True)
class FaultResult:
    """One fault and its detection."""

    kind: str
    section: str
    at: float
    ranks: tuple[int, ...]
    incident: str | None = None
    """The incident that detected it; None: missed."""
    latency: float | None = None
    """Seconds from the fault to the incident."""
    decided: float | None = None
    """Seconds from the fault to the decision on what to do."""
    first_right: bool = False
    """The first named rank is a culprit, or rightly none was named."""
    right: bool = False
    """Exactly the right ranks were named, with the right class."""
    named: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class Outcome:
    """The verdicts of a scene compared with the expected ones."""

    seconds: float = 0.0
    events: int = 0
    judged: int = 0
    """Evaluations of the job."""
    alarms: int = 0
    """Confirmed incidents."""
    false_alarms: list[str] = field(default_factory=list)
    """The reasons of alarms without a fault."""
    suspicions: int = 0
    """Incidents on an observed limit that closed when the ranks continued by themselves."""
    restarts: int = 0
    findings: list[FaultResult] = field(default_factory=list)
    """One for each fault that does not end by itself."""

    @property
    def missed(self) -> list[FaultResult]:
        """Faults that were not detected."""
        return [finding for finding in self.findings if finding.incident is None]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "seconds": self.seconds,
            "events": self.events,
            "judged": self.judged,
            "alarms": self.alarms,
            "false_alarms": self.false_alarms,
            "suspicions": self.suspicions,
            "restarts": self.restarts,
            "faults": [{name: getattr(each, name) for name in FaultResult.__slots__} for each in self.findings],
        }


class Simulation:
    """Connects a scene with the core: events into the core, directives back to the launchers."""

    def __init__(
        self,
        scene: Scene,
        policy: Mapping[str, Any] | None = None,
        *,
        every_tick: bool = False,
        on_event: Callable[[float, Job, JobEvent], None] | None = None,
        on_effect: Callable[[float, Effect], None] | None = None,
    ) -> None:
        """Prepare.

        Args:
            scene: the job.
            policy: settings that differ from the defaults.
            every_tick: evaluate at every tick of the loop, skipping none.
            on_event: called with each event before it is applied.
            on_effect: called with each effect.
        """
        self.scene = scene
        self.job = Job(JOB_ID, START)
        self.incidents: dict[str, Incident] = {}
        self.events = self.judged = 0
        self._player = JobPlayer(self.job, START, policy, every_tick=every_tick)
        self._on_event = on_event
        self._on_effect = on_effect

    def run(self) -> Outcome:
        """Run to the end of the scene."""
        scene = self.scene
        last = START
        while (at := scene.next_at) < float("inf"):
            self._evaluate_until(at)
            if scene.next_at < at:
                continue  # a launcher that received a directive now acts first
            last = at
            for now, event in scene.step():
                self._take(now, event)
        self._evaluate_until(last)
        return outcome_of(self, last)

    def _evaluate_until(self, at: float) -> None:
        player = self._player
        while player.due < min(at, self.scene.next_at):
            now = player.due
            self.judged += 1
            self._deliver(now, player.evaluate(now))

    def _take(self, now: float, event: JobEvent) -> None:
        self.events += 1
        if self._on_event is not None:
            self._on_event(now, self.job, event)
        self._deliver(now, self._player.apply(event, now))
        if isinstance(event, NodeRegistration):
            self.scene.push_settings(settings_of(self.job), now)

    def _deliver(self, now: float, effects: list[Effect]) -> None:
        for effect in effects:
            if self._on_effect is not None:
                self._on_effect(now, effect)
            match effect:
                case Issue(directive):
                    self.scene.execute(directive, now)
                case Changed(incident):
                    self.incidents[incident.id] = incident


def evaluate(scene: Scene, policy: Mapping[str, Any] | None = None) -> Outcome:
    """Play a scene through the core and compare its verdicts with the expected ones."""
    return Simulation(scene, policy).run()


def outcome_of(simulation: Simulation, last: float) -> Outcome:
    """The outcome of a simulation that ended at ``last``."""
    outcome = Outcome(last - START, simulation.events, simulation.judged, restarts=simulation.job.restarts)
    incidents = [i for i in simulation.incidents.values() if i.kind is not VerdictKind.ORDERED]
    explained: set[str] = set()
    for expected in simulation.scene.expected_verdicts:
        ours = [i for i in incidents if _is_about(i, expected)]
        explained.update(i.id for i in ours)
        if not expected.passing:
            suspected = expected.fault.kind is FaultKind.NETWORK  # silence alone is no proof, and never acted on
            outcome.findings.append(_finding(expected, next((i for i in ours if i.confirmed or suspected), None)))
    for incident in incidents:
        outcome.alarms += incident.confirmed
        if incident.confirmed and incident.id not in explained:
            outcome.false_alarms.append(incident.reason)
        elif not incident.confirmed and incident.closed_at is not None:
            outcome.suspicions += 1
    return outcome


def _is_about(incident: Incident, expected: ExpectedVerdict) -> bool:
    closed = float("inf") if incident.closed_at is None else incident.closed_at
    return closed >= expected.at and incident.opened_at <= expected.until


def _finding(expected: ExpectedVerdict, incident: Incident | None) -> FaultResult:
    about = (str(expected.fault.kind), expected.fault.where, expected.at - START, expected.ranks)
    if incident is None:
        return FaultResult(*about)
    named = tuple(culprit.rank for culprit in incident.culprits)
    decided = incident.timeline.decided
    return FaultResult(
        *about,
        incident=incident.id,
        latency=max(0.0, incident.opened_at - expected.at),
        decided=None if decided is None else max(0.0, decided - expected.at),
        first_right=named[0] in expected.ranks if named and expected.ranks else not named and not expected.ranks,
        right=set(named) == set(expected.ranks) and {c.kind for c in incident.culprits} <= expected.classes,
        named=named,
        classes=tuple(str(c.kind) for c in incident.culprits),
        reason=incident.reason,
    )
