"""Translates nvidia-resiliency-ext's straggler settings to the job's policy.

The reference is the fastest rank, so that thresholds keep their meaning; a straggler that is to end the run makes it
save and stop (:func:`rankwatch.should_stop`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankwatch.contract.enums import Action, ScoreReference
from rankwatch.contract.policy import Policy
from rankwatch.contract.schema import kinds

SETTINGS: Final[Mapping[str, str]] = {
    "report_time_interval": "report_interval",
    "calc_relative_gpu_perf": "calc_relative",
    "calc_individual_gpu_perf": "calc_individual",
    "num_gpu_perf_scores_to_print": "num_gpu_perf_scores_to_print",
    "gpu_relative_perf_threshold": "relative_threshold",
    "gpu_individual_perf_threshold": "individual_threshold",
}
"""The policy's name of each setting; all of them are required."""


def straggler_policy(
    given: Mapping[str, Any],
    *,
    profiling_interval: int,
    stop_if_detected: bool,
    aliases: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the policy changes for the settings.

    Args:
        given: values by the names in :data:`SETTINGS`.
        profiling_interval: steps between two profiled ones; 0: Rankwatch's own, cheaper interval.
        stop_if_detected: whether a straggler ends the run.
        aliases: names of settings to use in error messages.

    Raises:
        ValueError: a setting is invalid, or they contradict each other; the message names it.
    """
    if not given["calc_relative_gpu_perf"] and not given["calc_individual_gpu_perf"]:
        raise ValueError("no score is enabled: set calc_relative_gpu_perf or calc_individual_gpu_perf to True")
    names = aliases or {}
    changes = {setting: _checked(names.get(name, name), setting, given[name]) for name, setting in SETTINGS.items()}
    interval = _checked("profiling_interval", "profiling_interval", profiling_interval)
    return {
        "straggler_detection": True,
        "straggler_reference": str(ScoreReference.FASTEST),
        "on_straggler": str(Action.SAVE_AND_STOP if stop_if_detected else Action.LOG),
        **changes,
        **({"profiling_interval": interval} if interval else {}),
    }


def _checked(name: str, setting: str, value: Any) -> Any:
    """Return the value after the policy's own validation."""
    try:
        return kinds(Policy)[setting].read(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
