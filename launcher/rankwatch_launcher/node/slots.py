"""The launcher's side of the shared slots: one folder per attempt on a memory file system."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.env import slots_file, stack_file
from rankwatch.contract.files import private_folder
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Reading, Slots
from rankwatch_launcher.folders import locked, remove_leftovers
from rankwatch_launcher.log import logger

MEMORY: Final = Path("/dev/shm")
"""Writing to a mapped page of a file on disk may block during writeback; memory never does."""


class SlotsFolder:
    """One launcher's folder, private to its user, with one folder per attempt."""

    def __init__(self, parent: Path | None = None) -> None:
        if parent is None and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
            parent = MEMORY
        if parent is not None:
            # Of launchers that were killed together with their reapers.
            remove_leftovers(parent, "rankwatch-*", lambda name: name.startswith("attempt-"))
        self._lock = -1
        try:
            self.path = Path(tempfile.mkdtemp(prefix="rankwatch-", dir=parent))
        except OSError as error:
            self._move(f"{parent} cannot be used ({error})")
        self._hold()

    def attempt(self, attempt: int, local_ranks: int) -> Path:
        """Create the folder of an attempt with the slots of its ranks, and remove those of earlier attempts.

        A launcher's folder that has vanished (systemd's RemoveIPC, a cleaner of temporary files) is made again; on
        another file system if this one takes no more.
        """
        try:
            return self._make(attempt, local_ranks)
        except OSError as error:
            self._move(f"{self.path} cannot be used ({error})")
            return self._make(attempt, local_ranks)

    def _move(self, why: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rankwatch-"))
        logger.warning("%s: the ranks' slots are in %s", why, self.path)

    def _make(self, attempt: int, local_ranks: int) -> Path:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        private_folder(self.path, create=False)  # another user may have taken the name of one that has vanished
        self._hold()
        for old in self.path.iterdir():
            shutil.rmtree(old, ignore_errors=True)
        folder = self.path / f"attempt-{attempt}"
        folder.mkdir(mode=0o700)
        try:
            for local in range(local_ranks):
                Slots.create(folder / slots_file(local)).close()
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        return folder

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _hold(self) -> None:
        """Lock the folder for as long as this process lives."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = locked(self.path)


class NodeSlots:
    """The slots of one attempt's ranks, each opened once its rank has created it. Thread-safe."""

    def __init__(self, folder: Path, local_ranks: int) -> None:
        self.folder = folder
        self._local_ranks = local_ranks
        self._open: dict[int, Slots] = {}
        self._written_generation: dict[int, int] = {}
        self._settings: dict[str, Any] = {}
        self._generation = 0
        self._stop_step: int | None = None
        self._preempts = False
        self._closed = False
        self._lock = threading.Lock()

    def stack_file(self, local_rank: int) -> Path:
        """The file that faulthandler writes to in that rank."""
        return self.folder / stack_file(local_rank)

    def read(self) -> dict[int, Reading]:
        """Read all ranks that have slots, by local rank; new ones also get the current settings and stop step."""
        with self._lock:
            if self._closed:
                return {}
            self._open_new()
            readings = {local: layout.read(slots) for local, slots in self._open.items()}
            return {local: reading for local, reading in readings.items() if reading is not None}

    @contextlib.contextmanager
    def entering(self, local_rank: int) -> Iterator[bool]:
        """Whether its process may be asked or signalled within the context: a rank that ends waits for that to be over.

        Not before it has slots, nor once it is about to end (:mod:`rankwatch.liveness.leaving`).
        """
        with self._lock:
            if not self._closed:
                self._open_new()
            slots = self._open.get(local_rank)
            if slots is not None:
                # Write before read: a rank that ends from now on sees that it was entered.
                slots.words[layout.ENTERED] += 1
                reading = layout.read(slots)
        if slots is None:
            yield False
            return
        try:
            yield reading is not None and reading.leaving is None
        finally:
            with self._lock:
                if not self._closed:
                    slots.words[layout.ENTERED] -= 1

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write settings to all ranks, and to those that appear later."""
        with self._lock:
            self._settings, self._generation = dict(settings), self._generation + 1
            if not self._closed:
                self._open_new()

    def set_stop_step(self, step: int, *, preempts: bool = False) -> tuple[bool, int | None]:
        """Request that every rank stops after ``step``; ``preempts`` makes the ranks log a preemption.

        Returns whether that is possible and the furthest step completed on the node. It is not, and the request is
        withdrawn, when a rank has no slots or has completed the step: it may have gone on already.
        """
        with self._lock:
            if self._closed:
                return False, None
            self._open_new()
            before = self._stop_step, self._preempts
            self._stop_step, self._preempts = step, preempts
            self._write_stop_step()
            # Write before read: a rank that has not completed the step by now sees the request before it goes on.
            iterations = [_iteration(slots) for slots in self._open.values()]
            furthest = max((i for i in iterations if i is not None), default=None)
            agreed = len(self._open) == self._local_ranks and (furthest is None or furthest < step)
            if not agreed:
                self._stop_step, self._preempts = before
                self._write_stop_step()
            return agreed, furthest

    def close(self) -> None:
        """Unmap all slots; later calls have no effect."""
        with self._lock:
            self._closed = True
            for slots in self._open.values():
                slots.close()
            self._open.clear()

    def _open_new(self) -> None:
        for local in range(self._local_ranks):
            if local not in self._open:
                # Missing, or not at its full length yet: retried at the next call.
                with contextlib.suppress(OSError, ValueError):
                    slots = Slots.open(self.folder / slots_file(local))
                    if layout.read(slots) is None:
                        slots.close()
                        continue
                    self._open[local] = slots
                    self._write_stop_step()
            if local in self._open and self._written_generation.get(local, 0) != self._generation:
                self._written_generation[local] = self._generation
                try:
                    self._open[local].write_settings(self._settings)
                except ValueError as error:
                    logger.warning("settings not written to local rank %d: %s", local, error)

    def _write_stop_step(self) -> None:
        for slots in self._open.values():
            slots.words[layout.STOP_PREEMPTS] = int(self._preempts)
            slots.words[layout.STOP_STEP] = 0 if self._stop_step is None else self._stop_step + 1


def _iteration(slots: Slots) -> int | None:
    reading = layout.read(slots)
    return reading.iteration if reading is not None else None
