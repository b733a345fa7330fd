"""The progress of processes that other emitters report on, and since when there was none.

Spans arrive when they have ended, and metrics with each export, so the entry into a section is never reported. What can
be known is when training last showed a sign of progress. From the first *strong* sign on (:mod:`.lens`), each export of
such a process reports it as being in section ``step``, without progress since the last sign. A process that exports but
does not progress exceeds the limit of ``step``, configured or learned; one that does not export any more is silent.

The limit is learned from the time between two signs, which includes the emitter's intervals of logging and exporting,
and checkpoints.

The time since the last sign is measured by the arrival of requests on the monitor's clock, but never exceeds the
difference of the emitter's own timestamps. So neither a clock that differs, drifts or jumps nor a Collector that delays
requests causes a false hang. Only timestamps of one sender are compared; where they go back, the arrival is used.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import RankIdentity, SectionStatistics
from rankwatch_monitor.ingest.foreign import lens
from rankwatch_monitor.ingest.foreign.lens import Sign
from rankwatch_monitor.ingest.foreign.lens_exported import SECTIONS, Exported
from rankwatch_monitor.ingest.foreign.lens_windows import ProcessWindows

Source = Literal["metrics", "spans"]
"""Timestamps are compared within one source: times of exports, or ends of spans."""

_SERIES: Final = 64
"""Metrics remembered per process; an emitter has about ten relevant ones."""
NAMES: Final = 16
"""Names of all processes together, for each that may be remembered: one may have hundreds."""
_SURE: Final = 2
"""Strong signs after which the time between two is that of an ordinary step; the first steps compile."""


class _Moment(NamedTuple):
    """The arrival of a request."""

    stamp_ns: int
    arrived: float
    elapsed: float
    """Seconds since the first request of this source, by its timestamps where those are valid."""


class ProcessProgress:
    """The progress of one process."""

    __slots__ = (
        "_counted",
        "_first",
        "_known",
        "_last",
        "_last_metrics_to_come",
        "_longest",
        "_numbered_by",
        "_over",
        "_peak",
        "_sign",
        "_sources",
        "_spans_have_steps",
        "_steps",
        "_windows",
        "_within",
        "strong",
    )

    def __init__(self) -> None:
        self.strong = 0
        """Strong signs so far."""
        self._numbered_by: Source | None = None
        """Where step numbers come from; None: steps are counted here."""
        self._known: dict[str, tuple[int, float]] = {}
        self._sources: dict[Source, _Moment] = {}
        self._sign: dict[Source, _Moment] = {}
        self._last: float | None = None
        """When the last sign arrived."""
        self._peak = 0.0
        self._steps: int | None = None
        self._counted = 0
        self._within = 0
        self._spans_have_steps = False
        self._over = self._last_metrics_to_come = False
        self._first: dict[str, float] = {}
        self._longest: dict[str, float] = {}
        self._windows = ProcessWindows()

    def __len__(self) -> int:
        """The number of names that are remembered."""
        return len(self._known) + len(self._first) + len(self._longest) + len(self._windows)

    @property
    def exports_metrics(self) -> bool:
        """Whether it sends metrics, which arrive at each export interval."""
        return "metrics" in self._sources

    def take(self, source: Source, exported: Exported, arrived: float) -> dict[str, Any]:
        """Process a request that arrived at ``arrived`` (monotonic seconds); return the report fields."""
        quiet = self._pass(source, exported.stamp_ns, arrived)
        before = self._steps
        grown = [name for name, each in exported.work.items() if self._grew(name, *each)]
        changed = [name for name, value in exported.signs.items() if self._changed(name, value)]
        strong = self._numbered(source, exported) or bool(grown) or exported.step_spans > 0
        sign = bool(changed) or bool(exported.finished)
        finished = dict(exported.finished)
        self._spans_have_steps |= exported.step_spans > 0
        self._ended(source, exported, strong)
        longest = self._sections(finished)
        if strong or sign:
            gap = None if self._last is None else max(quiet, self._peak)
            self._mark(arrived)
            quiet = 0.0
            if strong:
                self._strong(exported, before, gap, finished, longest)
            else:
                self._within += sum(each.count for each in finished.values())
                if gap is not None and self.strong >= _SURE:
                    self._learn(semconv.STEP_SECTION, gap, longest)
        self._peak = max(self._peak, quiet)
        self._windows.add(exported)
        fields = self._fields(quiet, finished, longest)
        elapsed: dict[str, float] = {name: moment.elapsed for name, moment in self._sources.items()}
        if self.strong and (window := self._windows.close(elapsed, self._steps)) is not None:
            fields["window"] = window
        return fields

    def _ended(self, source: Source, exported: Exported, strong: bool) -> None:
        """Note whether the process has finished training; metrics are flushed once more after its spans."""
        if exported.over:
            self._over = self._last_metrics_to_come = True
        elif strong and self._over:
            self._over = self._last_metrics_to_come and source == "metrics"
            self._last_metrics_to_come = False

    def _strong(
        self,
        exported: Exported,
        before: int | None,
        gap: float | None,
        finished: dict[str, SectionStatistics],
        longest: dict[str, float],
    ) -> None:
        self.strong += 1
        self._within = exported.after_step
        steps = 1 if before is None or self._steps is None else max(1, self._steps - before)
        if gap is None:
            return
        if self.strong <= _SURE:
            self._first[semconv.STEP_SECTION] = max(gap, self._first.get(semconv.STEP_SECTION, 0.0))
        else:
            self._learn(semconv.STEP_SECTION, gap, longest)
        if not self._spans_have_steps:
            each = gap / steps
            finished[semconv.STEP_SECTION] = SectionStatistics(steps, gap, each, each)

    def _fields(
        self, quiet: float, finished: dict[str, SectionStatistics], longest: dict[str, float]
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"finished": finished, "longest": longest}
        if self._over:
            fields["ended"] = True
        if not self.strong:
            return fields
        if self._steps is not None:
            fields["iteration"] = self._steps
        fields["progress"] = self._within
        fields["quiet"] = quiet
        fields["first_durations"] = dict(self._first)
        if self._over:
            fields["open_sections"] = {}
        else:
            fields["open_sections"] = {semconv.STEP_SECTION: quiet}
            fields["first_time"] = (semconv.STEP_SECTION,) if self.strong < _SURE else ()
        return fields

    # When ------------------------------------------------------------------------------------------------------------

    def _pass(self, source: Source, stamp_ns: int, arrived: float) -> float:
        """Note a request; return the provable seconds since the last sign."""
        last = self._sources.get(source)
        if last is None:
            moment = _Moment(stamp_ns, arrived, 0.0)
        else:
            by_stamp = (stamp_ns - last.stamp_ns) / 1e9
            # Spans come in any order; the time of an export goes back only if a clock was set back.
            if not stamp_ns or not last.stamp_ns or (by_stamp < 0 and source == "metrics"):
                by_stamp = arrived - last.arrived
            moment = _Moment(stamp_ns or last.stamp_ns, arrived, last.elapsed + max(0.0, by_stamp))
            if by_stamp < 0:
                moment = moment._replace(stamp_ns=last.stamp_ns)
        self._sources[source] = moment
        if self._last is None:
            return 0.0
        quiet = arrived - self._last
        if (marked := self._sign.get(source)) is not None:
            quiet = min(quiet, moment.elapsed - marked.elapsed)
        return max(0.0, quiet)

    def _mark(self, arrived: float) -> None:
        self._last, self._peak = arrived, 0.0
        self._sign = dict(self._sources)

    # What ------------------------------------------------------------------------------------------------------------

    def _grew(self, name: str, at_ns: int, count: float, delta: bool) -> bool:
        """Remember a count; return whether it changed."""
        known = self._known.get(name)
        if known is None and len(self._known) >= _SERIES:
            return False
        if delta and known is not None and at_ns and at_ns == known[0]:
            return False  # a repetition
        before = 0.0 if known is None else known[1]
        now = before + count if delta else count
        self._known[name] = (at_ns, now)
        if now == before:
            return False
        if lens.metric(name) is not Sign.WORK and not self._spans_have_steps:
            self._counted = int(now)
        return True

    def _changed(self, name: str, value: float) -> bool:
        known = self._known.get(name)
        if known is None and len(self._known) >= _SERIES:
            return False
        self._known[name] = (0, value)
        return known is None or known[1] != value

    def _numbered(self, source: Source, exported: Exported) -> bool:
        """Update the number of the last step; return whether it changed.

        Emitters count from 0 or from 1, so numbers are taken from one source only, preferably metrics.
        """
        if exported.step is None:
            if self._numbered_by is None:
                self._counted += exported.step_spans
                self._steps = self._counted or None
            return False
        if self._numbered_by == "metrics" and source == "spans":
            return False
        self._numbered_by = source
        moved = exported.step != self._steps
        self._steps = exported.step
        return moved

    def _sections(self, finished: dict[str, SectionStatistics]) -> dict[str, float]:
        """Update the maximum durations of sections in spans; return those that rose."""
        longest: dict[str, float] = {}
        for section, each in finished.items():
            if section == semconv.STEP_SECTION:
                continue  # its limit applies to the time between signs, and is learned from that
            if section not in self._first:
                if len(self._first) < SECTIONS:
                    self._first[section] = each.max
            else:
                self._learn(section, each.max, longest)
        return longest

    def _learn(self, section: str, seconds: float, longest: dict[str, float]) -> None:
        if seconds > self._longest.get(section, 0.0):
            self._longest[section] = longest[section] = seconds


class Progress:
    """The progress of all processes of other emitters; the least recently seen is evicted first.

    Args:
        processes: how many are remembered.
        clock: monotonic seconds, read when a request has arrived.
    """

    def __init__(self, processes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._names, self._most_names = processes, 0, max(4096, NAMES * processes)
        self._clock = clock
        self._processes: OrderedDict[RankIdentity, ProcessProgress] = OrderedDict()

    def __len__(self) -> int:
        return len(self._processes)

    def __contains__(self, identity: RankIdentity) -> bool:
        return identity in self._processes

    def take(self, identity: RankIdentity, source: Source, exported: Exported) -> dict[str, Any]:
        """Process a request that arrives now; return the report fields."""
        known = self._processes.get(identity)
        if known is None:
            known = self._processes[identity] = ProcessProgress()
        else:
            self._processes.move_to_end(identity)
        before = len(known)
        fields = known.take(source, exported, self._clock())
        self._names += len(known) - before
        while len(self._processes) > self._limit or self._names > self._most_names:
            self._names -= len(self._processes.popitem(last=False)[1])
        return {**fields, "foreign": True}

    def is_monitored(self, identity: RankIdentity) -> bool:
        """Whether a process reports regularly while training, so that its silence is meaningful."""
        known = self._processes.get(identity)
        return known is not None and (known.exports_metrics or known.strong >= _SURE)
