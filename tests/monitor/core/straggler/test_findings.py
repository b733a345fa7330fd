"""Figures of a slow rank agree with each other as they are stated."""

from __future__ import annotations

import pytest

from rankwatch.contract.enums import Cause, ScoreReference
from rankwatch_monitor.core.straggler.describe import Observation, sentence
from rankwatch_monitor.core.straggler.findings import Straggler, cost_rate, share_of
from rankwatch_monitor.core.views.slow_headline import slow_headline

LATE, STEP = 0.05452, 0.2064
"""55 ms of 206 ms in the sentence, which is 26.7 %; before they are rounded it is 26.4 %."""


@pytest.mark.parametrize(
    ("late", "step", "stated"),
    [(0.05452, 0.2064, 55 / 206), (0.0045449, 0.0151, 4.5 / 15), (1.2049, 2.401, 1.2 / 2.4), (0.00001, 0.00004, 0.25)],
)
def test_a_share_is_that_of_the_durations_as_they_are_stated(late: float, step: float, stated: float) -> None:
    assert share_of(late, step) == pytest.approx(stated)


def test_sentence_headline_cost_and_api_state_one_share() -> None:
    reason = sentence(Observation(5, "host-0", 31, LATE, STEP, Cause.DATA, 0.06, 0.002, "data"))
    slow = Straggler(
        "s", 5, "host-0", "", Cause.DATA, ScoreReference.ROBUST, reason, 1.0, 2.0,
        lateness=LATE, share=LATE / STEP, waiting=31,
    )  # fmt: skip
    assert "wait 55 ms of each 206 ms step for it (27 %)" in reason, "26.4 % before the durations are rounded"
    assert slow_headline(slow, None).endswith("31 ranks wait 27 % of each step")
    assert cost_rate(slow) == "8.54 GPU-hours each hour: 27 % of each step of all 32 ranks"
    assert slow.to_json()["share"] == pytest.approx(55 / 206)
