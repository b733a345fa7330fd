"""NVRx 0.4.1's ``Detector``: scored sections, and reports of the scores of all ranks.

================================  ==================================================================================
detection_section, wrapped calls  a Rankwatch section; kernels are timed in Rankwatch's sampled windows
scores                            computed by the monitor; polled by a thread of rank 0
generate_report                   waits for a fresh response, at most :data:`REPORT_SECONDS`
generate_report_if_...            never waits: returns the newest response after the interval
================================  ==================================================================================

In NVRx the ranks agree by a collective on the iterations with a report, in which callers broadcast rank 0's result.
Here no collective is issued: every eighth call (:data:`REPORT_EVERY_CALLS`) is such an iteration, the same on all ranks
since all call it in every iteration; rank 0 has a report in the first one after the interval.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, NoReturn

import rankwatch
from rankwatch.integrations.nvrx import report
from rankwatch.integrations.nvrx.measurement import CallableId, StepCounter, caller_location, summarize
from rankwatch.integrations.nvrx.report import ALL_SCORES, Report, Statistic, StragglerId
from rankwatch.integrations.nvrx.workload import RankInfo
from rankwatch.integrations.shared.score_reader import ScoreReader
from rankwatch.integrations.shared.shared_session import SharedSession
from rankwatch.recording import sections
from rankwatch.recording.shared_slots import NAME_LIMIT

__all__ = ["CallableId", "Detector", "Report", "Statistic", "StragglerId"]

REPORT_EVERY_CALLS: Final = 8
"""Calls between two that may return a report. Bounds the callers' broadcasts, one per such call."""
REPORT_SECONDS: Final = 3.0
MAX_DURATIONS: Final = 8192
"""Durations that are kept per section for the local summaries."""

_log = logging.getLogger("rankwatch")


class Detector:
    """A class that is used by its class methods only."""

    initialized: ClassVar[bool] = False
    scores_to_compute: ClassVar[Sequence[str]] = ALL_SCORES
    gather_on_rank0: ClassVar[bool] = True
    profiling_interval: ClassVar[int] = 1
    report_time_interval: ClassVar[float] = 60.0
    original_callables: ClassVar[dict[CallableId, Any]] = {}
    _node: ClassVar[dict[str, str]] = {}
    _rank: ClassVar[int] = 0
    _calls: ClassVar[int] = 0
    _due: ClassVar[float] = 0.0
    _reported_at: ClassVar[float] = 0.0
    _reader: ClassVar[ScoreReader | None] = None
    _durations: ClassVar[dict[str, deque[float]]] = {}
    _steps: ClassVar[StepCounter]
    _session: ClassVar[SharedSession] = SharedSession()

    def __new__(cls) -> NoReturn:
        """Raise.

        Raises:
            RuntimeError: always; the class cannot be instantiated.
        """
        raise RuntimeError("Detector is used by its class methods: Detector.initialize(), not Detector().initialize()")

    @classmethod
    def initialize(
        cls,
        scores_to_compute: Sequence[str] | str = "all",
        gather_on_rank0: bool = True,
        profiling_interval: int = 1,
        report_time_interval: float = 60,
        node_name: str | None = None,
    ) -> None:
        """Begin, and call :func:`rankwatch.init` unless the script has.

        Args:
            scores_to_compute: ``relative_perf_scores`` and ``individual_perf_scores``, or "all".
            gather_on_rank0: rank 0 reports on all ranks, the others not at all; otherwise each reports on itself.
            profiling_interval: steps between two that are profiled; 1: Rankwatch's own interval.
            report_time_interval: seconds between two reports.
            node_name: name of this host in reports; None: its host name.
        """
        if cls.initialized:
            _log.warning("Detector.initialize() was called twice; the second call does nothing")
            return
        cls._session.begin()
        cls.scores_to_compute = ALL_SCORES if str(scores_to_compute) == "all" else list(scores_to_compute)
        cls.gather_on_rank0, cls.profiling_interval = gather_on_rank0, profiling_interval
        cls.report_time_interval = float(report_time_interval)
        cls._node = {socket.gethostname(): node_name} if node_name else {}
        cls._rank = RankInfo.get_for_current_rank().global_rank
        cls._calls, cls._reported_at, cls._durations = 0, 0.0, {}
        cls._due = time.monotonic() + cls.report_time_interval
        cls._steps = StepCounter()
        cls.original_callables = {}
        if cls._rank == 0:
            rankwatch.change_policy(cls._policy())
        if cls._rank == 0 or not gather_on_rank0:
            cls._reader = ScoreReader(max(1.0, cls.report_time_interval / 4))
            cls._reader.start()
        cls.initialized = True

    @classmethod
    def shutdown(cls) -> None:
        """End, and restore wrapped callables; ends the Rankwatch session unless it is used elsewhere."""
        if not cls.initialized:
            return
        cls.restore_original_callables()
        if cls._reader is not None:
            cls._reader.stop()
            cls._reader = None
        cls.initialized = False
        cls._session.end()

    # Measurement ------------------------------------------------------------------------------------------------------

    @classmethod
    @contextmanager
    def detection_section(cls, name: str | None = None, profile_cuda: bool = True) -> Iterator[None]:  # noqa: ARG003
        """Open a scored section; its default name is the location of the call, such as ``train.py:12``.

        ``profile_cuda`` is ignored: the job's policy selects the profiled kernels (``profiled_ranks``). If nothing else
        counts steps, each run of the first section that was entered counts as one.
        """
        if not cls.initialized:
            _log.warning("Detector.detection_section() measures nothing: Detector.initialize() was not called")
            yield
            return
        name = name or caller_location(__file__)
        begun = time.perf_counter_ns()
        with cls._steps.around(name), sections.section(name):
            yield
        durations = cls._durations.get(name)
        if durations is None:
            if len(cls._durations) >= NAME_LIMIT:
                return
            durations = cls._durations[name] = deque(maxlen=MAX_DURATIONS)
        durations.append((time.perf_counter_ns() - begun) * 1e-6)

    @classmethod
    def wrap_callables(cls, callable_ids: list[CallableId], profile_cuda: bool = True) -> None:
        """Open a scored section around each call of these callables."""
        for each in callable_ids:
            original = getattr(each.obj, each.name)
            # An inherited attribute is deleted again rather than restored on the object itself.
            cls.original_callables[each] = original if each.name in getattr(each.obj, "__dict__", {}) else _INHERITED
            setattr(each.obj, each.name, cls._wrapped(original, str(each), profile_cuda))

    @classmethod
    def restore_original_callables(cls) -> None:
        """Restore wrapped callables."""
        while cls.original_callables:
            each, original = cls.original_callables.popitem()
            if original is _INHERITED:
                delattr(each.obj, each.name)
            else:
                setattr(each.obj, each.name, original)

    @classmethod
    def _wrapped(cls, original: Callable[..., Any], name: str, profile_cuda: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            with cls.detection_section(name, profile_cuda):
                return original(*args, **kwargs)

        return called

    # Reports ----------------------------------------------------------------------------------------------------------

    @classmethod
    def generate_report(cls) -> Report | None:
        """Return a report of current scores; None on ranks that do not report. Waits at most :data:`REPORT_SECONDS`.

        Does not wait while the monitor is unreachable. Without a response the report holds the newest scores so far, or
        is empty.
        """
        if not cls._is_reporting("generate_report"):
            return None
        begun = time.perf_counter_ns()
        found = cls._reader.fetch(REPORT_SECONDS) if cls._reader is not None else None
        return cls._report(found[1] if found is not None else None, begun)

    @classmethod
    def generate_report_if_interval_elapsed(cls) -> Report | None:
        """Return a report if it is due and scores are new; never waits. Call it in every iteration on all ranks."""
        if not cls.initialized:
            return cls.generate_report()  # logs the mistake
        cls._calls += 1
        if not cls.is_interval_elapsed() or cls._reader is None or time.monotonic() < cls._due:
            return None
        begun, found = time.perf_counter_ns(), cls._reader.newest()
        if found is None or found[0] <= cls._reported_at:
            return None
        cls._reported_at, cls._due = found[0], time.monotonic() + cls.report_time_interval
        return cls._report(found[1], begun)

    @classmethod
    def is_interval_elapsed(cls) -> bool:
        """Whether this iteration may have a report; equal on all ranks."""
        return cls._calls > 0 and cls._calls % REPORT_EVERY_CALLS == 0

    @classmethod
    def _is_reporting(cls, call: str) -> bool:
        if not cls.initialized:
            _log.warning("Detector.%s() returns nothing: Detector.initialize() was not called", call)
        return cls.initialized and cls._reader is not None

    @classmethod
    def _report(cls, response: Any, begun: int) -> Report:
        made = Report()
        if response is not None:
            try:
                made = report.from_scores(response, tuple(cls.scores_to_compute), cls._node)
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("the monitor's scores cannot be read: %s: %s", type(error).__name__, error)
        if not cls.gather_on_rank0:
            made = _only_rank(made, cls._rank)
        local = {name: summarize(durations) for name, durations in cls._durations.items() if durations}
        for durations in cls._durations.values():
            durations.clear()
        elapsed = (time.perf_counter_ns() - begun) * 1e-6
        return dataclasses.replace(
            made,
            local_section_summaries=local,
            generate_report_elapsed_time=elapsed,
            gather_on_rank0=cls.gather_on_rank0,
            rank=cls._rank,
        )

    @classmethod
    def _policy(cls) -> dict[str, Any]:
        changes = {
            "calc_relative": report.RELATIVE in cls.scores_to_compute,
            "calc_individual": report.INDIVIDUAL in cls.scores_to_compute,
            "report_interval": cls.report_time_interval,
        }
        return changes | ({"profiling_interval": cls.profiling_interval} if cls.profiling_interval > 1 else {})


_INHERITED: Final = object()


def _only_rank(made: Report, rank: int) -> Report:
    def only(scores: report.Scores) -> dict[int, float]:
        return {rank: scores[rank]} if rank in scores else {}

    return dataclasses.replace(
        made,
        gpu_relative_perf_scores=only(made.gpu_relative_perf_scores),
        section_relative_perf_scores={name: only(s) for name, s in made.section_relative_perf_scores.items()},
        gpu_individual_perf_scores=only(made.gpu_individual_perf_scores),
        section_individual_perf_scores={name: only(s) for name, s in made.section_individual_perf_scores.items()},
        rank_to_node={rank: made.rank_to_node[rank]} if rank in made.rank_to_node else {},
    )
