"""Writes the monitor's straggler reports to the training log, as NVRx does, without blocking training.

A thread polls the monitor once per interval. For new scores it logs the report, logs one warning per straggler, and
keeps the figures for the run's loggers (:meth:`ReportLog.take_figures`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankwatch.integrations.shared.score_reader import MonitoredJob, ScoreReader

FIGURES: Final[Mapping[str, str]] = {"gpu_relative": "gpu_relative_perf", "gpu_individual": "gpu_individual_perf"}
"""The monitor's name of a score, and nvidia-resiliency-ext's name of it in the run's loggers."""
STOP_ACTIONS: Final = ("save_and_stop", "stop")
"""Actions of the monitor on a straggler that end the run."""
WARNING: Final = "STRAGGLER DETECTION WARNING: %s"


class ReportLog:
    """Logs each new report of the monitor, from :meth:`start` to :meth:`stop`.

    Args:
        interval: seconds between two polls.
        shown: number of worst and best ranks in the report; 0: a report is logged only if there are stragglers.
        figures: the scores (:data:`FIGURES`) that are kept for :meth:`take_figures`.
    """

    def __init__(self, interval: float, shown: int, log: logging.Logger, figures: Sequence[str] = ()) -> None:
        self._shown, self._log, self._figures = shown, log, figures
        self._reader = ScoreReader(interval, query="?worst=1", at_once=False, on_scores=self._on_scores, log=log)
        self._newest: dict[str, float] | None = None
        self._logged_at: Any = None
        self._reported: set[tuple[Any, Any]] = set()
        self._run_ended = self._straggler_ended_run = False

    def start(self) -> None:
        """Begin polling, if a monitor is configured."""
        self._reader.start()

    def stop(self) -> None:
        """Stop polling, without waiting for a pending request."""
        self._reader.stop()

    def take_figures(self) -> dict[str, float] | None:
        """Return the newest figures, once. Cheap enough for every step."""
        newest = self._newest
        if newest is not None:
            self._newest = None
        return newest

    def log_final(self, seconds: float) -> bool:
        """Log a last report of a run that was stopped; return whether a straggler was the reason.

        Waits at most ``seconds``, and not at all while the monitor is unreachable.
        """
        self._run_ended = True
        self._reader.fetch(seconds)
        return self._straggler_ended_run

    def _on_scores(self, job: MonitoredJob, scores: Mapping[str, Any]) -> None:
        last, at, stragglers = self._run_ended, scores["at"], scores["stragglers"]
        if last:  # the current list may no longer contain the straggler that ended the run
            every = job.read("/stragglers")["stragglers"]
            stragglers = [each for each in every if each["action"] in STOP_ACTIONS]
        if at is not None and (at != self._logged_at or last):
            self._logged_at = at
            if self._shown or stragglers:
                self._log.info("\n%s", job.text(f"/scores/report{f'?shown={self._shown}' if self._shown else ''}"))
            self._newest = self._figures_of(scores["overall"]) or self._newest
        current = {(each["rank"], each["since"]) for each in stragglers}
        for each in stragglers:
            if (each["rank"], each["since"]) not in self._reported:
                self._log.warning(WARNING, each["reason"])
        self._reported = current
        self._straggler_ended_run = last and bool(stragglers)

    def _figures_of(self, overall: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the figures for the loggers; None if no rank has such a score yet."""
        known = {FIGURES[name]: overall[name] for name in self._figures if overall.get(name)}
        found = {f"{name}/{which}": float(over[which]) for name, over in known.items() for which in over}
        return found or None
