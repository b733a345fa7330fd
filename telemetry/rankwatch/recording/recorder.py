"""What a rank records while it trains: the words of the shared slots and, beside them, state of this process only."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots

RING_LENGTH: Final = 4096
"""Finished section runs kept for the exporter; with the default interval, runs per second without loss."""

NAMES_CACHED: Final = 4 * layout.NAME_LIMIT
"""Spellings of section names whose ids are cached; long ones that differ only beyond the limit share one id."""

NEVER: Final = 2**62
"""A step that is never reached."""

DROP_NAMES: Final = "section_names"
DROP_OPEN: Final = "open_sections"
DROP_RING: Final = "finished_sections"
DROP_ARGUMENT: Final = "bad_argument"


class SectionRun(NamedTuple):
    """One finished run of a section: the record from which histograms, maxima, windows and spans are made."""

    section: str
    start_ns: int
    """On the monotonic clock, like ``end_ns``."""
    end_ns: int
    iteration: int
    """Index of the step it belongs to."""
    first: bool
    """The process had never finished this section when it entered it."""

    @property
    def duration_ns(self) -> int:
        """Nanoseconds from entering to leaving."""
        return self.end_ns - self.start_ns


class Recorder:
    """The memory that the hot path of one session writes.

    An entry taken from ``free`` is held by one thread at a time. ``words[i] += n`` needs no lock: CPython switches
    threads at calls and backward jumps only, and it contains none.
    """

    __slots__ = (
        "_lost",
        "_naming",
        "_taken",
        "at_boundary",
        "boundary",
        "dropped",
        "finished",
        "free",
        "ids",
        "iteration",
        "numbered",
        "slots",
        "words",
    )

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.words = slots.words
        self.free = [layout.OPEN + 2 * i for i in reversed(range(layout.OPEN_COUNT))]
        """Words where an open section can be entered; list.pop and list.append are atomic."""
        self.finished: deque[tuple[int, int, int, int]] = deque(maxlen=RING_LENGTH)
        """Section id, start, end and iteration of each finished run; :meth:`take_finished` empties it."""
        self.ids: dict[Hashable, int] = {}
        """Ids by name; an id carries FIRST_TIME until its section has finished once, so that entering needs no test."""
        self.iteration = 0
        """Index of the step being run, or to be run next."""
        self.numbered = False
        """The script has given a step its number."""
        self.boundary = NEVER
        """From this step on, entering a step calls ``at_boundary`` first: a sampled step begins or ends."""
        self.at_boundary: Callable[[], None] = _nothing
        self.dropped: dict[str, int] = {}
        self._taken = self._lost = 0
        # Reentrant, because a signal handler may use sections too.
        self._naming = threading.RLock()

    def section_id(self, name: object) -> int:
        """Return the id of a section's name, registering a new one; 0 when the table of names is full."""
        raw = str(name).replace("\0", "").encode(errors="replace")[: layout.NAME_BYTES - 1]
        text = raw.decode(errors="ignore") or "unnamed"
        with self._naming:
            section_id = self.ids.get(text) or self.slots.add_name(text)
            # A name that does not fit into the table is not cached either: a script may use a new one in every step.
            if section_id:
                if text not in self.ids:
                    self.ids[text] = section_id = section_id | layout.FIRST_TIME
                if isinstance(name, str) and len(self.ids) < NAMES_CACHED:
                    self.ids[name] = section_id
            return section_id

    def first_finish(self, section_id: int) -> None:
        """Clear FIRST_TIME in the id of a section that has finished for the first time in this process."""
        with self._naming:
            for name, known in self.ids.copy().items():
                if known == section_id:
                    self.ids[name] = section_id & ~layout.FIRST_TIME

    def take_finished(self) -> tuple[list[SectionRun], bool]:
        """Remove and return the finished runs, in the order in which they ended, and whether older ones were lost.

        For the exporter thread. A run is counted after it is put into the ring, so a counted run that is missing was
        overwritten.
        """
        written, ring = self.words[layout.FINISHED], self.finished
        names: dict[int, str] = {}
        runs = []
        for _ in range(len(ring)):
            section_id, start, end, iteration = ring.popleft()
            if section_id not in names:
                names[section_id] = self.slots.name(section_id)
            runs.append(SectionRun(names[section_id], start, end, iteration, section_id > layout.FIRST_TIME))
        self._taken += len(runs)
        lost = written - self._taken - self._lost
        if lost > 0:
            self._lost += lost
            self.drop(DROP_RING, lost)
        # A full ring may have been overwritten after the count was read.
        return runs, lost > 0 or len(runs) >= RING_LENGTH

    def drop(self, reason: str, count: int = 1) -> None:
        """Count what was dropped, for the metric ``rankwatch.telemetry.dropped``."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def complete_step(self) -> None:
        """Complete the step being run; the next one follows it."""
        self.iteration += 1
        words = self.words
        words[layout.LAST_PROGRESS] = now = time.monotonic_ns()
        if not words[layout.FIRST_ITERATION]:
            words[layout.FIRST_STEP_AT], words[layout.NUMBERED] = now, self.numbered
            words[layout.FIRST_ITERATION] = self.iteration
        # In this order: a rank stopped between the two stores seems to be behind, which it is, not ahead of the others.
        words[layout.PROGRESS] = 0
        words[layout.ITERATION] = self.iteration

    def disconnect(self) -> None:
        """Detach from the slots, which are the parent's or closed; sections still open end in private memory."""
        self.words = memoryview(bytearray(layout.NAMES_OFFSET)).cast("q")
        self._naming = threading.RLock()  # another thread may have held the old one when the process forked


def _nothing() -> None:
    pass
