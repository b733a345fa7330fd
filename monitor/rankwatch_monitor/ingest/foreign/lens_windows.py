"""Windows of steps of a process of another emitter, assembled from the step times in its spans or histograms.

Ranks of Rankwatch close a window with the same step; such a process closes it with the first export that is about
:data:`~rankwatch.contract.intervals.WINDOW_SECONDS` after the last one. Where only step numbers are known, a step takes
the time between two exports divided by the steps, which is alike on all ranks and shows when the job became slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rankwatch.contract import semconv
from rankwatch.contract.intervals import WINDOW_SECONDS
from rankwatch.contract.statistics import SectionWindow
from rankwatch_monitor.core.events import WindowReport
from rankwatch_monitor.ingest.foreign.lens_exported import SECTIONS, Exported, Timed

_ABOUT: Final = 0.9
"""Part of a window's seconds from which on an export closes it: exporters are not punctual."""
_HISTOGRAMS: Final = 8


class _Runs(NamedTuple):
    """Runs of a section so far."""

    count: int = 0  # type: ignore[assignment]  # the standard term; tuple.count is not used here
    seconds: float = 0.0
    most: float = 0.0

    def window(self) -> SectionWindow:
        mean = self.seconds / self.count
        return SectionWindow(self.count, mean, mean, max(mean, self.most), mean)


class ProcessWindows:
    """The window of one process that is being assembled."""

    __slots__ = ("_began", "_known", "_spans", "_step", "_timed")

    def __init__(self) -> None:
        self._spans: dict[str, _Runs] = {}
        self._timed: dict[str, _Runs] = {}
        """Steps by histogram."""
        self._known: dict[str, Timed] = {}
        """The last point of each histogram."""
        self._began: dict[str, float] = {}
        """Seconds of each source at the beginning of the window."""
        self._step: int | None = None

    def __len__(self) -> int:
        """The number of names that are remembered."""
        return len(self._spans) + len(self._timed) + len(self._known)

    def add(self, exported: Exported) -> None:
        """Add the content of one request."""
        for section, each in exported.finished.items():
            if section in self._spans or len(self._spans) < SECTIONS:
                count, seconds, most = self._spans.get(section, _Runs())
                self._spans[section] = _Runs(count + each.count, seconds + each.sum, max(most, each.max))
        for name, timed in exported.timed.items():
            before = self._known.get(name)
            if before is None and len(self._known) >= _HISTOGRAMS:
                continue
            self._known[name] = timed
            if before is not None and timed.delta and timed.at_ns == before.at_ns:
                continue  # a repetition
            steps, seconds = timed.count, timed.seconds
            if before is not None and not timed.delta and steps >= before.count:
                steps, seconds = steps - before.count, seconds - before.seconds
            known = self._timed.get(name, _Runs())
            self._timed[name] = _Runs(known.count + steps, known.seconds + max(0.0, seconds))

    def close(self, elapsed: Mapping[str, float], step: int | None) -> WindowReport | None:
        """The window, if it is over.

        Args:
            elapsed: seconds since the first request of each source.
            step: number of the last step; None: unknown.
        """
        lasted = max((now - self._began.setdefault(source, now) for source, now in elapsed.items()), default=0.0)
        if self._step is None:
            self._step = step
        if lasted < _ABOUT * WINDOW_SECONDS:
            return None
        runs = {section: each for section, each in self._spans.items() if each.count and each.seconds > 0}
        timed = max(self._timed.values(), key=lambda each: each.count, default=_Runs())
        if semconv.STEP_SECTION not in runs and timed.count and timed.seconds > 0:
            runs[semconv.STEP_SECTION] = timed
        compared = semconv.STEP_SECTION in runs
        passed = 0 if step is None or self._step is None else max(0, step - self._step)
        if not compared and passed:
            runs[semconv.STEP_SECTION] = _Runs(passed, lasted, lasted / passed)
        self._spans, self._timed, self._began, self._step = {}, {}, dict(elapsed), step
        if semconv.STEP_SECTION not in runs:
            return None
        sections = {section: each.window() for section, each in runs.items()}
        return WindowReport(steps=runs[semconv.STEP_SECTION].count, sections=sections, compared=compared)
