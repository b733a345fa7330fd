"""A scene played through the core, and how well it was judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwatch.contract.enums import VerdictKind
from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core.effects import Changed, Effect, Issue
from rankwatch_monitor.core.events import JobEvent
from rankwatch_monitor.core.incident.incident import Incident
from rankwatch_monitor.core.incident.settings_push import settings_of
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import Play
from rankwatch_monitor.simulator.actors import JOB_ID
from rankwatch_monitor.simulator.scene import START, Answer, Scene


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and what was found of it."""

    kind: str
    section: str
    at: float
    ranks: tuple[int, ...]
    incident: str | None = None
    """The incident that it was found as; None: it was missed."""
    latency: float | None = None
    """Seconds from the fault to the incident."""
    decided: float | None = None
    """Seconds from the fault to the decision on what to do."""
    first_right: bool = False
    """The first rank named is a culprit, or rightly nobody was."""
    right: bool = False
    """Exactly the right ranks were named, and for the right cause."""
    named: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class Outcome:
    """How a scene was judged."""

    seconds: float = 0.0
    events: int = 0
    judged: int = 0
    """Times the core was asked to judge."""
    alarms: int = 0
    """Incidents that were confirmed."""
    false_alarms: list[str] = field(default_factory=list)
    """The sentences of alarms in which nothing was wrong."""
    suspicions: int = 0
    """Incidents opened on a limit that nobody configured, which closed as the ranks went on by themselves."""
    restarts: int = 0
    findings: list[Finding] = field(default_factory=list)
    """One for each fault that does not end by itself."""

    @property
    def missed(self) -> list[Finding]:
        """Faults that were not found."""
        return [finding for finding in self.findings if finding.incident is None]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seconds": self.seconds,
            "events": self.events,
            "judged": self.judged,
            "alarms": self.alarms,
            "false_alarms": self.false_alarms,
            "suspicions": self.suspicions,
            "restarts": self.restarts,
            "faults": [{name: getattr(each, name) for name in Finding.__slots__} for each in self.findings],
        }


class Performance:
    """A scene that is being played: events into the core, directives back to the launchers."""

    def __init__(
        self,
        scene: Scene,
        policy: Mapping[str, Any] | None = None,
        *,
        every_tick: bool = False,
        on_event: Callable[[float, Job, JobEvent], None] | None = None,
        on_effect: Callable[[float, Effect], None] | None = None,
    ) -> None:
        """Make ready.

        Args:
            scene: what is played.
            policy: settings that differ from the defaults.
            every_tick: judge at every tick of the loop, also where nothing can come of it.
            on_event: told of each event before it is applied.
            on_effect: told of everything that is decided.
        """
        self.scene = scene
        self.job = Job(JOB_ID, START)
        self.incidents: dict[str, Incident] = {}
        self.events = self.judged = 0
        self._play = Play(self.job, START, policy, every_tick=every_tick)
        self._on_event = on_event
        self._on_effect = on_effect

    def run(self) -> Outcome:
        """Play it to its end."""
        scene = self.scene
        last = START
        while (at := scene.next_at) < float("inf"):
            self._judge_until(at)
            if scene.next_at < at:
                continue  # a launcher that was told something now acts before
            last = at
            for now, event in scene.step():
                self._take(now, event)
        self._judge_until(last)
        return judged(self, last)

    def _judge_until(self, at: float) -> None:
        play = self._play
        while play.due < min(at, self.scene.next_at):
            now = play.due
            self.judged += 1
            self._deliver(now, play.judge(now))

    def _take(self, now: float, event: JobEvent) -> None:
        self.events += 1
        if self._on_event is not None:
            self._on_event(now, self.job, event)
        self._deliver(now, self._play.take(event, now))
        if isinstance(event, NodeRegistration):
            self.scene.hand_down(settings_of(self.job), now)

    def _deliver(self, now: float, effects: list[Effect]) -> None:
        for effect in effects:
            if self._on_effect is not None:
                self._on_effect(now, effect)
            match effect:
                case Issue(directive):
                    self.scene.obey(directive, now)
                case Changed(incident):
                    self.incidents[incident.id] = incident


def evaluate(scene: Scene, policy: Mapping[str, Any] | None = None, *, every_tick: bool = False) -> Outcome:
    """Play a scene through the core and compare what was found with its answers."""
    return Performance(scene, policy, every_tick=every_tick).run()


def judged(performance: Performance, last: float) -> Outcome:
    """What came of a performance that ended at ``last``."""
    outcome = Outcome(last - START, performance.events, performance.judged, restarts=performance.job.restarts)
    incidents = [i for i in performance.incidents.values() if i.kind is not VerdictKind.ORDERED]
    explained: set[str] = set()
    for answer in performance.scene.answers:
        ours = [i for i in incidents if _is_about(i, answer)]
        explained.update(i.id for i in ours)
        if not answer.passing:
            outcome.findings.append(_finding(answer, next((i for i in ours if i.confirmed), None)))
    for incident in incidents:
        outcome.alarms += incident.confirmed
        if incident.confirmed and incident.id not in explained:
            outcome.false_alarms.append(incident.reason)
        elif not incident.confirmed and incident.closed_at is not None:
            outcome.suspicions += 1
    return outcome


def _is_about(incident: Incident, answer: Answer) -> bool:
    closed = float("inf") if incident.closed_at is None else incident.closed_at
    return closed >= answer.at and incident.opened_at <= answer.until


def _finding(answer: Answer, incident: Incident | None) -> Finding:
    about = (str(answer.fault.kind), answer.fault.where, answer.at - START, answer.ranks)
    if incident is None:
        return Finding(*about)
    named = tuple(culprit.rank for culprit in incident.culprits)
    decided = incident.timeline.decided
    return Finding(
        *about,
        incident=incident.id,
        latency=max(0.0, incident.opened_at - answer.at),
        decided=None if decided is None else max(0.0, decided - answer.at),
        first_right=named[0] in answer.ranks if named and answer.ranks else not named and not answer.ranks,
        right=set(named) == set(answer.ranks) and {c.kind for c in incident.culprits} <= answer.classes,
        named=named,
        classes=tuple(str(c.kind) for c in incident.culprits),
        reason=incident.reason,
    )
