"""Readers of windows: what a rank says, once, of some steps and of the one that closed them.

A window is put together when all metrics of the report were read. What is needed to compare ranks (calls and median of
a section, calls and busy time of a process group) must be there; what else is missing falls back to what is known. A
window that came before, because its request was sent twice, is not taken again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch_monitor.core.events import CollectiveWindow, SectionWindow, WindowReport
from rankwatch_monitor.ingest.otlp.builder import Draft, Read, value_of
from rankwatch_monitor.ingest.otlp.named_statistics import NamedStatistics, Things, seconds_by_word

SECTIONS: Final = Things(
    "section",
    semconv.ATTR_SECTION,
    frozenset({"median", "tail", "max", "mean"}),
    "median",
    "sections_per_job",
    "too_many_sections",
)
GROUPS: Final = Things(
    "process group",
    semconv.ATTR_GROUP,
    frozenset({"busy", "exposed", "shortest"}),
    "busy",
    "groups_per_report",
    "too_many_groups",
)
PARTS: Final = frozenset(str(part) for part in Part)
CPU: Final = frozenset({"used", "waited"})
# Above it a number no longer fits the columns of the core.
_WHOLE_END: Final = 2**63


class WindowPiece:
    """A window in the making."""

    __slots__ = ("_bad_step", "_draft", "_time_ns", "collectives", "cpu", "iteration", "parts", "sections", "steps")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._bad_step = False
        self._time_ns = 0
        self.iteration: int | None = None
        self.steps = 0
        self.sections = NamedStatistics(draft, SECTIONS)
        self.collectives = NamedStatistics(draft, GROUPS)
        self.parts: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    def saw(self, points: Sequence[Any]) -> None:
        """Note the time of a metric; all points of a window carry the same one."""
        self._time_ns = max(self._time_ns, points[0].time_unix_nano)

    def read_iteration(self, metric: Metric, points: Sequence[Any]) -> None:
        """Take in which step closed the window."""
        self.iteration = self._whole(metric, points)
        # Without a step a window follows the clock. That must not be believed of one whose step cannot be read.
        self._bad_step = self.iteration is None and any(value_of(point) is not None for point in points)

    def read_steps(self, metric: Metric, points: Sequence[Any]) -> None:
        """Take in how many steps it has."""
        self.steps = self._whole(metric, points) or 0

    def read_parts(self, metric: Metric, points: Sequence[Any]) -> None:
        """Take in what the closing step was spent on."""
        # They add up to the step: where one is missing because it cannot be read, the others would mislead.
        self.parts = seconds_by_word(self._draft, metric, points, semconv.ATTR_PART, PARTS) or {}

    def read_cpu(self, metric: Metric, points: Sequence[Any]) -> None:
        """Take in the training thread's own time."""
        self.cpu = seconds_by_word(self._draft, metric, points, semconv.ATTR_STATISTIC, CPU) or {}

    def finish(self) -> None:
        """Make the report of the window, unless nothing was told or it was told before."""
        draft = self._draft
        window = WindowReport(
            self.iteration,
            self.steps,
            dict(self._sections()),
            self.parts,
            dict(self._collectives()),
            self.cpu.get("used"),
            self.cpu.get("waited"),
        )
        if self._bad_step or window == WindowReport():
            return
        draft.once("window", window, self._time_ns, self.iteration)

    def _sections(self) -> Iterator[tuple[str, SectionWindow]]:
        for name, calls, told in self.sections.whole():
            median = told["median"]
            mean = told.get("mean", median)
            # Half of the calls are at least as slow as the median, and on average at least as slow as all of them.
            tail = told.get("tail", max(median, mean))
            most = told.get("max", max(median, tail))
            if median > most:
                self.sections.reject(name, f"has a median of {median} s above its max of {most} s", 1 + len(told))
            else:
                yield name, SectionWindow(calls, median, tail, most, mean)

    def _collectives(self) -> Iterator[tuple[str, CollectiveWindow]]:
        for name, calls, told in self.collectives.whole():
            busy = told["busy"]
            # A part of it cannot be more than it: that is rounding. Where nothing is said, nothing covers it.
            exposed = min(told.get("exposed", busy), busy)
            yield name, CollectiveWindow(calls, busy, exposed, told.get("shortest", 0.0))

    def _whole(self, metric: Metric, points: Sequence[Any]) -> int | None:
        value = value_of(max(points, key=lambda point: point.time_unix_nano))
        if value is None:
            return None
        if 0 <= value < _WHOLE_END and value == int(value):
            return int(value)
        self._draft.reject("bad_value", metric, f"a value of {value}", len(points))
        return None


def _reader(take: Callable[[WindowPiece, Metric, Sequence[Any]], None]) -> Read:
    def read(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
        if points:
            piece = draft.piece(WindowPiece)
            piece.saw(points)
            take(piece, metric, points)

    return read


read_iteration: Final = _reader(WindowPiece.read_iteration)
read_steps: Final = _reader(WindowPiece.read_steps)
read_parts: Final = _reader(WindowPiece.read_parts)
read_cpu: Final = _reader(WindowPiece.read_cpu)
read_section_seconds: Final = _reader(lambda piece, metric, points: piece.sections.read_seconds(metric, points))
read_section_calls: Final = _reader(lambda piece, metric, points: piece.sections.read_calls(metric, points))
read_collective_seconds: Final = _reader(lambda piece, metric, points: piece.collectives.read_seconds(metric, points))
read_collective_calls: Final = _reader(lambda piece, metric, points: piece.collectives.read_calls(metric, points))
