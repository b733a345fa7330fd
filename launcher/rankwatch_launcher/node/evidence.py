"""What the ranks of this node do: stacks on order and before a kill, samples of suspects, a look at a slow start."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from rankwatch.contract.intervals import evidence_spread
from rankwatch.contract.messages import Evidence, RankLog, RankStack
from rankwatch_launcher.monitor.link import MonitorLink
from rankwatch_launcher.node.attempt import Attempt
from rankwatch_launcher.node.files import AttemptFiles
from rankwatch_launcher.node.first_look import FirstLook
from rankwatch_launcher.node.slow_look import SlowLook
from rankwatch_launcher.node.watch import RankWatch, aged
from rankwatch_launcher.stacks.capture import StackReader


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
            known = {stack.rank for stack in exited}
            targets = [current.target(r) for r in current.ranks if r.code is None and r.rank not in known]
            stacks = (*exited, *self._stacks.capture(targets, deadline, last=last))
            current.captured.add(incident)
        finally:
            self._capturing.release()
        seconds = round(time.monotonic() - began, 3)
        evidence = Evidence(self._node, current.number, incident, stacks, directive, seconds, logs=logs)
        taken, spread = time.monotonic(), 0.0 if last else evidence_spread(self._files.launchers)
        self._link.post("evidence", partial(aged, evidence, taken), delay=random.random() * spread)
        return sum(1 for stack in stacks if stack.method)

    def watch(self, seconds: float, incident: str | None) -> None:
        """Look at the live ranks every few seconds, and post what they do; see :meth:`RankWatch.watch`."""
        if self._link is not None and (current := self._files.current) is not None:
            self._watch.watch(self._link, current, incident, seconds=seconds, launchers=self._files.launchers)

    def compare(self, rank: int) -> None:
        """Show what a slow rank does that a fast one of this node does not; see :class:`SlowLook`."""
        if (current := self._files.current) is not None:
            self._slow_look.begin(current, rank)
