"""The line about a slow rank: which one, in what, how much of each step the others wait; within 90 characters."""

from __future__ import annotations

import re

import pytest

from monitor.core.views.advice.test_slow import slowed
from rankwatch.contract.enums import Cause, ScoreReference
from rankwatch_monitor.core.straggler.describe import Observation, sentence, slow_kernels
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views.headline import LONGEST
from rankwatch_monitor.core.views.slow_headline import slow_headline
from rankwatch_monitor.core.views.throttling import Throttle
from support.windows import DATA

THROTTLE = Throttle(5, 5, ("hw_thermal_slowdown",), 5.0, "88 °C, 1.20 of 1.98 GHz")


def slow(cause: Cause, host: str = "host-0", others: int = 31, reason: str = "") -> Straggler:
    seen = Observation(5, host, others, late=0.061, step=0.225, cause=cause, own=0.062, peers=0.002)
    made = Straggler("s1", 5, host, "0", cause, ScoreReference.ROBUST, reason or sentence(seen), 5.0, 6.0)
    if not reason:
        made.share, made.waiting = seen.late / seen.step, others
    return made


@pytest.mark.parametrize(
    ("cause", "what"),
    [
        (Cause.DATA, " in its input"),
        (Cause.HOST, " in its host-side work"),
        (Cause.COMPUTE, " in its computation"),
        (Cause.UNEXPLAINED, ""),
    ],
)
def test_the_cause_and_the_wait_stand_in_one_line(cause: Cause, what: str) -> None:
    assert slow_headline(slow(cause), None) == f"Rank 5 on host-0 is slow{what}; 31 ranks wait 27 % of each step"


def test_the_line_does_not_depend_on_the_words_of_the_sentence() -> None:
    reworded = slow(Cause.DATA)
    reworded.reason = "Its input takes 62 ms of a step."
    assert slow_headline(reworded, None) == slow_headline(slow(Cause.DATA), None)


def test_the_figures_of_a_detected_rank_are_those_of_its_sentence() -> None:
    [straggler] = slowed(DATA).job.performance.open_stragglers
    line = slow_headline(straggler, None)
    waited, share = re.search(r"; (.+ waits?) (\d+ %) of each step$", line).groups()  # type: ignore[union-attr]
    assert f"is slow: {waited} " in straggler.reason
    assert f" step for it ({share}); " in straggler.reason


def test_a_throttled_gpu_is_the_cause() -> None:
    found = slow_headline(slow(Cause.COMPUTE), THROTTLE)
    assert found == "Rank 5 on host-0 is slow: GPU 5 throttled; 31 ranks wait 27 % of each step"


def test_of_two_ranks_the_other_one_waits() -> None:
    found = slow_headline(slow(Cause.DATA, host="", others=1), None)
    assert found == "Rank 5 is slow in its input; the other rank waits 27 % of each step"


def test_a_long_name_of_a_host_costs_the_last_clause() -> None:
    host = "gpu-h100-sxm-0042.rack-17.cluster.example"
    found = slow_headline(slow(Cause.COMPUTE, host, others=16_383), THROTTLE)
    assert found == f"Rank 5 on {host} is slow: GPU 5 throttled"
    assert len(found) <= LONGEST


def test_without_a_measured_wait_the_sentence_itself_is_shortened() -> None:
    kernels = slow_kernels(5, "host-0", 0.6)
    assert slow_headline(slow(Cause.COMPUTE, reason=kernels), None) == kernels.rstrip(".")
