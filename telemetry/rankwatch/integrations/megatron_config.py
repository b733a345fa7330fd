"""The two settings of Bridge that concern Rankwatch, for loops that have no Bridge: same names, same defaults.

How the straggler settings are put in force
-------------------------------------------
They become the job's policy: the reference is the fastest rank, so that thresholds mean what NVRx's users know;
``stop_if_detected`` has the job saved and stopped (:func:`rankwatch.should_stop`). Rank 0 logs each new report of the
monitor, which it reads on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from rankwatch import settings
from rankwatch.client import Client, MonitorError, path_of
from rankwatch.wire.vocabulary import Action, ScoreReference

TIMEOUT: Final = 10.0
"""Seconds that one question to the monitor may take."""


@dataclass
class FaultToleranceConfig:
    """``config.ft``: see :func:`rankwatch.integrations.megatron.setup` and ``maybe_setup_simulated_fault``."""

    enable_ft_package: bool = False
    calc_ft_timeouts: bool = False
    simulate_fault: bool = False
    simulated_fault_type: Literal["rank_hung", "rank_killed", "random"] = "random"
    simulated_fault_rank: int | None = None
    simulated_fault_base_delay: float = 0


@dataclass
class NVRxStragglerDetectionConfig:
    """``config.nvrx_straggler``; times in seconds."""

    enabled: bool = False
    report_time_interval: float = 300.0
    calc_relative_gpu_perf: bool = True
    calc_individual_gpu_perf: bool = True
    num_gpu_perf_scores_to_print: int = 5
    gpu_relative_perf_threshold: float = 0.7
    gpu_individual_perf_threshold: float = 0.7
    stop_if_detected: bool = False
    enable_logging: bool = True
    profiling_interval: int = 1
    logger_name: str = "megatron.bridge.NVRxStragglerDetection"

    def finalize(self) -> None:
        """Check the values.

        Raises:
            ValueError: they make no sense together.
        """
        if self.enabled and not (self.calc_relative_gpu_perf or self.calc_individual_gpu_perf):
            raise ValueError("straggler detection needs calc_relative_gpu_perf or calc_individual_gpu_perf, or both")
        if self.enabled and self.report_time_interval <= 0:
            raise ValueError(f"report_time_interval must be seconds above 0, not {self.report_time_interval!r}")


def straggler_policy(config: Any) -> dict[str, Any]:
    """The settings of the job's policy that such a configuration asks for."""
    changes: dict[str, Any] = {
        "straggler_detection": True,
        "straggler_reference": str(ScoreReference.FASTEST),
        "on_straggler": str(Action.SAVE_AND_STOP if config.stop_if_detected else Action.LOG),
        "calc_relative": config.calc_relative_gpu_perf,
        "calc_individual": config.calc_individual_gpu_perf,
        "relative_threshold": config.gpu_relative_perf_threshold,
        "individual_threshold": config.gpu_individual_perf_threshold,
        "report_interval": config.report_time_interval,
        "num_gpu_perf_scores_to_print": config.num_gpu_perf_scores_to_print,
    }
    every_step = getattr(config, "profiling_interval", 1) <= 1  # Rankwatch's own pace then, which costs less
    return changes if every_step else changes | {"profiling_interval": config.profiling_interval}


class ReportLog:
    """Logs each new report of the monitor, from :meth:`start` to :meth:`stop`."""

    def __init__(self, config: Any) -> None:
        self._interval = float(config.report_time_interval)
        self._shown = int(config.num_gpu_perf_scores_to_print)
        self._log = logging.getLogger(config.logger_name)
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin, if a monitor is named."""
        loaded, _ = settings.load()
        if loaded.monitor is None or loaded.job_id is None:
            self._log.warning("no monitor is named (RANKWATCH_MONITOR), so there are no reports of stragglers")
            return
        client, path = Client(loaded.monitor, loaded.token, TIMEOUT), f"{path_of(loaded.job_id)}/scores"
        threading.Thread(target=self._run, args=(client, path), name="rankwatch-report", daemon=True).start()

    def stop(self) -> None:
        """End; does not wait."""
        self._stopped.set()

    def _run(self, client: Client, path: str) -> None:
        logged: float | None = None
        said = ""
        while not self._stopped.wait(self._interval):
            try:
                logged = self._log_newer(
                    logged, lambda below: client.get(f"{path}{below}"), client.read(f"{path}?worst=1")
                )
                said = ""
            except MonitorError as error:
                if str(error) != said:  # once for each trouble
                    self._log.warning("there is no report of stragglers: %s", error)
                said = str(error)
            except Exception:  # noqa: BLE001 - the thread's boundary: it asks again whatever came
                self._log.warning("there is no report of stragglers", exc_info=True)

    def _log_newer(self, logged: float | None, get: Callable[[str], bytes], scores: Any) -> float | None:
        """Log the report if it is newer than the one logged; without numbers to show, only one that names somebody."""
        at, stragglers = scores["at"], scores["stragglers"]
        if at is None or at == logged:
            return logged
        if stragglers:
            self._log.warning(
                "STRAGGLER DETECTION WARNING: %s", "; ".join(str(each.get("reason")) for each in stragglers)
            )
        if self._shown or stragglers:
            self._log.info("%s", get(f"/report?shown={self._shown or 5}").decode())
        return float(at)
