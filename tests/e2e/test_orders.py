"""What a person orders over REST is done, by all ranks alike, and shown as an incident of its own."""

from __future__ import annotations

import pytest

from e2e.story import WHOLE, assert_in_order, functions
from e2e.training import Training

pytestmark = pytest.mark.timeout(240)


def test_save_and_stop_ends_all_ranks_after_the_same_step(watched: Training) -> None:
    launcher = watched.run(ranks=3)
    watched.until_running(3)
    ordered = watched.order("save_and_stop", "the node is needed")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert (incident["id"], incident["kind"], incident["culprits"]) == (ordered, "ordered", [])
    assert incident["action"] == "save_and_stop"
    assert incident["reason"] == "An operator ordered save and stop: the node is needed."
    assert_in_order(incident, "since", "detected", "decided", "captured")
    (stop,) = {step for lines in watched.steps("end").values() for _, step in lines}
    assert watched.steps("end") == {rank: [(1, stop)] for rank in range(3)}
    assert watched.checkpoint() == stop, "it was saved"
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"]) == ("stopped", 1, 0)
    assert job["iteration"] == stop - 1
    assert "the node is needed" in job["reason"]
    assert "the node is needed" in launcher.printed()


def test_an_operator_restarts_the_ranks(watched: Training) -> None:
    launcher = watched.run()
    watched.until_running(2)
    ordered = watched.order("restart", "new data arrived")
    watched.until_running(2, attempt=2)
    resumed = watched.resumed(2)
    assert watched.finish() == [0]
    incident = watched.incident()
    assert (incident["id"], incident["kind"], incident["culprits"]) == (ordered, "ordered", [])
    assert (incident["action"], incident["action_reason"]) == (
        "restart",
        "an operator ordered restart: new data arrived",
    )
    assert incident["reason"] == "An operator ordered restart: new data arrived."
    assert_in_order(incident, *WHOLE)
    assert sorted(rank for group in incident["stack_groups"] for rank in group["ranks"]) == [0, 1]
    assert all("train" in functions(group) for group in incident["stack_groups"])
    assert incident["outcome"].startswith(f"attempt 2 goes on at step {resumed}")
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"]) == ("finished", 2, 1)
    assert f"{incident['reason']} [incident {ordered}] (restart 1 of 3)" in launcher.printed()
