"""``FaultToleranceConfig``, the ``cfg`` of NVRx's client, and the values in effect on this rank."""

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

    def __post_init__(self) -> None:
        """Convert names of signals and log levels, as ``ft_launcher`` does.

        Raises:
            ValueError: a log level or a signal is unknown.
        """
        self.log_level = _log_level(self.log_level)
        self.rank_termination_signal = _signal(self.rank_termination_signal)

    @staticmethod
    def from_kwargs(ignore_not_recognized: bool = True, **kwargs: Any) -> FaultToleranceConfig:
        """Create it from keywords.

        Raises:
            ValueError: a keyword is unknown, unless these are ignored, or a value is invalid.
        """
        known = {each.name for each in fields(FaultToleranceConfig)}
        if not ignore_not_recognized and (unknown := sorted(kwargs.keys() - known)):
            raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        return FaultToleranceConfig(**{name: value for name, value in kwargs.items() if name in known})


def effective() -> FaultToleranceConfig:
    """Return the values that the launcher has passed to this rank; without a launcher, no limits."""
    limits = limits_of_rank()
    return FaultToleranceConfig(
        initial_rank_heartbeat_timeout=None,  # applied by the monitor only, not passed to ranks
        rank_heartbeat_timeout=limits.heartbeat,
        rank_section_timeouts=dict(limits.sections),
        rank_out_of_section_timeout=limits.out_of_section,
    )


def limits_of_rank() -> RankLimits:
    """Return the limits that this rank has received; none before :func:`rankwatch.init` or without a launcher."""
    recorder = sections.attached()
    settings = recorder.slots.settings() if recorder is not None else None
    return RankLimits.from_settings(settings[1]) if settings is not None else RankLimits()


def _log_level(value: int | str) -> int:
    named = {"DBG": logging.DEBUG, **logging.getLevelNamesMapping()}
    level = named.get(value.upper(), 0) if isinstance(value, str) else value
    if isinstance(level, bool) or not isinstance(level, int) or not logging.DEBUG <= level <= logging.CRITICAL:
        raise ValueError(f"log_level must be debug, info, warning, error, critical or a number 10 to 50, not {value!r}")
    return level


def _signal(value: signal.Signals | int | str) -> signal.Signals:
    try:
        return signal.Signals[value.upper()] if isinstance(value, str) else signal.Signals(value)
    except (KeyError, ValueError):
        raise ValueError(f"rank_termination_signal must be a signal, for example SIGTERM, not {value!r}") from None
