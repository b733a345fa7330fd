"""The two configurations of Megatron-Bridge that Rankwatch uses, for training loops without Bridge.

Names and defaults are Bridge's. The straggler settings become the job's policy; ``docs/megatron.md`` lists the settings
of Bridge that have no counterpart.
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
            ValueError: a value is invalid, or they contradict each other.
        """
        if self.enabled:
            policy_of(self)


def policy_of(config: Any) -> dict[str, Any]:
    """Return the policy changes for a straggler configuration, this one or Bridge's.

    Raises:
        ValueError: they are invalid.
    """
    interval = getattr(config, "profiling_interval", 1)
    return straggler_policy(
        {name: getattr(config, name) for name in SETTINGS},
        profiling_interval=0 if interval == 1 else interval,
        stop_if_detected=config.stop_if_detected,
    )
