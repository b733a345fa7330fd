"""The straggler settings of nvidia-resiliency-ext's users, as the policy by which the monitor judges the job.

The reference is the fastest rank, so that thresholds mean what they know; a straggler that is to end the run has it
saved and stopped (:func:`rankwatch.should_stop`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankwatch.contract.enums import Action, ScoreReference
from rankwatch.contract.policy import Policy

SETTINGS: Final[Mapping[str, str]] = {
    "report_time_interval": "report_interval",
    "calc_relative_gpu_perf": "calc_relative",
    "calc_individual_gpu_perf": "calc_individual",
    "num_gpu_perf_scores_to_print": "num_gpu_perf_scores_to_print",
    "gpu_relative_perf_threshold": "relative_threshold",
    "gpu_individual_perf_threshold": "individual_threshold",
}
"""The policy's name of each of their settings, all of which are to be given."""


def straggler_policy(
    given: Mapping[str, Any],
    *,
    profiling_interval: int,
    stop_if_detected: bool,
    called: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The changes of the policy that the settings ask for.

    Args:
        given: by the names in :data:`SETTINGS`.
        profiling_interval: steps between two profiled ones; 0 leaves it to Rankwatch, whose own pace costs less.
        stop_if_detected: a straggler ends the run.
        called: other names of settings, as their user wrote them.

    Raises:
        ValueError: a setting makes no sense, or all of them together; the text names it.
    """
    if not given["calc_relative_gpu_perf"] and not given["calc_individual_gpu_perf"]:
        raise ValueError(
            "there is nothing to find stragglers by: set calc_relative_gpu_perf or calc_individual_gpu_perf to True"
        )
    names = called or {}
    changes = {setting: _checked(names.get(name, name), setting, given[name]) for name, setting in SETTINGS.items()}
    paced = _checked("profiling_interval", "profiling_interval", profiling_interval)
    return {
        "straggler_detection": True,
        "straggler_reference": str(ScoreReference.FASTEST),
        "on_straggler": str(Action.SAVE_AND_STOP if stop_if_detected else Action.LOG),
        **changes,
        **({"profiling_interval": paced} if paced else {}),
    }


def _checked(name: str, setting: str, value: Any) -> Any:
    """The value as the policy takes it."""
    try:
        return getattr(Policy().changed({setting: value}), setting)
    except ValueError as error:
        raise ValueError(str(error).replace(setting, name, 1)) from None
