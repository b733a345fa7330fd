"""A headline of at most 90 characters, made from the reason of the incident, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, CulpritClass, Proof, VerdictKind
from rankwatch_monitor.core.hang.collectives import place
from rankwatch_monitor.core.hang.stacks import GroupProgress
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.headline import LONGEST, headline, next_action, of_job, shown

HOST = "gpu-0123"
REACHED = GroupProgress("world", "all_reduce", 8192, 8191, (0, 1))


def incident(*culprits: Culprit, reason: str = "Something is wrong.", **fields: object) -> Incident:
    made = {"kind": VerdictKind.SECTION_OVERRUN, "action": Action.RESTART, "phase": Phase.CONFIRMING} | fields
    return Incident("job-1", "job", attempt=1, opened_at=0.0, reason=reason, culprits=culprits, **made)  # type: ignore[arg-type]


def behind(rank: int, reason: str, host: str = HOST, kind: CulpritClass = CulpritClass.BEHIND) -> Culprit:
    return Culprit(rank, host, kind, reason)


@pytest.mark.parametrize(
    ("culprits", "expected"),
    [
        (
            [behind(9210, f"it has not entered {place(REACHED)}, in which 2047 ranks wait")],
            "Rank 9210 on gpu-0123 has not entered all_reduce #8192, in which 2047 ranks wait",
        ),
        (
            [behind(r, "its process is stopped by a signal (state T), so it cannot run") for r in (4, 5, 6)],
            "Rank 4 (and 2 more) on gpu-0123 is stopped by a signal (state T), so it cannot run",
        ),
        (
            [behind(3, "its process exited with code 1: ValueError: bad batch")],
            "Rank 3 on gpu-0123 exited with code 1: ValueError: bad batch",
        ),
        (
            [behind(3, "neither the launcher nor the 8 ranks of gpu-0123 reported for 12.3 s")],
            "Neither the launcher nor the 8 ranks of gpu-0123 reported for 12.3 s",
        ),
        (
            [behind(3, "its process exited with code 1: RuntimeError: " + "no room " * 30)],
            "Rank 3 exited with code 1: RuntimeError",
        ),
        ([behind(3, "it " + "waits " * 40)], "Rank 3" + " waits" * 13 + "…"),
    ],
)
def test_the_headline_is_the_culprits_part_of_the_reason(culprits: list[Culprit], expected: str) -> None:
    assert headline(incident(*culprits)) == expected
    assert len(expected) <= LONGEST


def test_without_a_culprit_the_headline_is_the_explanation() -> None:
    reason = (
        "Rank 0 on a has been in section 'step' for 11.0 s, over its limit of 10 s (3 others too); all ranks are stuck "
        "in the same place ('all_reduce'), so no rank is named."
    )
    expected = "All ranks are stuck in the same place ('all_reduce'), so no rank is named"
    assert headline(incident(reason=reason)) == expected


def test_a_job_that_simply_runs_has_no_headline_and_one_with_an_incident_has_its() -> None:
    scene = Scene(on_hang="log").run(10)
    assert job_view.summary(scene.job, scene.now)["headline"] == ""
    scene.hang(2).until_found()
    expected = "Rank 2 on host-0 is behind within the same step, and the 3 other ranks wait for it"
    assert job_view.summary(scene.job, scene.now)["headline"] == headline(scene.incident) == expected
    assert of_job(None, "no rank has reported yet") == "No rank has reported yet"
    json.dumps(shown(scene.incident))


@pytest.mark.parametrize(
    ("fields", "kind", "action", "ranks"),
    [
        ({}, CulpritClass.BEHIND, None, ()),
        ({"confirmed": False}, CulpritClass.BEHIND, None, ()),
        ({"phase": Phase.CLOSED}, CulpritClass.BEHIND, None, ()),
        ({"phase": Phase.ACTING}, CulpritClass.BEHIND, None, ()),
        ({"action": Action.LOG}, CulpritClass.BEHIND, Action.RESTART, (3,)),
        ({"action": Action.LOG}, CulpritClass.DEVICE_OR_NETWORK, Action.RESTART_EXCLUDING_NODE, (3,)),
        ({"action": Action.LOG, "phase": Phase.ACTING}, CulpritClass.HOST_SILENT, Action.RESTART_EXCLUDING_NODE, (3,)),
        ({"confirmed": False, "proof": Proof.STALLED}, CulpritClass.BEHIND, Action.RESTART, ()),
    ],
)
def test_the_next_action_is_an_order_only_where_rankwatch_does_not_act(
    fields: dict[str, object], kind: CulpritClass, action: Action | None, ranks: tuple[int, ...]
) -> None:
    found = next_action(incident(behind(3, "it is late", kind=kind), **fields))
    assert (found.action, found.ranks) == (action, ranks)
    assert found.text.endswith(".")
    assert found.text.startswith("Wait") or action is not None or fields.get("phase") is Phase.CLOSED


def test_each_runbook_link_leads_to_a_section_of_the_runbook() -> None:
    text = (Path(__file__).parents[4] / "docs/runbook.md").read_text()
    sections = {line.lstrip("# ").lower() for line in text.splitlines() if line.startswith("### ")}
    for kind in VerdictKind:
        page, _, section = next_action(incident(kind=kind)).runbook.partition("#")
        assert (page, section in sections) == ("runbook.html", True), section
