"""What a holder of the ingest token may not do to a job with the messages of a launcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from support.monitor_process import Api, RunningMonitor, running_monitor

CONTROL, READ, INGEST = "control-secret", "read-secret", "ingest-secret"
LEARNED: Final = {
    "current_timeouts": {"section": {"section": {"step": 9000.0}, "calculated_sections": ["step"]}},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(
        tmp_path_factory.mktemp("guarded"), "--token", CONTROL, "--read-token", READ, "--ingest-token", INGEST
    ) as monitor:
        yield monitor


@pytest.fixture
def owner(guarded: RunningMonitor) -> Iterator[Api]:
    with Api(guarded.url, CONTROL) as api:
        yield api


@pytest.fixture
def sender(guarded: RunningMonitor) -> Iterator[Api]:
    with Api(guarded.url, INGEST) as api:
        yield api


def register(api: Api, job: str, node: str = "first", **more: Any) -> dict[str, Any]:
    body = {"node": node, "host": node, "launcher_pid": 1, "local_world_size": 1, **more}
    answer = api.post(f"/api/v1/jobs/{job}/nodes", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def policy(owner: Api, job: str) -> dict[str, Any]:
    return dict(owner.read(f"/jobs/{job}/policy"))


# The policy -----------------------------------------------------------------------------------------------------------


def test_the_policy_of_the_first_launcher_counts(owner: Api, sender: Api) -> None:
    assert register(sender, "own", policy={"heartbeat_timeout": 77.0})["warnings"] == []
    assert policy(owner, "own")["heartbeat_timeout"] == 77.0


@pytest.mark.parametrize("node", ["first", "another"])
def test_an_ingest_token_cannot_change_the_policy_of_a_job_by_a_registration(
    owner: Api, sender: Api, node: str
) -> None:
    job = f"policy-{node}"
    register(sender, job, policy={"on_hang": "log"})
    warnings = register(sender, job, node, policy={"on_hang": "stop", "section_timeouts": {"step": 0.1}})["warnings"]
    assert (policy(owner, job)["on_hang"], policy(owner, job)["section_timeouts"]) == ("log", {})
    assert len(warnings) == 1
    assert "policy" in warnings[0]


def test_a_control_token_may_change_the_policy_by_a_registration(owner: Api, sender: Api) -> None:
    register(sender, "trusted", policy={"on_hang": "log"})
    assert register(owner, "trusted", policy={"on_hang": "stop"})["warnings"] == []
    assert policy(owner, "trusted")["on_hang"] == "stop"


def test_launchers_of_one_job_that_are_started_alike_get_no_warning(owner: Api, sender: Api) -> None:
    for node in ("a", "b", "a"):
        answer = register(sender, "alike", node, policy={"on_hang": "log"}, ft_state=LEARNED)
        assert answer["warnings"] == []
    assert policy(owner, "alike")["on_hang"] == "log"


@pytest.mark.parametrize("node", ["first", "another"])
def test_an_ingest_token_cannot_loosen_limits_by_learned_ones(owner: Api, sender: Api, node: str) -> None:
    job = f"learned-{node}"
    register(sender, job)
    before = owner.job(job)["timeouts"]
    warnings = register(sender, job, node, ft_state=LEARNED)["warnings"]
    assert owner.job(job)["timeouts"] == before
    assert len(warnings) == 1
    assert "ft_state" in warnings[0]
    assert register(owner, job, node, ft_state=LEARNED)["warnings"] == []
    assert owner.job(job)["timeouts"] != before


def test_the_first_launcher_of_a_new_run_brings_its_policy(owner: Api, sender: Api) -> None:
    register(sender, "again", policy={"on_hang": "log"})
    events = [{"node": "first", "kind": "finished", "attempt": 1}]
    assert sender.post("/api/v1/jobs/again/process-events", json={"events": events}).status_code == 204
    assert owner.job("again")["state"] == "finished"
    assert register(sender, "again", "second", policy={"on_hang": "stop"})["warnings"] == []
    assert policy(owner, "again")["on_hang"] == "stop"
