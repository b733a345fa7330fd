"""The progress slots of one rank: a small mapped file that the rank writes and its node's launcher reads.

The file is a row of 64-bit words in the machine's byte order, followed by a table of section names and an area of
settings. The rank's hot path stores a few integers, each store being one aligned 8-byte write that a reader sees whole
or not at all. Because the kernel keeps the page, the launcher still reads where a rank was, and since when, after the
rank was stopped, lost its GIL to a stuck extension, or died. Without a launcher the same words are private memory.

===========  ======  =========================================================================================
words        writer  meaning
===========  ======  =========================================================================================
0 - 31       rank    identity, heartbeats, iteration, progress, the tick of the liveness thread
32 - 39      node    written by the launcher: stop step and its kind, generation of the settings, questions to the rank
64 - 127     rank    open sections: pairs of (section id, entered at), id 0 = free; the id of a section that this
                     process had never finished when it entered it carries the bit FIRST_TIME
===========  ======  =========================================================================================

All clock words are ``time.monotonic_ns()``, which is one clock for all processes of a host.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.limits import RankActivity

# Words the rank writes ----------------------------------------------------------------------------------------------
MAGIC: Final = 0
PID: Final = 1
PHASE: Final = 2
RANK: Final = 3
LOCAL_RANK: Final = 4
WORLD_SIZE: Final = 5
ATTEMPT: Final = 6
STARTED_AT: Final = 7
BEATS: Final = 8
LAST_BEAT: Final = 9
ITERATION: Final = 10
"""The last completed step plus one; 0: none yet."""
PROGRESS: Final = 11
"""Progress within the current step: sections finished and progress() calls; 0 again when a step completes."""
LAST_CLOSED: Final = 12
FINISHED: Final = 13
"""Sections finished since the start."""
LIVENESS_TICK: Final = 14
"""When the liveness thread last ran: it needs the GIL, but neither the network nor the main thread."""
NAME_COUNT: Final = 15
FIRST_ITERATION: Final = 16
"""The first step this process completed, plus one."""
FIRST_STEP_AT: Final = 17
LAST_PROGRESS: Final = 18
"""When progress() was last called or a step last completed."""

REPORT_DUE: Final = 19
"""By when the next report should have been delivered; 0: this rank exports nothing, or has just begun."""

STOP_SIGNALLED: Final = 20
"""When the rank received the "save and stop" signal (``RANKWATCH_RANK_STOP_SIGNAL``)."""
POLLS_SHOULD_STOP: Final = 21
"""1 once the script has called should_stop(): it follows an agreed stop step."""
COMPLETE: Final = 22
"""1 once the script has called mark_complete()."""
REQUESTS: Final = 23
"""How many requests the rank has written (``request_file``); the launcher reads the file when this grows."""
EXPENDABLE: Final = 24
"""1 while the other ranks would continue without this process, because an in-process restart has a spare for it."""
LEAVING: Final = 25
"""When the process began to end (:mod:`rankwatch.liveness.leaving`); void if progress was recorded after it."""
NUMBERED: Final = 26
"""1: the script gave the first step its number; 0: steps are counted from 0, also after a checkpoint was loaded."""

# Words the node's launcher writes -----------------------------------------------------------------------------------
STOP_STEP: Final = 32
"""The iteration after which every rank stops, plus one; 0: none."""
SETTINGS_GENERATION: Final = 33
SETTINGS_LENGTH: Final = 34
STOP_PREEMPTS: Final = 35
"""1 where the stop is a preemption, 0 where it was requested; written before the step."""
ENTERED: Final = 36
"""Questions and signals of the launcher that are under way to the process: it waits for them before it ends."""

OPEN: Final = 64
OPEN_COUNT: Final = 32
"""Sections that can be open at once in one process."""
FIRST_TIME: Final = 1 << 32
"""Bit of an id: the process had never finished this section when it entered it. It may compile, or load."""
_ID: Final = FIRST_TIME - 1

NAMES_OFFSET: Final = 1024
NAME_BYTES: Final = 64
NAME_LIMIT: Final = 64
"""Different section names a process can use."""
SETTINGS_OFFSET: Final = NAMES_OFFSET + NAME_LIMIT * NAME_BYTES
SETTINGS_BYTES: Final = 8192 - 1024
SIZE: Final = SETTINGS_OFFSET + SETTINGS_BYTES

FORMAT: Final = 0x52574154_0003
"""Magic number and version of this layout; a reader refuses any other."""

PHASE_RUNNING: Final = 1
PHASE_SHUT_DOWN: Final = 2


class Slots:
    """The mapped words of one rank. ``words[i]`` reads and writes the i-th 64-bit word."""

    __slots__ = ("_map", "_view", "path", "words")

    def __init__(self, mapping: mmap.mmap, path: Path | None = None) -> None:
        self.path = path
        self._map = mapping
        self._view = memoryview(mapping)
        self.words: memoryview[int] = self._view[:NAMES_OFFSET].cast("q")

    @classmethod
    def private(cls) -> Slots:
        """Private slots, for a rank without a Rankwatch launcher."""
        return cls(mmap.mmap(-1, SIZE))

    @classmethod
    def create(cls, path: Path) -> Slots:
        """Create or truncate the file. Use a memory file system: a store to a page under write-back may block.

        Its pages are taken at once: where other users have filled the file system, the kernel kills whoever first
        touches a page for which there is no room, the rank or its launcher.

        Raises:
            OSError: the file cannot be made, or there is no room.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, SIZE)
            return cls(mmap.mmap(fd, SIZE), path)
        finally:
            os.close(fd)

    @classmethod
    def open(cls, path: Path) -> Slots:
        """Map a file that exists already.

        Raises:
            OSError: there is none, or it cannot be mapped.
            ValueError: it is shorter than the layout.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(mmap.mmap(fd, SIZE), path)
        finally:
            os.close(fd)

    def reset(self) -> None:
        """Rank: clear what a previous owner of these slots wrote. The launcher's words stay."""
        words = self.words
        for i in (*range(STOP_STEP), *range(OPEN, OPEN + 2 * OPEN_COUNT)):
            words[i] = 0
        self._view[NAMES_OFFSET:SETTINGS_OFFSET] = bytes(SETTINGS_OFFSET - NAMES_OFFSET)

    def claim(self, *, rank: int, local_rank: int, world_size: int, attempt: int) -> None:
        """Write the owner of these slots; the magic number comes last, so that a reader never sees half a header."""
        words = self.words
        now = time.monotonic_ns()
        words[PID], words[PHASE] = os.getpid(), PHASE_RUNNING
        words[RANK], words[LOCAL_RANK], words[WORLD_SIZE], words[ATTEMPT] = rank, local_rank, world_size, attempt
        words[STARTED_AT] = words[LIVENESS_TICK] = now
        words[MAGIC] = FORMAT

    def add_name(self, name: str) -> int:
        """Register a section's name and return its id (from 1), or 0 when the table is full."""
        count = self.words[NAME_COUNT]
        if count >= NAME_LIMIT:
            return 0
        encoded = name.encode()[: NAME_BYTES - 1]
        start = NAMES_OFFSET + count * NAME_BYTES
        self._view[start : start + len(encoded)] = encoded
        self.words[NAME_COUNT] = count + 1
        return count + 1

    def name(self, section_id: int) -> str:
        """The name of a registered section, its id with or without the bit FIRST_TIME."""
        start = NAMES_OFFSET + ((section_id & _ID) - 1) * NAME_BYTES
        raw = bytes(self._view[start : start + NAME_BYTES])
        return raw.split(b"\0", 1)[0].decode(errors="replace")

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Launcher: write new settings for the rank. The generation is odd while they are being written.

        Raises:
            ValueError: they do not fit into the settings area.
        """
        body = json.dumps(settings, separators=(",", ":")).encode()
        if len(body) > SETTINGS_BYTES:
            raise ValueError(f"settings of {len(body)} bytes do not fit into {SETTINGS_BYTES}")
        words = self.words
        words[SETTINGS_GENERATION] |= 1
        self._view[SETTINGS_OFFSET : SETTINGS_OFFSET + len(body)] = body
        words[SETTINGS_LENGTH] = len(body)
        words[SETTINGS_GENERATION] += 1

    def settings(self) -> tuple[int, dict[str, Any]] | None:
        """Rank: the generation and the settings, none if what is there is malformed; None while they are written."""
        words = self.words
        generation = words[SETTINGS_GENERATION]
        if generation & 1:
            return None
        body = bytes(self._view[SETTINGS_OFFSET : SETTINGS_OFFSET + words[SETTINGS_LENGTH]])
        if words[SETTINGS_GENERATION] != generation:
            return None
        try:
            found = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            found = {}
        return generation, found if isinstance(found, dict) else {}

    def close(self) -> None:
        """Unmap. Views handed out before must not be used afterwards."""
        self.words.release()
        self._view.release()
        self._map.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of the slots at one moment; ages in seconds."""

    pid: int
    phase: int
    rank: int
    pulse_age: float
    beats: int
    heartbeat_age: float | None
    iteration: int | None
    progress: int
    finished: int
    idle: float | None
    first_iteration: int | None
    first_iteration_age: float | None
    overdue: float | None = None
    """Seconds by which a report is late; None: none is."""
    reports: bool = False
    """The rank exports reports itself."""
    open_sections: Mapping[str, float] = field(default_factory=dict)
    quiet: float | None = None
    """Since the last progress: a section entered or left, a step completed, progress(); None before any."""
    first_time: frozenset[str] = frozenset()
    """Sections open now that this process had never finished when it entered them."""
    stop_signalled: bool = False
    """The rank received the "save and stop" signal."""
    polls_should_stop: bool = False
    complete: bool = False
    """The script called mark_complete()."""
    requests: int = 0
    expendable: bool = False
    """The other ranks would continue if its process ended now."""
    leaving: float | None = None
    """Seconds since the process began to end; None: it does not."""
    numbered: bool = True
    """The script gave ``first_iteration`` its number; else steps are counted from the start of the process."""

    @property
    def resumed_at(self) -> int | None:
        """``first_iteration`` where the script gave its number; None also where steps are only counted."""
        return self.first_iteration if self.numbered else None

    @property
    def pace(self) -> float:
        """Steps per second since the first one of this process; 0 while unknown."""
        if self.iteration is None or self.first_iteration is None or not self.first_iteration_age:
            return 0.0
        return max(0, self.iteration - self.first_iteration) / self.first_iteration_age

    def activity(self) -> RankActivity:
        """What the rank does, as limits are checked against it."""
        return RankActivity(self.open_sections, self.heartbeat_age, self.idle, self.quiet, self.first_time)


def read(slots: Slots, now_ns: int | None = None) -> Reading | None:
    """Read the slots, in the rank itself or from outside; None before their rank has claimed them.

    Of a section open twice at once the older entry counts.
    """
    # The clock is read before the words: a reader that is preempted in between must not see an age that grew
    # meanwhile. What happens meanwhile has an age of 0.
    now = time.monotonic_ns() if now_ns is None else now_ns
    words = slots.words
    if words[MAGIC] != FORMAT:
        return None
    open_sections: dict[str, float] = {}
    first_time = set()
    entries = [(words[i], words[i + 1]) for i in range(OPEN, OPEN + 2 * OPEN_COUNT, 2)]
    # Read after the entries: a cleared entry must not be seen without its time of leaving.
    last_closed = words[LAST_CLOSED]
    last_sign = max(last_closed, words[LAST_PROGRESS])
    for section_id, entered in entries:
        if section_id:
            name, age = slots.name(section_id), _age(now, entered)
            open_sections[name] = max(age, open_sections.get(name, 0.0))
            last_sign = max(last_sign, entered)
            if section_id & FIRST_TIME:
                first_time.add(name)
    return Reading(
        pid=words[PID],
        phase=words[PHASE],
        rank=words[RANK],
        pulse_age=_age(now, words[LIVENESS_TICK]),
        beats=words[BEATS],
        heartbeat_age=_age(now, words[LAST_BEAT]) if words[LAST_BEAT] else None,
        iteration=words[ITERATION] - 1 if words[ITERATION] else None,
        progress=words[PROGRESS],
        finished=words[FINISHED],
        idle=_age(now, last_closed) if last_closed and not open_sections else None,
        first_iteration=words[FIRST_ITERATION] - 1 if words[FIRST_ITERATION] else None,
        first_iteration_age=_age(now, words[FIRST_STEP_AT]) if words[FIRST_ITERATION] else None,
        overdue=_age(now, words[REPORT_DUE]) if 0 < words[REPORT_DUE] < now else None,
        reports=words[REPORT_DUE] != 0,
        open_sections=open_sections,
        quiet=_age(now, last_sign) if last_sign else None,
        first_time=frozenset(first_time),
        stop_signalled=words[STOP_SIGNALLED] != 0,
        polls_should_stop=words[POLLS_SHOULD_STOP] != 0,
        complete=words[COMPLETE] != 0,
        requests=words[REQUESTS],
        expendable=words[EXPENDABLE] != 0,
        leaving=_age(now, words[LEAVING]) if words[LEAVING] > last_sign else None,
        numbered=words[NUMBERED] != 0,
    )


def newest_sign(words: memoryview[int]) -> int:
    """When the process last made progress, on the monotonic clock in nanoseconds; 0: never."""
    entered = (words[i + 1] for i in range(OPEN, OPEN + 2 * OPEN_COUNT, 2) if words[i])
    return max(words[LAST_CLOSED], words[LAST_PROGRESS], *entered)


def _age(now_ns: int, then_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9
