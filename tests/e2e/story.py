"""What an incident must state, whichever fault it is about."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from e2e.training import HOST


def assert_in_order(incident: dict[str, Any], *phases: str) -> None:
    """Each of these times is there, none of the others, and each comes at or after the one before it."""
    times = incident["timeline"]
    assert [name for name, at in times.items() if at is not None] == list(phases), times
    for before, after in pairwise(phases):
        assert times[before] <= times[after], f"{after} lies before {before}: {times}"
    assert incident["closed_at"] >= times[phases[-1]]


WHOLE = ("since", "detected", "decided", "captured", "restarted", "first_step")


def assert_blamed(incident: dict[str, Any], rank: int, culprit_class: str) -> None:
    """One rank of this host is named, with a reason."""
    (culprit,) = incident["culprits"]
    assert (culprit["rank"], culprit["host"], culprit["class"]) == (rank, HOST, culprit_class), incident["reason"]
    assert culprit["reason"].removeprefix("its process ") in incident["reason"]
    assert f"ank {rank} on {HOST}" in incident["reason"]


def stack_of(incident: dict[str, Any], rank: int) -> dict[str, Any]:
    """The group that the rank's stack is in."""
    (group,) = [group for group in incident["stack_groups"] if rank in group["ranks"]]
    return group


def functions(group: dict[str, Any]) -> list[str]:
    """The functions of a stack, innermost first."""
    return [frame["function"] for frame in group["frames"]]
