from __future__ import annotations

import pytest

from rankwatch.contract.policy import Policy
from rankwatch.integrations.megatron.config import NVRxStragglerDetectionConfig, policy_of


def test_the_settings_become_a_policy_that_can_be() -> None:
    plain = Policy().changed(policy_of(NVRxStragglerDetectionConfig(enabled=True)))
    assert (str(plain.on_straggler), str(plain.straggler_reference)) == ("log", "fastest")
    assert (plain.report_interval, plain.relative_threshold, plain.profiling_interval) == (300.0, 0.7, 0)
    config = NVRxStragglerDetectionConfig(
        stop_if_detected=True, gpu_individual_perf_threshold=0.5, calc_relative_gpu_perf=False, profiling_interval=4
    )
    other = Policy().changed(policy_of(config))
    assert (str(other.on_straggler), other.individual_threshold) == ("save_and_stop", 0.5)
    assert (other.calc_relative, other.profiling_interval) == (False, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False}, "no score is enabled"),
        ({"report_time_interval": 0}, "report_time_interval must be a number of seconds"),
    ],
)
def test_settings_that_make_no_sense_are_reported(changes: dict, words: str) -> None:
    NVRxStragglerDetectionConfig(enabled=False, **changes).finalize()
    with pytest.raises(ValueError, match=words):
        NVRxStragglerDetectionConfig(enabled=True, **changes).finalize()
