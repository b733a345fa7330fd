"""This launcher's session with the monitor: registration, process events, settings, directives, proxy reports."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from rankwatch.contract.enums import AckState, NodeRole, NoticeKind, ProcessEventKind, RankRequestKind
from rankwatch.contract.intervals import evidence_spread, omits_redundant_reports
from rankwatch.contract.messages import Directive, NodeRegistration, ProcessEvent, RankRequest, RunClaim
from rankwatch.contract.node_checks import CheckResult
from rankwatch.contract.policy import Policy
from rankwatch_launcher.coordination.decisions import RestartBudget
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.answers import LauncherSettings
from rankwatch_launcher.monitor.directives import DirectiveInbox
from rankwatch_launcher.monitor.link import EVENTS, MonitorLink
from rankwatch_launcher.node.attempt import Attempt
from rankwatch_launcher.node.evidence import EvidenceTaker
from rankwatch_launcher.node.files import AttemptFiles
from rankwatch_launcher.node.identity import Identity
from rankwatch_launcher.node.learned_limits import AT_END, NOW, LearnedLimitsFile
from rankwatch_launcher.node.rank_output import RankOutput
from rankwatch_launcher.node.reporter import NodeView, ProxyReporter

LAUNCHER_SETTINGS: Final = "launcher"
"""Key of the settings that are for the launcher itself."""
MAX_FACT: Final = 200
"""Characters of a fact in a registration, which a monitor refuses if one is too long."""


class MonitorSession:
    """The session of one launcher, shared by the loop and the link's threads. Without a monitor all of it is silent."""

    def __init__(
        self,
        me: Identity,
        files: AttemptFiles,
        evidence: EvidenceTaker,
        *,
        job_name: str = "",
        policy: Mapping[str, Any] | None = None,
        learned_limits: LearnedLimitsFile | None = None,
        output: RankOutput | None = None,
    ) -> None:
        self._output = output or RankOutput(me.name)
        self.me, self._files, self._evidence = me, files, evidence
        self.learned_limits = learned_limits or LearnedLimitsFile()
        self.facts: dict[str, str] = {}
        self.launch = ""
        """The line that launches this node again."""
        self.role = (NodeRole.ACTIVE, "")
        self.checks: tuple[CheckResult, ...] = ()
        """What the last checks of this node found."""
        self.topology: tuple[str, ...] = ()
        """Where this node is."""
        self.min_nodes = 0
        """Nodes without which no attempt starts; 0: unknown."""
        self.run = ""
        """Identity of this start of the job, the same for all its launchers."""
        self._job_name, self._policy = job_name, dict(policy or {})
        self._settings = LauncherSettings()
        self._started: list[tuple[ProcessEvent, float]] = []
        self._link: MonitorLink | None = None
        self._reporter: ProxyReporter | None = None
        self.capture, self.watch, self.compare = (
            evidence.capture,
            evidence.watch,
            evidence.compare,
        )  # what directives want
        self.directives = DirectiveInbox(self, self._ack)

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
        link.on_registered = self.registered
        self.use(link)
        link.connect(url, token, ready=ready, patience=patience)
        assert self._reporter is not None
        self._reporter.start()

    def use(self, link: MonitorLink) -> None:
        """Post over this link from now on."""
        self._link, self._reporter = link, ProxyReporter(self.view, link)
        self._evidence.connect(link, self._reporter.post_progress)
        self._output.connect(link)

    def claim(self, job_id: str, url: str, token: str) -> str:
        """Claim a job's id for this run; see :meth:`MonitorLink.claim`."""
        link = MonitorLink(job_id, self.registration)
        return link.claim(url, token, RunClaim(self.run, self.me.hostname, os.getpid()))

    def close(self) -> None:
        """Send what is queued."""
        if self._reporter is not None:
            self._reporter.stop()
        self.learned_limits.close()
        if self._link is not None:
            self._link.close(timeout=3.0)

    @property
    def attempt(self) -> int:
        """The attempt that starts or runs; 0 before the first."""
        return self._files.attempt

    # To the monitor ---------------------------------------------------------------------------------------------------

    def registration(self) -> NodeRegistration:
        """This launcher's registration with the monitor."""
        return NodeRegistration(
            node=self.me.name,
            host=self.me.hostname,
            launcher_pid=os.getpid(),
            local_world_size=self._files.local_world_size,
            job_name=self._job_name,
            attempt=self.attempt,
            policy=self._policy,
            facts=self.facts,
            launch=self.launch,
            ft_state=self.learned_limits.loaded,
            run=self.run,
            min_nodes=self.min_nodes,
            topology=self.topology,
            checks=self.checks,
        )

    def checked(self, results: tuple[CheckResult, ...]) -> None:
        """The node was checked; the monitor is told what it does not know yet."""
        known, self.checks = self.checks, tuple(each.brief() for each in results)
        if self._link is not None and known != self.checks:
            delay = random.random() * evidence_spread(self._files.launchers)
            self._link.post("nodes", lambda: asdict(self.registration()), delay=delay)

    @property
    def monitor_url(self) -> str:
        """The monitor's address; empty: none is known yet."""
        return self._link.url if self._link is not None else ""

    @property
    def job_id(self) -> str:
        """The job's id at the monitor; empty: not known yet."""
        return self._link.job_id if self._link is not None else ""

    def prepared(self, folder: Path) -> None:
        """The ranks of an attempt are about to start; ``folder`` has their slots."""
        self.role = (NodeRole.ACTIVE, "")
        self.learned_limits.share(folder)

    def started(self, attempt: Attempt) -> None:
        """The ranks of an attempt were started."""
        self._started = [
            (self._event(ProcessEventKind.STARTED, rank=r.rank, local_rank=r.local_rank, pid=r.pid), time.monotonic())
            for r in attempt.ranks
        ]
        self._post_events(self._started)
        self.learned_limits.set_writer(any(rank.rank == 0 for rank in attempt.ranks))

    def report(self, kind: ProcessEventKind, reason: str = "", **details: Any) -> None:
        """Post a process event to the monitor."""
        self._post_events([(self._event(kind, reason=reason, **details), time.monotonic())])

    def requests(self) -> list[RankRequest]:
        """The ranks' new requests that concern the whole job; notices are posted, policy changes registered."""
        pending = []
        for request in self._files.requests():
            if request.action == RankRequestKind.TELL:
                logger.warning("notice of rank %d on %s: %s", request.rank, self.me.host, request.reason)
                if request.notice == NoticeKind.LAST_WORDS:
                    continue  # posted with the exit
                notice = {"rank": request.rank, "notice": request.notice, "seconds": request.seconds}
                self.report(ProcessEventKind.NOTICE, request.reason, **notice)
            elif request.action == RankRequestKind.CHANGE_POLICY:
                self.change_policy(request)
            else:
                pending.append(request)
        return pending

    def change_policy(self, request: RankRequest) -> None:
        """A rank has changed the policy: register that."""
        limits, wanted = self.learned_limits.loaded, request.policy
        try:
            Policy().changed(wanted)
            if request.calculated:
                wanted = self.learned_limits.adopt(wanted)
            changed = Policy().changed(self._policy).changed(wanted).to_json()
        except (ValueError, TypeError) as error:
            logger.warning("invalid policy requested by rank %d on %s ignored: %s", request.rank, self.me.host, error)
            return
        policy = {name: changed[name] for name in (*self._policy, *wanted)}
        known = policy == self._policy and limits == self.learned_limits.loaded
        if not known and self._link is not None:
            self._policy = policy
            self._link.post("nodes", lambda: asdict(self.registration()))

    # From the monitor -------------------------------------------------------------------------------------------------

    def apply_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the monitor's settings to all ranks, now and in later attempts; some stay with the launcher."""
        self.learned_limits.take(settings)
        self._settings = LauncherSettings.of(settings.get(LAUNCHER_SETTINGS))
        kept_here = (NOW, AT_END, LAUNCHER_SETTINGS)
        self._files.write_settings({name: value for name, value in settings.items() if name not in kept_here})

    def budget(self, configured: RestartBudget) -> RestartBudget:
        """The restart budget in force: the monitor's current policy, else what the launcher was configured with."""
        restarts, no_progress, _ = self._settings
        return RestartBudget(
            configured.max_restarts if restarts is None else restarts,
            configured.max_no_progress if no_progress is None else no_progress,
        )

    def registered(self, settings: Mapping[str, Any], again: bool) -> None:
        """The monitor knows this launcher; ``again``: it had lost its store, and no longer knows which ranks run."""
        if settings:
            self.apply_settings(settings)
        if again:
            self._post_events(self._started)

    def view(self) -> NodeView:
        """What the reporter needs to know."""
        files, silence = self._files, self._settings.silence_timeout
        return NodeView(self.me.name, files.launchers, silence, self.role, files.settings, files.current)

    def _ack(self, directive: Directive, state: AckState, detail: str, max_iteration: int | None) -> None:
        omitted = state in (AckState.DONE, AckState.SUPERSEDED) and omits_redundant_reports(self._files.launchers)
        if self._link is not None and not omitted:
            self._link.ack(self.me.name, directive, state, detail, max_iteration)

    def _event(self, kind: ProcessEventKind, **details: Any) -> ProcessEvent:
        current = self._files.current
        details.setdefault("attempt", self.attempt)
        world_size = current.world_size if current is not None else 0
        return ProcessEvent(node=self.me.name, kind=kind, world_size=world_size or None, **details)

    def _post_events(self, events: Sequence[tuple[ProcessEvent, float]]) -> None:
        if self._link is None or not events:
            return

        def body() -> dict[str, Any]:
            now = time.monotonic()
            return {"events": [asdict(replace(event, age=round(now - at, 3))) for event, at in events]}

        self._link.post(EVENTS, body)


def monitor_fact(url: str) -> dict[str, str]:
    """The monitor's address as this node reaches it, without credentials, as a fact; empty: none that fits."""
    parts = urlsplit(url.rstrip("/"))
    address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return {"monitor": address} if parts.netloc and len(address) <= MAX_FACT and address.isprintable() else {}
