"""This launcher's side of one node, which outlives an attempt: events, evidence, observations, settings."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.enums import AckState, NodeRole, NoticeKind, ProcessEventKind, RankRequestKind
from rankwatch.contract.intervals import evidence_spread, omits_redundant_reports
from rankwatch.contract.messages import Directive, Evidence, NodeRegistration, ProcessEvent, RankRequest
from rankwatch.contract.policy import Policy
from rankwatch.recording.shared_slots import PHASE_SHUT_DOWN, Reading
from rankwatch_launcher.agent.processes import RankProcess
from rankwatch_launcher.coordination.decisions import Budget, Reached
from rankwatch_launcher.coordination.service import Standing
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.directives import Orders
from rankwatch_launcher.monitor.link import EVENTS, Control
from rankwatch_launcher.node.learned_limits import AT_END, NOW, FtState
from rankwatch_launcher.node.rank_requests import Mailbox
from rankwatch_launcher.node.reporter import Spokesman
from rankwatch_launcher.node.slots import NodeSlots, SlotsFolder
from rankwatch_launcher.schedulers import kubernetes, slurm
from rankwatch_launcher.stacks.capture import StackReader, Target

LAUNCHER: Final = "launcher"
"""Of the settings that the monitor hands down: what is for the launcher itself."""


@dataclass(frozen=True)
class Attempt:
    """One attempt on this node: its ranks while they run."""

    number: int
    slots: NodeSlots
    mailbox: Mailbox
    ranks: tuple[RankProcess, ...] = ()
    world_size: int = 0
    captured: set[str | None] = field(default_factory=set)
    """Incidents for which stacks were taken; None stands for a crash."""


class Node:
    """Knows the ranks of this node and speaks for them; shared by the agent's loop and the control threads."""

    def __init__(
        self, job_name: str, local_world_size: int, policy: Mapping[str, Any], ft_state: FtState | None = None
    ) -> None:
        self.host = socket.gethostname()
        self.place = slurm.node_name(os.environ) or kubernetes.node_name(os.environ) or self.host
        """The node as its scheduler names it, which is what can be left out; the host's name where there is none."""
        # A pod that replaces another one has its host name, and pid 1, as that one had.
        self.name = f"{self.host}-{os.getpid()}-{secrets.token_hex(2)}"
        self._job_name = job_name
        self._local_world_size = local_world_size
        self._policy = dict(policy)
        self._ft_state = ft_state or FtState()
        self.facts: dict[str, str] = {}
        self.folder = SlotsFolder()
        self.stacks = StackReader()
        self._attempt: Attempt | None = None
        self._settings: dict[str, Any] = {}
        self._started: list[tuple[ProcessEvent, float]] = []
        self._capturing = threading.Lock()
        self.role = (NodeRole.ACTIVE, "")
        self.launchers = 1
        """About how many the job has, this one included."""
        self._spokesman: Spokesman | None = None
        self._given: dict[str, Any] = {}
        self._unanswered: list[RankRequest] = []
        """What ranks ask of the whole job, and nobody has taken yet."""
        self.control: Control | None = None
        self.orders = Orders(self, self._ack)
        threading.Thread(target=self.stacks.probe, name="rankwatch-probe", daemon=True).start()

    def attach(
        self,
        control: Control,
        url: str,
        token: str,
        *,
        ready: Callable[[], object] | None = None,
        patience: float = 0.0,
    ) -> None:
        """Talk to the monitor at ``url`` from now on, and watch the ranks for it; see :meth:`Control.connect`."""
        self.control = control
        control.on_directive = self.orders.receive
        control.on_registered = self._registered
        control.connect(url, token, ready=ready, patience=patience)
        self._spokesman = Spokesman(self, control)
        self._spokesman.start()

    def registration(self) -> NodeRegistration:
        """What the monitor is told of this launcher."""
        return NodeRegistration(
            node=self.name,
            host=self.host,
            launcher_pid=os.getpid(),
            local_world_size=self._local_world_size,
            job_name=self._job_name,
            attempt=self.attempt,
            policy=self._policy,
            facts=self.facts,
            ft_state=self._ft_state.loaded,
        )

    @property
    def current(self) -> Attempt | None:
        """The attempt that runs or begins here."""
        return self._attempt

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the monitor has handed down for the ranks."""
        return self._settings

    @property
    def silence(self) -> float | None:
        """Seconds after which the monitor takes a launcher for gone; None: it never does, or has not said."""
        given = self._given.get("silence_timeout")
        return float(given) if isinstance(given, int | float) else None

    # Attempts ---------------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """The attempt that runs now; 0 before the first."""
        current = self._attempt
        return current.number if current is not None else 0

    def prepare(self, attempt: int) -> Path:
        """Make room for an attempt's slots; return the folder that its ranks are told of."""
        if self._attempt is not None:
            self._attempt.slots.close()
        folder = self.folder.attempt(attempt)
        slots = NodeSlots(folder, self._local_world_size)
        slots.write_settings(self._settings)
        self._attempt = Attempt(attempt, slots, Mailbox(folder))
        self.role, self._unanswered = (NodeRole.ACTIVE, ""), []
        self._ft_state.share(folder)
        return folder

    def stand_by(self, role: NodeRole, reason: str) -> None:
        """This node runs no ranks: it is a spare, or parked."""
        self.role = role, reason
        if (current := self._attempt) is not None:
            self._attempt = None
            current.slots.close()

    def started(self, ranks: Sequence[RankProcess], world_size: int) -> None:
        """The ranks of the attempt run now."""
        assert self._attempt is not None
        self._attempt = replace(self._attempt, ranks=tuple(ranks), world_size=world_size)
        self.launchers = max(1, world_size // max(1, self._local_world_size))
        self._started = [
            (self._event(ProcessEventKind.STARTED, rank=r.rank, local_rank=r.local_rank, pid=r.pid), time.monotonic())
            for r in ranks
        ]
        self._post_events(self._started)
        self._ft_state.lead(any(rank.rank == 0 for rank in ranks))

    def finished(self) -> None:
        """The job has come to its orderly end: keep what holds for the whole of it."""
        self._ft_state.finish()

    def report(self, kind: ProcessEventKind, reason: str = "", **details: Any) -> None:
        """Tell the monitor what happened to a rank or to all of them."""
        self._post_events([(self._event(kind, reason=reason, **details), time.monotonic())])

    def readings(self) -> dict[int, Reading]:
        """What the slots say now, by local rank."""
        return self._attempt.slots.read() if self._attempt is not None else {}

    def reached(self) -> Reached | None:
        """How far the ranks here have come in this attempt; None when none counts steps."""
        readings = self.readings().values()
        first = [r.first_iteration for r in readings if r.first_iteration is not None]
        furthest = [r.iteration for r in readings if r.iteration is not None]
        return Reached(min(first), max(furthest)) if first and furthest else None

    def standing(self) -> Standing:
        """How far the ranks are, for the other launchers."""
        readings = self.readings().values()
        everybody = len(readings) == self._local_world_size
        pace = max((reading.pace for reading in readings), default=0.0)
        return Standing(self.reached(), pace, everybody and all(reading.polls_should_stop for reading in readings))

    def complete(self) -> bool:
        """Whether a rank said that there is nothing left to train."""
        return any(reading.complete for reading in self.readings().values())

    def hear(self) -> None:
        """Take in what ranks have said: tell the monitor what is for it, keep what is asked of the job."""
        if self._attempt is None:
            return
        for request in self._attempt.mailbox.take(self.readings()):
            if request.action == RankRequestKind.TELL:
                logger.warning("rank %d on %s tells: %s", request.rank, self.place, request.reason)
                if request.notice == NoticeKind.LAST_WORDS:
                    continue  # the monitor hears them with the exit
                notice = {"rank": request.rank, "notice": request.notice, "seconds": request.seconds}
                self.report(ProcessEventKind.NOTICE, request.reason, **notice)
            elif request.action == RankRequestKind.CHANGE_POLICY:
                self._change_policy(request)
            else:
                self._unanswered.append(request)

    def requests(self) -> list[RankRequest]:
        """What ranks have asked of the whole job since the last call."""
        self.hear()
        asked, self._unanswered = self._unanswered, []
        return asked

    def last_words(self, process: RankProcess) -> str:
        """The sentence by which a rank that has ended now has explained itself; empty: it has not."""
        current = self._attempt
        return current.mailbox.last_words(process.local_rank, process.code) if current is not None else ""

    def _change_policy(self, request: RankRequest) -> None:
        try:
            changed = Policy().changed(self._policy).changed(request.policy).to_json()
        except (ValueError, TypeError) as error:
            logger.warning("rank %d on %s asks for a policy that cannot be: %s", request.rank, self.place, error)
            return
        policy = {name: changed[name] for name in (*self._policy, *request.policy)}
        if policy != self._policy and self.control is not None:
            self._policy = policy
            self.control.post("nodes", lambda: asdict(self.registration()))

    def budget(self, asked: Budget) -> Budget:
        """The restart budget in force: what the monitor's policy says now, else what the launcher was told."""
        return Budget(
            int(self._given.get("max_restarts", asked.max_restarts)),
            int(self._given.get("max_no_progress", asked.max_no_progress)),
        )

    def had_finished(self, local_rank: int) -> bool:
        """Whether the rank had called ``rankwatch.shutdown()``."""
        reading = self.readings().get(local_rank)
        return reading is not None and reading.phase == PHASE_SHUT_DOWN

    def expendable(self, local_rank: int) -> bool:
        """Whether the other ranks said that they would go on without this one."""
        return (reading := self.readings().get(local_rank)) is not None and reading.expendable

    def set_stop_step(self, step: int, *, preempts: bool = False) -> tuple[bool, int | None]:
        """Ask the ranks to stop after a step; see :meth:`NodeSlots.set_stop_step`."""
        attempt = self._attempt
        return attempt.slots.set_stop_step(step, preempts=preempts) if attempt is not None else (False, None)

    def close(self) -> None:
        """Send what is left and remove the slots."""
        if self._spokesman is not None:
            self._spokesman.stop()
        self._ft_state.close()
        if self.control is not None:
            self.control.close(timeout=3.0)
        if self._attempt is not None:
            self._attempt.slots.close()
        self.folder.remove()

    # What orders ask for ----------------------------------------------------------------------------------------------

    def captured(self, incident: str | None) -> bool:
        """Whether stacks were taken in this attempt for an incident."""
        return self._attempt is not None and incident in self._attempt.captured

    def capture(
        self, deadline: float, *, incident: str | None, directive: int | None = None, last: bool = False
    ) -> int:
        """Take the stacks of the ranks that live, post them, and return how many were read. One capture at a time."""
        # A capture under way is waited for, but no longer than this one may take: the ranks of a crash must be ended
        # soon.
        if self.control is None or not self._capturing.acquire(timeout=deadline):
            return 0
        try:
            current = self._attempt
            if current is None or (directive is None and incident is not None and incident in current.captured):
                return 0
            began = time.monotonic()
            if self._spokesman is not None:
                self._spokesman.tell_how_far(current)
            targets = [
                Target(r.rank, r.local_rank, r.pid, current.slots.stack_file(r.local_rank))
                for r in current.ranks
                if r.code is None
            ]
            stacks = self.stacks.capture(targets, deadline, last=last)
            current.captured.add(incident)
        finally:
            self._capturing.release()
        evidence = Evidence(
            self.name, current.number, incident, stacks, directive, seconds=round(time.monotonic() - began, 3)
        )
        taken, spread = time.monotonic(), 0.0 if last else evidence_spread(self.launchers)
        self.control.post(
            "evidence",
            lambda: asdict(replace(evidence, age=round(time.monotonic() - taken, 3))),
            delay=random.random() * spread,
        )
        return sum(1 for stack in stacks if stack.method)

    def apply_settings(self, settings: Mapping[str, Any]) -> None:
        """Hand settings down to all ranks, now and in later attempts; what ``ft_state.json`` is to hold stays here."""
        self._ft_state.take(settings)
        given = settings.get(LAUNCHER)
        self._given = dict(given) if isinstance(given, Mapping) else {}
        self._settings = {name: value for name, value in settings.items() if name not in (NOW, AT_END, LAUNCHER)}
        if self._attempt is not None:
            self._attempt.slots.write_settings(self._settings)

    # On the threads ---------------------------------------------------------------------------------------------------

    def _registered(self, settings: Mapping[str, Any], again: bool) -> None:
        if settings:
            self.apply_settings(settings)
        if again:
            # The monitor has forgotten the job: tell it anew which ranks run.
            self._post_events(self._started)

    def _ack(self, directive: Directive, state: AckState, detail: str, max_iteration: int | None) -> None:
        unneeded = state in (AckState.DONE, AckState.SUPERSEDED) and omits_redundant_reports(self.launchers)
        if self.control is not None and not unneeded:
            self.control.ack(self.name, directive, state, detail, max_iteration)

    def _event(self, kind: ProcessEventKind, **details: Any) -> ProcessEvent:
        world_size = self._attempt.world_size if self._attempt is not None else None
        details.setdefault("attempt", self.attempt)
        return ProcessEvent(node=self.name, kind=kind, world_size=world_size or None, **details)

    def _post_events(self, happened: Sequence[tuple[ProcessEvent, float]]) -> None:
        if self.control is None or not happened:
            return

        def body() -> dict[str, Any]:
            now = time.monotonic()
            return {"events": [asdict(replace(event, age=round(now - at, 3))) for event, at in happened]}

        self.control.post(EVENTS, body)
