"""``Detector``, as NVRx 0.4.1 has it: sections to be scored, and reports of the scores of all ranks.

How this works
--------------
================================  ==================================================================================
detection_section, wrapped calls  a section of Rankwatch; kernels are timed by Rankwatch's own sampled windows
scores                            are the monitor's; rank 0 reads them on a thread
generate_report                   waits for a fresh answer, at most :data:`REPORT_SECONDS`
generate_report_if_...            never waits: the newest answer, when the interval is over
================================  ==================================================================================

NVRx lets all ranks agree by a collective on the iterations that make a report, and its callers broadcast what rank 0
found in them. Here no collective is issued. Every eighth call (:data:`AGREED`) is such an iteration, which is the same
on all ranks because all call it in every iteration; rank 0 has a report in the first one after the interval.
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
from rankwatch.integrations.nvrx.measuring import CallableId, Steps, place, summary
from rankwatch.integrations.nvrx.report import ALL_SCORES, Report, Statistic, StragglerId
from rankwatch.integrations.nvrx.workload import RankInfo
from rankwatch.integrations.shared.score_reader import ScoreReader
from rankwatch.integrations.shared.shared_session import OwnSession
from rankwatch.recording import sections
from rankwatch.recording.shared_slots import NAME_LIMIT

__all__ = ["CallableId", "Detector", "Report", "Statistic", "StragglerId"]

AGREED: Final = 8
"""Iterations between two in which a report may be made. Callers broadcast one flag in each, so not every one is."""
REPORT_SECONDS: Final = 3.0
KEPT: Final = 8192
"""Durations of each section that the local summaries are made of, for as many sections as a rank may have."""

_log = logging.getLogger("rankwatch")


class Detector:
    """Used by its class methods; there are no instances."""

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
    _reported: ClassVar[float] = 0.0
    _reader: ClassVar[ScoreReader | None] = None
    _durations: ClassVar[dict[str, deque[float]]] = {}
    _steps: ClassVar[Steps]
    _session: ClassVar[OwnSession] = OwnSession()

    def __new__(cls) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: always; this class is not to be instantiated.
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
        """Begin; calls :func:`rankwatch.init` if nobody has.

        Args:
            scores_to_compute: ``relative_perf_scores`` and ``individual_perf_scores``, or "all".
            gather_on_rank0: rank 0 reports on all ranks, the others on none; else each reports on itself.
            profiling_interval: steps between two that are profiled; 1 leaves it to Rankwatch.
            report_time_interval: seconds between two reports.
            node_name: what this host is called in reports.
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
        cls._calls, cls._reported, cls._durations = 0, 0.0, {}
        cls._due = time.monotonic() + cls.report_time_interval
        cls._steps = Steps()
        cls.original_callables = {}
        if cls._rank == 0:
            rankwatch.change_policy(cls._policy())
        if cls._rank == 0 or not gather_on_rank0:
            cls._reader = ScoreReader(max(1.0, cls.report_time_interval / 4))
            cls._reader.start()
        cls.initialized = True

    @classmethod
    def shutdown(cls) -> None:
        """End: put back what was wrapped. Ends Rankwatch's session too, unless others use it."""
        if not cls.initialized:
            return
        cls.restore_original_callables()
        if cls._reader is not None:
            cls._reader.stop()
            cls._reader = None
        cls.initialized = False
        cls._session.end()

    # What is measured -------------------------------------------------------------------------------------------------

    @classmethod
    @contextmanager
    def detection_section(cls, name: str | None = None, profile_cuda: bool = True) -> Iterator[None]:  # noqa: ARG003
        """Open a section that is scored; without a name it is called after its place, ``train.py:12``.

        ``profile_cuda`` changes nothing: which kernels are timed is the job's policy (``profiled_ranks``). Where
        nothing else counts steps, the first section that was ever entered does: each time is one.
        """
        if not cls.initialized:
            _log.warning("Detector.detection_section() measures nothing: Detector.initialize() was not called")
            yield
            return
        name = name or place(__file__)
        begun = time.perf_counter_ns()
        with cls._steps.around(name), sections.section(name):
            yield
        kept = cls._durations.get(name)
        if kept is None:
            if len(cls._durations) >= NAME_LIMIT:
                return
            kept = cls._durations[name] = deque(maxlen=KEPT)
        kept.append((time.perf_counter_ns() - begun) * 1e-6)

    @classmethod
    def wrap_callables(cls, callable_ids: list[CallableId], profile_cuda: bool = True) -> None:
        """Open such a section around each call of these."""
        for each in callable_ids:
            original = getattr(each.obj, each.name)
            # What was inherited is deleted again, rather than put back as the object's own.
            cls.original_callables[each] = original if each.name in getattr(each.obj, "__dict__", {}) else _INHERITED
            setattr(each.obj, each.name, cls._wrapped(original, str(each), profile_cuda))

    @classmethod
    def restore_original_callables(cls) -> None:
        """Put back what was wrapped."""
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
        """The scores of now; None on ranks that do not report. Waits for the monitor, at most :data:`REPORT_SECONDS`.

        While the monitor is known to be away it is not waited for. Without an answer the report is of the newest scores
        there were, or empty.
        """
        if not cls._reports("generate_report"):
            return None
        begun = time.perf_counter_ns()
        found = cls._reader.fetch(REPORT_SECONDS) if cls._reader is not None else None
        return cls._made(found[1] if found is not None else None, begun)

    @classmethod
    def generate_report_if_interval_elapsed(cls) -> Report | None:
        """A report, when it is time and there are new scores; never waits. Call it in every iteration on all ranks."""
        if not cls.initialized:
            return cls.generate_report()  # says so
        cls._calls += 1
        if not cls.is_interval_elapsed() or cls._reader is None or time.monotonic() < cls._due:
            return None
        begun, found = time.perf_counter_ns(), cls._reader.newest()
        if found is None or found[0] <= cls._reported:
            return None
        cls._reported, cls._due = found[0], time.monotonic() + cls.report_time_interval
        return cls._made(found[1], begun)

    @classmethod
    def is_interval_elapsed(cls) -> bool:
        """Whether this iteration is one in which a report may be made; equal on all ranks."""
        return cls._calls > 0 and cls._calls % AGREED == 0

    @classmethod
    def _reports(cls, call: str) -> bool:
        if not cls.initialized:
            _log.warning("Detector.%s() gives nothing: Detector.initialize() was not called", call)
        return cls.initialized and cls._reader is not None

    @classmethod
    def _made(cls, answer: Any, begun: int) -> Report:
        made = Report()
        if answer is not None:
            try:
                made = report.of_answer(answer, tuple(cls.scores_to_compute), cls._node)
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("the monitor's scores cannot be read: %s: %s", type(error).__name__, error)
        if not cls.gather_on_rank0:
            made = _of_one(made, cls._rank)
        local = {name: summary(kept) for name, kept in cls._durations.items() if kept}
        for kept in cls._durations.values():
            kept.clear()
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


def _of_one(made: Report, rank: int) -> Report:
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
