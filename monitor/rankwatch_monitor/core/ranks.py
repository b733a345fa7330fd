"""The state of the ranks of one attempt, one array per field: 100,000 ranks are evaluated by vector operations.

Times are unix seconds on the monitor's clock, computed from the ages that ranks and launchers send; NaN: unknown or not
applicable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan, nan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankwatch.contract.enums import ProcessState, Proof

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PROCESS_CODES: Final = tuple(ProcessState)
PROOFS: Final = tuple(Proof)
ALIVE, STOPPED, UNINTERRUPTIBLE, EXITED, UNKNOWN = range(len(PROCESS_CODES))

SILENT_INTERVALS: Final = 3.0
"""Report intervals that a rank must miss before it is silent."""

LONGEST_MESSAGE: Final = 2_000
MESSAGES: Final = 32_768
"""Characters that are kept of what one rank left when it ended, and of the different texts of all ranks of an attempt:
they stand in each of a job's incidents, and so in most answers about it."""

LEAVING_SECONDS: Final = 60.0
"""Seconds within which a process that began to end is expected to be gone. Finalisers may upload and save."""

_FLOATS = (
    "first_report_R",
    "last_update_R",
    "last_heard_R",
    "last_report_R",
    "sections_updated_R",
    "report_interval_R",
    "last_heartbeat_R",
    "first_heartbeat_R",
    "idle_since_R",
    "last_progress_R",
    "inferred_progress_R",
    "liveness_tick_R",
    "first_step_R",
    "started_R",
    "leaving_since_R",
    "proof_at_R",
    "busy_at_R",
)
_COUNTS = ("heartbeats_R", "iteration_R", "progress_R", "pid_R", "local_rank_R", "first_iteration_R", "proof_R")
_EMPTY: Final[Mapping[str, float]] = {
    **dict.fromkeys(_FLOATS, nan),
    **dict.fromkeys(_COUNTS, -1),
    **dict.fromkeys(
        ("reported_R", "uses_sections_R", "shut_down_R", "expected_exit_R", "exit_known_R", "counted_R"), False
    ),
    "process_R": UNKNOWN,
    "exit_code_R": 0,
    "open_since_RS": nan,
    "first_RS": False,
}
"""Values of a rank of which nothing is known; their types are those of the columns."""

_Column = npt.NDArray[Any]


class RankColumns:
    """Columns over the ranks of one attempt of a job.

    ========================  ==========================================================================================
    ``reported_R``            it has reported in this attempt, by itself or through its slots
    ``first_report_R``        time of its first report
    ``last_report_R``         time of its last own report
    ``last_update_R``         time of the last update of its progress: an own report, or its slots read by its launcher
    ``last_heard_R``          time of the last message about it, including bare process states
    ``report_interval_R``     seconds between its last two own reports
    ``heartbeats_R``          number of heartbeats; -1: not reported
    ``last_heartbeat_R``      time of its last heartbeat
    ``first_heartbeat_R``     time at which the monitor first received a heartbeat
    ``iteration_R``           last completed step; -1: none
    ``progress_R``            progress within the current step
    ``sections_updated_R``    time of the last update of its sections, which other emitters may omit
    ``open_since_RS``         time at which each open section was entered
    ``idle_since_R``          time at which its last section closed, while none is open
    ``last_progress_R``       time of its last progress: a section entered or left, a step completed
    ``inferred_progress_R``   the same, inferred from the reports of a rank that does not send it
    ``first_RS``              an open section is in its first run in this process
    ``process_R``             index into ``PROCESS_CODES``
    ``liveness_tick_R``       time at which its liveness thread last ran, read by its launcher
    ``shut_down_R``           it shut its telemetry down
    ``leaving_since_R``       time at which its process began to end, as its launcher observed
    ``exit_code_R``           exit code (negative: minus the signal's number); valid only if ``exit_known_R``
    ``exit_known_R``          its launcher reported how it exited; that it is EXITED may be seen before, or alone
    ``proof_R``               index into ``PROOFS``, by the last look at it while it is suspected; -1: not looked at
    ``proof_at_R``            time of that look
    ``busy_at_R``             time of the last look that found it busy, or stopped by a person or a scheduler
    ``expected_exit_R``       it is EXITED, and the others continue without it
    ``counted_R``             its steps are counted from the start of its process, whatever checkpoint it loaded
    ``exit_messages``         the message that a rank left when it ended, by rank
    ========================  ==========================================================================================
    """

    first_report_R: Floats
    last_update_R: Floats
    last_heard_R: Floats
    last_report_R: Floats
    sections_updated_R: Floats
    report_interval_R: Floats
    last_heartbeat_R: Floats
    first_heartbeat_R: Floats
    idle_since_R: Floats
    last_progress_R: Floats
    inferred_progress_R: Floats
    liveness_tick_R: Floats
    first_step_R: Floats
    started_R: Floats
    leaving_since_R: Floats
    proof_at_R: Floats
    busy_at_R: Floats
    proof_R: Ints
    heartbeats_R: Ints
    iteration_R: Ints
    progress_R: Ints
    pid_R: Ints
    local_rank_R: Ints
    first_iteration_R: Ints
    process_R: Ints
    exit_code_R: Ints
    reported_R: Bools
    uses_sections_R: Bools
    shut_down_R: Bools
    expected_exit_R: Bools
    exit_known_R: Bools
    counted_R: Bools
    open_since_RS: Floats
    first_RS: Bools

    def __init__(self, size: int = 0) -> None:
        for name, empty in _EMPTY.items():
            setattr(self, name, np.full((size, 0) if name.endswith("_RS") else size, empty))
        self.sections: list[str] = []
        self._column_of: dict[str, int] = {}
        self.hosts: list[str] = [""] * size
        self.devices: list[str] = [""] * size
        """The UUID of each rank's device, ``hw.id``; empty: not reported."""
        self.launchers: list[str] = [""] * size
        """The launcher of each rank; empty: unknown."""
        self.instances: list[str] = [""] * size
        self.retired: list[str] = [""] * size
        self.exit_messages: dict[int, str] = {}
        self._messages: dict[str, str] = {}
        self._message_room = MESSAGES
        self._rooms: dict[str, _Column] = {}
        """The arrays whose first rows the columns are, once rows were added."""

    def __len__(self) -> int:
        return len(self.reported_R)

    def grow(self, size: int) -> None:
        """Add rows up to rank ``size - 1``.

        Where no rank reports a world size they are added one by one, so there is room for more than are asked for.
        """
        extra = size - len(self)
        if extra <= 0:
            return
        for name, empty in _EMPTY.items():
            column, room = getattr(self, name), self._rooms.get(name)
            if room is None or column.base is not room or len(room) < size:
                room = self._rooms[name] = _with_room(column, size, empty)
            setattr(self, name, room[:size])
        for mine in (self.hosts, self.devices, self.launchers, self.instances, self.retired):
            mine.extend([""] * extra)

    def keep_message(self, rank: int, message: str) -> None:
        """Keep what a rank left when it ended; equal texts once, and of all together :data:`MESSAGES` characters."""
        kept = message[:LONGEST_MESSAGE]
        if kept not in self._messages:
            kept = kept[: self._message_room]
            self._message_room -= len(kept)
        self.exit_messages[rank] = self._messages.setdefault(kept, kept)

    def clear(self, rank: int) -> None:
        """Reset a rank's row: another process has taken the rank over."""
        for name in _FLOATS:
            getattr(self, name)[rank] = np.nan
        for name in _COUNTS:
            getattr(self, name)[rank] = -1
        for column in (self.reported_R, self.uses_sections_R, self.shut_down_R, self.expected_exit_R):
            column[rank] = False
        self.process_R[rank] = UNKNOWN
        self.open_since_RS[rank], self.first_RS[rank] = np.nan, False

    def add_sections(self, names: Iterable[str]) -> None:
        """Add columns for new names, all at once, since each addition copies the arrays."""
        fresh = [name for name in dict.fromkeys(names) if name not in self._column_of]
        if fresh:
            room = (len(self), len(fresh))
            self.open_since_RS = np.concatenate([self.open_since_RS, np.full(room, np.nan)], axis=1)
            self.first_RS = np.concatenate([self.first_RS, np.zeros(room, dtype=np.bool_)], axis=1)
            self.sections.extend(fresh)
            self._column_of.update((name, column) for column, name in enumerate(self.sections))

    def set_sections(
        self,
        rank: int,
        now: float,
        open_sections: Mapping[str, float],
        idle: float | None,
        quiet: float | None = None,
        first_time: Iterable[str] = (),
    ) -> None:
        """Replace the section state of a rank; ages are seconds before ``now``."""
        column_of = self._column_of
        if not column_of.keys() >= open_sections.keys():
            self.add_sections(open_sections)
        row_S = self.open_since_RS[rank]
        row_S.fill(nan)
        for name, age in open_sections.items():
            row_S[column_of[name]] = now - age
        first_S = self.first_RS[rank]
        first_S.fill(False)
        for name in first_time:
            if name in open_sections:
                first_S[column_of[name]] = True
        self.last_progress_R[rank] = nan if quiet is None else now - quiet
        self.idle_since_R[rank] = nan if idle is None or open_sections else now - idle
        self.uses_sections_R[rank], self.sections_updated_R[rank] = True, now

    def outside_sections(self) -> Bools:
        """Ranks with no open section; shape (R,)."""
        outside_R = np.ones(len(self), dtype=np.bool_)
        for s in range(len(self.sections)):  # several times as fast as all() over an axis that short
            outside_R &= np.isnan(self.open_since_RS[:, s])
        return outside_R

    def open_sections(self, rank: int, now: float) -> dict[str, float]:
        """Seconds each section of a rank has been open at ``now``, outermost first."""
        since_S = self.open_since_RS[rank]
        order = sorted(np.flatnonzero(~np.isnan(since_S)), key=lambda s: float(since_S[s]))
        return {self.sections[s]: max(0.0, now - float(since_S[s])) for s in order}

    def beat(self, rank: int, beats: int, age: float | None, now: float) -> None:
        """Store a rank's heartbeat count; without an age, a higher count means a heartbeat at ``now``."""
        if age is not None:
            self.last_heartbeat_R[rank] = now - age
        elif beats > self.heartbeats_R.item(rank):
            self.last_heartbeat_R[rank] = now
        self.heartbeats_R[rank] = beats
        if beats > 0 and isnan(self.first_heartbeat_R.item(rank)):
            self.first_heartbeat_R[rank] = now

    def first_step(self, rank: int, iteration: int | None, age: float | None, now: float) -> None:
        """Store the first step a process completed; without ``age``, the step in its first report.

        Without ``iteration``, although it has an age, the process counts its steps from 0.
        """
        if self.first_iteration_R.item(rank) >= 0:
            return
        reached = int(self.iteration_R[rank])
        counted = iteration is None and age is not None and reached >= 0
        first = iteration if iteration is not None else 0 if counted else reached
        if first >= 0:
            self.first_iteration_R[rank], self.first_step_R[rank] = first, now - (age or 0.0)
            self.counted_R[rank] = counted


def _with_room(column: _Column, size: int, empty: float) -> _Column:
    """A copy of a column with empty rows up to ``size``, and an eighth more if few are added."""
    room = np.full((max(size, len(column) * 9 // 8), *column.shape[1:]), empty, dtype=column.dtype)
    room[: len(column)] = column
    return room


def live_ranks(columns: RankColumns) -> Bools:
    """Ranks that have reported and neither shut down nor exited; shape (R,)."""
    live_R: Bools = columns.reported_R & ~columns.shut_down_R & (columns.process_R != EXITED)
    return live_R


def failed_ranks(columns: RankColumns) -> Bools:
    """Ranks whose process ended by a signal or with an exit code, which ends the attempt; shape (R,)."""
    failed_R: Bools = (columns.process_R == EXITED) & (columns.exit_code_R != 0) & ~columns.expected_exit_R
    return failed_R


def leaving_ranks(columns: RankColumns) -> Bools:
    """Ranks whose process began to end and is still there: its script is over, or has raised; shape (R,)."""
    leaving_R: Bools = ~np.isnan(columns.leaving_since_R) & (columns.process_R != EXITED)
    return leaving_R


def leaves(columns: RankColumns, now: float) -> bool:
    """Whether a rank began to end so recently that its exit is awaited before others are judged: they wait for it."""
    return bool((leaving_ranks(columns) & (now - columns.leaving_since_R < LEAVING_SECONDS)).any())


def left_ranks(columns: RankColumns) -> Ints:
    """Ranks that exited with code 0; empty if they are the majority, since then the others have not ended in time."""
    left = np.flatnonzero(columns.exit_known_R & (columns.exit_code_R == 0) & ~columns.expected_exit_R)
    return left if 2 * len(left) <= len(columns) else left[:0]


def silent_for(columns: RankColumns, now: float, silence_baseline: float) -> Floats:
    """Seconds since anything was received of each rank; NaN where nothing ever was; shape (R,)."""
    silent_R: Floats = now - np.maximum(columns.last_heard_R, silence_baseline)
    return silent_R


def report_intervals(columns: RankColumns) -> Floats:
    """Seconds between two reports of each rank, NaN: unknown; shape (R,).

    What is assumed of a rank that has reported once is at most the median of those that have shown theirs.
    """
    interval_R = columns.report_interval_R
    assumed_R = (columns.first_report_R == columns.last_report_R) & ~np.isnan(interval_R)
    if not assumed_R.any():
        return interval_R
    shown = interval_R[~assumed_R & ~np.isnan(interval_R)]
    return np.where(assumed_R, np.minimum(interval_R, np.median(shown)), interval_R) if len(shown) else interval_R


def silence_limit(columns: RankColumns, silence: float) -> Floats:
    """Seconds after which each rank is silent; shape (R,)."""
    limit_R: Floats = np.fmax(silence, SILENT_INTERVALS * report_intervals(columns))
    return limit_R
