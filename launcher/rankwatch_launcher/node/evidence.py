"""What the ranks of this node do: stacks on order and before a kill, samples of suspects, a look at a slow start."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rankwatch.contract import flight
from rankwatch.contract.intervals import evidence_spread
from rankwatch.contract.messages import Evidence, RankLog, RankStack
from rankwatch.contract.nccl_ras import RasReport
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.link import MonitorLink
from rankwatch_launcher.node.attempt import Attempt
from rankwatch_launcher.node.files import AttemptFiles
from rankwatch_launcher.node.first_look import FirstLook
from rankwatch_launcher.node.slow_look import SlowLook
from rankwatch_launcher.node.watch import RankWatch, aged
from rankwatch_launcher.stacks import ras
from rankwatch_launcher.stacks.capture import StackReader

ASKING_NODES: Final = 2
"""Nodes whose launchers ask NCCL about the whole job: those of the first ranks. One may be cut off from the others."""

NCCL_SECONDS: Final = 3.0
"""How long stacks wait for NCCL's answer, and no longer than half their deadline: after it they count as missing."""


class EvidenceTaker:
    """Looks at the ranks of this node and posts what it sees; nothing is posted before :meth:`connect`."""

    def __init__(self, node: str, files: AttemptFiles) -> None:
        self._node, self._files = node, files
        self._stacks = StackReader()
        self._watch, self._first_look = RankWatch(node, self._stacks), FirstLook(self._stacks)
        self._slow_look = SlowLook(self._stacks)
        self._link: MonitorLink | None = None
        self._post_progress: Callable[[], None] = lambda: None
        self._capturing = threading.Lock()
        threading.Thread(target=self._stacks.probe, name="rankwatch-probe", daemon=True).start()

    def connect(self, link: MonitorLink, post_progress: Callable[[], None]) -> None:
        """``post_progress`` posts the ranks' progress, which precedes their stacks."""
        self._link, self._post_progress = link, post_progress

    def begin(self, attempt: Attempt) -> None:
        """The ranks of an attempt were started."""
        self._first_look.begin(attempt)

    def end(self) -> None:
        """The attempt is over."""
        self._watch.stop()
        self._first_look.stop()
        self._slow_look.stop()

    def close(self) -> None:
        """End what is in progress, and refuse more."""
        self._watch.close()
        self._first_look.stop()
        self._slow_look.stop()

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

        Returns how many stacks were read. One capture at a time; without a directive, one for an incident.
        """
        # A capture in progress may take no longer than this one's deadline: the ranks of a crash must be killed soon.
        if self._link is None or not self._capturing.acquire(timeout=deadline):
            return 0
        try:
            current = self._files.current
            if current is None or (directive is None and incident is not None and incident in current.captured):
                return 0
            began = time.monotonic()
            self._post_progress()
            asked = None if last or exited else self._ask_nccl(current, incident)
            known = {stack.rank for stack in exited}
            targets = [current.target(r) for r in current.ranks if r.code is None and r.rank not in known]
            recorded: dict[int, bytes] = {}
            stacks = (*exited, *self._stacks.capture(targets, deadline, last=last, dumps=recorded))
            dumps = flight.packed(dict(recorded))  # a copy: a rank that answers too late is still being read
            wait = min(NCCL_SECONDS, deadline / 2) - (time.monotonic() - began)
            report = None if asked is None else asked.within(wait)
            current.captured.add(incident)
        finally:
            self._capturing.release()
        seconds = round(time.monotonic() - began, 3)
        evidence = Evidence(
            self._node, current.number, incident, stacks, directive, seconds, logs=logs, dumps=dumps, ras=report
        )
        taken, spread = time.monotonic(), 0.0 if last else evidence_spread(self._files.launchers)
        self._link.post("evidence", partial(aged, evidence, taken), delay=random.random() * spread)
        return sum(1 for stack in stacks if stack.method)

    def _ask_nccl(self, current: Attempt, incident: str | None) -> _Asked | None:
        """Ask NCCL about the job, beside the stacks; None: other nodes do that."""
        live = [rank for rank in current.ranks if rank.code is None]
        if not live or min(rank.rank for rank in live) >= ASKING_NODES * len(current.ranks):
            return None
        node, link = self._node, self._link

        def too_late(report: RasReport) -> None:
            if link is not None:
                taken = time.monotonic()
                evidence = Evidence(node, current.number, incident, (), ras=report)
                link.post("evidence", partial(aged, evidence, taken))

        return _Asked([rank.pid for rank in live], too_late)

    def watch(self, seconds: float, incident: str | None) -> None:
        """Look at the live ranks every few seconds, and post what they do; see :meth:`RankWatch.watch`."""
        if self._link is not None and (current := self._files.current) is not None:
            self._watch.watch(self._link, current, incident, seconds=seconds, launchers=self._files.launchers)

    def compare(self, rank: int) -> None:
        """Show what a slow rank does that a fast one of this node does not; see :class:`SlowLook`."""
        if (current := self._files.current) is not None:
            self._slow_look.begin(current, rank)


class _Asked:
    """A question to NCCL under way, on a thread of its own. An answer that nobody awaits any more is passed on."""

    def __init__(self, pids: Sequence[int], too_late: Callable[[RasReport], None]) -> None:
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._report: RasReport | None = None
        self._awaited = True
        self._too_late = too_late
        threading.Thread(target=self._ask, args=(pids,), name="rankwatch-ras", daemon=True).start()

    def within(self, seconds: float) -> RasReport | None:
        """The answer, if it comes in time."""
        self._done.wait(max(0.0, seconds))
        with self._lock:
            self._awaited = False
            return self._report

    def _ask(self, pids: Sequence[int]) -> None:
        try:
            report = ras.ask(pids, time.monotonic() + ras.SECONDS)
        except Exception:  # noqa: BLE001 - thread boundary
            logger.exception("asking NCCL about the job failed")
            report = None
        with self._lock:
            self._report = report
            late = not self._awaited
        self._done.set()
        if late and report is not None:
            self._too_late(report)
