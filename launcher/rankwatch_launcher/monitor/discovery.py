"""Connects a node to the job's monitor: the one that was named, or one that is started beside a launcher of the job."""

from __future__ import annotations

import os
import time
from typing import Final
from uuid import uuid4

from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from rankwatch.contract import env
from rankwatch_launcher.cli.options import Options
from rankwatch_launcher.coordination.rendezvous import Rendezvous
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor import process
from rankwatch_launcher.monitor.link import Control
from rankwatch_launcher.monitor.process import EmbeddedMonitor
from rankwatch_launcher.node.node import Node

FACT: Final = "monitor"
START_SECONDS: Final = 30.0
"""How long another launcher's monitor may take to start."""
POLL_SECONDS: Final = 0.05
FACT_SECONDS: Final = 60.0
"""How long a launcher waits to hear from group rank 0 where the monitor is; it publishes that at once after meeting."""


class Watch:
    """The node's way to its monitor, over the life of the launcher."""

    def __init__(self, options: Options, node: Node, endpoint: str) -> None:
        self._options = options
        self._node = node
        self._endpoint_host = parse_rendezvous_endpoint(endpoint, default_port=0)[0] if endpoint else ""
        self._monitor: EmbeddedMonitor | None = None
        self._job_id = options.job_id or f"{options.job_name}-{uuid4().hex[:8]}"
        self._known = False

    @property
    def job_id(self) -> str:
        """The job's identity, as far as it is known."""
        return self._job_id

    @property
    def holds_monitor(self) -> bool:
        """Whether the job's monitor runs beside this launcher."""
        return self._monitor is not None

    def begin_alone(self) -> None:
        """The only launcher of a job need not wait for the rendezvous."""
        if self._options.monitor_url:
            self._attach(self._options.monitor_url, self._options.token)
        elif self._can_start():
            self._start("127.0.0.1", with_token=False)
        self._known = True

    def met(self, rendezvous: Rendezvous) -> None:
        """Once the launchers have met: group rank 0 says where the monitor is, and starts one when none was named."""
        if self._known:
            return
        # A launcher that joins later may become group rank 0; the job keeps the monitor it has.
        if rendezvous.rank == 0 and rendezvous.ledger.find(FACT) is None:
            self._lead(rendezvous)
        else:
            self._follow(rendezvous)

    def standing_by(self, rendezvous: Rendezvous) -> None:
        """A spare or parked node is shown by the monitor, too."""
        if not self._known:
            self._follow(rendezvous)

    def close(self) -> None:
        """End the monitor, if it is ours."""
        if self._monitor is not None:
            self._monitor.close()

    def _lead(self, rendezvous: Rendezvous) -> None:
        self._known = True
        url, token = self._options.monitor_url, self._options.token
        if not url and self._can_start():
            host, with_token = process.bind_address(self._endpoint_host, rendezvous.master_addr)
            self._start(host, with_token=with_token)
            url, token = (self._monitor.url, self._monitor.token) if self._monitor is not None else ("", "")
        elif url:
            self._attach(url, token)
        rendezvous.ledger.publish(FACT, {"url": url, "token": token, "job_id": self._job_id})

    def _follow(self, rendezvous: Rendezvous) -> None:
        until = time.monotonic() + FACT_SECONDS
        while (fact := rendezvous.ledger.find(FACT)) is None:
            # Whoever was to say it may be lost: the next attempt has another group rank 0.
            if time.monotonic() > until or rendezvous.interrupted() or rendezvous.over():
                return
            time.sleep(POLL_SECONDS)
        self._known = True
        self._job_id = str(fact.get("job_id", self._job_id))
        if url := self._options.monitor_url or str(fact.get("url", "")):
            self._attach(url, self._options.token or str(fact.get("token", "")), patience=START_SECONDS)
        else:
            logger.warning("the launcher of group rank 0 has no monitor; hangs will not be found")

    def _can_start(self) -> bool:
        if not process.available():
            logger.warning("%s", process.HOW_TO_GET_IT)
            return False
        return True

    def _start(self, host: str, *, with_token: bool) -> None:
        try:
            self._monitor = EmbeddedMonitor(self._job_id, host, with_token=with_token)
            self._monitor.start()
        except OSError as error:
            self._monitor = None
            logger.warning("no monitor could be started on %s: %s; training goes on", host, error)
            return
        self._attach(self._monitor.url, self._monitor.token, self._monitor)

    def _attach(self, url: str, token: str, monitor: EmbeddedMonitor | None = None, *, patience: float = 0.0) -> None:
        os.environ[env.MONITOR_URL] = url
        os.environ[env.JOB_ID] = self._job_id
        os.environ[env.JOB_NAME] = self._options.job_name
        if token:
            os.environ[env.TOKEN] = token
        control = Control(self._job_id, self._node.registration)
        ready = monitor.wait_ready if monitor is not None else None
        self._node.attach(control, url, token, ready=ready, patience=patience)
