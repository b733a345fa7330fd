"""The settings that NVRx's client offers as ``cfg``: its names and defaults, with what is in force in this job."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rankwatch.contract.limits import RankLimits
from rankwatch.recording import sections


@dataclass
class FaultToleranceConfig:
    """NVRx's settings; times in seconds, None: no limit. ``rankwatch run`` takes each of them as ``--ft-NAME``."""

    workload_check_interval: float = 5.0
    initial_rank_heartbeat_timeout: float | None = 3600.0
    rank_heartbeat_timeout: float | None = 2700.0
    rank_section_timeouts: Mapping[str, float | None] = field(default_factory=dict)
    rank_out_of_section_timeout: float | None = None
    node_health_check_interval: float = 5.0
    safety_factor: float = 5.0
    rank_termination_signal: signal.Signals = signal.SIGKILL
    log_level: int = logging.INFO
    restart_check_interval: float = 60.0
    enable_nic_monitor: bool = True
    pci_topo_file: str | None = None
    link_down_path_template: str | None = None

    @staticmethod
    def from_kwargs(ignore_not_recognized: bool = True, **kwargs: Any) -> FaultToleranceConfig:
        """Make one of these keywords.

        Raises:
            ValueError: one is unknown, and these are not to be ignored.
        """
        known = {each.name for each in fields(FaultToleranceConfig)}
        if not ignore_not_recognized and (strange := sorted(kwargs.keys() - known)):
            raise ValueError(f"unknown settings {', '.join(strange)}; known are {', '.join(sorted(known))}")
        return FaultToleranceConfig(**{name: value for name, value in kwargs.items() if name in known})


def in_force() -> FaultToleranceConfig:
    """What the launcher has handed down to this rank; without one, no limits."""
    limits = handed_down()
    return FaultToleranceConfig(
        initial_rank_heartbeat_timeout=None,  # judged by the monitor alone, so no rank is told of it
        rank_heartbeat_timeout=limits.heartbeat,
        rank_section_timeouts=dict(limits.sections),
        rank_out_of_section_timeout=limits.out_of_section,
    )


def handed_down() -> RankLimits:
    """The limits that this rank was told; none before :func:`rankwatch.init`, or without a launcher."""
    recorder = sections.attached()
    handed = recorder.slots.settings() if recorder is not None else None
    return RankLimits.from_settings(handed[1]) if handed is not None else RankLimits()
