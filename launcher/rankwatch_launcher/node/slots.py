"""The slots of this node's ranks: one folder an attempt on a memory file system, read and written by the launcher."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.env import slots_file, stack_file
from rankwatch.recording import shared_slots as words
from rankwatch.recording.shared_slots import Reading, Slots
from rankwatch_launcher.log import logger

MEMORY: Final = Path("/dev/shm")
"""A store to a page of a disk's file may block while it is written back; memory never does."""


class SlotsFolder:
    """One launcher's folder, private to its user; each attempt has a folder of its own in it."""

    def __init__(self, parent: Path | None = None) -> None:
        if parent is None and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
            parent = MEMORY
        self.path = Path(tempfile.mkdtemp(prefix="rankwatch-", dir=parent))

    def attempt(self, attempt: int) -> Path:
        """Make the folder of an attempt and remove those of earlier ones."""
        for old in self.path.iterdir():
            shutil.rmtree(old, ignore_errors=True)
        folder = self.path / f"attempt-{attempt}"
        folder.mkdir(mode=0o700)
        return folder

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)


class NodeSlots:
    """The slots of one attempt's ranks; a file is opened once its rank has made it. Safe for several threads."""

    def __init__(self, folder: Path, local_ranks: int) -> None:
        self.folder = folder
        self._local_ranks = local_ranks
        self._open: dict[int, Slots] = {}
        self._given: dict[int, int] = {}
        self._settings: dict[str, Any] = {}
        self._generation = 0
        self._stop_step: int | None = None
        self._preempts = False
        self._closed = False
        self._lock = threading.Lock()

    def stack_file(self, local_rank: int) -> Path:
        """Where faulthandler in that rank writes."""
        return self.folder / stack_file(local_rank)

    def read(self) -> dict[int, Reading]:
        """Read all ranks that have slots, by local rank; also hands down what newcomers have not been given yet."""
        with self._lock:
            if self._closed:
                return {}
            self._look()
            readings = {local: words.read(slots) for local, slots in self._open.items()}
            return {local: reading for local, reading in readings.items() if reading is not None}

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Give all ranks these settings: those that are there now, and the others when they appear."""
        with self._lock:
            self._settings, self._generation = dict(settings), self._generation + 1
            if not self._closed:
                self._look()

    def set_stop_step(self, step: int, *, preempts: bool = False) -> tuple[bool, int | None]:
        """Ask every rank to stop after ``step``; True unless one has completed that step already or has no slots.

        ``preempts``: it is for a preemption, which is what the ranks then say in their logs.
        A rank that has completed the step may have looked already and gone on, so it does not count as reached. When
        refused the request is taken back. The second value is the furthest iteration of the ranks here.
        """
        with self._lock:
            if self._closed:
                return False, None
            self._look()
            before = self._stop_step, self._preempts
            self._stop_step, self._preempts = step, preempts
            self._write_stop_step()
            # Written first, read afterwards: whoever has not completed the step by now will see the request before it
            # goes on.
            iterations = [_iteration(slots) for slots in self._open.values()]
            furthest = max((i for i in iterations if i is not None), default=None)
            agreed = len(self._open) == self._local_ranks and (furthest is None or furthest < step)
            if not agreed:
                self._stop_step, self._preempts = before
                self._write_stop_step()
            return agreed, furthest

    def close(self) -> None:
        """Unmap all; nothing is read or written afterwards."""
        with self._lock:
            self._closed = True
            for slots in self._open.values():
                slots.close()
            self._open.clear()

    def _look(self) -> None:
        for local in range(self._local_ranks):
            if local not in self._open:
                # Absent, or made but not yet as long as it will be: the next look finds it.
                with contextlib.suppress(OSError, ValueError):
                    slots = Slots.open(self.folder / slots_file(local))
                    if words.read(slots) is None:
                        slots.close()
                        continue
                    self._open[local] = slots
                    self._write_stop_step()
            if local in self._open and self._given.get(local, 0) != self._generation:
                self._given[local] = self._generation
                try:
                    self._open[local].write_settings(self._settings)
                except ValueError as error:
                    logger.warning("settings were not handed to local rank %d: %s", local, error)

    def _write_stop_step(self) -> None:
        for slots in self._open.values():
            slots.words[words.STOP_PREEMPTS] = int(self._preempts)
            slots.words[words.STOP_STEP] = 0 if self._stop_step is None else self._stop_step + 1


def _iteration(slots: Slots) -> int | None:
    reading = words.read(slots)
    return reading.iteration if reading is not None else None
