"""Decides for which ranks the launcher must speak, because they cannot do it themselves or not soon enough. Pure.

A rank speaks through its own exporter thread. That thread is silent when the process is stopped, when its GIL is held
by an extension, when it never called ``rankwatch.init()``, and when its way to the monitor is cut. The launcher reads
the slots and /proc and reports in its name. How often it does so when there are many launchers is
:mod:`rankwatch.contract.intervals`'s.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from rankwatch.contract.enums import NodeRole, ProcessState
from rankwatch.contract.intervals import (
    LAUNCHER_HEARTBEAT_SECONDS,
    LOOK_SECONDS,
    launcher_heartbeat_seconds,
    omits_redundant_reports,
    proxy_report_seconds,
)
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import RankObservation
from rankwatch.recording.shared_slots import PHASE_RUNNING, Reading

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


class Need(StrEnum):
    """Why a launcher speaks for a rank."""

    MUTE = "mute"
    """Its process is stopped, or stuck in the kernel."""
    NO_PULSE = "no pulse"
    """Its pulse thread does not get the GIL."""
    LIMIT = "limit"
    """It is past a limit; it says so, too."""
    UNHEARD = "unheard"
    """Its reports do not arrive."""


class Voice(NamedTuple):
    """A rank needs the launcher's voice, and why in words."""

    need: Need
    words: str
    passed: tuple[str, ...] = ()
    """Limits that it is past: the monitor judges by what was last said."""


class Crowd(NamedTuple):
    """What a launcher knows of the others, and with that how often it may speak."""

    launchers: int = 1
    silence: float | None = None
    """Seconds after which the monitor takes one of them for gone."""
    leads: bool = False
    """It has rank 0. In jobs of any size it beats, so that the job is heard of."""

    @property
    def beat(self) -> float:
        """Seconds between two beats."""
        return LAUNCHER_HEARTBEAT_SECONDS if self.leads else launcher_heartbeat_seconds(self.launchers, self.silence)

    @property
    def pace(self) -> float:
        """Seconds between two words for the same ranks."""
        return proxy_report_seconds(self.launchers, self.silence)


def needs_a_voice(state: ProcessState, reading: Reading | None, limits: RankLimits, launchers: int = 1) -> Voice | None:
    """Say why the launcher must speak for a rank, or None when it speaks for itself.

    Args:
        state: of the rank's process.
        reading: what its slots say.
        limits: those that the monitor has handed down.
        launchers: of the job.
    """
    running = reading is not None and reading.phase == PHASE_RUNNING
    passed = tuple(limits.passed(reading.activity())[0]) if reading is not None and running else ()
    if state in _MUTE:
        return Voice(Need.MUTE, f"its process is {state}", passed)
    if reading is None or not running:
        return None
    if reading.pulse_age > PULSE_LIMIT:
        return Voice(Need.NO_PULSE, f"its pulse thread has not run for {reading.pulse_age:.1f} s", passed)
    if passed and not (reading.reports and omits_redundant_reports(launchers)):
        return Voice(Need.LIMIT, f"it is past its limit: {passed[0]}", passed)
    if reading.overdue is not None:
        return Voice(Need.UNHEARD, f"its reports have not arrived for {reading.overdue:.1f} s too long")
    return None


class Speech:
    """When a launcher says something of its own accord: at once what is new, again and again what lasts.

    Reports may stop arriving from all ranks of a job at once, for what is new in that lies beyond them: of that the
    launchers of a large job speak one after the other. So they do after their word was not taken.
    """

    def __init__(self, now: float, chance: Callable[[], float] = random.random) -> None:
        """Begin; ``chance`` gives a number from 0 to 1, by which launchers differ."""
        self.spoken_for: frozenset[int] = frozenset()
        """Ranks that the last word was about: of those that have recovered it is said once."""
        self._chance = chance
        self._told: set[tuple[int, Need, tuple[str, ...]]] = set()
        """What the monitor knows."""
        self._role = (NodeRole.ACTIVE, "")
        self._last = now - math.inf
        self._again = math.inf
        """When to say once more what lasts."""
        self._not_before = now
        """A word was lost: when to try again."""

    def turn(self, now: float, crowd: Crowd, voices: Mapping[int, Voice], role: tuple[NodeRole, str]) -> bool:
        """Whether it is time to speak of the ranks that need it, and of the launcher's role; if so, it is done now."""
        pace, news = crowd.pace, _news(voices) != self._told
        trouble = bool(voices or self.spoken_for)
        if not trouble:
            self._again = math.inf
        elif self._again == math.inf:
            self._again = now + (self._chance() * pace if pace > LOOK_SECONDS else 0.0)
        said = now >= self._again or news or role != self._role or now - self._last >= crowd.beat
        if not said or now < self._not_before:
            return False
        self._last = now
        if trouble and pace > LOOK_SECONDS:
            self._again = now + pace
        return True

    def taken(self, voices: Mapping[int, Voice], role: tuple[NodeRole, str]) -> None:
        """The monitor has taken it."""
        self.spoken_for, self._told, self._role = frozenset(voices), _news(voices), role

    def lost(self, now: float, crowd: Crowd) -> None:
        """It has not."""
        self._not_before = now + (self._chance() * crowd.pace if crowd.pace > LOOK_SECONDS else 0.0)


def _news(voices: Mapping[int, Voice]) -> set[tuple[int, Need, tuple[str, ...]]]:
    said = ((rank, voice.need, voice.passed) for rank, voice in voices.items())
    return {each for each in said if each[1] is not Need.UNHEARD}
