"""A small stage for the core: a job of N ranks on H hosts, a clock that only the test moves, launchers that obey.

Every tick is one second: healthy ranks complete a step together, as in data-parallel training, where nothing goes on
while one is missing; then all report; then the monitor's core judges; then the launchers carry out their directives.
What a rank reports, and what is seen of it, is the simulator's model of a process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rankwatch.contract.enums import AckState, Action, DirectiveKind, ProcessEventKind, ProcessState, RankState
from rankwatch.contract.messages import (
    Directive,
    DirectiveAck,
    Evidence,
    Frame,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
    RankLog,
    RankStack,
)
from rankwatch.contract.policy import Policy
from rankwatch.contract.semconv import CHECKPOINTING_SECTION
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.effects import Changed, Issue
from rankwatch_monitor.core.events import Acknowledged, JobEvent, Order, RankIdentity, RankReport, SectionStatistics
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view, verdict
from rankwatch_monitor.store import codec
from support.simulator.plan import FaultKind
from support.simulator.process import TORCH, TRAIN, Position, Process

LOADING = (Frame("load_batch", TRAIN, 41), Frame("main", TRAIN, 90))
RAISING = (Frame("training_step", TRAIN, 57), Frame("main", TRAIN, 91))
REDUCING = (Frame("all_reduce", TORCH, 2800), Frame("train_step", TRAIN, 60), Frame("main", TRAIN, 91))
LOGS = "/logs/gpt"
"""Folder of the ranks' logs."""
WINDOW = 60.0
"""The shortest patience, above what a restart costs a scene of some tens of steps."""
OBSERVED = (FaultKind.STOP, FaultKind.GIL)
"""Faults whose ranks are reported by their launcher."""


@dataclass(kw_only=True)
class Rank(Process):
    """One simulated rank, with what only a test decides."""

    node: str
    starts_in: int
    """Seconds until it runs."""
    resumed: int
    """The step of the checkpoint that it resumed from; -1: none."""
    steps: int = 0
    """Completed, and not reported yet."""
    frames: tuple[Frame, ...] = REDUCING

    @property
    def reached(self) -> int:
        """The last step that it has completed or resumed after; -1: none."""
        return self.resumed if self.at.iteration is None else self.at.iteration

    def stand(self, at: float, *sections: str) -> None:
        """Be in these sections and no others since a moment."""
        self.at.opened, self.at.moved_at = dict.fromkeys(sections, at), at

    def stack(self) -> RankStack:
        return replace(super().stack(), frames=self.frames)


class Ended(NamedTuple):
    """A closing, as it was at that moment."""

    incident: str
    at: float | None
    outcome: str


class Scene:
    """A job, its ranks and its launchers. ``run`` lets time pass; the faults are methods."""

    def __init__(
        self,
        ranks: int = 4,
        hosts: int = 1,
        *,
        launchers: bool = True,
        job_id: str = "job",
        checkpoint: int = 5,
        beats: bool = True,
        steps: bool = True,
        sections: bool = True,
        interval: int = 1,
        reports_durations: bool = False,
        saves: bool = False,
        facts: Mapping[str, str] | None = None,
        **policy: Any,
    ) -> None:
        self.now = 1_000_000.0
        limits = {"section_timeouts": {} if reports_durations else {"step": 10.0}, "confirmation_window": WINDOW}
        self.job = Job(job_id, self.now, policy=Policy().changed({**limits, **policy}))
        self.size, self.hosts = ranks, hosts
        self.launchers, self.checkpoint = launchers, checkpoint
        self.hidden: dict[str, Any] = {
            **({} if beats else {"beats": None, "heartbeat_age": None}),
            **({} if steps else {"iteration": None, "progress": None, "first_iteration": None}),
            **({} if sections else {"open_sections": None, "idle": None}),
            **({} if reports_durations else {"quiet": None, "first_time": ()}),
        }
        """Fields of a report that these ranks do not know."""
        self.interval = interval
        self.reports_durations = reports_durations
        """Ranks report how long their sections take and since when nothing has moved, as those of our own SDK do."""
        self.saves = saves
        """Ranks report the checkpoints that they save."""
        self.busy = False
        """Everybody is in a section that takes its time."""
        self.startup = 2
        """Seconds from the start of processes to their first words, after a restart."""
        self.attempt = 1 if launchers else 0
        self.issued: list[Directive] = []
        self.printed: list[str] = []
        self.closings: list[Ended] = []
        self.ignored: set[DirectiveKind] = set()
        self.mute_nodes: set[str] = set()
        self.cut_nodes: set[str] = set()
        self.stop_step: int | None = None
        self.paused = False
        self._todo: list[Directive] = []
        self._ticks = 0
        self.ranks: list[Rank] = []
        if launchers:
            for node in self.nodes:
                host = node.replace("node", "host")
                of_host = {name: value.replace("{host}", host) for name, value in (facts or {}).items()}
                self.submit(NodeRegistration(node, host, 10, ranks // hosts, "gpt", facts=of_host))
        self.launch()

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        return [f"node-{h}" for h in range(self.hosts)]

    @property
    def incident(self) -> Incident:
        """The one incident of this scene; fails when there are none or several."""
        assert len(self.job.incidents) == 1, [i.reason for i in self.job.incidents]
        return self.job.incidents[0]

    @property
    def blamed(self) -> dict[int, str]:
        """Culprits of the newest incident and their classes."""
        return {c.rank: str(c.kind) for c in self.job.incidents[-1].culprits}

    @property
    def state(self) -> str:
        return str(verdict.job_state(self.job, self.now)[0])

    def rank_state(self, rank: int) -> RankState:
        return RankState(job_view.ranks(self.job, self.now)[rank]["state"])

    def directives(self, kind: DirectiveKind) -> list[Directive]:
        return [d for d in self.issued if d.kind is kind]

    def quiet(self) -> bool:
        """Nothing was found and nothing was done."""
        return not self.job.incidents and not self.issued and not self.printed

    # Time -------------------------------------------------------------------------------------------------------------

    def run(self, seconds: int) -> Scene:
        for _ in range(seconds):
            self.tick()
        return self

    def until(self, condition: Callable[[], object], within: int = 120) -> Scene:
        for _ in range(within):
            if condition():
                return self
            self.tick()
        raise AssertionError(f"not within {within} s; state {self.state}, incidents {self.job.incidents}")

    def until_found(self, within: int = 120) -> Scene:
        """Let time pass until an incident was opened."""
        return self.until(lambda: self.job.incidents, within)

    def tick(self) -> None:
        """One second passes for everybody; the monitor sleeps through it while ``paused``."""
        self.now += 1.0
        self._ticks += 1
        self._train()
        if self.paused:
            return
        if self._ticks % self.interval == 0:
            for rank in self.ranks:
                if (report := self.report(rank)) is not None:
                    apply(self.job, report, self.now)
        if self.launchers:
            self._observe()
        self.judge()
        self._obey()

    def judge(self) -> None:
        """Let the core judge and note what it reports and orders."""
        closed: dict[str, Incident] = {}  # an incident may change once more in the call that closes it
        for effect in advance(self.job, self.now):
            match effect:
                case Issue(directive):
                    self.issued.append(directive)
                    self._todo.append(directive)
                case Changed(incident, printed):
                    if printed:
                        self.printed.append(printed)
                    if incident.phase is Phase.CLOSED:
                        closed[incident.id] = incident
        for incident in closed.values():
            assert incident.id not in [c.incident for c in self.closings], f"closed twice: {incident}"
            self.closings.append(Ended(incident.id, incident.closed_at, incident.outcome))

    def submit(self, event: JobEvent) -> None:
        """What the loop does with an event of a launcher or a person: apply, then judge at once."""
        apply(self.job, event, self.now)
        self.judge()

    def order(self, action: Action, reason: str = "") -> None:
        self.submit(Order(action, reason))

    def ack(self, directive: Directive, state: AckState, node: str = "node-0", **more: Any) -> None:
        self.submit(Acknowledged(directive.id, DirectiveAck(node, state, **more)))

    def event(self, kind: ProcessEventKind, node: str = "node-0", **more: Any) -> None:
        self.submit(ProcessEvent(node, kind, more.pop("attempt", self.attempt), **more))

    # What takes its time ----------------------------------------------------------------------------------------------

    def enter(self, section: str, *, within_step: bool = False) -> Scene:
        """Everybody enters a section, inside of the step or between two, and is busy there until ``leave``."""
        self.busy = True
        for rank in self.ranks:
            if not within_step:
                rank.at.opened.clear()
            rank.at.enter(section, self.now)
        return self

    def leave(self) -> Scene:
        """Everybody comes out again, and reports how long it took."""
        self.busy = False
        for rank in self.ranks:
            section, took = rank.at.leave(self.now)
            finished = {section: SectionStatistics(1, took, took, took)}
            apply(self.job, RankReport(rank.identity, finished=finished, first_durations={section: took}), self.now)
        return self

    # Faults -----------------------------------------------------------------------------------------------------------

    def hang(self, rank: int, *, outside: bool = False, ahead: int = 1) -> Scene:
        """A rank gets stuck, inside its step or between two; the others wait in the step, ``ahead`` of it."""
        self._strike(rank, FaultKind.HANG, ahead)
        if outside:
            self.ranks[rank].stand(self.now)
        return self

    def stall(self) -> Scene:
        """Everybody gets stuck in the same collective."""
        self._freeze(1)
        for rank in self.ranks:
            rank.fault = FaultKind.STALL
        return self

    def stop(self, rank: int) -> Scene:
        return self._strike(rank, FaultKind.STOP)

    def hold_gil(self, rank: int) -> Scene:
        return self._strike(rank, FaultKind.GIL)

    def cut(self, *ranks: int) -> Scene:
        """Nothing that these ranks send arrives any more; they go on working."""
        for rank in ranks:
            self.ranks[rank].disconnected = True
        return self

    def cut_host(self, host: int) -> Scene:
        """A host disappears with its launcher and its ranks."""
        self.cut_nodes.add(f"node-{host}")
        self._freeze(1)
        return self.cut(*(r.number for r in self.ranks if r.node == f"node-{host}"))

    def die(self, rank: int, *, exit_code: int | None = None, signal: str | None = None, **more: Any) -> Scene:
        """A process ends, and its launcher reports it at once."""
        self._freeze(1)
        dead = self.ranks[rank]
        if exit_code != 0 or signal:
            dead.fault = FaultKind.KILL
        else:
            dead.over = True
        self.event(ProcessEventKind.EXITED, dead.node, **dead.named, exit_code=exit_code, signal=signal, **more)
        return self

    def crash(self, rank: int, error: str, frames: tuple[Frame, ...] = RAISING) -> Scene:
        """A process ends by an exception; launchers send its traceback, and the stacks of the ranks that live."""
        self.die(rank, exit_code=1, message=error)
        dead = self.ranks[rank]
        traceback = RankStack(rank, dead.identity.pid, "traceback", frames, ProcessState.EXITED, error)
        for node in self.nodes:
            of_dead = node == dead.node
            stacks = (*((traceback,) if of_dead else ()), *self.stacks(node))
            self.send_evidence(node, stacks=stacks, logs=(self.log(rank, error, frames),) if of_dead else ())
        return self

    def log(self, rank: int, error: str, frames: tuple[Frame, ...] = RAISING) -> RankLog:
        """The end of what a rank printed, in torch's folder for it."""
        dead = self.ranks[rank]
        steps = [f"step {step} loss {4 - step / 1000:.3f}" for step in range(dead.reached - 5, dead.reached + 1)]
        raised = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in reversed(frames)]
        lines = (*steps, "Traceback (most recent call last):", *raised, error)
        path = f"{LOGS}/gpt_x7k2/attempt_{self.attempt - 1}/{dead.identity.local_rank}/stderr.log"
        return RankLog(rank, "stderr", dead.identity.host, path, lines)

    def ages(self, seconds: float) -> Scene:
        """What is open now was opened that much longer ago."""
        for rank in self.ranks:
            rank.at.opened = {name: at - seconds for name, at in rank.at.opened.items()}
            rank.at.moved_at -= seconds
        return self

    def resume(self) -> Scene:
        """Whatever was stuck goes on by itself."""
        for rank in self.ranks:
            if rank.starts_in <= 0 and not rank.dead:
                rank.fault, rank.disconnected = None, False
        self.cut_nodes.clear()
        return self

    def launch(self, *, attempt: int | None = None, startup: int = 2, size: int | None = None) -> None:
        """New processes for every rank, resuming after the checkpoint of an earlier attempt."""
        self.attempt = self.attempt if attempt is None else attempt
        self.size = size or self.size
        saved = max((rank.reached for rank in self.ranks), default=-1) // self.checkpoint * self.checkpoint
        self.ranks = [self._process(number, startup, saved if saved > 0 else -1) for number in range(self.size)]
        for rank in self.ranks if self.launchers else ():
            self.event(ProcessEventKind.STARTED, rank.node, **rank.named, world_size=self.size)

    def _process(self, number: int, startup: int, resumed: int) -> Rank:
        each, generation = max(1, self.size // self.hosts), int(self.now)
        host = min(number // each, self.hosts - 1)
        identity = RankIdentity(
            self.job.id,
            number,
            job_name="gpt",
            local_rank=number % each,
            world_size=self.size,
            attempt=self.attempt,
            host=f"host-{host}",
            pid=generation % 10_000 * 10 + number + 100,
            instance=f"instance-{generation}-{number}",
            started_at=self.now,
        )
        unborn, at = FaultKind.NEVER_STARTED, Position(self.now)
        return Rank(number, identity, at, unborn, node=f"node-{host}", starts_in=startup, resumed=resumed)

    def reload(self, away: int = 0) -> Scene:
        """The monitor dies, is away for some seconds and comes back with what was stored; nothing has reported yet."""
        row = json.loads(json.dumps(codec.job_row(self.job)))
        incidents = [json.loads(json.dumps(codec.incident_row(i))) for i in self.job.incidents]
        directives = self.job.directives
        self.paused = True
        self.run(away)
        self.paused = False
        self.job = codec.job_of(row, self.now)
        self.job.incidents = [codec.incident_of(i) for i in incidents]
        self.job.directives = directives
        return self

    # The ranks and the launchers --------------------------------------------------------------------------------------

    def report(self, rank: Rank) -> RankReport | None:
        """What a rank reports of itself now; None when it cannot, or when nothing arrives."""
        if not rank.exports_arrive:
            return None
        report = rank.report(self.now)._replace(**self.hidden)
        if self.saves and rank.steps and rank.reached > 0 and rank.reached % self.checkpoint == 0:
            rank.steps = 0
            return report._replace(finished={CHECKPOINTING_SECTION: SectionStatistics(1, 0.1, 0.1, 0.1)})
        if not self.reports_durations or not rank.steps:
            return report
        took = SectionStatistics(rank.steps, 0.5 * rank.steps, 0.5, 0.5)
        rank.steps = 0
        return report._replace(finished={"step": took}, longest={"step": 0.5})

    def _blocked(self) -> bool:
        return any(rank.fault is not None and not rank.over for rank in self.ranks) or bool(self.cut_nodes)

    def _train(self) -> None:
        for rank in self.ranks:
            if rank.fault is FaultKind.NEVER_STARTED:
                rank.starts_in -= 1
                if rank.starts_in <= 0:
                    rank.fault = None
        if self._blocked() or self.busy:
            return
        at = self.now - 0.5
        for rank in self.ranks:
            if rank.over:
                continue
            rank.at.complete_step(rank.reached + 1, at)
            rank.at.completed.add("step")
            rank.steps += 1
            rank.stand(at, "step")
            rank.frames = REDUCING

    def _strike(self, rank: int, kind: FaultKind, ahead: int = 1) -> Scene:
        """A rank does not go on, and the others wait for it."""
        self._freeze(ahead)
        struck = self.ranks[rank]
        struck.fault, struck.fault_at, struck.at.progress, struck.frames = kind, self.now, 0, LOADING
        return self

    def _freeze(self, ahead: int) -> None:
        """Everybody enters the next step and waits in its collective."""
        for rank in self.ranks:
            if rank.fault is None and not rank.over and not rank.disconnected:
                rank.stand(self.now, "step")
                rank.at.progress, rank.frames = ahead, REDUCING

    def _observe(self) -> None:
        for node in self.nodes:
            if node not in self.cut_nodes:
                ranks = [rank for rank in self.ranks if rank.node == node and rank.fault in OBSERVED]
                seen = tuple(rank.observation(self.now) for rank in ranks)
                if not self.reports_durations:
                    seen = tuple(replace(each, quiet=None, first_time=()) for each in seen)
                apply(self.job, NodeObservation(node, self.attempt, seen), self.now)

    def stacks(self, node: str) -> tuple[RankStack, ...]:
        return tuple(r.stack() for r in self.ranks if r.node == node and not r.dead and not r.over)

    def send_evidence(self, node: str, incident_id: str | None = None, **changes: Any) -> None:
        incident = incident_id or self.job.incidents[-1].id
        attempt, stacks = changes.pop("attempt", self.attempt), changes.pop("stacks", self.stacks(node))
        self.submit(Evidence(node, attempt, incident, stacks, **changes))

    def _obey(self) -> None:
        todo, self._todo = self._todo, []
        for directive in todo:
            if directive.kind in self.ignored or not self.launchers:
                continue
            for node in self.nodes:
                if node not in self.mute_nodes | self.cut_nodes:
                    self._obeys(node, directive)
            if directive.kind is DirectiveKind.RESTART:
                self.restart()
        if self.stop_step is not None and any(r.reached >= self.stop_step for r in self.ranks):
            self.finish(ProcessEventKind.STOPPED, "stopped at the agreed step")

    def _obeys(self, node: str, directive: Directive) -> None:
        match directive.kind:
            case DirectiveKind.CAPTURE:
                self.send_evidence(node, directive.incident_id, directive=directive.id)
            case DirectiveKind.SAVE_AND_STOP:
                self.stop_step = directive.stop_step
                self.ack(directive, AckState.DONE, node)
            case DirectiveKind.STOP if directive.no_restart:
                why = "no restart is left"
                ended = {"cause": directive.reason, "no_restart": directive.no_restart, "why_none": why}
                self.event(ProcessEventKind.FAILED, node, reason=f"{directive.reason}; {why}", **ended)
            case DirectiveKind.STOP:
                self.event(ProcessEventKind.STOPPED, node, reason=directive.reason)

    def restart(self, reason: str = "ordered") -> None:
        """What launchers do to restart: report it, then start every rank again with the next attempt."""
        self.cut_nodes.clear()
        for node in self.nodes:
            self.event(ProcessEventKind.RESTARTING, node, reason=reason)
        self.launch(attempt=self.attempt + 1, startup=self.startup)

    def finish(self, kind: ProcessEventKind = ProcessEventKind.FINISHED, reason: str = "", **more: Any) -> None:
        """All launchers end."""
        self.stop_step = None
        for rank in self.ranks:
            rank.over = True
        for node in self.nodes:
            self.event(kind, node, reason=reason, **more)
