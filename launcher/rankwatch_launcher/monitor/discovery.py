"""Finds the job's monitor: the configured one, or one started beside a launcher of the job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from rankwatch.contract import access, env, job_id, records
from rankwatch_launcher.coordination.rendezvous import Rendezvous
from rankwatch_launcher.log import logger, watching
from rankwatch_launcher.monitor import process
from rankwatch_launcher.monitor.process import KeptRecords, LocalMonitor
from rankwatch_launcher.options import Options

FACT: Final = "monitor"
START_SECONDS: Final = 30.0
"""How long another launcher's monitor may take to start."""
POLL_SECONDS: Final = 0.05
ON_EACH_NODE: Final = "give --monitor on every node"
CLAIM_SECONDS: Final = 20.0
"""How long an id is asked for at a shared monitor while another run has it: longer than a dead one counts as alive."""
CLAIM_AGAIN_SECONDS: Final = 0.5
RECORD_SECONDS: Final = 5.0
"""The same for a record on this host: the monitor of a killed launcher ends within a second or two."""
FACT_SECONDS: Final = 60.0
"""How long a launcher waits for group rank 0 to publish the monitor's address, which it does right after rendezvous."""


class Connect(Protocol):
    """Connects the node to a monitor."""

    def __call__(
        self, job_id: str, url: str, token: str, *, ready: Callable[[], object] | None = None, patience: float = 0.0
    ) -> None:
        """See :meth:`rankwatch_launcher.node.session.MonitorSession.connect`."""


class Claimant(Protocol):
    """The node, as far as the identity of its run goes."""

    run: str

    def claim(self, job_id: str, url: str, token: str) -> str:
        """See :meth:`rankwatch_launcher.node.session.MonitorSession.claim`."""


@dataclass(frozen=True, slots=True)
class Published:
    """What group rank 0 tells the other launchers of the job's monitor."""

    job_id: str
    url: str = ""
    """Empty: there is none."""
    token: str = ""
    """Hidden where the launchers have a secret."""
    run: str = ""

    def __post_init__(self) -> None:
        """Refuse what can be no id, address or token."""
        if (why := job_id.problem(self.job_id)) is not None:
            raise ValueError(f"the job's id {why}")
        if not (self.url.isprintable() and self.token.isascii() and self.token.isprintable()):
            raise ValueError("its address or token has control characters")


class MonitorDiscovery:
    """Connects the node to the job's monitor once, by the first way that applies."""

    def __init__(self, options: Options, connect: Connect, endpoint: str, node: Claimant | None = None) -> None:
        self._node = node
        self._run = uuid4().hex
        self._options = options
        self._connect = connect
        self._endpoint_host = _host_of(endpoint)
        self._monitor: LocalMonitor | None = None
        self._job_id = options.job_id or job_id.usable(f"{options.job_name}-{uuid4().hex[:8]}")
        self._done = False
        self.monitor_url = ""
        """Address of the job's monitor; empty: there is none."""
        self.token = ""

    @property
    def job_id(self) -> str:
        """The job's id: this launcher's own until another launcher published the job's."""
        return self._job_id

    @property
    def holds_monitor(self) -> bool:
        """Whether the job's monitor runs beside this launcher."""
        return self._monitor is not None

    @property
    def has_started(self) -> bool:
        """Whether the monitor beside this launcher has become ready."""
        return self._monitor is not None and self._monitor.has_started

    @property
    def record(self) -> Path | None:
        """The job's record on this host; None if another monitor keeps it, or one with a database of its own."""
        return self._monitor.record if self._monitor is not None else None

    def begin_alone(self) -> None:
        """Connect without waiting for the rendezvous: this is the job's only launcher."""
        if self._options.monitor_url:
            self._claim(self._options.monitor_url)
            self._attach(self._options.monitor_url, self._options.token)
        elif self._can_start():
            self._start("127.0.0.1")
        self._done = True

    def on_rendezvous(self, rendezvous: Rendezvous) -> None:
        """Connect after the rendezvous: group rank 0 publishes the monitor's address, and starts one if needed."""
        if self._done:
            return
        # A launcher that joins later may become group rank 0; the job keeps its monitor.
        if rendezvous.rank == 0 and rendezvous.store.find(FACT, Published) is None:
            self._publish(rendezvous)
        else:
            self._follow(rendezvous)

    def on_standby(self, rendezvous: Rendezvous) -> None:
        """Connect a spare or parked node: the monitor shows these, too."""
        if not self._done:
            self._follow(rendezvous)

    def close(self) -> None:
        """End the monitor if it was started here."""
        if self._monitor is not None:
            self._monitor.close()

    def _publish(self, rendezvous: Rendezvous) -> None:
        self._done = True
        url, token = self._options.monitor_url, ""
        if url:
            self._claim(url)
            self._attach(url, self._options.token)
        elif self._can_start():
            self._start(process.bind_address(self._endpoint_host, rendezvous.master_addr))
            if self._monitor is not None:
                url, token = self._monitor.url, self._monitor.ingest_token
        # The store has no authentication: a configured token stays here, and an own monitor's may only ingest.
        run, hidden = {"run": self._run} if self._node is not None else {}, rendezvous.store.hide(token)
        rendezvous.store.publish(FACT, {"url": url, "token": hidden, "job_id": self._job_id} | run)

    def _follow(self, rendezvous: Rendezvous) -> None:
        until = time.monotonic() + FACT_SECONDS
        while (fact := rendezvous.store.find(FACT, Published)) is None:
            # The publisher may be lost: the next attempt has another group rank 0.
            if time.monotonic() > until or rendezvous.interrupted() or rendezvous.attempt_ended():
                return
            time.sleep(POLL_SECONDS)
        self._done = True
        self._job_id = fact.job_id
        if self._node is not None:
            self._node.run = fact.run
        if url := self._options.monitor_url:
            self._attach(url, self._options.token, patience=START_SECONDS)
        elif url := fact.url:
            token = rendezvous.store.reveal(fact.token)
            if self._options.token and not token:
                logger.warning(
                    "%s is not sent to %s, which another launcher published: %s", env.TOKEN, url, ON_EACH_NODE
                )
            if token:
                _leave_collector()
            self._attach(url, token, patience=START_SECONDS)
        else:
            logger.warning("the launcher of group rank 0 has no monitor; hangs will not be detected")

    def _can_start(self) -> bool:
        if not process.available():
            logger.warning("%s", process.NOT_INSTALLED)
            return False
        return True

    def _claim(self, url: str) -> None:
        """Claim the job's id at a monitor that others use too; while another run has it, this one takes its own."""
        if self._node is None:
            return
        self._node.run, until = self._run, time.monotonic() + CLAIM_SECONDS
        # A run that was killed counts as alive for some seconds: its successor continues its record.
        waiting = False
        while refused := self._node.claim(self._job_id, url, self._options.token):
            if time.monotonic() > until:
                self._take_other_id(refused)
                return
            if not waiting:
                waiting = True
                logger.warning("%s; waiting up to %.0f s for that run to end", refused, CLAIM_SECONDS)
            time.sleep(CLAIM_AGAIN_SECONDS)

    def _separate(self) -> None:
        """Take another id if a monitor on this host has the record of this one, after it had time to end."""
        record = records.state_place(os.environ).folder / "jobs" / records.file_name(self._job_id)
        until = time.monotonic() + RECORD_SECONDS
        while (holder := records.holder(record)) is not None and not os.environ.get(process.DATABASE):
            if time.monotonic() > until:
                self._take_other_id(f"job {self._job_id!r} runs on this host already (monitor: process {holder})")
                return
            time.sleep(POLL_SECONDS)

    def _take_other_id(self, why: str) -> None:
        self._job_id = job_id.usable(f"{self._job_id}-{self._run[:6]}")
        logger.warning("%s; this run is watched as job %s. Give each run its own --job-id", why, self._job_id)

    def _start(self, host: str) -> None:
        self._separate()
        if self._node is not None:
            self._node.run = self._run
        try:
            keep = KeptRecords(self._options.keep_records_days, self._options.keep_records_mib)
            self._monitor = LocalMonitor(self._job_id, host, keep)
            self._monitor.start()
        except OSError as error:
            self._monitor = None
            logger.warning("no monitor could be started on %s: %s; training continues", host, error)
            return
        _leave_collector()
        self._attach(self._monitor.url, self._monitor.token, self._monitor)

    def _attach(self, url: str, token: str, monitor: LocalMonitor | None = None, *, patience: float = 0.0) -> None:
        self.monitor_url, self.token = url, token
        watching(self._job_id, url)
        os.environ[env.MONITOR_URL] = url
        os.environ[env.JOB_ID] = self._job_id
        os.environ[env.JOB_NAME] = self._options.job_name
        os.environ.pop(env.TOKEN, None)
        # Of a monitor that was named the launcher may have a token that allows more than ranks need.
        given = "" if url != self._options.monitor_url else os.environ.get(env.INGEST_TOKEN) or _own_ingest(url, token)
        if ranks_token := monitor.ingest_token if monitor is not None else given or token:
            os.environ[env.TOKEN] = ranks_token
        ready = monitor.wait_ready if monitor is not None else None
        self._connect(self._job_id, url, token, ready=ready, patience=patience)


def _host_of(endpoint: str) -> str:
    """The host of an endpoint; that of a file is not one, but not this host alone either."""
    try:
        return parse_rendezvous_endpoint(endpoint, default_port=0)[0] if endpoint else ""
    except ValueError:
        return endpoint


def _own_ingest(url: str, token: str) -> str:
    """The ingest token of a monitor that this user started, if ``token`` is its other one."""
    own = access.of(url)
    return own.ingest_token if own is not None and own.token == token else ""


def _leave_collector() -> None:
    """Have ranks report to the job's own monitor, to which no Collector sends."""
    if os.environ.pop(env.COLLECTOR_URL, ""):
        logger.warning(
            "%s is ignored: ranks report to the job's own monitor. "
            "Name the monitor that the Collector sends to with --monitor",
            env.COLLECTOR_URL,
        )
