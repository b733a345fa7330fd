"""This launcher's node, over all attempts: process events, captured stacks, settings, requests of the ranks."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from rankwatch.contract.enums import AckState, NodeRole, NoticeKind, ProcessEventKind, RankRequestKind
from rankwatch.contract.intervals import evidence_spread, omits_redundant_reports
from rankwatch.contract.messages import (
    Directive,
    Evidence,
    NodeRegistration,
    ProcessEvent,
    RankLog,
    RankRequest,
    RankStack,
    RunClaim,
)
from rankwatch.contract.node_checks import CheckResult
from rankwatch.contract.policy import Policy
from rankwatch.recording.shared_slots import PHASE_SHUT_DOWN, Reading
from rankwatch_launcher.coordination.decisions import RestartBudget, StepRange
from rankwatch_launcher.coordination.membership import NodeProgress
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.answers import LauncherSettings
from rankwatch_launcher.monitor.directives import DirectiveInbox
from rankwatch_launcher.monitor.link import EVENTS, MonitorLink
from rankwatch_launcher.node.attempt import Attempt, RankProcess
from rankwatch_launcher.node.first_look import FirstLook
from rankwatch_launcher.node.learned_limits import AT_END, NOW, LearnedLimitsFile
from rankwatch_launcher.node.rank_requests import RequestInbox
from rankwatch_launcher.node.reporter import NodeView, ProxyReporter
from rankwatch_launcher.node.slots import NodeSlots, SlotsFolder
from rankwatch_launcher.node.watch import RankWatch, aged
from rankwatch_launcher.schedulers import kubernetes, slurm
from rankwatch_launcher.stacks.capture import StackReader

LAUNCHER_SETTINGS: Final = "launcher"
"""Key of the settings that are for the launcher itself."""
MAX_FACT: Final = 200
"""Characters of a fact in a registration, which a monitor refuses if one is too long."""


class Node:
    """The ranks of this node and their link to the monitor; shared by the agent's loop and the link's threads."""

    def __init__(
        self,
        job_name: str,
        local_world_size: int,
        policy: Mapping[str, Any],
        learned_limits: LearnedLimitsFile | None = None,
    ) -> None:
        self.hostname = socket.gethostname()
        self.host = slurm.node_name(os.environ) or kubernetes.node_name(os.environ) or self.hostname
        """The node's name in its scheduler, which is what can be excluded; else the host's name."""
        # A pod that replaces another has its host name and, like it, pid 1.
        self.name = f"{self.hostname}-{os.getpid()}-{secrets.token_hex(2)}"
        self._job_name = job_name
        self._local_world_size = local_world_size
        self._policy = dict(policy)
        self._learned_limits = learned_limits or LearnedLimitsFile()
        self.facts: dict[str, str] = {}
        self.folder = SlotsFolder()
        self.stacks = StackReader()
        self._attempt: Attempt | None = None
        self._settings: dict[str, Any] = {}
        self._settings_lock = threading.Lock()
        self._launcher_settings = LauncherSettings()
        self._started: list[tuple[ProcessEvent, float]] = []
        self._capturing = threading.Lock()
        self._watch = RankWatch(self.name, self.stacks)
        self._first_look = FirstLook(self.stacks)
        self.role = (NodeRole.ACTIVE, "")
        self.checks: tuple[CheckResult, ...] = ()
        """What the last checks of this node found."""
        self.run = ""
        """Identity of this start of the job, the same for all its launchers."""
        self.launchers = 1
        """Approximate number of launchers of the job, this one included."""
        self.min_nodes = 0
        """Nodes without which no attempt starts; 0: unknown."""
        self._reporter: ProxyReporter | None = None
        self._pending_requests: list[RankRequest] = []
        """Requests of ranks that concern the whole job and that the agent has not taken yet."""
        self.link: MonitorLink | None = None
        self.directives = DirectiveInbox(self, self._ack)
        threading.Thread(target=self.stacks.probe, name="rankwatch-probe", daemon=True).start()

    # The monitor ------------------------------------------------------------------------------------------------------

    def connect(
        self,
        job_id: str,
        url: str,
        token: str,
        *,
        ready: Callable[[], object] | None = None,
        patience: float = 0.0,
    ) -> None:
        """Connect to the monitor at ``url`` and start proxy reports; see :meth:`MonitorLink.connect`."""
        self.facts |= monitor_fact(url)
        link = MonitorLink(job_id, self.registration)
        link.on_directive = self.directives.receive
        link.on_registered = self._on_registered
        self.link = link
        link.connect(url, token, ready=ready, patience=patience)
        self._reporter = ProxyReporter(self._view, link)
        self._reporter.start()

    def claim(self, job_id: str, url: str, token: str) -> str:
        """Claim a job's id for this run; see :meth:`MonitorLink.claim`."""
        link = MonitorLink(job_id, self.registration)
        return link.claim(url, token, RunClaim(self.run, self.hostname, os.getpid()))

    def registration(self) -> NodeRegistration:
        """This launcher's registration with the monitor."""
        return NodeRegistration(
            node=self.name,
            host=self.hostname,
            launcher_pid=os.getpid(),
            local_world_size=self._local_world_size,
            job_name=self._job_name,
            attempt=self.attempt,
            policy=self._policy,
            facts=self.facts,
            ft_state=self._learned_limits.loaded,
            run=self.run,
            min_nodes=self.min_nodes,
            checks=self.checks,
        )

    def checked(self, results: tuple[CheckResult, ...]) -> None:
        """The node was checked; the monitor is told what it does not know yet."""
        known, self.checks = self.checks, tuple(each.brief() for each in results)
        if self.link is not None and known != self.checks:
            delay = random.random() * evidence_spread(self.launchers)
            self.link.post("nodes", lambda: asdict(self.registration()), delay=delay)

    def report(self, kind: ProcessEventKind, reason: str = "", **details: Any) -> None:
        """Post a process event to the monitor."""
        self._post_events([(self._event(kind, reason=reason, **details), time.monotonic())])

    def apply_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the monitor's settings to all ranks, now and in later attempts; some stay with the launcher."""
        self._learned_limits.take(settings)
        self._launcher_settings = LauncherSettings.of(settings.get(LAUNCHER_SETTINGS))
        kept_here = (NOW, AT_END, LAUNCHER_SETTINGS)
        with self._settings_lock:
            self._settings = {name: value for name, value in settings.items() if name not in kept_here}
            if self._attempt is not None:
                self._attempt.slots.write_settings(self._settings)

    def close(self) -> None:
        """Send what is queued and remove the slots."""
        self._watch.close()
        self._first_look.stop()
        if self._reporter is not None:
            self._reporter.stop()
        self._learned_limits.close()
        if self.link is not None:
            self.link.close(timeout=3.0)
        if self._attempt is not None:
            self._attempt.slots.close()
        self.folder.remove()

    # Attempts ---------------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """The attempt that starts or runs; 0 before the first."""
        current = self._attempt
        return current.number if current is not None else 0

    def prepare(self, attempt: int) -> Path:
        """Create an attempt's slots; return their folder."""
        if self._attempt is not None:
            self._watch.stop()
            self._first_look.stop()
            self._attempt.slots.close()
        folder = self.folder.attempt(attempt)
        slots = NodeSlots(folder, self._local_world_size)
        with self._settings_lock:  # settings that arrive meanwhile are written after these
            slots.write_settings(self._settings)
            self._attempt = Attempt(attempt, slots, RequestInbox(folder))
        self.role, self._pending_requests = (NodeRole.ACTIVE, ""), []
        self._learned_limits.share(folder)
        return folder

    def stand_by(self, role: NodeRole, reason: str) -> None:
        """This node runs no ranks: it is a spare, or parked."""
        self.role = role, reason
        if (current := self._attempt) is not None:
            self._attempt = None
            self._first_look.stop()
            current.slots.close()

    def started(self, ranks: Sequence[RankProcess], world_size: int) -> None:
        """The ranks of the attempt were started."""
        assert self._attempt is not None
        self._attempt = replace(self._attempt, ranks=tuple(ranks), world_size=world_size)
        self._first_look.begin(self._attempt)
        self.launchers = max(1, world_size // max(1, self._local_world_size))
        self._started = [
            (self._event(ProcessEventKind.STARTED, rank=r.rank, local_rank=r.local_rank, pid=r.pid), time.monotonic())
            for r in ranks
        ]
        self._post_events(self._started)
        self._learned_limits.set_writer(any(rank.rank == 0 for rank in ranks))

    def finished(self) -> None:
        """The job has finished: write what it has learned."""
        self._learned_limits.finish()

    # The ranks --------------------------------------------------------------------------------------------------------

    def readings(self) -> dict[int, Reading]:
        """The ranks' slots, by local rank."""
        return self._attempt.slots.read() if self._attempt is not None else {}

    def steps(self) -> StepRange | None:
        """The steps completed here in this attempt; None when no rank reports steps."""
        readings = self.readings().values()
        first = [r.first_iteration for r in readings if r.first_iteration is not None]
        furthest = [r.iteration for r in readings if r.iteration is not None]
        return StepRange(min(first), max(furthest)) if first and furthest else None

    def progress(self) -> NodeProgress:
        """The ranks' progress, for the other launchers."""
        readings = self.readings().values()
        complete = len(readings) == self._local_world_size
        speed = max((reading.pace for reading in readings), default=0.0)
        work = sum(reading.progress + reading.finished + (reading.iteration or 0) for reading in readings)
        follows = complete and all(reading.polls_should_stop for reading in readings)
        return NodeProgress(self.steps(), speed, follows, work)

    def complete(self) -> bool:
        """Whether a rank called ``rankwatch.mark_complete()``."""
        return any(reading.complete for reading in self.readings().values())

    def had_shut_down(self, local_rank: int) -> bool:
        """Whether the rank had called ``rankwatch.shutdown()``."""
        reading = self.readings().get(local_rank)
        return reading is not None and reading.phase == PHASE_SHUT_DOWN

    def expendable(self, local_rank: int) -> bool:
        """Whether the other ranks declared that they continue without this one."""
        return (reading := self.readings().get(local_rank)) is not None and reading.expendable

    def set_stop_step(self, step: int, *, preempts: bool = False) -> tuple[bool, int | None]:
        """Request that the ranks stop after a step; see :meth:`NodeSlots.set_stop_step`."""
        attempt = self._attempt
        return attempt.slots.set_stop_step(step, preempts=preempts) if attempt is not None else (False, None)

    def budget(self, configured: RestartBudget) -> RestartBudget:
        """The restart budget in force: the monitor's current policy, else what the launcher was configured with."""
        restarts, no_progress, _ = self._launcher_settings
        return RestartBudget(
            configured.max_restarts if restarts is None else restarts,
            configured.max_no_progress if no_progress is None else no_progress,
        )

    # Requests of the ranks --------------------------------------------------------------------------------------------

    def requests(self) -> list[RankRequest]:
        """Requests that concern the whole job, made since the last call."""
        self.read_requests()
        requests, self._pending_requests = self._pending_requests, []
        return requests

    def read_requests(self) -> None:
        """Read the ranks' requests: post notices, apply policy changes, keep the others for the agent."""
        if self._attempt is None:
            return
        for request in self._attempt.inbox.take(self.readings()):
            if request.action == RankRequestKind.TELL:
                logger.warning("notice of rank %d on %s: %s", request.rank, self.host, request.reason)
                if request.notice == NoticeKind.LAST_WORDS:
                    continue  # posted with the exit
                notice = {"rank": request.rank, "notice": request.notice, "seconds": request.seconds}
                self.report(ProcessEventKind.NOTICE, request.reason, **notice)
            elif request.action == RankRequestKind.CHANGE_POLICY:
                self._change_policy(request)
            else:
                self._pending_requests.append(request)

    def exit_reason(self, process: RankProcess) -> str:
        """The notice with which a rank explained its exit; empty: none."""
        current = self._attempt
        return current.inbox.exit_reason(process.local_rank, process.code) if current is not None else ""

    def _change_policy(self, request: RankRequest) -> None:
        limits, wanted = self._learned_limits.loaded, request.policy
        try:
            Policy().changed(wanted)
            if request.calculated:
                wanted = self._learned_limits.adopt(wanted)
            changed = Policy().changed(self._policy).changed(wanted).to_json()
        except (ValueError, TypeError) as error:
            logger.warning("invalid policy requested by rank %d on %s ignored: %s", request.rank, self.host, error)
            return
        policy = {name: changed[name] for name in (*self._policy, *wanted)}
        known = policy == self._policy and limits == self._learned_limits.loaded
        if not known and self.link is not None:
            self._policy = policy
            self.link.post("nodes", lambda: asdict(self.registration()))

    # Stacks -----------------------------------------------------------------------------------------------------------

    def captured(self, incident: str | None) -> bool:
        """Whether stacks were captured in this attempt for an incident."""
        return self._attempt is not None and incident in self._attempt.captured

    def capture(
        self,
        deadline: float,
        *,
        incident: str | None,
        directive: int | None = None,
        last: bool = False,
        exited: Sequence[RankStack] = (),
        logs: tuple[RankLog, ...] = (),
    ) -> int:
        """Capture the stacks of the live ranks and post them, with tracebacks and logs of those that ``exited``.

        Returns how many stacks were read. One capture at a time.
        """
        # A capture in progress may take no longer than this one's deadline: the ranks of a crash must be killed soon.
        if self.link is None or not self._capturing.acquire(timeout=deadline):
            return 0
        try:
            current = self._attempt
            if current is None or (directive is None and incident is not None and incident in current.captured):
                return 0
            began = time.monotonic()
            if self._reporter is not None:
                self._reporter.post_progress()
            known = {stack.rank for stack in exited}
            targets = [current.target(r) for r in current.ranks if r.code is None and r.rank not in known]
            stacks = (*exited, *self.stacks.capture(targets, deadline, last=last))
            current.captured.add(incident)
        finally:
            self._capturing.release()
        seconds = round(time.monotonic() - began, 3)
        evidence = Evidence(self.name, current.number, incident, stacks, directive, seconds, logs=logs)
        taken, spread = time.monotonic(), 0.0 if last else evidence_spread(self.launchers)
        self.link.post(
            "evidence",
            partial(aged, evidence, taken),
            delay=random.random() * spread,
        )
        return sum(1 for stack in stacks if stack.method)

    def watch(self, seconds: float, incident: str | None) -> None:
        """Look at the live ranks every few seconds, and post what they do; see :meth:`RankWatch.watch`."""
        if self.link is not None and self._attempt is not None:
            self._watch.watch(self.link, self._attempt, incident, seconds=seconds, launchers=self.launchers)

    # On the link's threads --------------------------------------------------------------------------------------------

    def _view(self) -> NodeView:
        return NodeView(
            self.name,
            self.launchers,
            self._launcher_settings.silence_timeout,
            self.role,
            self._settings,
            self._attempt,
        )

    def _on_registered(self, settings: Mapping[str, Any], again: bool) -> None:
        if settings:
            self.apply_settings(settings)
        if again:
            # The monitor lost its store: post again which ranks run.
            self._post_events(self._started)

    def _ack(self, directive: Directive, state: AckState, detail: str, max_iteration: int | None) -> None:
        omitted = state in (AckState.DONE, AckState.SUPERSEDED) and omits_redundant_reports(self.launchers)
        if self.link is not None and not omitted:
            self.link.ack(self.name, directive, state, detail, max_iteration)

    def _event(self, kind: ProcessEventKind, **details: Any) -> ProcessEvent:
        world_size = self._attempt.world_size if self._attempt is not None else None
        details.setdefault("attempt", self.attempt)
        return ProcessEvent(node=self.name, kind=kind, world_size=world_size or None, **details)

    def _post_events(self, events: Sequence[tuple[ProcessEvent, float]]) -> None:
        if self.link is None or not events:
            return

        def body() -> dict[str, Any]:
            now = time.monotonic()
            return {"events": [asdict(replace(event, age=round(now - at, 3))) for event, at in events]}

        self.link.post(EVENTS, body)


def monitor_fact(url: str) -> dict[str, str]:
    """The monitor's address as this node reaches it, without credentials, as a fact; empty: none that fits."""
    parts = urlsplit(url.rstrip("/"))
    address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return {"monitor": address} if parts.netloc and len(address) <= MAX_FACT and address.isprintable() else {}
