"""Decides for which ranks the launcher must speak, because they cannot do it themselves or not soon enough. Pure.

A rank speaks through its own exporter thread. That thread is silent when the process is stopped, when its GIL is held
by an extension, when it never called ``rankwatch.init()``, and when its way to the monitor is cut. The launcher reads
the slots and /proc and reports in its name.
"""

from __future__ import annotations

from typing import Final

from rankwatch.slots import PHASE_RUNNING, Reading
from rankwatch.wire.control import RankObservation
from rankwatch.wire.limits import RankLimits
from rankwatch.wire.vocabulary import ProcessState

PULSE_LIMIT: Final = 2.0
"""Seconds: twice the default export interval; a pulse thread that has not run for so long lacks the GIL."""

_MUTE: Final = (ProcessState.STOPPED, ProcessState.UNINTERRUPTIBLE)


def observation(rank: int, pid: int, state: ProcessState, reading: Reading | None) -> RankObservation:
    """What the launcher can say of a rank."""
    if reading is None:
        return RankObservation(rank=rank, pid=pid, process_state=state)
    return RankObservation(
        rank=rank,
        pid=pid,
        process_state=state,
        pulse_age=reading.pulse_age,
        beats=reading.beats,
        heartbeat_age=reading.heartbeat_age,
        iteration=reading.iteration,
        progress=reading.progress,
        first_iteration=reading.first_iteration,
        first_iteration_age=reading.first_iteration_age,
        open_sections=dict(reading.open_sections),
        idle=reading.idle,
        uses_sections=bool(reading.finished or reading.open_sections),
        quiet=reading.quiet,
        first_time=tuple(sorted(reading.first_time)),
    )


def needs_a_voice(state: ProcessState, reading: Reading | None, limits: RankLimits) -> str | None:
    """Say why the launcher must speak for a rank, or None when it speaks for itself."""
    if state in _MUTE:
        return f"its process is {state}"
    if reading is None or reading.phase != PHASE_RUNNING:
        return None
    if reading.pulse_age > PULSE_LIMIT:
        return f"its pulse thread has not run for {reading.pulse_age:.1f} s"
    passed, _ = limits.standing(reading.doing())
    if passed:
        return f"it is past its limit: {passed[0]}"
    return None if reading.overdue is None else f"its reports have not arrived for {reading.overdue:.1f} s too long"
