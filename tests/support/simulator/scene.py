"""A discrete-event simulation of one job: what its ranks and launchers send, in order of arrival. No clock, no IO.

How this works
--------------
A heap holds the next events; :meth:`Scene.step` executes one and returns what arrives at the monitor by it. The caller
passes directives back with :meth:`Scene.execute`. Ranks export at their interval and, like those of the SDK,
immediately when they exceed a limit that was pushed to them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rankwatch.contract.enums import AckState, CulpritClass, DirectiveKind, ProcessEventKind
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import Directive, DirectiveAck
from rankwatch_monitor.core.events import Acknowledged, JobEvent, RankIdentity
from support.simulator.actors import JOB_ID, LATE_INTERVALS, LATE_SECONDS, Node, Rank
from support.simulator.plan import EXPECTED_CLASSES, Fault, FaultKind, Plan
from support.simulator.workload import Activity, JobProgress

START: Final = 1_800_000_000.0
"""Unix seconds at which every scene begins."""
OBSERVE_INTERVAL: Final = 0.5
IDLE_OBSERVE_INTERVAL: Final = 5.0
LIVENESS_INTERVAL: Final = 0.25
LIVENESS_MARGIN: Final = 0.005
OBSERVE_MARGIN: Final = 0.01
EXPORT_JITTER: Final = 0.1
_ELSEWHERE: Final = -2
"""Activity number of a rank that does not advance with the others."""

Arrival = tuple[float, JobEvent]
EXIT_DETECTION: Final = 0.1
"""Seconds until a launcher detects an exit."""


@dataclass(slots=True)
class ExpectedVerdict:
    """The expected verdict on one fault. Times are unix seconds."""

    fault: Fault
    at: float
    ranks: tuple[int, ...]
    """The culprits; may be empty."""
    classes: frozenset[CulpritClass]
    until: float = math.inf
    """When its attempt ended, or the fault by itself."""

    @property
    def passing(self) -> bool:
        """It ends by itself: it may cause a suspicion, and needs no action."""
        return self.fault.seconds is not None


class Scene:
    """One job from its launch to its end, with its faults."""

    def __init__(self, plan: Plan, *, on_event: Callable[[float, str], None] | None = None) -> None:
        """Schedule the launch.

        Args:
            plan: the job, its durations and its faults.
            on_event: called with descriptions of events in the job that the monitor cannot see.

        Raises:
            ValueError: the plan is invalid.
        """
        self.plan = plan.checked()
        self.attempt = 0
        self.over = False
        self._rng = random.Random(plan.seed)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._out: list[Arrival] = []
        self._limits = RankLimits()
        self._shortest = math.inf
        self._ending = False
        """The attempt is over, and the next one has not begun."""
        self._ranks: list[Rank] = []
        self._nodes: list[Node] = []
        self._progress = JobProgress(plan, self._rng, 0, START)
        self.expected_verdicts: list[ExpectedVerdict] = []
        self._on_event = on_event
        self._pending = list(plan.faults)
        self._saved = 0
        self._stop_step: int | None = None
        for number in range(plan.nodes):
            size = sum(1 for rank in range(plan.world) if plan.node_of(rank) == number)
            self._nodes.append(Node(number, f"node-{number}", f"host-{number}", size))
        self._at(START, self._register)
        self._at(START + plan.seconds, self._finish)

    # Driving the scene ------------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float:
        """The time of the next event, whether or not anything arrives by it; infinite at the end."""
        return self._heap[0][0] if self._heap else math.inf

    def step(self) -> list[Arrival]:
        """Execute the next event; returns what arrives by it."""
        at, _, call, arguments = heapq.heappop(self._heap)
        call(at, *arguments)
        arrived, self._out = self._out, []
        return arrived

    def events(self) -> Iterator[Arrival]:
        """Everything that arrives when no directives are given."""
        while self._heap:
            yield from self.step()

    def push_settings(self, settings: Mapping[str, Any], now: float) -> None:
        """The launchers pass settings on to the ranks, which apply the new limits at their next liveness tick."""
        self._limits = RankLimits.from_settings(settings)
        self._shortest = _shortest(self._limits)
        self._arm_all(now)

    def execute(self, directive: Directive, now: float) -> None:
        """The launchers receive a directive."""
        if not self.plan.launchers or self.over:
            return
        at = now + self._rng.uniform(0.01, 0.1)
        if directive.kind is DirectiveKind.SETTINGS:
            self._at(at, lambda then: self.push_settings(directive.settings, then))
            return
        for node in self._nodes:
            if not node.gone:
                self._at(at, self._execute_on, node, directive)

    # Attempts ---------------------------------------------------------------------------------------------------------

    def _register(self, now: float) -> None:
        if self.plan.launchers:
            for node in self._nodes:
                self._out.append((now, node.registration(0)))
        self._launch(now)

    def _launch(self, now: float) -> None:
        if self.over:
            return
        plan = self.plan
        self.attempt += 1
        for node in self._nodes:
            if node.gone and plan.launchers:  # replaced by another node
                node.gone, node.name, node.host = False, f"{node.name}x", f"{node.host}x"
                self._out.append((now, node.registration(self.attempt)))
            node.proxied.clear()
        self._progress = JobProgress(plan, self._rng, self._saved, now + plan.boot)
        self._ranks = [self._process(number, now) for number in range(plan.world)]
        for fault in [f for f in self._pending if f.kind is FaultKind.NEVER_STARTED and f.attempt == self.attempt]:
            self._pending.remove(fault)
            self._strike(now, fault, self.attempt)
        for rank in self._ranks:
            if plan.launchers:
                node = self._nodes[rank.node]
                started = node.event(ProcessEventKind.STARTED, self.attempt, world_size=plan.world, **rank.named)
                self._out.append((now, started))
            self._at(now + plan.boot + self._rng.uniform(0.0, 0.2), self._export, rank)
        self._at(now + plan.boot, self._begin, self.attempt)
        for node in self._nodes:
            if plan.launchers:
                self._observe_at(node, now + self._rng.uniform(0.0, OBSERVE_INTERVAL))

    def _process(self, number: int, now: float) -> Rank:
        plan, attempt = self.plan, self.attempt
        node = plan.node_of(number)
        first = next(rank for rank in range(plan.world) if plan.node_of(rank) == node)
        identity = RankIdentity(
            JOB_ID,
            number,
            job_name=JOB_ID,
            local_rank=number - first,
            world_size=plan.world,
            attempt=attempt if plan.launchers else 0,
            host=self._nodes[node].host,
            pid=10_000 + attempt * plan.world + number,
            instance=f"{JOB_ID}/{attempt}/{number}",
            started_at=now,
        )
        return Rank(number, identity, self._progress.at, node=node, all_reported_at=now)

    def _end_attempt(self, now: float) -> None:
        for rank in self._ranks:
            rank.over = True
        self._progress.ends_at = math.inf
        for expected in self.expected_verdicts:
            expected.until = min(expected.until, now)

    def _restart(self, now: float, attempt: int, reason: str) -> None:
        if attempt != self.attempt or self._ending or self.over:
            return
        self._ending = True
        self._end_attempt(now)
        for node in self._nodes:
            if self.plan.launchers and not node.gone:
                self._out.append((now, node.event(ProcessEventKind.RESTARTING, attempt, reason=reason)))
        self._emit_event(now, f"the ranks are restarted: {reason}; they resume at step {self._saved}")
        self._at(now + self.plan.restart, self._relaunch)

    def _relaunch(self, now: float) -> None:
        self._ending = False
        self._launch(now)

    def _finish(self, now: float, kind: ProcessEventKind = ProcessEventKind.FINISHED, reason: str = "") -> None:
        if self.over:
            return
        self.over = True
        healthy = not any(rank.fault or rank.disconnected for rank in self._ranks) and not self._ending
        if healthy or kind is not ProcessEventKind.FINISHED:
            for rank in self._ranks:
                if rank.exports_arrive:
                    self._out.append((now, rank.export(self._progress, now, ended=True)))
            for node in self._nodes:
                if self.plan.launchers and not node.gone:
                    self._out.append((now, node.event(kind, self.attempt, reason=reason)))
            self._emit_event(now, f"the job ends{f': {reason}' if reason else ''}")
        self._end_attempt(now)
        self._heap.clear()

    # Activities -------------------------------------------------------------------------------------------------------

    def _begin(self, now: float, attempt: int) -> None:
        if attempt != self.attempt or self._ending:
            return
        progress = self._progress
        activity = progress.begin(now)
        if self._pending:
            self._schedule_faults(activity, now)
        if activity.collective and self._rank_is_missing():
            progress.block()
            self._observe_closely(now)
        else:
            self._at(progress.ends_at, self._end, attempt, progress.number)
        if progress.ends_at - progress.oldest > self._shortest:
            self._arm_all(now)

    def _end(self, now: float, attempt: int, number: int) -> None:
        progress = self._progress
        if attempt != self.attempt or number != progress.number or progress.ends_at > now or self._ending:
            return
        activity = progress.activity
        stepped = progress.at.first_iteration is not None
        progress.end(now)
        if not stepped and progress.at.first_iteration is not None:
            for rank in self._ranks:
                self._at(now + self._rng.uniform(0.0, LIVENESS_INTERVAL), self._report, rank)
        if activity.saves:
            self._saved = activity.step + 1
        if activity.completes and self._stop_step is not None and activity.step >= self._stop_step:
            self._finish(now, ProcessEventKind.STOPPED, f"stopped at step {activity.step}, as agreed")
        elif activity.relaunches:
            self._restart(now, attempt, "relaunched from outside")
        else:
            self._begin(now, attempt)

    def _rank_is_missing(self) -> bool:
        return any(rank.fault is not None and rank.fault is not FaultKind.STALL for rank in self._ranks)

    # Faults -----------------------------------------------------------------------------------------------------------

    def _schedule_faults(self, activity: Activity, now: float) -> None:
        for fault in [f for f in self._pending if _strikes_in(f, activity, self.attempt)]:
            self._pending.remove(fault)
            self._at(now + activity.seconds * self._rng.uniform(0.1, 0.9), self._strike, fault, self.attempt)

    def _strike(self, now: float, fault: Fault, attempt: int) -> None:
        if attempt != self.attempt or self._ending or self.over:
            return
        struck = self._struck_by(fault)
        named = () if fault.kind is FaultKind.STALL else tuple(rank.number for rank in struck)
        classes = EXPECTED_CLASSES[fault.kind]
        if not self.plan.launchers and named:
            classes |= {CulpritClass.BEHIND, CulpritClass.HOST_SILENT}  # no launcher observes the processes
        if fault.kind is not FaultKind.NETWORK or not self.plan.launchers:  # launchers report for it
            self.expected_verdicts.append(ExpectedVerdict(fault, now, named, classes))
        self._emit_event(now, self._description(fault, struck))
        for rank in struck:
            if fault.kind is FaultKind.NETWORK:
                rank.disconnected, rank.missed_at = True, now + LATE_INTERVALS * self.plan.interval + LATE_SECONDS
                continue
            rank.fault, rank.fault_at, rank.disconnected = fault.kind, now, fault.kind is FaultKind.NODE_LOST
            if fault.kind is not FaultKind.STALL:
                rank.at, rank.runs_until = self._progress.at.copy(), self._progress.runs
        if fault.kind is FaultKind.NODE_LOST:
            for rank in struck:
                self._nodes[rank.node].gone = True
            if self.plan.gives_up and self.plan.launchers:
                gone = sorted({rank.node for rank in struck})
                self._at(now + self.plan.gives_up, self._given_up, gone, attempt)
        if fault.kind in (FaultKind.KILL, FaultKind.EXIT) and self.plan.launchers:
            for rank in struck:
                self._at(now + EXIT_DETECTION, self._exited, rank, attempt)
        if fault.kind is FaultKind.NEVER_STARTED:
            return
        if fault.kind is FaultKind.STALL or (fault.freezes and self._progress.activity.collective):
            self._progress.block()
        self._observe_closely(now)
        self._arm_all(now)
        if fault.seconds is not None:
            self._at(now + fault.seconds, self._recover, struck, attempt)

    def _struck_by(self, fault: Fault) -> list[Rank]:
        if fault.kind is FaultKind.STALL:
            return list(self._ranks)
        if fault.kind is FaultKind.NODE_LOST:
            nodes = {self.plan.node_of(number) for number in fault.ranks}
            return [rank for rank in self._ranks if rank.node in nodes]
        return [self._ranks[number] for number in fault.ranks]

    def _description(self, fault: Fault, struck: list[Rank]) -> str:
        activity = self._progress.activity
        where = "all ranks" if fault.kind is FaultKind.STALL else "rank " + ", ".join(str(r.number) for r in struck[:8])
        place = f" in section {'/'.join(activity.path)} of step {activity.step}" if activity.path else ""
        return f"fault {fault.kind}: {where}{place}"

    def _recover(self, now: float, struck: list[Rank], attempt: int) -> None:
        if attempt != self.attempt or self._ending or self.over:
            return
        for rank in struck:
            rank.fault, rank.at, rank.disconnected, rank.runs_until = None, self._progress.at, False, -1
            rank.missed_at = math.inf
        for expected in self.expected_verdicts:
            if expected.passing and expected.at + (expected.fault.seconds or 0.0) <= now + 1e-6:
                expected.until = min(expected.until, now)
        self._emit_event(now, "the fault ends by itself")
        progress = self._progress
        if progress.blocked and not self._rank_is_missing():
            progress.unblock(now)
            self._at(progress.ends_at, self._end, attempt, progress.number)

    def _given_up(self, now: float, gone: list[int], attempt: int) -> None:
        """The launchers give up lost nodes after the timeout, and restart without them."""
        printer = next((node for node in self._nodes if not node.gone), None)
        if attempt != self.attempt or self._ending or self.over or printer is None:
            return
        reason = f"no heartbeat of its launcher for {self.plan.gives_up:.1f} s"
        for number in gone:
            lost = self._nodes[number].name
            self._out.append((now, printer.event(ProcessEventKind.NODE_LOST, attempt, lost_node=lost, reason=reason)))
        self._at(now + 0.3, self._restart, attempt, f"{self._nodes[gone[0]].name} is lost")

    def _exited(self, now: float, rank: Rank, attempt: int) -> None:
        """A launcher detects an exit: it captures the stacks of its other ranks, and the job is restarted."""
        if attempt != self.attempt or self._ending:
            return
        node = self._nodes[rank.node]
        how: dict[str, Any] = {"signal": "SIGKILL"} if rank.fault is FaultKind.KILL else {"exit_code": 1}
        self._out.append((now, node.event(ProcessEventKind.EXITED, attempt, age=EXIT_DETECTION, **rank.named, **how)))
        self._at(now + 0.2, self._send_evidence, node, attempt, None, None)
        self._at(now + 0.3, self._restart, attempt, f"rank {rank.number} has ended")

    def _execute_on(self, now: float, node: Node, directive: Directive) -> None:
        attempt = directive.attempt
        if attempt != self.attempt or self._ending or self.over:
            self._acknowledge(now, node, directive, AckState.SUPERSEDED)
            return
        match directive.kind:
            case DirectiveKind.CAPTURE:
                at = now + self._rng.uniform(0.1, 0.4)
                self._at(at, self._send_evidence, node, attempt, directive.incident_id, directive)
            case DirectiveKind.RESTART:
                self._acknowledge(now, node, directive, AckState.DONE)
                self._at(now + 0.2, self._restart, attempt, directive.reason)
            case DirectiveKind.STOP:
                self._acknowledge(now, node, directive, AckState.DONE)
                kind = ProcessEventKind.FAILED if directive.no_restart else ProcessEventKind.STOPPED
                self._at(now + 0.2, self._finish, kind, directive.reason)
            case DirectiveKind.SAVE_AND_STOP:
                self._stop_step = directive.stop_step
                self._acknowledge(now, node, directive, AckState.DONE)

    def _emit_event(self, now: float, text: str) -> None:
        if self._on_event is not None:
            self._on_event(now, text)

    # What ranks and launchers send ------------------------------------------------------------------------------------

    def _export(self, now: float, rank: Rank) -> None:
        """The export at the interval."""
        if rank.over:
            return
        self._report(now, rank)
        interval = self.plan.interval * (1.0 + self._rng.uniform(-EXPORT_JITTER, EXPORT_JITTER))
        self._at(now + interval, self._export, rank)

    def _report(self, now: float, rank: Rank) -> None:
        if not rank.exports_arrive:
            return
        report = rank.export(self._progress, now)
        if rank.number == 0 and self._progress.runs > rank.reported_runs - 1:
            self._progress.drop_runs(min(each.reported_runs for each in self._ranks))
        if not self.plan.delay:
            self._out.append((now, report))
            return
        rank.arrives_at = max(rank.arrives_at, now + self._rng.uniform(0.0, self.plan.delay))
        self._at(rank.arrives_at, self._arrives, report)

    def _arrives(self, now: float, event: JobEvent) -> None:
        self._out.append((now, event))

    def _observe_closely(self, now: float) -> None:
        for node in self._nodes:
            if self.plan.launchers:
                self._observe_at(node, now + self._rng.uniform(0.0, OBSERVE_INTERVAL))

    def _observe_at(self, node: Node, at: float) -> None:
        node.generation += 1
        self._at(at, self._observe, node, node.generation)

    def _observe(self, now: float, node: Node, number: int) -> None:
        if node.gone or number != node.generation or self.over:
            return
        trouble = not self._ending and self._needs_watching(now)
        ranks: Iterable[Rank] = self._ranks if trouble or node.proxied else ()
        observation = node.observe_proxied(ranks, self._limits, self.attempt, now)
        if observation.ranks or now - node.sent_at >= IDLE_OBSERVE_INTERVAL:
            node.sent_at = now
            self._out.append((now, observation))
        self._observe_at(node, now + (OBSERVE_INTERVAL if trouble or node.proxied else IDLE_OBSERVE_INTERVAL))

    def _needs_watching(self, now: float) -> bool:
        progress = self._progress
        if progress.blocked or any(rank.fault is not None or rank.disconnected for rank in self._ranks):
            return True
        return now - progress.oldest > self._shortest and bool(self._limits.passed(progress.at.activity(now))[0])

    def _send_evidence(
        self, now: float, node: Node, attempt: int, incident_id: str | None, directive: Directive | None
    ) -> None:
        if node.gone or attempt != self.attempt or self._ending:
            return
        mine = [rank for rank in self._ranks if rank.node == node.number]
        self._out.append((now, node.observe(mine, attempt, now)))
        number = None if directive is None else directive.id
        evidence = node.evidence(mine, attempt, incident_id=incident_id, directive=number, seconds=0.2)
        self._out.append((now, evidence))
        if directive is not None:
            self._acknowledge(now, node, directive, AckState.DONE)

    def _acknowledge(self, now: float, node: Node, directive: Directive, state: AckState) -> None:
        self._out.append((now, Acknowledged(directive.id, DirectiveAck(node.name, state))))

    # Limits -----------------------------------------------------------------------------------------------------------

    def _arm_all(self, now: float) -> None:
        if self._shortest == math.inf or self._ending:
            return
        for rank in self._ranks:
            if rank.exports_arrive:
                self._arm(now, rank)

    def _arm(self, now: float, rank: Rank) -> None:
        """Have a rank report when it exceeds its next limit, as its liveness thread does."""
        progress = self._progress
        place = self._place(rank)
        standing, ahead = self._limits.passed(rank.at.activity(now))
        passed = frozenset(standing)
        gained = passed - rank.passed if rank.passed_in == place else passed
        rank.passed, rank.passed_in = passed, place
        rank.armed += 1
        if gained:
            self._at(now + self._rng.uniform(0.0, LIVENESS_INTERVAL), self._report, rank)
        ends_at = math.inf if place == _ELSEWHERE else progress.ends_at
        if now + ahead + LIVENESS_MARGIN < ends_at:
            self._at(now + ahead + LIVENESS_MARGIN, self._passes, rank, rank.armed, place)

    def _passes(self, now: float, rank: Rank, armed: int, place: int) -> None:
        if rank.over or armed != rank.armed or place != self._place(rank):
            return
        self._report(now, rank)
        standing, _ = self._limits.passed(rank.at.activity(now))
        rank.passed, rank.passed_in = frozenset(standing), place
        if self.plan.launchers:
            self._observe_at(self._nodes[rank.node], now + OBSERVE_MARGIN - LIVENESS_MARGIN)
        self._arm(now, rank)

    def _place(self, rank: Rank) -> int:
        """The number of its activity."""
        return self._progress.number if rank.at is self._progress.at else _ELSEWHERE

    def _at(self, at: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, call, arguments))


def _strikes_in(fault: Fault, activity: Activity, attempt: int) -> bool:
    return (
        fault.attempt == attempt
        and fault.where in activity.path
        and (fault.step is None or activity.step >= fault.step)
        and fault.kind is not FaultKind.NEVER_STARTED
    )


def _shortest(limits: RankLimits) -> float:
    named = (*limits.sections.values(), *limits.learned.values())
    others = (limits.heartbeat, limits.out_of_section, limits.first_time)
    return min((*named, *(each for each in others if each is not None)), default=math.inf)
