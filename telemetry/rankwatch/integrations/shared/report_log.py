"""The monitor's report of slow ranks in the training log, as users of NVRx know it; training never waits for it.

How this works
--------------
A thread asks once an interval. Of scores that are new it logs the report, warns of each straggler once, and keeps the
figures for whoever hands them to the run's loggers (:meth:`ReportLog.take`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankwatch.integrations.shared.score_reader import ScoreReader, WatchedJob

FIGURES: Final[Mapping[str, str]] = {"gpu_relative": "gpu_relative_perf", "gpu_individual": "gpu_individual_perf"}
"""The monitor's name of a score, and the one it has in the run's loggers: as nvidia-resiliency-ext writes it."""
STOPS: Final = ("save_and_stop", "stop")
"""What the monitor may have done about a straggler that ends the run."""
WARNING: Final = "STRAGGLER DETECTION WARNING: %s"


class ReportLog:
    """Logs each new report of the monitor, from :meth:`start` to :meth:`stop`.

    Args:
        interval: seconds between two questions.
        shown: so many worst and best ranks are printed; 0: a report is logged only when somebody is slow.
        log: where.
        figures: the scores (:data:`FIGURES`) that are kept for :meth:`take`.
    """

    def __init__(self, interval: float, shown: int, log: logging.Logger, figures: Sequence[str] = ()) -> None:
        self._shown, self._log, self._figures = shown, log, figures
        self._reader = ScoreReader(interval, query="?worst=1", at_once=False, each=self._take_in, log=log)
        self._newest: dict[str, float] | None = None
        self._logged: Any = None
        self._named: set[tuple[Any, Any]] = set()
        self._run_is_over = self._ended_the_run = False

    def start(self) -> None:
        """Begin, if a monitor is named."""
        self._reader.start()

    def stop(self) -> None:
        """End; a question that is under way is not waited for."""
        self._reader.stop()

    def take(self) -> dict[str, float] | None:
        """The newest figures that have not been taken yet. Costs two references."""
        newest = self._newest
        if newest is not None:
            self._newest = None
        return newest

    def last(self, seconds: float) -> bool:
        """The run was stopped: log a last report; whether it was for the sake of a rank that was slow.

        Waits so many seconds at most, and not at all while the monitor is away.
        """
        self._run_is_over = True
        self._reader.fetch(seconds)
        return self._ended_the_run

    def _take_in(self, job: WatchedJob, scores: Mapping[str, Any]) -> None:
        last, at, stragglers = self._run_is_over, scores["at"], scores["stragglers"]
        if last:  # who was slow may be so no more
            every = job.read("/stragglers")["stragglers"]
            stragglers = [each for each in every if each["action"] in STOPS]
        if at is not None and (at != self._logged or last):
            self._logged = at
            if self._shown or stragglers:
                self._log.info("\n%s", job.text(f"/scores/report{f'?shown={self._shown}' if self._shown else ''}"))
            self._newest = self._figures_of(scores["overall"]) or self._newest
        named = {(each["rank"], each["since"]) for each in stragglers}
        for each in stragglers:
            if (each["rank"], each["since"]) not in self._named:
                self._log.warning(WARNING, each["reason"])
        self._named = named
        self._ended_the_run = last and bool(stragglers)

    def _figures_of(self, overall: Mapping[str, Any]) -> dict[str, float] | None:
        """None: no rank has such a score yet."""
        known = {FIGURES[name]: overall[name] for name in self._figures if overall.get(name)}
        found = {f"{name}/{which}": float(over[which]) for name, over in known.items() for which in over}
        return found or None
