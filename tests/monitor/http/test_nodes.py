"""Nodes over HTTP: roles, exclusion by a person, loss told by launchers, a stop that launchers asked for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.launcher import WAITING, PlayedLauncher
from support.monitor_process import Api


@pytest.fixture
def nodes(api: Api, job: str) -> tuple[PlayedLauncher, PlayedLauncher, PlayedLauncher]:
    """Two nodes with two ranks each, and a spare."""
    played = [PlayedLauncher(api, job, f"node-{n}", ranks) for n, ranks in (("a", (0, 1)), ("b", (2, 3)), ("c", ()))]
    for each in played:
        each.register()
    for each in played[:2]:
        each.start(1)
    spare = {"node": "node-c", "attempt": 0, "role": "spare", "role_reason": "2 nodes are enough"}
    played[2].post("observations", spare)
    return played[0], played[1], played[2]


def order(api: Api, job: str, **more: Any) -> Any:
    return api.post(f"/api/v1/jobs/{job}/actions", json={"action": "restart_excluding_node", **more})


def metric(api: Api, job: str, role: str) -> str:
    start = f'rankwatch_job_nodes{{job="{job}",role="{role}"}} '
    return next(line for line in api.get("/metrics").text.splitlines() if line.startswith(start)).removeprefix(start)


def test_roles_and_their_reasons_are_shown(api: Api, job: str, nodes: tuple[PlayedLauncher, ...]) -> None:
    shown = {node["node"]: (node["role"], node["role_reason"]) for node in api.job(job)["nodes"]}
    assert shown == {"node-a": ("active", ""), "node-b": ("active", ""), "node-c": ("spare", "2 nodes are enough")}
    assert api.job(job)["nodes_by_role"] == {"active": 2, "spare": 1, "parked": 0}
    assert [metric(api, job, role) for role in ("active", "spare", "parked")] == ["2.0", "1.0", "0.0"]
    report = api.get(f"/api/v1/jobs/{job}/report").text
    assert re.search(r"\nNODES .+\nnode-a +active .+\nnode-b +active .+\nnode-c +spare .+ 2 nodes are enough\n", report)


def test_the_minimum_of_nodes_that_a_launcher_registers_is_shown_and_one_that_sends_none_is_accepted(
    api: Api, job: str
) -> None:
    PlayedLauncher(api, job, "older", (0, 1)).register()
    PlayedLauncher(api, job, "newer", (2, 3)).register(min_nodes=2)
    assert {node["node"]: node["min_nodes"] for node in api.job(job)["nodes"]} == {"older": None, "newer": 2}


@pytest.mark.parametrize("meant", [{"ranks": [3]}, {"nodes": ["node-b"]}])
def test_an_operator_excludes_a_node(
    api: Api, job: str, nodes: tuple[PlayedLauncher, ...], meant: dict[str, list[Any]]
) -> None:
    answer = order(api, job, reason="bad memory", **meant)
    assert answer.status_code == 202
    capture = nodes[0].next_directive("capture")
    for node in nodes[:2]:
        node.send_stacks(capture, dict.fromkeys(node.ranks, WAITING))
    restart = nodes[0].next_directive("restart")
    assert (capture["exclude"], restart["exclude"]) == ([], ["node-b"])
    incident = api.read(f"/jobs/{job}/incidents/{answer.json()['incident_id']}")
    assert (incident["action"], incident["exclude"]) == ("restart_excluding_node", ["node-b"])
    assert incident["reason"] == restart["reason"] == "An operator ordered a restart without node-b: bad memory."
    assert "the spare node-c takes its place" in incident["action_reason"]
    assert "the spare node-c takes its place" in api.job(job)["reason"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "which node is to be left out"),
        ({"ranks": [9]}, "runs rank 9; there are ranks 0, 1, 2, 3"),
        ({"nodes": ["moon"]}, "no node 'moon'"),
        ({"nodes": ["node-c"]}, "is a spare"),
        ({"action": "stop", "ranks": [1]}, "need the action restart_excluding_node"),
    ],
)
def test_an_order_that_cannot_be_is_refused_with_words(
    api: Api, job: str, nodes: tuple[PlayedLauncher, ...], asked: dict[str, Any], words: str
) -> None:
    answer = order(api, job, **asked)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert words in answer.json()["detail"]
    assert api.incidents(job) == []


def test_a_lost_node_is_reported_by_another_launcher(api: Api, job: str, nodes: tuple[PlayedLauncher, ...]) -> None:
    nodes[0].events({"kind": "node_lost", "lost_node": "node-b", "reason": "it has sent no report for 15 s"})
    (incident,) = api.incidents(job)
    assert incident["kind"] == "node_lost"
    assert incident["reason"] == "Node node-b is lost with ranks 2, 3: it has sent no report for 15 s."
    assert [(c["rank"], c["class"]) for c in incident["culprits"]] == [(2, "host_silent"), (3, "host_silent")]
    assert [node["lost"] for node in api.job(job)["nodes"]] == [None, "it has sent no report for 15 s", None]
    assert re.search(r"\nnode-b +lost .+ it has sent no report for 15 s\n", api.get(f"/api/v1/jobs/{job}/report").text)
    nodes[0].events({"kind": "failed", "reason": "no node is left"})
    assert api.job(job)["state"] == "failed", "the spare and the lost node are not waited for"


def test_a_stop_that_launchers_asked_for_is_reported_with_its_reason(
    api: Api, job: str, nodes: tuple[PlayedLauncher, ...]
) -> None:
    why = "preempted: the launcher on node-a got SIGTERM"
    for node in nodes[:2]:
        node.events({"kind": "stopping", "reason": why})
    assert api.job(job)["reason"] == f"The ranks were asked to save and stop: {why}."
    for node in nodes[:2]:
        node.events({"kind": "stopped", "reason": why})
    assert (api.job(job)["state"], api.job(job)["reason"]) == ("stopped", why)
    (incident,) = api.incidents(job)
    assert (incident["kind"], incident["outcome"]) == ("ordered", f"the job was stopped: {why}")
    assert nodes[0].directives(wait=0) == []


def test_launchers_are_sent_the_budgets_and_when_an_operator_changes_them(
    api: Api, job: str, nodes: tuple[PlayedLauncher, ...]
) -> None:
    reported = PlayedLauncher(api, job, "node-d").register()
    assert reported["settings"]["launcher"] == {"max_restarts": 3, "max_no_progress": 3, "silence_timeout": 60.0}
    api.change_policy(job, max_restarts=7, max_no_progress=0)
    settings = nodes[0].next_directive("settings")["settings"]
    assert settings["launcher"] == {"max_restarts": 7, "max_no_progress": 0, "silence_timeout": 60.0}


BROKEN = {"name": "storage", "state": "failed", "reason": "no_space", "evidence": {"path": "/ckpt", "found": "0 MiB"}}
PASSED = {"name": "host", "state": "passed"}


def test_a_node_that_fails_its_check_is_shown_counted_and_kept_with_the_incident(
    api: Api, job: str, nodes: tuple[PlayedLauncher, ...]
) -> None:
    def failing(check: str) -> str:
        start = f'rankwatch_job_nodes_failing_check{{check="{check}",job="{job}"}} '
        return next(line for line in api.get("/metrics").text.splitlines() if line.startswith(start)).split()[-1]

    nodes[0].register(checks=[PASSED])
    assert failing("storage") == "0.0"
    nodes[2].register(checks=[PASSED, BROKEN])
    shown = {node["node"]: node for node in api.job(job)["nodes"]}
    assert shown["node-a"]["unfit"] == shown["node-b"]["unfit"] == ""
    assert shown["node-c"]["unfit"] == "it fails its check: storage: /ckpt has 0 MiB free"
    assert [(c["name"], c["state"], c["reason"]) for c in shown["node-c"]["checks"]] == [
        ("host", "passed", None),
        ("storage", "failed", "no_space"),
    ]
    assert (failing("storage"), failing("gpu")) == ("1.0", "0.0")
    # What fails while an incident is open is part of its evidence, once.
    order(api, job, reason="bad memory", ranks=[3])
    nodes[0].next_directive("capture")
    for _ in range(2):
        nodes[1].register(checks=[BROKEN | {"evidence": {"path": "/\x1b[2J" + "x" * 9000, "found": "0 MiB"}}])
    [incident] = api.get(f"/api/v1/jobs/{job}/incidents").json()["incidents"]
    [(kept)] = incident["node_checks"]
    assert (kept["node"], kept["host"], kept["name"], kept["reason"]) == ("node-b", "node-b", "storage", "no_space")
    assert kept["text"].isprintable()
    assert len(kept["text"]) < 1000


@pytest.mark.parametrize("checks", [[{"name": "gpu"}], [{"name": "gpu", "state": "unknown"}], "all", [7]])
def test_checks_that_are_none_are_refused(api: Api, job: str, checks: Any) -> None:
    content = {"node": "n", "host": "n", "launcher_pid": 1, "local_world_size": 1, "checks": checks}
    assert api.post(f"/api/v1/jobs/{job}/nodes", json=content).status_code == 422
