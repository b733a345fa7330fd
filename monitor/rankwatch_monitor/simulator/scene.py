"""A simulated job: what its ranks and launchers send, in the order in which it arrives. No wall clock, no IO.

How this works
--------------
A heap holds what happens next; :meth:`Scene.step` lets one thing happen and returns what arrives at the monitor by it.
Whoever plays the scene gives directives back by :meth:`Scene.obey`, and the launchers do as they are told. Ranks export
at their interval and, like those of the SDK, at once when they pass a limit that was handed down to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rankwatch.contract.enums import AckState, CulpritClass, DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.events import RankIdentity
from rankwatch_monitor.simulator.actors import JOB_ID, LATE_INTERVALS, LATE_SECONDS, Node, Rank
from rankwatch_monitor.simulator.engine import LOOK_SECONDS, PULSE_SECONDS, START, Stage
from rankwatch_monitor.simulator.plan import ANSWERS, Fault, FaultKind, Plan
from rankwatch_monitor.simulator.progress import Track
from rankwatch_monitor.simulator.workload import Act

NOTICED: Final = 0.1
"""Seconds until a launcher has noticed an exit."""


@dataclass(slots=True)
class Answer:
    """What is right about one fault. Times are unix seconds."""

    fault: Fault
    at: float
    ranks: tuple[int, ...]
    """To be named; empty: nobody."""
    classes: frozenset[CulpritClass]
    until: float = math.inf
    """When the attempt in which it struck was ended, or it ended by itself."""

    @property
    def passing(self) -> bool:
        """It ends by itself: it may be suspected, and nothing has to be done about it."""
        return self.fault.seconds is not None


class Scene(Stage):
    """One job from its launch to its end, with everything that goes wrong in it."""

    def __init__(self, plan: Plan, *, on_news: Callable[[float, str], None] | None = None) -> None:
        """Set the stage.

        Args:
            plan: the job, its habits and its faults.
            on_news: told in words of what happens to the job itself, which the monitor does not see.

        Raises:
            ValueError: the plan makes no sense.
        """
        super().__init__(plan)
        self.answers: list[Answer] = []
        self._on_news = on_news
        self._pending = list(plan.faults)
        self._saved = 0
        self._stop_step: int | None = None
        for number in range(plan.nodes):
            size = sum(1 for rank in range(plan.world) if plan.node_of(rank) == number)
            self._nodes.append(Node(number, f"node-{number}", f"host-{number}", size))
        self._at(START, self._arrive_at_the_cluster)
        self._at(START + plan.seconds, self._finish)

    # To be played -----------------------------------------------------------------------------------------------------

    def obey(self, directive: Directive, now: float) -> None:
        """The launchers receive a directive."""
        if not self.plan.launchers or self.over:
            return
        at = now + self._rng.uniform(0.01, 0.1)
        if directive.kind is DirectiveKind.SETTINGS:
            self._at(at, lambda then: self.hand_down(directive.settings, then))
            return
        for node in self._nodes:
            if not node.gone:
                self._at(at, self._node_obeys, node, directive)

    # Attempts ---------------------------------------------------------------------------------------------------------

    def _arrive_at_the_cluster(self, now: float) -> None:
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
            if node.gone and plan.launchers:  # another one takes its place
                node.gone, node.name, node.host = False, f"{node.name}x", f"{node.host}x"
                self._out.append((now, node.registration(self.attempt)))
            node.spoken_for.clear()
        self._ranks = [self._process(number, now) for number in range(plan.world)]
        self._track = Track(plan, self._rng, self._saved, now + plan.boot)
        for fault in [f for f in self._pending if f.kind is FaultKind.NEVER_STARTED and f.attempt == self.attempt]:
            self._pending.remove(fault)
            self._strike(now, fault, self.attempt)
        for rank in self._ranks:
            if plan.launchers:
                node = self._nodes[rank.node]
                details = {"rank": rank.number, "local_rank": rank.identity.local_rank, "pid": rank.identity.pid}
                started = node.event(ProcessEventKind.STARTED, self.attempt, world_size=plan.world, **details)
                self._out.append((now, started))
            self._at(now + plan.boot + self._rng.uniform(0.0, 0.2), self._export, rank)
        self._at(now + plan.boot, self._begin, self.attempt)
        for node in self._nodes:
            if plan.launchers:
                self._hasten(node, now + self._rng.uniform(0.0, LOOK_SECONDS))

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
        return Rank(number, node, identity, told_all_at=now)

    def _end_attempt(self, now: float) -> None:
        for rank in self._ranks:
            rank.over = True
        self._track.ends_at = math.inf
        for answer in self.answers:
            answer.until = min(answer.until, now)

    def _restart(self, now: float, attempt: int, reason: str) -> None:
        if attempt != self.attempt or self._ending or self.over:
            return
        self._ending = True
        self._end_attempt(now)
        for node in self._nodes:
            if self.plan.launchers and not node.gone:
                self._out.append((now, node.event(ProcessEventKind.RESTARTING, attempt, reason=reason)))
        self._say(now, f"the ranks are restarted: {reason}; they resume at step {self._saved}")
        self._at(now + self.plan.restart, self._relaunch)

    def _relaunch(self, now: float) -> None:
        self._ending = False
        self._launch(now)

    def _finish(self, now: float, kind: ProcessEventKind = ProcessEventKind.FINISHED, reason: str = "") -> None:
        if self.over:
            return
        self.over = True
        healthy = not any(rank.fate or rank.cut for rank in self._ranks) and not self._ending
        if healthy or kind is not ProcessEventKind.FINISHED:
            for rank in self._ranks:
                if rank.speaks and not rank.over:
                    self._out.append((now, rank.report(self._track, now, ended=True)))
            for node in self._nodes:
                if self.plan.launchers and not node.gone:
                    self._out.append((now, node.event(kind, self.attempt, reason=reason)))
            self._say(now, f"the job ends{f': {reason}' if reason else ''}")
        self._end_attempt(now)
        self._heap.clear()

    # Acts -------------------------------------------------------------------------------------------------------------

    def _begin(self, now: float, attempt: int) -> None:
        if attempt != self.attempt or self._ending:
            return
        track = self._track
        act = track.begin(now)
        if self._pending:
            self._threaten(act, now)
        if act.collective and self._somebody_is_missing():
            track.ends_at = math.inf
            self._trouble_begins(now)
        else:
            self._at(track.ends_at, self._end, attempt, track.number)
        if track.ends_at - track.oldest > self._shortest:
            self._arm_all(now)

    def _end(self, now: float, attempt: int, number: int) -> None:
        track = self._track
        if attempt != self.attempt or number != track.number or track.ends_at > now or self._ending:
            return
        act = track.act
        stepped = track.first_iteration is not None
        track.end(now)
        if not stepped and track.first_iteration is not None:
            for rank in self._ranks:
                self._at(now + self._rng.uniform(0.0, PULSE_SECONDS), self._speak, rank)
        if act.saves:
            self._saved = act.step + 1
        if act.completes and self._stop_step is not None and act.step >= self._stop_step:
            self._finish(now, ProcessEventKind.STOPPED, f"stopped at step {act.step}, as it was agreed")
        elif act.relaunches:
            self._restart(now, attempt, "started anew from outside")
        else:
            self._begin(now, attempt)

    def _somebody_is_missing(self) -> bool:
        return any(rank.fate is not None and rank.fate is not FaultKind.STALL for rank in self._ranks)

    # Faults -----------------------------------------------------------------------------------------------------------

    def _threaten(self, act: Act, now: float) -> None:
        for fault in [f for f in self._pending if _strikes_in(f, act, self.attempt)]:
            self._pending.remove(fault)
            self._at(now + act.seconds * self._rng.uniform(0.1, 0.9), self._strike, fault, self.attempt)

    def _strike(self, now: float, fault: Fault, attempt: int) -> None:
        if attempt != self.attempt or self._ending or self.over:
            return
        struck = self._struck_by(fault)
        named = () if fault.kind is FaultKind.STALL else tuple(rank.number for rank in struck)
        classes = ANSWERS[fault.kind]
        if not self.plan.launchers and named:
            classes |= {CulpritClass.BEHIND, CulpritClass.HOST_SILENT}  # nobody looks at the processes
        if fault.kind is not FaultKind.NETWORK or not self.plan.launchers:  # which speak for a rank that is cut off
            self.answers.append(Answer(fault, now, named, classes))
        self._say(now, self._words(fault, struck))
        for rank in struck:
            if fault.kind is FaultKind.NETWORK:
                rank.cut, rank.missed_at = True, now + LATE_INTERVALS * self.plan.interval + LATE_SECONDS
                continue
            rank.fate, rank.struck_at, rank.cut = fault.kind, now, fault.kind is FaultKind.NODE_LOST
            if fault.kind is not FaultKind.STALL:
                rank.still, rank.runs_until = self._track.still(), self._track.runs
        if fault.kind is FaultKind.NODE_LOST:
            for rank in struck:
                self._nodes[rank.node].gone = True
            if self.plan.gives_up and self.plan.launchers:
                gone = sorted({rank.node for rank in struck})
                self._at(now + self.plan.gives_up, self._given_up, gone, attempt)
        if fault.kind in (FaultKind.KILL, FaultKind.EXIT) and self.plan.launchers:
            for rank in struck:
                self._at(now + NOTICED, self._exited, rank, attempt)
        if fault.kind is FaultKind.NEVER_STARTED:
            return
        if fault.kind is FaultKind.STALL or (fault.freezes and self._track.act.collective):
            self._track.ends_at = math.inf
        self._trouble_begins(now)
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

    def _words(self, fault: Fault, struck: list[Rank]) -> str:
        act = self._track.act
        who = "all ranks" if fault.kind is FaultKind.STALL else "rank " + ", ".join(str(r.number) for r in struck[:8])
        place = f" in section {'/'.join(act.path)} of step {act.step}" if act.path else ""
        return f"fault {fault.kind}: {who}{place}"

    def _recover(self, now: float, struck: list[Rank], attempt: int) -> None:
        if attempt != self.attempt or self._ending or self.over:
            return
        for rank in struck:
            rank.fate, rank.still, rank.cut, rank.runs_until = None, None, False, -1
            rank.missed_at = math.inf
        for answer in self.answers:
            if answer.passing and answer.at + (answer.fault.seconds or 0.0) <= now + 1e-6:
                answer.until = min(answer.until, now)
        self._say(now, "the fault ends by itself")
        track = self._track
        if track.blocked and not self._somebody_is_missing():
            track.ends_at = now + track.act.seconds
            self._at(track.ends_at, self._end, attempt, track.number)

    def _given_up(self, now: float, gone: list[int], attempt: int) -> None:
        """The launchers have heard nothing of some nodes for too long: they say so, and begin anew without them."""
        teller = next((node for node in self._nodes if not node.gone), None)
        if attempt != self.attempt or self._ending or self.over or teller is None:
            return
        reason = f"nothing was heard of its launcher for {self.plan.gives_up:g} s"
        for number in gone:
            lost = self._nodes[number].name
            self._out.append((now, teller.event(ProcessEventKind.NODE_LOST, attempt, lost_node=lost, reason=reason)))
        self._at(now + 0.3, self._restart, attempt, f"{self._nodes[gone[0]].name} is lost")

    def _exited(self, now: float, rank: Rank, attempt: int) -> None:
        """A launcher sees that a rank has died: it takes the stacks of its others, and the job is restarted."""
        if attempt != self.attempt or self._ending:
            return
        node = self._nodes[rank.node]
        how: dict[str, Any] = {"signal": "SIGKILL"} if rank.fate is FaultKind.KILL else {"exit_code": 1}
        details = {"rank": rank.number, "local_rank": rank.identity.local_rank, "pid": rank.identity.pid}
        self._out.append((now, node.event(ProcessEventKind.EXITED, attempt, age=NOTICED, **details, **how)))
        self._at(now + 0.2, self._shows_stacks, node, attempt, None, None)
        self._at(now + 0.3, self._restart, attempt, f"rank {rank.number} has ended")

    def _node_obeys(self, now: float, node: Node, directive: Directive) -> None:
        attempt = directive.attempt
        if attempt != self.attempt or self._ending or self.over:
            self._acknowledge(now, node, directive, AckState.SUPERSEDED)
            return
        match directive.kind:
            case DirectiveKind.CAPTURE:
                at = now + self._rng.uniform(0.1, 0.4)
                self._at(at, self._shows_stacks, node, attempt, directive.incident_id, directive)
            case DirectiveKind.RESTART:
                self._acknowledge(now, node, directive, AckState.DONE)
                self._at(now + 0.2, self._restart, attempt, directive.reason)
            case DirectiveKind.STOP:
                self._acknowledge(now, node, directive, AckState.DONE)
                self._at(now + 0.2, self._finish, ProcessEventKind.STOPPED, directive.reason)
            case DirectiveKind.SAVE_AND_STOP:
                self._stop_step = directive.stop_step
                self._acknowledge(now, node, directive, AckState.DONE)

    def _say(self, now: float, words: str) -> None:
        if self._on_news is not None:
            self._on_news(now, words)


def _strikes_in(fault: Fault, act: Act, attempt: int) -> bool:
    return (
        fault.attempt == attempt
        and fault.where in act.path
        and (fault.step is None or act.step >= fault.step)
        and fault.kind is not FaultKind.NEVER_STARTED
    )
