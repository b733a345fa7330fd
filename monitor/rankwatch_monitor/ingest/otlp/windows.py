"""Reads windows: statistics of some steps, and of the step that closed them.

A window is assembled when all metrics of the report were read. Calls and median of a section, and calls and busy time
of a process group, are required, since ranks are compared by them; what else is missing falls back to what is known. A
repeated window, of a request that was sent twice, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch.contract.statistics import CollectiveWindow, OperationWindow, SectionWindow
from rankwatch_monitor.core.events import WindowReport
from rankwatch_monitor.ingest.otlp.builder import WHOLE_END, Read, ReportBuilder, value_of
from rankwatch_monitor.ingest.otlp.named_statistics import NamedStatistics, SeriesKind, seconds_by_word

SECTIONS: Final = SeriesKind(
    "section",
    semconv.ATTR_SECTION,
    frozenset({"median", "tail", "max", "mean"}),
    "median",
    "sections_per_job",
    "too_many_sections",
)
GROUPS: Final = SeriesKind(
    "process group",
    semconv.ATTR_GROUP,
    frozenset({"busy", "exposed", "shortest"}),
    "busy",
    "groups_per_report",
    "too_many_groups",
)
OPERATIONS: Final = SeriesKind(
    "collective operation",
    semconv.ATTR_OPERATION,
    frozenset({"total", "shortest"}),
    "total",
    "groups_per_report",
    "too_many_groups",
    frozenset({"bytes", "largest", "bus"}),
)
PARTS: Final = frozenset(str(part) for part in Part)
CPU: Final = frozenset({"used", "waited"})


class WindowComposite:
    """The window under construction."""

    __slots__ = (
        *("_bad_step", "_builder", "_time_ns", "collectives", "cpu", "iteration", "operations", "parts", "sections"),
        "steps",
    )

    def __init__(self, builder: ReportBuilder) -> None:
        self._builder = builder
        self._bad_step = False
        self._time_ns = 0
        self.iteration: int | None = None
        self.steps = 0
        self.sections = NamedStatistics(builder, SECTIONS)
        self.collectives = NamedStatistics(builder, GROUPS)
        self.operations = NamedStatistics(builder, OPERATIONS)
        self.parts: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    def note_time(self, points: Sequence[Any]) -> None:
        """Note the time of a metric; all points of a window carry the same one."""
        self._time_ns = max(self._time_ns, points[0].time_unix_nano)

    def read_iteration(self, metric: Metric, points: Sequence[Any]) -> None:
        """Read the step that closed the window."""
        self.iteration = self._whole(metric, points)
        # A window without a step is one by wall-clock time; one with an invalid step is not, and is dropped.
        self._bad_step = self.iteration is None and any(value_of(point) is not None for point in points)

    def read_steps(self, metric: Metric, points: Sequence[Any]) -> None:
        """Read the number of steps."""
        self.steps = self._whole(metric, points) or 0

    def read_parts(self, metric: Metric, points: Sequence[Any]) -> None:
        """Read what the closing step was spent on."""
        # The parts add up to the step, so without the invalid ones the others would mislead.
        self.parts = seconds_by_word(self._builder, metric, points, semconv.ATTR_PART, PARTS) or {}

    def read_cpu(self, metric: Metric, points: Sequence[Any]) -> None:
        """Read the CPU time of the training thread."""
        self.cpu = seconds_by_word(self._builder, metric, points, semconv.ATTR_STATISTIC, CPU) or {}

    def finish(self) -> None:
        """Assemble the window, unless it is empty or a repetition."""
        builder = self._builder
        window = WindowReport(
            self.iteration,
            self.steps,
            dict(self._sections()),
            self.parts,
            dict(self._collectives()),
            self.cpu.get("waited"),
            operations=dict(self._operations()),
        )
        if self._bad_step or window == WindowReport():
            return
        builder.set_once("window", window, self._time_ns, self.iteration)

    def _sections(self) -> Iterator[tuple[str, SectionWindow]]:
        for name, calls, statistics in self.sections.complete():
            median = statistics["median"]
            mean = statistics.get("mean", median)
            # Half of the calls are at least as slow as the median, and on average at least as slow as all of them.
            tail = statistics.get("tail", max(median, mean))
            most = statistics.get("max", max(median, tail))
            if median > most:
                self.sections.reject(name, f"has a median of {median} s above its max of {most} s", 1 + len(statistics))
            else:
                yield name, SectionWindow(calls, median, tail, most, mean)

    def _collectives(self) -> Iterator[tuple[str, CollectiveWindow]]:
        for name, calls, statistics in self.collectives.complete():
            busy = statistics["busy"]
            # Exposed above busy is a rounding error; without an exposed time, no computation covers the collective.
            exposed = min(statistics.get("exposed", busy), busy)
            yield name, CollectiveWindow(calls, busy, exposed, statistics.get("shortest", 0.0))

    def _operations(self) -> Iterator[tuple[str, OperationWindow]]:
        for name, calls, found in self.operations.complete():
            seconds = found["total"], found.get("shortest", 0.0)
            yield (
                name,
                OperationWindow(calls, *seconds, *(int(found.get(each, 0)) for each in ("bytes", "largest", "bus"))),
            )

    def _whole(self, metric: Metric, points: Sequence[Any]) -> int | None:
        value = value_of(max(points, key=lambda point: point.time_unix_nano))
        if value is None:
            return None
        if 0 <= value < WHOLE_END and value == int(value):
            return int(value)
        self._builder.reject("bad_value", metric, f"a value of {value}", len(points))
        return None


def _reader(take: Callable[[WindowComposite, Metric, Sequence[Any]], None]) -> Read:
    def read(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
        if points:
            composite = builder.composite(WindowComposite)
            composite.note_time(points)
            take(composite, metric, points)

    return read


read_iteration: Final = _reader(WindowComposite.read_iteration)
read_steps: Final = _reader(WindowComposite.read_steps)
read_parts: Final = _reader(WindowComposite.read_parts)
read_cpu: Final = _reader(WindowComposite.read_cpu)
read_section_seconds: Final = _reader(lambda window, metric, points: window.sections.read_seconds(metric, points))
read_section_calls: Final = _reader(lambda window, metric, points: window.sections.read_calls(metric, points))
read_collective_seconds: Final = _reader(lambda window, metric, points: window.collectives.read_seconds(metric, points))
read_collective_calls: Final = _reader(lambda window, metric, points: window.collectives.read_calls(metric, points))
read_operation_seconds: Final = _reader(lambda window, metric, points: window.operations.read_seconds(metric, points))
read_operation_sizes: Final = _reader(lambda window, metric, points: window.operations.read_sizes(metric, points))
read_operation_calls: Final = _reader(lambda window, metric, points: window.operations.read_calls(metric, points))
