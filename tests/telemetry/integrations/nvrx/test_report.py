from __future__ import annotations

import math

import pytest

from rankwatch.integrations.nvrx import report
from rankwatch.integrations.nvrx.report import ALL_SCORES, INDIVIDUAL, RELATIVE, Report, StragglerId

ANSWER = {
    "at": 1.0,
    "ranks": [
        {
            "rank": 0,
            "host": "a",
            "gpu_relative": 1.0,
            "gpu_individual": 0.9,
            "sections": {"fwd": {"relative": 1.0, "individual": 0.5}},
        },
        {
            "rank": 1,
            "host": "b",
            "gpu_relative": 0.6,
            "gpu_individual": None,
            "sections": {"fwd": {"relative": 0.75, "individual": None}},
        },
    ],
}


def test_the_answer_of_the_monitor_becomes_a_report() -> None:
    made = report.from_scores(ANSWER, ALL_SCORES, {"b": "node-b"})
    assert made.gpu_relative_perf_scores == {0: 1.0, 1: 0.6}
    assert made.gpu_individual_perf_scores[0] == 0.9
    assert math.isnan(made.gpu_individual_perf_scores[1])
    assert made.section_relative_perf_scores == {"fwd": {0: 1.0, 1: 0.75}}
    assert made.rank_to_node == {0: "a", 1: "node-b"}


def test_scores_that_are_not_wanted_are_left_out() -> None:
    made = report.from_scores(ANSWER, (INDIVIDUAL,), {})
    assert (made.gpu_relative_perf_scores, made.section_relative_perf_scores) == ({}, {})
    assert report.from_scores(ANSWER, (RELATIVE,), {}).gpu_individual_perf_scores == {}


def test_stragglers_are_strictly_below_the_threshold_and_unknown_scores_never() -> None:
    found = report.from_scores(ANSWER, ALL_SCORES, {}).identify_stragglers()
    assert found == {
        "straggler_gpus_relative": {StragglerId(1, "b")},
        "straggler_gpus_individual": set(),
        "straggler_sections_relative": {},
        "straggler_sections_individual": {"fwd": {StragglerId(0, "a")}},
    }
    lower = report.from_scores(ANSWER, ALL_SCORES, {}).identify_stragglers(
        gpu_rel_threshold=0.6, section_indiv_threshold=0.1
    )
    assert not any(lower.values())


@pytest.mark.parametrize(
    ("other", "own", "named"), [(0.6, -0.6, set()), (0.02, -0.01, {1}), (0.3, 0.3, {1}), (None, None, {1})]
)
def test_a_rank_that_is_not_late_while_another_is_is_no_straggler(
    other: float | None, own: float | None, named: set[int]
) -> None:
    rows = [{**ANSWER["ranks"][0], "lateness_share": other}, {**ANSWER["ranks"][1], "lateness_share": own}]
    found = report.from_scores({"ranks": rows}, ALL_SCORES, {}).identify_stragglers()
    assert {each.rank for each in found["straggler_gpus_relative"]} == named


def test_an_empty_report_names_no_rank() -> None:
    assert not any(Report().identify_stragglers().values())


@pytest.mark.parametrize("answer", [{}, {"ranks": [{}]}, {"ranks": None}])
def test_another_answer_is_refused(answer: dict) -> None:
    with pytest.raises((KeyError, TypeError)):
        report.from_scores(answer, ALL_SCORES, {})
