"""What a rank records while it trains: the slots' words and, beside them, the little that only this process needs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots

RING_LENGTH: Final = 4096
"""Finished sections that wait for the exporter; with the default interval, sections per second without loss."""

NAMES_REMEMBERED: Final = 4 * layout.NAME_LIMIT
"""Spellings of names whose ids are kept; long ones that differ only beyond what is recorded share one id."""

NEVER: Final = 2**62
"""A step that is never reached."""

DROP_NAMES: Final = "section_names"
DROP_OPEN: Final = "open_sections"
DROP_RING: Final = "finished_sections"
DROP_ARGUMENT: Final = "bad_argument"


class Finished(NamedTuple):
    """A section that was left. The hot path stores plain tuples of this shape."""

    section_id: int
    """With the bit FIRST_TIME when the process had never finished this section when it entered it."""
    start_ns: int
    """On the monotonic clock."""
    duration_ns: int
    iteration: int
    """Index of the step it belongs to."""

    @property
    def first(self) -> bool:
        """Whether the process had never finished this section when it entered it."""
        return bool(self.section_id & layout.FIRST_TIME)


class Recorder:
    """The memory that the hot path of one session writes. One thread at a time holds an entry taken from ``free``.

    ``words[i] += n`` needs no lock: CPython switches threads at calls and backward jumps only, and there is none in it.
    """

    __slots__ = (
        "_naming",
        "at_boundary",
        "boundary",
        "dropped",
        "finished",
        "free",
        "ids",
        "iteration",
        "slots",
        "words",
    )

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.words = slots.words
        self.free = [layout.OPEN + 2 * i for i in reversed(range(layout.OPEN_COUNT))]
        """Words where an open section can be entered; list.pop and list.append are atomic."""
        self.finished: deque[tuple[int, int, int, int]] = deque(maxlen=RING_LENGTH)
        self.ids: dict[Hashable, int] = {}
        """By name; an id carries FIRST_TIME until its section has been finished, so that entering costs no test."""
        self.iteration = 0
        """Index of the step being run, or to be run next."""
        self.boundary = NEVER
        """From this step on, entering one calls ``at_boundary`` first: a step is to be sampled, or has been."""
        self.at_boundary: Callable[[], None] = _nothing
        self.dropped: dict[str, int] = {}
        # Reentrant, because a signal handler may use sections too.
        self._naming = threading.RLock()

    def section_id(self, name: object) -> int:
        """The id of a section's name, which is registered if it is new; 0 when the table of names is full."""
        raw = str(name).replace("\0", "").encode(errors="replace")[: layout.NAME_BYTES - 1]
        text = raw.decode(errors="ignore") or "unnamed"
        with self._naming:
            section_id = self.ids.get(text) or self.slots.add_name(text)
            # A name for which there is no room is not remembered either: a script may make up a new one every step.
            if section_id:
                if text not in self.ids:
                    self.ids[text] = section_id = section_id | layout.FIRST_TIME
                if isinstance(name, str) and len(self.ids) < NAMES_REMEMBERED:
                    self.ids[name] = section_id
            return section_id

    def first_finish(self, section_id: int) -> None:
        """A section was finished that this process had never finished before: from now on its id says so."""
        with self._naming:
            for name, known in self.ids.copy().items():
                if known == section_id:
                    self.ids[name] = section_id & ~layout.FIRST_TIME

    def drop(self, reason: str, count: int = 1) -> None:
        """Count what was lost, to be reported as ``rankwatch.telemetry.dropped``."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def complete_step(self) -> None:
        """The step being run is completed; the next one follows it."""
        self.iteration += 1
        words = self.words
        words[layout.LAST_PROGRESS] = now = time.monotonic_ns()
        if not words[layout.FIRST_ITERATION]:
            words[layout.FIRST_STEP_AT] = now
            words[layout.FIRST_ITERATION] = self.iteration
        # In this order, a rank that is stopped between the two looks behind, which it is, and not ahead of the others.
        words[layout.PROGRESS] = 0
        words[layout.ITERATION] = self.iteration

    def disconnect(self) -> None:
        """Let sections that are still open end in private memory: the slots are the parent's, or done with."""
        self.words = memoryview(bytearray(layout.NAMES_OFFSET)).cast("q")
        self._naming = threading.RLock()  # another thread may have held the old one when the process forked


def _nothing() -> None:
    pass
