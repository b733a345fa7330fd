"""What a person changes and orders over REST is done, by all ranks alike, and shown as an incident of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.story import WHOLE, assert_in_order, functions
from e2e.training import Training
from rankwatch.contract.env import slots_file
from rankwatch.recording.shared_slots import Slots
from support.console import events, restarts, said

pytestmark = pytest.mark.timeout(240)


def profiling(training: Training) -> list[dict[str, Any]]:
    """What each rank finds in its slots about profiling; nothing while it is being written."""
    found = []
    for rank, lines in training.reported().items():
        slots = Slots.open(Path(lines[-1]["slots"]) / slots_file(rank))
        try:
            handed = slots.settings()
        finally:
            slots.close()
        found.append({} if handed is None else handed[1].get("profiling", {}))
    return found


def each_has(training: Training, expected: dict[str, Any]) -> bool:
    return [{**each, **expected} == each for each in profiling(training)] == [True] * 3


def test_a_person_changes_settings_restarts_the_ranks_and_stops_them(watched: Training) -> None:
    launcher = watched.run(ranks=3)
    watched.until_running(3)

    given = {"source": "auto", "interval": 0, "ranks": "all", "report_interval": 300.0}
    watched.until("all ranks were given the defaults", lambda: each_has(watched, given))
    assert watched.api is not None
    changes = {"kernel_timings": "off", "profiling_interval": 4, "profiled_ranks": "1", "report_interval": 30}
    answer = watched.api.patch(f"/api/v1/jobs/{watched.job}/policy", json=changes)
    assert answer.status_code == 200, answer.text
    changed = {"source": "off", "interval": 4, "ranks": "1", "report_interval": 30.0}
    watched.until("all ranks were given the changes", lambda: each_has(watched, changed))

    wrong = watched.api.patch(f"/api/v1/jobs/{watched.job}/policy", json={"profiled_ranks": "first"})
    assert (wrong.status_code, "profiled_ranks" in wrong.text) == (422, True)

    restart = watched.order("restart", "new data arrived")
    watched.until_running(3, attempt=2)
    resumed = watched.resumed(2)
    incident = watched.incident()
    assert (incident["id"], incident["kind"], incident["culprits"]) == (restart, "ordered", [])
    assert (incident["action"], incident["action_reason"]) == (
        "restart",
        "an operator ordered restart: new data arrived",
    )
    assert incident["reason"] == "An operator ordered restart: new data arrived."
    assert_in_order(incident, *WHOLE)
    assert sorted(rank for group in incident["stack_groups"] for rank in group["ranks"]) == [0, 1, 2]
    assert all("train" in functions(group) for group in incident["stack_groups"])
    assert incident["outcome"].startswith(f"attempt 2 resumed at step {resumed}")
    (told,) = events(launcher.printed(), "RESTART")
    assert told.casefold() == incident["reason"].casefold().rstrip(".")
    (announced,) = restarts(launcher.printed())
    assert announced.startswith("restarting all ranks (1 of 3)")
    watched.until("attempt 2 has the changed settings, too", lambda: each_has(watched, changed))

    stop = watched.order("save_and_stop", "the node is needed")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident(2)
    assert (incident["id"], incident["kind"], incident["culprits"]) == (stop, "ordered", [])
    assert incident["action"] == "save_and_stop"
    assert incident["reason"] == "An operator ordered save and stop: the node is needed."
    assert_in_order(incident, "since", "detected", "decided", "captured")
    (step,) = {step for lines in watched.steps("end").values() for _, step in lines}
    assert watched.steps("end") == {rank: [(2, step)] for rank in range(3)}
    assert watched.checkpoint() == step, "it was saved"
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"]) == ("stopped", 2, 1)
    assert job["iteration"] == step - 1
    assert "the node is needed" in job["reason"]
    assert "the node is needed" in said(launcher.printed())
