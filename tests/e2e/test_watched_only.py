"""Jobs that have only half of Rankwatch: the telemetry without the launcher, the launcher without the telemetry."""

from __future__ import annotations

import os

import pytest

from e2e.story import assert_blamed, assert_in_order, functions
from e2e.training import HOST, STEP_LIMIT, Training

pytestmark = pytest.mark.timeout(240)


def test_under_plain_torchrun_a_hang_is_found_and_reported(watched: Training) -> None:
    assert watched.api is not None
    variables = {"RANKWATCH_MONITOR": str(watched.api.base_url), "RANKWATCH_JOB_ID": watched.job}
    launcher = watched.torchrun("--standalone", "--nproc-per-node", "3", **variables)
    watched.until_running(3)
    assert watched.summary()["nodes"] == []
    watched.api.change_policy(watched.job, section_timeouts={"step": STEP_LIMIT}, learned_minimum=10.0)
    assert watched.api.post(f"/api/v1/jobs/{watched.job}/actions", json={"action": "restart"}).status_code == 409

    watched.strike(f"rank=1,kind=hang,seconds={2.5 * STEP_LIMIT}")
    found = watched.until("the hang is found", lambda: watched.incidents() and watched.incident(closed=False))
    assert_blamed(found, 1, "behind")
    assert (found["kind"], found["section"], found["limit"]) == ("section_overrun", "step", STEP_LIMIT)
    assert f"Rank 1 on {HOST} has been in section 'step' for" in found["reason"]
    assert "it is behind within the same step, and the 2 other ranks wait for it" in found["reason"]
    assert found["action"] == "log"
    assert found["action_reason"] == "no launcher of Rankwatch runs this job, so it can only be watched"
    assert found["stack_groups"] == []
    assert watched.summary()["state"] == "hung"
    states = ["waiting", "hung", "waiting"]
    watched.until("the others are past it, too", lambda: states == [r["state"] for r in watched.api.ranks(watched.job)])

    watched.until_running(3)
    assert watched.finish() == [0], launcher.printed()
    incident = watched.incident()
    assert incident["outcome"] == "the ranks went on by themselves"
    assert_in_order(incident, "since", "detected", "decided")
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"]) == ("finished", 1, 0)


@pytest.mark.long
def test_an_uninstrumented_script_gets_exits_and_stacks(watched: Training) -> None:
    assert watched.api is not None
    launcher = watched.run("--section-timeout", f"step={STEP_LIMIT}", script=("--uninstrumented",))
    watched.until("the ranks train", lambda: watched.checkpoint() > 0 and watched.summary())
    shown = watched.summary()
    assert (shown["instrumented"], shown["world_size"], shown["ranks_reporting"]) == (False, 2, 0)
    watched.order("capture", "where are they?")
    captured = watched.incident()
    errors = " ".join(error["error"] for error in captured["stack_errors"])
    if os.geteuid() != 0 and "py-spy" in errors:
        pytest.skip(f"py-spy may not trace here: {errors}")
    assert captured["stack_errors"] == []
    assert sorted(rank for group in captured["stack_groups"] for rank in group["ranks"]) == [0, 1]
    assert all("train" in functions(group) for group in captured["stack_groups"])
    assert captured["outcome"] == "stacks of 2 ranks were taken"
    assert_in_order(captured, "since", "detected", "decided", "captured")
    printed = watched.until("it is shown as running", lambda: (j := watched.summary())["state"] == "running" and j)
    assert "no rank has called rankwatch.init()" in printed["reason"]

    watched.strike("rank=1,kind=exit,code=5")
    watched.until("attempt 2", lambda: all(len(began) == 2 for began in watched.steps("start").values()))
    noticed = watched.incident(2)
    assert_blamed(noticed, 1, "dead")
    assert noticed["reason"] == f"Rank 1 on {HOST} exited with code 5."
    assert noticed["outcome"].startswith("attempt 2 runs"), "it is over, although no first step is reported"
    again = watched.summary()
    assert (again["attempt"], again["restarts"], again["instrumented"]) == (2, 1, False)
    assert again["state"] in ("starting", "running")
    assert watched.finish() == [0], launcher.printed()
    assert watched.summary()["state"] == "finished"
