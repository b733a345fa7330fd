"""The files of this node's ranks, from attempt to attempt: their shared slots, and their requests beside them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwatch.contract.messages import RankRequest
from rankwatch.recording.shared_slots import Reading
from rankwatch_launcher.coordination.decisions import StepRange
from rankwatch_launcher.coordination.membership import NodeProgress
from rankwatch_launcher.node.attempt import Attempt, RankProcess
from rankwatch_launcher.node.cpu_work import CpuWork
from rankwatch_launcher.node.rank_requests import RequestInbox
from rankwatch_launcher.node.slots import NodeSlots, SlotsFolder


class AttemptFiles:
    """The attempt that starts or runs here, with its files. Requests are taken on one thread; all else on any."""

    def __init__(self, local_world_size: int) -> None:
        self.folder = SlotsFolder()
        self.local_world_size = local_world_size
        self.launchers = 1
        """Approximate number of launchers of the job, this one included."""
        self.current: Attempt | None = None
        """None: this node runs no ranks."""
        self.settings: Mapping[str, Any] = {}
        """The monitor's settings for the ranks."""
        self._lock = threading.Lock()
        self._cpu_work = CpuWork()

    @property
    def attempt(self) -> int:
        """The attempt that starts or runs; 0 before the first."""
        current = self.current
        return current.number if current is not None else 0

    def prepare(self, attempt: int) -> Path:
        """Create an attempt's slots; return their folder."""
        if self.current is not None:
            self.current.slots.close()
        folder = self.folder.attempt(attempt, self.local_world_size)
        slots = NodeSlots(folder, self.local_world_size)
        with self._lock:  # settings that arrive meanwhile are written after these
            slots.write_settings(self.settings)
            self.current = Attempt(attempt, slots, RequestInbox(folder))
        return folder

    def started(self, ranks: Sequence[RankProcess], world_size: int) -> Attempt:
        """The ranks of the attempt were started."""
        assert self.current is not None
        self.current = started = replace(self.current, ranks=tuple(ranks), world_size=world_size)
        self.launchers = max(1, world_size // max(1, self.local_world_size))
        return started

    def leave(self) -> None:
        """The attempt is over."""
        current, self.current = self.current, None
        if current is not None:
            current.slots.close()

    def close(self) -> None:
        """Remove everything."""
        self.leave()
        self.folder.remove()

    # To the ranks -----------------------------------------------------------------------------------------------------

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write settings to all ranks, now and in later attempts."""
        with self._lock:
            self.settings = settings
            if self.current is not None:
                self.current.slots.write_settings(settings)

    def set_stop_step(self, step: int, *, preempts: bool = False) -> tuple[bool, int | None]:
        """Request that the ranks stop after a step; see :meth:`NodeSlots.set_stop_step`."""
        current = self.current
        return current.slots.set_stop_step(step, preempts=preempts) if current is not None else (False, None)

    # Of the ranks -----------------------------------------------------------------------------------------------------

    def readings(self) -> dict[int, Reading]:
        """The ranks' slots, by local rank."""
        current = self.current
        return current.slots.read() if current is not None else {}

    def requests(self) -> list[RankRequest]:
        """Requests made since the last call."""
        current = self.current
        return current.inbox.take(current.slots.read()) if current is not None else []

    def exit_reason(self, process: RankProcess) -> str:
        """The notice with which a rank explained its exit; empty: none."""
        current = self.current
        return current.inbox.exit_reason(process.local_rank, process.code) if current is not None else ""

    def steps(self) -> StepRange | None:
        """The steps completed here in this attempt; None when no rank reports steps."""
        readings = self.readings().values()
        first = [r.first_iteration for r in readings if r.first_iteration is not None]
        furthest = [r.iteration for r in readings if r.iteration is not None]
        return StepRange(min(first), max(furthest)) if first and furthest else None

    def progress(self) -> NodeProgress:
        """The ranks' progress, for the other launchers."""
        by_rank, current = self.readings(), self.current
        readings = by_rank.values()
        complete = len(readings) == self.local_world_size
        speed = max((reading.pace for reading in readings), default=0.0)
        work = sum(each.progress + each.finished + each.beats + (each.iteration or 0) for each in readings)
        shown = {local for local, each in by_rank.items() if each.quiet is not None or each.beats > 0}
        ranks = current.ranks if current is not None else ()
        work += self._cpu_work.count(rank.pid for rank in ranks if rank.local_rank not in shown)
        follows = complete and all(reading.polls_should_stop for reading in readings)
        return NodeProgress(self.steps(), speed, follows, work)

    def complete(self) -> bool:
        """Whether a rank called ``rankwatch.mark_complete()``."""
        return any(reading.complete for reading in self.readings().values())
