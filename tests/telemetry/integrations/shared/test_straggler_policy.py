from __future__ import annotations

from typing import Any

import pytest

from rankwatch.contract.policy import Policy
from rankwatch.integrations.shared.straggler_policy import straggler_policy

GIVEN: dict[str, Any] = {
    "report_time_interval": 300.0,
    "calc_relative_gpu_perf": True,
    "calc_individual_gpu_perf": False,
    "num_gpu_perf_scores_to_print": 3,
    "gpu_relative_perf_threshold": 0.7,
    "gpu_individual_perf_threshold": 0.6,
}


def test_the_settings_become_a_policy() -> None:
    changes = straggler_policy(GIVEN, profiling_interval=4, stop_if_detected=True)
    policy = Policy().changed(changes)
    assert (str(policy.straggler_reference), str(policy.on_straggler)) == ("fastest", "save_and_stop")
    assert (policy.report_interval, policy.calc_relative, policy.calc_individual) == (300.0, True, False)
    assert (policy.num_gpu_perf_scores_to_print, policy.profiling_interval) == (3, 4)
    assert (policy.relative_threshold, policy.individual_threshold) == (0.7, 0.6)


def test_a_threshold_of_zero_never_flags() -> None:
    zero = {"gpu_relative_perf_threshold": 0.0, "gpu_individual_perf_threshold": 0}
    policy = Policy().changed(straggler_policy(GIVEN | zero, profiling_interval=0, stop_if_detected=False))
    assert (policy.relative_threshold, policy.individual_threshold) == (0.0, 0.0)


def test_a_pace_that_is_left_open_stays_as_the_launcher_was_given() -> None:
    changes = straggler_policy(GIVEN, profiling_interval=0, stop_if_detected=False)
    assert "profiling_interval" not in changes
    assert changes["on_straggler"] == "log"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"report_time_interval": 0}, "^report_time_interval must be a number of seconds"),
        ({"gpu_relative_perf_threshold": -0.1}, "^gpu_relative_perf_threshold must be a score"),
        ({"gpu_relative_perf_threshold": 2}, "^gpu_relative_perf_threshold must be a score"),
        ({"num_gpu_perf_scores_to_print": -1}, "^num_to_log must be a whole number"),
        ({"calc_relative_gpu_perf": False}, "no score is enabled"),
    ],
)
def test_what_makes_no_sense_is_refused_in_the_users_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        straggler_policy(
            GIVEN | change,
            profiling_interval=0,
            stop_if_detected=False,
            aliases={"num_gpu_perf_scores_to_print": "num_to_log"},
        )
