"""One job: everything the monitor knows about it, as data. ``apply`` puts events in; the rooms read and judge.

=============================  ======================================================================================
what                           where
=============================  ======================================================================================
ranks of the attempt           ``columns`` (:class:`~.ranks.RankColumns`), one array a fact
launchers                      ``nodes``, each a :class:`Node`; which of them take part: :mod:`.nodes`
limits                         ``policy`` and ``durations``; ``limits`` derives those in force
speed of the ranks             ``performance``, written by the straggler room
incidents                      ``incidents``, written by :mod:`.incident.state_machine`
queues for the next judgement  ``orders`` (of a person), ``notices`` (of ranks)
goodput                        ``ledger``
figures over time, for charts  ``trends``
values the script logs         ``logged``
=============================  ======================================================================================

It imports the state types of the rooms below it, which never import it; everything that decides is above it.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import DirectiveKind, JobState, NodeRole, VerdictKind
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import FAULTS, Directive, NodeRegistration, ProcessEvent
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.events import Order, RankIdentity
from rankwatch_monitor.core.goodput.ledger import Ledger
from rankwatch_monitor.core.hang.limits import Limits, in_force
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations
from rankwatch_monitor.core.incident_record import Incident, Notice, Standstill
from rankwatch_monitor.core.ranks import RankColumns
from rankwatch_monitor.core.regression.logged import LoggedValues
from rankwatch_monitor.core.regression.trends import TrendHistory
from rankwatch_monitor.core.stale import Previous, StaleReports
from rankwatch_monitor.core.straggler.state import Performance

KEPT_INCIDENTS: Final = 200
"""Incidents kept in memory for each job; older ones are in the store."""
KEPT_DIRECTIVES: Final = 100
KEPT_ORDERS: Final = 16
KEPT_NOTICES: Final = 64
KEPT_STANDSTILLS: Final = 16
KEPT_DEPARTED_NODES: Final = 64
"""Launchers that left or were lost and are still shown, so that a job of many restarts does not grow without bound."""
DROP_REASONS: Final = 64
"""Reasons for dropped telemetry that are counted for one job; about ten exist."""
PACE_WINDOW: Final = 30.0
"""Seconds over which the steps per second of a job are measured."""
PACE_SPAN: Final = 5.0
"""The same at least: reports that were delayed arrive together, and over one second would show many times the speed."""
PAUSE_SECONDS: Final = 10.0
PAUSE_STEPS: Final = 5.0
"""Without a completed step for so many seconds, and for the time of so many steps, the steps per second are 0."""
STALL_SECONDS: Final = 60.0
"""Seconds without a completed step after which a job is stalled, at the earliest."""
STALL_UNKNOWN: Final = 300.0
"""The same while only one step has completed, so that nothing is known of their duration."""
STALL_FACTOR: Final = 5.0
"""As many times the longest time between two steps that the attempt has shown: evaluations and checkpoints count."""


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """A node that the other launchers declared lost, with the ranks on it."""

    attempt: int
    """The attempt in which it ran these ranks."""
    ranks: tuple[int, ...]
    since: float
    """Time of its last sign of life."""
    reason: str


LAUNCHER_BYTES: Final = 1024
"""What a launcher takes beside its registration."""
_REGISTRATION: Final = tuple(each.name for each in fields(NodeRegistration))


def registration_bytes(registration: NodeRegistration) -> int:
    """The length of a registration as JSON."""
    return len(json.dumps(registration_to_json(registration)))


def registration_to_json(registration: NodeRegistration) -> dict[str, Any]:
    """A registration as JSON. A shallow copy, but for its few checks, as large jobs have 10,000 of them."""
    body = {name: getattr(registration, name) for name in _REGISTRATION}
    return body | {"checks": [asdict(each) for each in registration.checks]}


@dataclass(slots=True)
class Node:
    """A launcher and its last known state."""

    registration: NodeRegistration
    seen: float
    """Time of its last message."""
    attempt: int
    ranks: set[int] = field(default_factory=set)
    ended: ProcessEvent | None = None
    role: NodeRole = NodeRole.ACTIVE
    role_reason: str = ""
    lost: NodeLoss | None = None
    former: array[int] = field(default_factory=lambda: array("i"))
    """Ranks of the last earlier attempt in which it took part."""
    size: int = field(init=False, compare=False)
    """Bytes that the monitor holds for it, about: its registration as JSON, and :data:`LAUNCHER_BYTES`."""

    def __post_init__(self) -> None:
        """Measure it once."""
        self.size = LAUNCHER_BYTES + registration_bytes(self.registration)

    def departed(self, attempt: int) -> bool:
        """Whether it was lost, or ended in an attempt before this one."""
        return self.lost is not None or (self.ended is not None and self.ended.attempt < attempt)


@dataclass(slots=True)
class StopRequest:
    """The launchers asked the ranks of the attempt to save and stop."""

    at: float
    reason: str
    noted: bool = False
    """It is recorded in an incident."""


class Unended(NamedTuple):
    """A launch that was followed by another one and whose end nobody reported."""

    heard: float
    """When one of its ranks was last heard."""
    attempt: int


@dataclass(slots=True)
class Ending:
    """How a job ended."""

    state: JobState
    reason: str
    at: float
    cause: str = ""
    """Of a failure: what happened; empty: not stated apart from ``reason``."""
    no_restart: str = ""
    """Of a failure: a :class:`~rankwatch.contract.enums.NoRestart`; empty: another cause."""
    why_none: str = ""
    """The same as a clause."""


class SettingsPush(NamedTuple):
    """The settings that were last sent to launchers and ranks."""

    at: float
    limits: RankLimits
    settings: Mapping[str, Any]


@dataclass(slots=True)
class Drops:
    """Telemetry that the ranks of a job dropped, by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    _by_rank: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """By reason and rank: the process that counts, and its count so far."""

    def add(self, reason: str, identity: RankIdentity, count: int) -> None:
        """Add the increase of one rank's counter; a new process of a rank counts from 0 again."""
        if reason not in self.counts and len(self.counts) >= DROP_REASONS:
            return
        process, before = self._by_rank.get((reason, identity.rank), ("", 0))
        before = before if process == identity.instance else 0
        self.counts[reason] = self.counts.get(reason, 0) + max(0, count - before)
        self._by_rank[reason, identity.rank] = (identity.instance, max(count, before))


@dataclass(slots=True)
class Pace:
    """Steps per second of a job over :data:`PACE_WINDOW`, and whether any complete: from one look a second."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    """When the furthest iteration was first seen to be another one; at least the last two of them are kept."""
    seen_at: float = -inf
    """Time of the last look."""
    begun_at: float | None = None
    """Time of the first sample, which says nothing about when its step completed: no speed is measured from it."""
    longest: float = 0.0
    """The longest time between two samples."""
    excused_at: float = -inf
    """When a rank of a stalled job last stood within a section, which has a limit of its own."""

    def due(self, now: float) -> bool:
        """Whether it is time for a look."""
        return now - self.seen_at >= 1.0

    def add(self, now: float, iteration: int) -> None:
        """Take a look and drop samples outside the window."""
        self.seen_at = now
        if self.samples and self.samples[-1][1] == iteration:
            return
        if self.samples:
            self.longest = max(self.longest, now - self.stepped_at)
        elif self.begun_at is None:
            self.begun_at = now
        self.samples.append((now, iteration))
        # A pause stays in the window until what follows it is long enough to be measured.
        while len(self.samples) > 2 and now - self.samples[0][0] > PACE_WINDOW and now - self.samples[1][0] > PACE_SPAN:
            self.samples.popleft()

    @property
    def stepped_at(self) -> float:
        """When a step was last seen to complete; there must have been one."""
        return self.samples[-1][0]

    @property
    def limit(self) -> float:
        """Seconds without a step after which the job is stalled."""
        return max(STALL_SECONDS, STALL_FACTOR * self.longest) if self.longest else STALL_UNKNOWN

    @property
    def stalled(self) -> bool:
        """Whether no step has completed for so long, by the ranks' last report."""
        return bool(self.samples) and self.seen_at - self.stepped_at > self.limit

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second; None until two steps and :data:`PACE_SPAN` after the first sample; 0 in a pause.

        The step under way slows the speed down only once it has taken longer than those before it.
        """
        if self.stalled:
            return 0.0
        first = int(bool(self.samples) and self.samples[0][0] == self.begun_at)
        if len(self.samples) < first + 2 or self.seen_at - self.samples[first][0] < PACE_SPAN:
            return None
        (t0, i0), (t1, i1) = self.samples[first], self.samples[-1]
        if i1 <= i0:
            return None
        paused = self.seen_at - t1 > max(PAUSE_SECONDS, PAUSE_STEPS * (t1 - t0) / (i1 - i0))
        return 0.0 if paused else min((i1 - i0) / (t1 - t0), (i1 - i0 + 1) / (self.seen_at - t0))

    @property
    def between_samples(self) -> float | None:
        """Steps per second from the first sample to the last, also of a young attempt; None: unknown."""
        first = int(bool(self.samples) and self.samples[0][0] == self.begun_at)
        if len(self.samples) < first + 2:
            return None
        (t0, i0), (t1, i1) = self.samples[first], self.samples[-1]
        return (i1 - i0) / (t1 - t0) if i1 > i0 and t1 > t0 else None


class Job:
    """All that is known of one job."""

    def __init__(self, job_id: str, now: float, *, name: str = "", policy: Policy | None = None) -> None:
        self.id = job_id
        self.name = name or job_id
        self.created_at = now
        self.policy = policy or Policy()
        # The run and its current attempt.
        self.world_size = 0
        self.attempt = 0
        self.attempt_since = now
        self.restarts = self.given_back = 0
        """Restarts of this run; and how many of them training has got past, which cost the budget nothing."""
        self.restarting_attempt = 0
        self.final_attempt = 0
        """The attempt after whose failure no restart follows, as a launcher reported; 0: none."""
        self.launches = 0
        """How often the job was launched again after it had ended or disappeared."""
        self.ended: Ending | None = None
        self.stopping: StopRequest | None = None
        self.refuted_since: dict[int, tuple[float, float]] = {}
        """Of a rank that reports although it has exited, or the job has ended: since when, and when last."""
        # Ranks and launchers.
        self.columns = RankColumns()
        self.nodes: dict[str, Node] = {}
        self.nodes_version = 0
        """Incremented by every change of ``nodes`` that is stored."""
        self.last_heard = now
        """Time of the last message of any rank or launcher."""
        self.silence_baseline = now
        """Silence counts from here at the earliest: before it the monitor could receive nothing."""
        self.of_record = False
        """It was loaded to be read: nothing more will be heard of it."""
        self.shed_at = -math.inf
        """When the monitor last refused a report of this job under load."""
        self.instrumented_before = self.stepped_before = False
        """A rank of an earlier attempt of this run reported, completed a step."""
        self.pace = Pace()
        self.drops = Drops()
        self.stale = StaleReports()
        """Reports of other attempts, and of processes that do not own their rank."""
        self.previous: Previous | None = None
        self.unended: Unended | None = None
        """The launch before, if it ended without a word; until its incident is recorded."""
        self.heard_before = now
        """When a rank was last heard, at the latest known before ``columns`` were."""
        self.late_exits = False
        """Exits of the previous attempt were reported after this one had begun; they are looked at once."""
        self.told: dict[str, Hashable] = {}
        """By incident and straggler: what the launchers' consoles show of it (:mod:`.console`). Not stored."""
        self.distrust_until = 0.0
        """Until then no newcomer begins an attempt."""
        # Judgement.
        self.durations = ObservedDurations()
        self.performance = Performance()
        self.trends = TrendHistory()
        self.logged = LoggedValues()
        self.ledger = Ledger(now)
        self.verdicts_since: float | None = None
        """Since when some rank is over a limit; None: none is."""
        self.incidents: list[Incident] = []
        self.standstills: deque[Standstill] = deque(maxlen=KEPT_STANDSTILLS)
        """Where earlier attempts of this run stood when they were restarted for a limit that nobody configured."""
        self.last_incident = 0
        self.incident_counts: dict[VerdictKind, int] = {}
        self.orders: deque[Order] = deque(maxlen=KEPT_ORDERS)
        self.notices: deque[Notice] = deque(maxlen=KEPT_NOTICES)
        # What was sent.
        self.directives: list[Directive] = []
        self.last_directive = 0
        self.refused_step: int | None = None
        """Furthest iteration of a launcher that refused a stop step because its ranks had passed it."""
        self.last_settings: SettingsPush | None = None
        self._limits: tuple[Policy, int, Limits] | None = None

    # Derived ----------------------------------------------------------------------------------------------------------

    @property
    def open_incident(self) -> Incident | None:
        """The open incident; at most one is open, and its consequences join it."""
        return self.incidents[-1] if self.incidents and self.incidents[-1].open else None

    @property
    def rehearses(self) -> bool:
        """Faults are injected into its ranks, so that what happens to them says nothing of their hosts."""
        return any(FAULTS in node.registration.facts for node in self.nodes.values())

    @property
    def limits(self) -> Limits:
        """The limits in force, cached until the policy or the observed durations change."""
        known = self._limits
        if known is None or known[0] is not self.policy or known[1] != self.durations.version:
            known = self._limits = (self.policy, self.durations.version, in_force(self.policy, self.durations))
        return known[2]

    @property
    def restart_budget(self) -> int:
        """Restarts that this run may have had."""
        return self.policy.max_restarts + self.given_back

    @property
    def silence_since(self) -> float:
        """Silence counts from here at the earliest: a sender whose report was refused under load is not silent."""
        return max(self.silence_baseline, self.shed_at)

    @property
    def instrumented(self) -> bool:
        """Whether any rank has reported in this attempt."""
        return bool(self.columns.reported_R.any())

    @property
    def ever_instrumented(self) -> bool:
        """Whether any rank has reported in this run: its script calls ``rankwatch.init()``."""
        return self.instrumented_before or self.instrumented

    @property
    def counts_steps(self) -> bool:
        """Whether any rank has completed a step in this run."""
        return self.stepped_before or self.furthest_iteration is not None

    @property
    def furthest_iteration(self) -> int | None:
        """The last step that any rank of this attempt completed."""
        furthest = int(self.columns.iteration_R.max(initial=-1))
        return furthest if furthest >= 0 else None

    @property
    def steps_per_second(self) -> float | None:
        """Recent steps per second; None while unknown."""
        return self.pace.steps_per_second

    @property
    def dropped(self) -> dict[str, int]:
        """Telemetry that the ranks dropped, by reason, over all ranks."""
        return dict(self.drops.counts)

    # Changes ----------------------------------------------------------------------------------------------------------

    def make_room(self, rank: int) -> None:
        """Have columns for this rank."""
        if rank >= len(self.columns):
            self.columns.grow(max(rank + 1, self.world_size))

    def begin_attempt(self, attempt: int, at: float, world_size: int | None = None) -> None:
        """Begin a new attempt at ``at``: all that was known of the ranks belonged to the one before."""
        self._keep_previous(attempt)
        self.instrumented_before, self.stepped_before = self.ever_instrumented, self.counts_steps
        self.attempt, self.attempt_since, self.silence_baseline = attempt, at, at
        self.world_size = world_size or self.world_size  # an elastic job may come back smaller
        self.durations.begin_attempt(world_size)
        self.columns = RankColumns(self.world_size)
        self.pace = Pace()
        self.performance.begin_attempt()
        self.logged.begin_attempt()
        self.ended = self.stopping = None
        self.refuted_since.clear()
        self._turn_nodes_over()
        self.nodes_version += 1

    def _keep_previous(self, attempt: int) -> None:
        """Keep the current attempt, in case that ``attempt`` is not real; or the one before, if the current one is not.

        The current one is, once most of the ranks before have reported in it and none of them goes on as before.
        """
        reporters, previous = int(self.columns.reported_R.sum()), self.previous
        if attempt <= self.attempt:
            self.previous = None
            return
        real = reporters > 0 if previous is None else 2 * reporters > previous.reporters and not self.stale.surviving
        if real:
            begun, nodes = (self.attempt, self.attempt_since, self.world_size), dict(self.nodes)
            ranks = {name: frozenset(node.ranks) for name, node in nodes.items()}
            self.previous = Previous(*begun, self.columns, nodes, ranks, reporters)
            self.stale.forget()

    def restore_previous(self, now: float) -> None:
        """Return to the attempt before the current one, whose ranks still run."""
        previous = self.previous
        assert previous is not None
        for name in previous.nodes.keys() - self.nodes.keys():
            self.nodes[name] = previous.nodes[name]
            self.nodes[name].seen = now  # its messages went unnoticed
        self.begin_attempt(previous.attempt, previous.since, previous.world_size)
        self.columns, self.silence_baseline, self.previous = previous.columns, now, None
        for name, node in self.nodes.items():
            node.ranks = set(previous.ranks.get(name, ()))
        self.stale.forget()

    def begin_run(self, now: float) -> None:
        """Begin a new run of the same job: attempts count from 0 again, the history stays."""
        if self.ended is None and self.open_incident is None and not self._shut_down():
            heard = float(np.fmax.reduce(self.columns.last_heard_R, initial=self.heard_before))
            self.unended = Unended(heard, self.attempt)
        self.nodes.clear()
        self.standstills.clear()
        self.launches += 1
        self.restarts = self.given_back = self.restarting_attempt = self.final_attempt = 0
        self.begin_attempt(0, now)
        self.instrumented_before = self.stepped_before = False

    def _shut_down(self) -> bool:
        """Whether nothing ran in this run, or all ranks that reported have shut down by themselves."""
        if not self.instrumented:
            return not self.instrumented_before and not any(node.ranks for node in self.nodes.values())
        return bool(np.all(self.columns.shut_down_R | ~self.columns.reported_R))

    def begin_launch(self, now: float) -> None:
        """Begin a new run with the launchers that have started no rank: a new rendezvous counts attempts from 1.

        The attempt before is kept: if its ranks go on, that launch is not real.
        """
        fresh = {name: node for name, node in self.nodes.items() if node.attempt == 0}
        self._keep_previous(self.attempt + 1)
        previous = self.previous
        self.begin_run(now)
        self.nodes.update(fresh)
        self.previous = previous

    def _turn_nodes_over(self) -> None:
        for node in self.nodes.values():
            if node.ranks:
                node.former, node.ranks = array("i", node.ranks), set()
        departed = [name for name, node in self.nodes.items() if node.departed(self.attempt)]
        for name in departed[:-KEPT_DEPARTED_NODES]:
            del self.nodes[name]

    def new_directive(self, kind: DirectiveKind, reason: str, **more: Any) -> Directive:
        """Make the next directive of this job and remember it; ``more`` are fields of :class:`Directive`."""
        self.last_directive += 1
        directive = Directive(id=self.last_directive, kind=kind, attempt=self.attempt, reason=reason, **more)
        self.directives.append(directive)
        del self.directives[:-KEPT_DIRECTIVES]
        return directive
