"""StragglerDetectionCallback: the monitor's straggler reports in the training log and the run's loggers.

1. The parameters become the job's policy (:func:`rankwatch.change_policy`), with the fastest rank as the reference, as
   in nvidia-resiliency-ext.
2. The monitor scores every rank's windows of steps. Nothing is gathered between ranks.
3. A thread of rank 0 polls the report once per interval and logs it; rank 0's training thread passes the newest figures
   to the loggers after a step.
4. ``stop_if_detected``: the monitor directs the job to save and stop, which every rank does after the same step.
"""

# ruff: noqa: ARG002 - the signatures of hooks are Lightning's
from __future__ import annotations

from typing import Any, Final

import rankwatch
from rankwatch.integrations.lightning.fit_monitor import FIT, FitMonitor, MonitoredCallback, monitor_of
from rankwatch.integrations.lightning.framework import LightningModule, Trainer, logger_named
from rankwatch.integrations.shared.report_log import ReportLog
from rankwatch.integrations.shared.straggler_policy import straggler_policy

LOGGER: Final = "nemo_logger.StragglerDetectionCallback"
STOP_LINE: Final = "Detected stragglers. Terminating training..."
SHOWN: Final = 5
_LOG: Final = "num_gpu_perf_scores_to_log"
_PRINT: Final = "num_gpu_perf_scores_to_print"
LAST_WAIT: Final = 2.0
"""Seconds to wait for a last report at the end of a run that was stopped."""


class StragglerDetectionCallback(MonitoredCallback):
    """Reports stragglers, and optionally stops the run with a checkpoint.

    Args:
        report_time_interval: seconds between two reports.
        calc_relative_gpu_perf: score each rank against the fastest one.
        calc_individual_gpu_perf: score each rank against its own best.
        num_gpu_perf_scores_to_log: number of worst and best ranks in the report; 0: a report is logged only if there
            are stragglers.
        gpu_relative_perf_threshold: a relative score below it makes a straggler.
        gpu_individual_perf_threshold: an individual score below it makes a straggler.
        stop_if_detected: save a checkpoint and end the run when there is a straggler.
        logger_name: the logger to write to.
        num_gpu_perf_scores_to_print: the newer name of ``num_gpu_perf_scores_to_log``.
        enable_ptl_logging: log min, median and max over ranks of both scores to the trainer's loggers.
        profiling_interval: steps between two profiled ones; 0: the launcher's setting, else about every 10 s.

    Raises:
        ValueError: a parameter is invalid, or they contradict each other.
    """

    def __init__(
        self,
        report_time_interval: float = 300.0,
        calc_relative_gpu_perf: bool = True,
        calc_individual_gpu_perf: bool = True,
        num_gpu_perf_scores_to_log: int | None = None,
        gpu_relative_perf_threshold: float = 0.7,
        gpu_individual_perf_threshold: float = 0.7,
        stop_if_detected: bool = False,
        logger_name: str | bool | None = LOGGER,
        *,
        num_gpu_perf_scores_to_print: int | None = None,
        enable_ptl_logging: bool = True,
        profiling_interval: int = 0,
    ) -> None:
        if isinstance(logger_name, bool):  # the eighth positional parameter in later versions of nvidia-resiliency-ext
            enable_ptl_logging, logger_name = logger_name, LOGGER
        shown = _shown(num_gpu_perf_scores_to_log, num_gpu_perf_scores_to_print)
        self.stop_if_detected = stop_if_detected
        self.enable_ptl_logging = enable_ptl_logging
        self.logger_name = logger_name
        given = {
            "report_time_interval": report_time_interval,
            "calc_relative_gpu_perf": calc_relative_gpu_perf,
            "calc_individual_gpu_perf": calc_individual_gpu_perf,
            "num_gpu_perf_scores_to_print": shown,
            "gpu_relative_perf_threshold": gpu_relative_perf_threshold,
            "gpu_individual_perf_threshold": gpu_individual_perf_threshold,
        }
        self.policy = straggler_policy(
            given,
            profiling_interval=profiling_interval,
            stop_if_detected=stop_if_detected,
            aliases={} if num_gpu_perf_scores_to_log is None else {_PRINT: _LOG},
        )
        wanted = {"gpu_relative": calc_relative_gpu_perf, "gpu_individual": calc_individual_gpu_perf}
        self._figures = tuple(name for name, true in wanted.items() if true)
        self._reports: ReportLog | None = None
        self._logger_failed = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin; rank 0 sets the policy and begins to poll reports."""
        super().setup(trainer, pl_module, stage)
        if stage != FIT or trainer.global_rank != 0:
            return
        self._logger_failed = False
        rankwatch.change_policy(self.policy)
        self._stop_polling()
        interval, shown = self.policy["report_interval"], self.policy["num_gpu_perf_scores_to_print"]
        self._reports = ReportLog(interval, shown, self._log, self._figures)
        self._reports.start()

    def after_step(self, trainer: Trainer, monitor: FitMonitor) -> None:
        """Pass new figures to the trainer's loggers."""
        figures = self._reports.take_figures() if self._reports is not None else None
        if figures is None or not self.enable_ptl_logging:
            return
        for logger in trainer.loggers:
            try:
                logger.log_metrics(figures, step=trainer.global_step)
            except Exception as error:  # noqa: BLE001 - loggers are user code; training continues
                if not self._logger_failed:
                    self._logger_failed = True
                    self._log.error("scores cannot be logged to %s: %s", type(logger).__name__, error)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop polling; if a straggler ended the run, log that."""
        if stage == FIT:
            monitor = monitor_of(trainer)
            stopped = monitor.stopped and self.stop_if_detected
            if stopped and self._reports is not None and self._reports.log_final(LAST_WAIT):
                self._log.error("%s", STOP_LINE)
            self._stop_polling()
        super().teardown(trainer, pl_module, stage)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop polling."""
        self._stop_polling()
        super().on_exception(trainer, pl_module, exception)

    @property
    def _log(self) -> Any:
        return logger_named(self.logger_name)

    def _stop_polling(self) -> None:
        if self._reports is not None:
            self._reports.stop()
            self._reports = None


def straggler_det_callback(
    straggler_report_time_interval: float = 300.0,
    stop_if_detected_straggler: bool = True,
    gpu_relative_perf_threshold: float = 0.7,
    gpu_individual_perf_threshold: float = 0.7,
) -> StragglerDetectionCallback:
    """Return the callback that NeMo's recipe of this name creates: all scores, five ranks shown, and a stop."""
    return StragglerDetectionCallback(
        report_time_interval=straggler_report_time_interval,
        gpu_relative_perf_threshold=gpu_relative_perf_threshold,
        gpu_individual_perf_threshold=gpu_individual_perf_threshold,
        stop_if_detected=stop_if_detected_straggler,
    )


def _shown(log: int | None, shown: int | None) -> int:
    if log is not None and shown is not None and log != shown:
        raise ValueError(
            f"num_gpu_perf_scores_to_log ({log}) and num_gpu_perf_scores_to_print ({shown}) are aliases; give one "
            "of them"
        )
    return next((number for number in (log, shown) if number is not None), SHOWN)
