"""Events to JSON and back: nothing is lost, and what is odd is named."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from rankwatch.contract.enums import AckState, Action, ProcessEventKind, ProcessState
from rankwatch.contract.messages import (
    Collective,
    DirectiveAck,
    Evidence,
    Frame,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
    RankObservation,
    RankStack,
    read,
)
from rankwatch.contract.policy import Policy
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, OperationWindow, SectionWindow
from rankwatch_monitor.core.events import (
    Acknowledged,
    DeviceReading,
    Order,
    PolicyChanged,
    RankIdentity,
    RankReport,
    SectionStatistics,
    WindowReport,
)
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.replay.recording import KINDS

encoded = partial(plain, sparse=True)
decoded = partial(read, own=True)
FRAME = Frame("forward", "train.py", 12)
STACK = RankStack(
    3,
    103,
    "py-spy",
    (FRAME, FRAME),
    ProcessState.STOPPED,
    collectives=(Collective("dp", "all_reduce", 5, 4, (0, 1)),),
)
WINDOW = WindowReport(
    64,
    16,
    {"step": SectionWindow(16, 0.5, 0.75, 1.0, 0.625)},
    {"compute": 0.1 + 0.2, "host": 0.0},
    {"dp": CollectiveWindow(3, 0.25, 0.125, 0.001)},
    0.25,
    compared=True,
    operations={"all_reduce dp": OperationWindow(3, 0.25, 0.001, 3000, 2000, 1500)},
)
DEVICE = DeviceReading(
    0.75, 2.0**36, 2.0**37, 61.0, 480.5, 700.0, 1.98e9, 1.98e9, ("sw_power_cap",), {"xid": 1, "ecc_corrected": 0}
)
EVENTS = {
    "report": RankReport(
        RankIdentity(
            "job",
            3,
            world_size=8,
            host="a",
            started_at=1.5,
            data_parallel=0,
            tensor_parallel=1,
            pipeline_parallel=2,
            expert_parallel=3,
        ),
        beats=4,
        heartbeat_age=0.1 + 0.2,
        open_sections={"step": 1.0},
        finished={"step": SectionStatistics(2, 3.0, 1.0, 2.0)},
        dropped={"ring": 3},
        first_time=("step",),
        longest={"step": 2.0},
        first_durations={"setup": 5.0},
        idle_longest=0.25,
        window=WINDOW,
        kernels={"gemm<1, 2>(grid 64)": KernelStatistics(40, 2.0, 3.0, 2.5, 1.0, 4.0, 0.5)},
        kernel_source="kineto-cpu",
        kernel_source_reason="there is no GPU",
        device=DEVICE,
        ended=True,
    ),
    "registration": NodeRegistration(
        "n", "host", 1, 4, policy={"on_hang": "log"}, ft_state={"a": {"b": [1]}}, min_nodes=2
    ),
    "observation": NodeObservation(
        "n", 2, (RankObservation(3, 103, ProcessState.STOPPED, pulse_age=3.0, first_time=("a", "b")),)
    ),
    "process": ProcessEvent("n", ProcessEventKind.EXITED, 1, rank=3, signal="SIGKILL"),
    "acknowledged": Acknowledged(4, DirectiveAck("n", AckState.REFUSED, max_iteration=7)),
    "evidence": Evidence("n", 1, None, (STACK,), age=0.5),
    "order": Order(Action.RESTART, "because"),
    "policy": PolicyChanged(Policy(section_timeouts={"step": 3.0}, on_hang=Action.LOG, silence_timeout=None)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_comes_back_as_it_was(kind: str) -> None:
    event = EVENTS[kind]
    reported = json.loads(json.dumps(encoded(event)))
    back = decoded(KINDS[kind], reported)
    assert back == event
    assert type(back) is type(event)
    assert encoded(back) == reported


def test_what_is_reported_of_speed_is_recorded_whole() -> None:
    """No field of these has its default in the events above, so that one which is lost would be noticed."""
    report = EVENTS["report"]
    assert isinstance(report, RankReport)
    assert report.kernels is not None
    for reported in (
        WINDOW,
        DEVICE,
        *WINDOW.sections.values(),
        *WINDOW.collectives.values(),
        *WINDOW.operations.values(),
        *report.kernels.values(),
    ):
        defaults = reported._field_defaults
        assert [
            name for name in reported._fields if name in defaults and getattr(reported, name) == defaults[name]
        ] == []
        assert decoded(type(reported), json.loads(json.dumps(encoded(reported)))) == reported


def test_numbers_of_any_size_come_back() -> None:
    report = RankReport(RankIdentity("job", 3), iteration=2**63 - 1, logged={"loss": 1e300})
    assert decoded(RankReport, json.loads(json.dumps(encoded(report)))) == report


@pytest.mark.parametrize(
    "reported",
    [{"window": WindowReport()}, {"kernels": {}}, {"device": DeviceReading()}, {"window": WindowReport(iteration=0)}],
)
def test_nothing_in_it_is_not_the_same_as_not_reported(reported: dict[str, Any]) -> None:
    report = RankReport(RankIdentity("job", 3), **reported)
    assert decoded(RankReport, json.loads(json.dumps(encoded(report)))) == report


def test_what_has_its_default_is_left_out() -> None:
    assert encoded(RankReport(RankIdentity("job", 3))) == {"identity": {"job_id": "job", "rank": 3}}


def test_what_a_newer_version_added_is_left_aside() -> None:
    reported = {"identity": {"job_id": "job", "rank": 3, "colour": "red"}, "mood": "good"}
    assert decoded(RankReport, reported) == RankReport(RankIdentity("job", 3))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({}, "RankReport lacks identity"),
        ({"identity": {"rank": 3}}, "identity: RankIdentity lacks job_id"),
        ({"identity": {"job_id": "job", "rank": "3"}}, "identity: rank: no int"),
        ({"identity": {"job_id": "job", "rank": True}}, "rank: no int"),
        ({"identity": {"job_id": "job", "rank": 3}, "open_sections": [1]}, "open_sections: no object"),
        ({"identity": {"job_id": "job", "rank": 3}, "first_time": "step"}, "first_time: no list"),
        ([], "RankReport lacks identity"),
        ("it", "RankReport is no object"),
    ],
)
def test_what_is_odd_is_named(odd: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decoded(RankReport, odd)
