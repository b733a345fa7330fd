"""The two settings of Bridge that concern Rankwatch, for loops that have no Bridge: same names, same defaults.

The straggler settings become the job's policy; of a setting that Bridge has and we do without, the table in
``docs/megatron.md`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rankwatch.integrations.shared.straggler_policy import SETTINGS, straggler_policy


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
            ValueError: one makes no sense, or all of them together.
        """
        if self.enabled:
            policy_of(self)


def policy_of(config: Any) -> dict[str, Any]:
    """The settings of the job's policy that such a configuration, Bridge's or ours, asks for.

    Raises:
        ValueError: they make no sense.
    """
    interval = getattr(config, "profiling_interval", 1)
    return straggler_policy(
        {name: getattr(config, name) for name in SETTINGS},
        profiling_interval=0 if interval == 1 else interval,
        stop_if_detected=config.stop_if_detected,
    )
