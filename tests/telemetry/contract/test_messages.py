"""Reading the JSON shapes of the control plane."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind, ProcessState
from rankwatch.contract.messages import (
    Directive,
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

SHAPES = [
    NodeRegistration("n", "h", 1, 4),
    Directive(3, DirectiveKind.SAVE_AND_STOP, 2, "why", "job-1", 5.0, 120, {"limits": {}}),
    DirectiveAck("n", AckState.REFUSED, "passed", 12),
    ProcessEvent("n", ProcessEventKind.EXITED, 1, rank=2, signal="SIGKILL"),
    RankObservation(1, 2, ProcessState.STOPPED, open_sections={"step": 1.0}, quiet=0.5, first_time=("step",)),
    Frame("f", "file.py", 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: type(s).__name__)
def test_a_shape_comes_back_through_json(shape: object) -> None:
    sent = json.dumps(asdict(shape))  # type: ignore[call-overload]
    assert json.dumps(asdict(read(type(shape), json.loads(sent)))) == sent  # type: ignore[call-overload]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: type(s).__name__)
def test_fields_of_a_newer_peer_are_ignored(shape: object) -> None:
    assert read(type(shape), {**asdict(shape), "colour": "red"}) == shape  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("shape", "data", "lacking"),
    [
        (NodeRegistration, {}, "NodeRegistration lacks node, host, launcher_pid, local_world_size"),
        (DirectiveAck, {"node": "n"}, "DirectiveAck lacks state"),
        (ProcessEvent, {"kind": "exited", "attempt": 1}, "ProcessEvent lacks node"),
        (Evidence, {"node": "n", "attempt": 1}, "Evidence lacks incident_id, stacks"),
        (RankStack, {"rank": 1}, "RankStack lacks pid, method"),
    ],
)
def test_what_is_missing_is_named(shape: type, data: dict[str, object], lacking: str) -> None:
    with pytest.raises(ValueError, match=lacking):
        read(shape, data)


def test_what_is_optional_has_its_default() -> None:
    assert read(NodeObservation, {"node": "n", "attempt": 1}) == NodeObservation("n", 1, ())
    first, second = (read(NodeRegistration, {**asdict(SHAPES[0])}) for _ in range(2))  # type: ignore[call-overload]
    assert first == second
