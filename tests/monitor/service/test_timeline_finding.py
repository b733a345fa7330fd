"""The sentences of the section timeline: which rank works longest, and how long the others wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rankwatch_monitor.service.span_store import RankStep, Span
from rankwatch_monitor.service.timeline_finding import basis, figures, finding

UNMEASURED = "how long ranks wait for others was not measured."


def step(data: float, compute: float, waits: float | None, iteration: int) -> RankStep:
    """Data, then computation with the collectives at its end, within the section of the step."""
    seconds = data + compute + (0.05 if waits is None else waits)
    spans = (Span("step", 0, 0.0, seconds), Span("data", 1, 0.0, data), Span("forward", 1, data, seconds - data))
    return RankStep(iteration, 100.0, seconds, spans, None if waits is None else ((data + compute, waits),))


def lane(data: float, compute: float, waits: float | None, iterations: Sequence[int] = (10, 20)) -> Sequence[RankStep]:
    return [step(data, compute, waits, iteration) for iteration in iterations]


SLOW = {3: lane(0.061, 0.1, 0.02), 0: lane(0.02, 0.1, 0.061), 1: lane(0.02, 0.1, 0.061)}


def words(lanes: Mapping[int, Sequence[RankStep]], *blamed: int, known: int = 8) -> str:
    return finding(lanes, blamed, known)


def test_the_rank_that_works_longest_what_the_others_work_and_wait_and_in_which_sections() -> None:
    assert words(SLOW, 3) == (
        "In each of these 2 steps rank 3 works 161 ms; the other 2 work 120 ms and wait 41 ms for it. "
        "It takes longer in data (+41 ms)."
    )
    assert "; rank 0 works 120 ms and waits 41 ms for it." in words({3: SLOW[3], 0: SLOW[0]}, 3)


def test_a_rank_that_is_not_shown_may_be_the_slow_one() -> None:
    assert "wait 41 ms longer than it." in words(SLOW)
    assert "wait 41 ms for it." in words(SLOW, known=3)


def test_its_twin_ranks_that_work_equally_long() -> None:
    assert words({0: lane(0.02, 0.1, 0.025), 1: lane(0.025, 0.1, 0.02)}, 0) == (
        "In each of these 2 steps the 2 ranks work about equally long, 120 ms to 125 ms of a step, "
        "and wait 5.0 ms for each other at most."
    )


def test_time_in_nested_sections_and_collectives_is_not_a_sections_own() -> None:
    deep = [
        RankStep(10, 100.0, 1.0, (Span("step", 0, 0.0, 1.0), Span("forward", 1, 0.0, took)), ((took, 1.0 - took),))
        for took in (0.9, 0.5)
    ]
    assert words({0: deep[:1], 1: deep[1:]}, 0).endswith("It takes longer in forward (+400 ms).")


def test_the_figures_are_of_the_steps_whose_waiting_was_measured_if_any_was() -> None:
    names = ["step", "data", "forward", "save"]
    lanes = {3: lane(0.06, 0.1, 0.02, [10]), 0: [*lane(0.02, 0.1, 0.04, [10]), *lane(0.9, 0.1, None, [20])]}
    assert figures(lanes, names) == {
        3: {"works": 0.16, "waits": 0.02, "own": [0.0, 0.06, 0.1, None]},
        0: {"works": 0.12, "waits": 0.04, "own": [0.0, 0.02, 0.1, None]},
    }
    unmeasured = {1: lane(0.06, 0.1, None), 2: []}
    assert figures(lanes | unmeasured, names)[1] == {"works": None, "waits": None, "own": [None] * 4}
    assert figures(unmeasured, names)[1]["own"] == [0.0, 0.06, 0.15, None], "time in collectives is included"


def test_without_measured_waiting_the_section_that_stands_out() -> None:
    usual = lane(0.02, 0.1, None)
    assert words({5: lane(0.16, 0.1, None), 0: usual, 1: usual}) == (
        f"On average of these 2 steps rank 5 takes 160 ms for data, the others 20 ms; {UNMEASURED}"
    )
    assert words({0: usual, 1: usual}) == (
        f"In each of these 2 steps no section takes much longer on one of these ranks than on the others; {UNMEASURED}"
    )
    assert words({0: usual}) == f"One rank is shown; {UNMEASURED}"


def test_steps_of_different_lengths_are_averaged() -> None:
    uneven = {3: [*lane(0.061, 0.1, 0.02, [10]), *lane(0.061, 0.2, 0.02, [20])], 0: lane(0.02, 0.1, 0.061)}
    assert words(uneven, 3).startswith("On average of these 2 steps rank 3 works 211 ms;")


def test_one_step_is_no_steps() -> None:
    one = {3: lane(0.061, 0.1, 0.02, [20]), 0: lane(0.02, 0.1, 0.061, [20])}
    assert words(one, 3).startswith("In this step rank 3 works ")


def test_a_rank_without_the_newest_step_comes_before_all_else() -> None:
    lanes = {5: lane(0.02, 0.1, 0.02, [10]), 0: lane(0.02, 0.1, 0.02), 1: lane(0.02, 0.1, 0.02)}
    assert words(lanes) == "Rank 5 has sent no sections of step 20; the other 2 ranks have."


def test_no_steps_have_no_sentence() -> None:
    assert (words({0: [], 1: []}), basis({0: []}, {0: 0.1}, 8)) == ("", "")


@pytest.mark.parametrize(
    ("lateness", "size", "expected"),
    [
        (
            {3: 0.048},
            32,
            "Measured on 2 of 32 ranks in sampled steps; on all ranks and over whole windows the others wait "
            "48 ms of each step for rank 3.",
        ),
        ({}, 32, "Measured on 2 of 32 ranks."),
        ({9: 0.05}, 32, "Measured on 2 of 32 ranks."),  # that rank is not shown
        ({9: 0.05, 3: None}, 32, "Measured on 2 of 32 ranks."),
        (
            {3: 0.048},
            2,
            "Measured in sampled steps; over whole windows the others wait 48 ms of each step for rank 3.",
        ),
        (
            {3: 0.042},
            32,
            "Measured on 2 of 32 ranks in sampled steps; on all ranks and over whole windows it is the same within "
            "5 %.",
        ),
        ({}, 2, ""),
    ],
)
def test_what_the_figures_are_of_and_the_jobs_own_beside_them(
    lateness: dict[int, float | None], size: int, expected: str
) -> None:
    assert basis({3: SLOW[3], 0: SLOW[0]}, lateness, size) == expected


def test_the_basis_of_figures_that_were_not_measured_is_nothing() -> None:
    assert basis({3: lane(0.06, 0.1, None)}, {3: 0.1}, 32) == ""
