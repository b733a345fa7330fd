from __future__ import annotations

from typing import Any

import pytest

from rankwatch.contract.enums import KernelSource
from rankwatch.contract.policy import parse_ranks
from rankwatch.profiling.plan import ProfilingPlan, TraceRequest, of_settings, with_pushed
from rankwatch.settings import load

OWN = ProfilingPlan(KernelSource.OFF, 32, parse_ranks("0,2-3"), 60.0)


def test_a_process_has_settings_of_its_own() -> None:
    variables = {
        "RANKWATCH_KERNEL_TIMINGS": "off",
        "RANKWATCH_PROFILING_INTERVAL": "32",
        "RANKWATCH_PROFILED_RANKS": "0, 2-3",
        "RANKWATCH_REPORT_INTERVAL": "60",
    }
    settings, problems = load({}, {"RANKWATCH_JOB_ID": "j", **variables})
    assert problems == []
    assert of_settings(settings) == OWN
    assert of_settings(load({}, {"RANKWATCH_JOB_ID": "j"})[0]) == ProfilingPlan()


def test_what_is_handed_down_beats_it_value_by_value() -> None:
    reported = {"source": "auto", "interval": 64, "ranks": "all", "report_interval": 30, "stride": 128}
    plan, problems = with_pushed(OWN, {"profiling": reported})
    assert problems == []
    assert plan == ProfilingPlan(KernelSource.AUTO, 64, parse_ranks("all"), 30.0, 128)
    assert plan.configured_stride == 128, "the launcher has it for all its ranks"
    assert with_pushed(OWN, {"profiling": {"source": "cupti"}})[0].ranks == OWN.ranks
    assert with_pushed(OWN, {"export_interval": 1}) == (OWN, [])


def test_a_trace_is_asked_for_by_rank_and_name() -> None:
    plan, problems = with_pushed(OWN, {"profiling": {"trace": {"rank": 3, "id": "incident-7"}}})
    assert (plan.trace, problems) == (TraceRequest(3, "incident-7"), [])


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ({"source": "nsight"}, "kernel_timings must be one of auto, cupti, kineto, off, not 'nsight'"),
        ({"interval": -1}, "profiling_interval must be a whole number"),
        ({"interval": True}, "profiling_interval must be a whole number"),
        ({"ranks": "some"}, "profiled_ranks must be all, none or ranks such as 0,8-15, not 'some'"),
        ({"report_interval": "often"}, "report_interval must be a number of seconds"),
        ({"stride": 1.5}, "stride must be a whole number"),
        ({"trace": {"rank": "3"}}, "a trace request is written"),
        ({"trace": 3}, "a trace request is written"),
        ("off", "must map names to values"),
    ],
)
def test_an_invalid_value_is_reported_and_ignored(reported: Any, words: str) -> None:
    plan, (problem,) = with_pushed(OWN, {"profiling": reported})
    assert plan == OWN
    assert words in problem
    assert "is ignored" in problem


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("RANKWATCH_KERNEL_TIMINGS", "nsight", "one of auto, cupti, kineto, off"),
        ("RANKWATCH_PROFILING_INTERVAL", "-8", "from 0 to 1000000"),
        ("RANKWATCH_PROFILED_RANKS", "3-1", "all, none or ranks such as 0,8-15"),
        ("RANKWATCH_REPORT_INTERVAL", "0", "seconds from 1 to 86400"),
    ],
)
def test_a_wrong_variable_is_reported_and_ignored(variable: str, value: str, words: str) -> None:
    settings, (problem,) = load({}, {"RANKWATCH_JOB_ID": "j", variable: value})
    assert words in problem
    assert of_settings(settings) == ProfilingPlan()
