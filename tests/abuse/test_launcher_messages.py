"""What a holder of the ingest token may not do to a job with the messages of a launcher."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from fastapi import HTTPException

from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.messages import Evidence, Frame, NodeRegistration, ProcessEvent, RankStack
from rankwatch_monitor.core.views.job_view import stack_groups
from rankwatch_monitor.http.launchers import EVALUATIONS, LauncherMessages, ProcessEvents
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.service.monitor import Monitor
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import rank_report
from support.waiting import wait_for

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


def test_an_ingest_token_cannot_change_the_policy_of_a_running_job_by_reporting_its_end(
    owner: Api, sender: Api
) -> None:
    register(sender, "ended", policy={"on_hang": "log"})
    events = [{"node": "first", "kind": "finished", "attempt": 1}]
    assert sender.post("/api/v1/jobs/ended/process-events", json={"events": events}).status_code == 204
    assert owner.job("ended")["state"] == "finished"
    warnings = register(sender, "ended", "second", policy={"on_hang": "stop", "detection": False})["warnings"]
    assert (policy(owner, "ended")["on_hang"], policy(owner, "ended")["detection"]) == ("log", True)
    assert len(warnings) == 1


def test_a_policy_that_comes_with_a_registration_is_in_the_audit_log(owner: Api) -> None:
    register(owner, "audited", policy={"on_hang": "log"})
    register(owner, "audited", policy={"on_hang": "stop"}, ft_state=LEARNED)
    register(owner, "audited", policy={"on_hang": "stop"}, ft_state=LEARNED)
    entries = [entry for entry in owner.read("/audit")["entries"] if entry["subject"] == "audited"]  # type: ignore[attr-defined]
    assert [(entry["action"], entry["by"]) for entry in entries] == [("policy", "control")]
    assert entries[0]["detail"]["policy"] == {"on_hang": "stop"}
    assert entries[0]["detail"]["ft_state"] == LEARNED


# Evidence -------------------------------------------------------------------------------------------------------------


def post(api: Api, path: str, body: object) -> int:
    """The status of a POST whose JSON may hold what JSON does not allow: NaN, lone surrogates."""
    answer = api.post(f"/api/v1{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    return answer.status_code


def evidence(incident: str | None = None, **changes: Any) -> dict[str, Any]:
    """Evidence of one rank; ``changes`` of it, or of its ``stack``, ``frame``, ``collective``."""
    frame = {"function": "train", "file": "/train.py", "line": 3, **changes.pop("frame", {})}
    group = {"group": "default_pg", "operation": "all_reduce", "enqueued": 3, "completed": 2, "ranks": [0, 1]}
    collective = group | changes.pop("collective", {})
    stack = {"rank": 0, "pid": 1, "method": "py-spy", "frames": [frame], "collectives": [collective]}
    stack |= changes.pop("stack", {})
    return {"node": "first", "attempt": 1, "incident_id": incident, "stacks": [stack], **changes}


def hanging(api: Api, owner: Api, job: str) -> str:
    """A job with an open incident that waits for stacks; returns the incident's ID."""
    register(api, job, policy={"section_timeouts": {"step": 1.0}, "capture_deadline": 3600})
    report = rank_report(job, 0, 1, attempt=1, iteration=1, open_sections={"step": 500.0})
    started = {"node": "first", "kind": "started", "attempt": 1, "rank": 0, "pid": 1, "world_size": 1}
    assert post(api, f"/jobs/{job}/process-events", {"events": [started]}) == 204
    api.report(report)
    wait_for(lambda: owner.incidents(job), "the hang is found", 60)
    return str(owner.incidents(job)[0]["id"])


def first_event(url: str, job: str) -> str:
    """The first event of a job's stream."""
    stream = f"{url}/api/v1/jobs/{job}/events?token={CONTROL}"
    with httpx.stream("GET", stream, trust_env=False, timeout=60.0) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data:"):
                return line
    raise AssertionError("the stream ended")


BAD_EVIDENCE: Final[dict[str, dict[str, Any]]] = {
    "surrogate in a function": {"frame": {"function": "\ud800"}},
    "surrogate in a file": {"frame": {"file": "/\udfff.py"}},
    "surrogate in an error": {"stack": {"error": "\ud800", "frames": [], "method": ""}},
    "surrogate in a group": {"collective": {"group": "\ud800"}},
    "surrogate in an operation": {"collective": {"operation": "\ud800"}},
    "surrogate in a call": {"collective": {"calls": ["barrier", "\ud800"]}},
    "surrogate in an incident": {"incident_id": "\ud800"},
    "NaN age": {"age": float("nan")},
    "infinite age": {"age": float("inf")},
    "negative age": {"age": -1e9},
    "NaN duration": {"seconds": float("nan")},
    "NaN of a watch": {"stack": {"usage": {"seconds": float("nan"), "looks": 1}}},
    "infinite CPU": {"stack": {"usage": {"seconds": 1.0, "looks": 1, "cpu": float("inf")}}},
    "huge line": {"frame": {"line": 2**70}},
    "negative line": {"frame": {"line": -1}},
    "huge number": {"collective": {"enqueued": 2**70}},
    "number below -1": {"collective": {"completed": -2}},
    "negative rank of a group": {"collective": {"ranks": [0, -1]}},
    "huge rank of a group": {"collective": {"ranks": [0, 2**70]}},
    "long name": {"frame": {"function": "f" * 100_000}},
}


@pytest.fixture(scope="module")
def hung(guarded: RunningMonitor) -> str:
    with Api(guarded.url, INGEST) as sender, Api(guarded.url, CONTROL) as owner:
        return hanging(sender, owner, "hung")


@pytest.mark.parametrize("name", BAD_EVIDENCE)
def test_evidence_that_cannot_be_shown_is_refused(sender: Api, owner: Api, hung: str, name: str) -> None:
    assert post(sender, "/jobs/hung/evidence", evidence(**{"incident_id": hung, **BAD_EVIDENCE[name]})) == 422
    assert owner.get(f"/api/v1/jobs/hung/incidents/{hung}").status_code == 200


def test_evidence_of_ranks_without_a_completed_collective_is_accepted_and_shown(
    guarded: RunningMonitor, sender: Api, owner: Api, hung: str
) -> None:
    sent = evidence(hung, collective={"completed": -1, "enqueued": 0, "operation": "barrier"})
    assert post(sender, "/jobs/hung/evidence", sent) == 204
    found = owner.read(f"/jobs/hung/incidents/{hung}")
    assert [each["completed"] for each in found["collectives"]] == [-1]  # type: ignore[attr-defined]
    event = first_event(guarded.url, "hung")
    assert "NaN" not in event
    assert "Infinity" not in event


def test_deeply_nested_bodies_are_refused(sender: Api, guarded: RunningMonitor) -> None:
    register(sender, "deep")
    for depth in (20, 900, 100_000):
        nested = '{"a":' * depth + "1" + "}" * depth
        for path, field in (("evidence", "stacks"), ("nodes", "policy"), ("nodes", "ft_state"), ("nodes", "facts")):
            content = f'{{"node":"first","host":"h","launcher_pid":1,"local_world_size":1,"{field}":{nested}}}'
            answer = sender.post(
                f"/api/v1/jobs/deep/{path}", content=content, headers={"Content-Type": "application/json"}
            )
            assert 400 <= answer.status_code < 500, (path, field, depth, answer.text)
    assert "Traceback" not in guarded.printed()


def test_acknowledgements_are_validated(sender: Api) -> None:
    register(sender, "acks")
    answer = {"node": "first", "state": "done", "detail": "\ud800"}
    assert post(sender, "/jobs/acks/directives/1/acks", answer) == 422


# Amounts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"facts": {f"fact {number}": "" for number in range(65)}},
        {"policy": {"section_timeouts": {f"{number:0200}": 1.0 for number in range(1000)}}},
        {"ft_state": {"current_timeouts": {"unused": {f"{number:0200}": "" for number in range(1000)}}}},
        {"min_nodes": Limits().ranks_per_job + 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_large_registrations_are_refused(sender: Api, more: dict[str, Any]) -> None:
    registration = {"node": "first", "host": "h", "launcher_pid": 1, "local_world_size": 1, **more}
    assert post(sender, "/jobs/large/nodes", registration) == 422


def test_a_job_has_a_limit_of_launchers_and_idle_ones_make_room() -> None:
    monitor = Monitor(limits=Limits(launchers_per_job=3))
    messages = LauncherMessages(monitor)

    def add(node: str) -> None:
        registration = NodeRegistration(node, node, 1, 1)
        messages.registration("job", registration)
        monitor.register("job", "")
        monitor.submit("job", registration)

    for node in "abc":
        add(node)
    with pytest.raises(HTTPException, match="which is the limit"):
        add("d")
    add("a")
    monitor.jobs["job"].nodes["b"].seen -= 1000
    add("d")
    assert sorted(monitor.jobs["job"].nodes) == ["a", "c", "d"]


def test_a_batch_of_events_is_bounded_and_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor()
    messages = LauncherMessages(monitor)
    monitor.register("job", "")
    monitor.submit("job", NodeRegistration("n", "n", 1, 1))
    evaluated: list[str] = []
    monkeypatch.setattr(monitor, "_evaluate", lambda job, now: evaluated.append(job.id))

    def send(kinds: Iterable[ProcessEventKind]) -> None:
        messages.events("job", ProcessEvents(events=[ProcessEvent("n", kind, 1, notice="rerun") for kind in kinds]))

    send([ProcessEventKind.NOTICE] * 256)
    assert len(evaluated) == 1
    with pytest.raises(HTTPException, match="notices"):
        send([ProcessEventKind.NOTICE] * 257)
    with pytest.raises(HTTPException, match="events"):
        send([ProcessEventKind.RESTARTING] * 2001)
    evaluated.clear()
    send([ProcessEventKind.NOTICE, ProcessEventKind.RESTARTING] * 200)
    assert len(evaluated) <= EVALUATIONS + 1


def test_a_crash_and_the_restart_after_it_in_one_batch_are_both_seen() -> None:
    monitor = Monitor()
    messages = LauncherMessages(monitor)
    monitor.register("job", "")
    monitor.submit("job", NodeRegistration("n", "n", 1, 1))
    started = ProcessEvent("n", ProcessEventKind.STARTED, 1, rank=0, pid=1, world_size=1)
    batch = [
        started,
        ProcessEvent("n", ProcessEventKind.EXITED, 1, rank=0, exit_code=1),
        ProcessEvent("n", ProcessEventKind.RESTARTING, 1),
        replace(started, attempt=2, pid=2),
    ]
    messages.events("job", ProcessEvents(events=batch))
    job = monitor.jobs["job"]
    assert [incident.kind for incident in job.incidents] == ["process_exited"]
    assert job.attempt == 2


# Control characters ---------------------------------------------------------------------------------------------------

FORGED: Final = "\x1b[2J\x9b31m\x7f\u2028\u202e"


@pytest.mark.parametrize("field", ["node", "host", "job_name"])
def test_names_with_control_characters_are_refused(sender: Api, field: str) -> None:
    registration = {"node": "first", "host": "h", "launcher_pid": 1, "local_world_size": 1, field: f"a{FORGED}"}
    assert post(sender, "/jobs/named/nodes", registration) == 422
    assert post(sender, f"/jobs/{quote(FORGED)}/nodes", registration) == 422


def test_sentences_of_ranks_reach_the_log_escaped_and_on_lines_of_their_own(
    guarded: RunningMonitor, sender: Api, owner: Api
) -> None:
    register(sender, "forging", policy={"on_hang": "log"})
    started = {"node": "first", "kind": "started", "attempt": 1, "rank": 0, "pid": 1, "world_size": 1}
    forged = f"boom{FORGED}\n2099-01-01 00:00:00,000 [rankwatch monitor] job forging is healthy"
    exited = {"node": "first", "kind": "exited", "attempt": 1, "rank": 0, "exit_code": 1, "message": forged}
    assert post(sender, "/jobs/forging/process-events", {"events": [started, exited]}) == 204
    wait_for(lambda: "boom" in guarded.printed(), "the exit is logged", 60)
    log = guarded.log.read_bytes().decode()
    assert not any(character in log for character in FORGED if not character.isprintable())
    assert not any(line.startswith("2099") for line in log.splitlines())
    assert "boom\\x1b[2J" in log
    assert "\x1b" not in owner.get("/api/v1/jobs/forging/report").text


def test_evidence_about_ranks_that_the_job_does_not_have_is_left_out() -> None:
    monitor = Monitor()
    messages = LauncherMessages(monitor)
    monitor.register("job", "job")
    monitor.submit("job", NodeRegistration("n", "h", 1, 2))
    started = [ProcessEvent("n", ProcessEventKind.STARTED, 1, rank=rank, world_size=2, pid=1) for rank in (0, 1)]
    messages.events("job", ProcessEvents(events=started))
    messages.events("job", ProcessEvents(events=[ProcessEvent("n", ProcessEventKind.EXITED, 1, rank=0, exit_code=1)]))
    (incident,) = monitor.jobs["job"].incidents
    stacks = tuple(RankStack(rank, 1, "py-spy", (Frame("train", "/train.py", 3),)) for rank in (0, 1, 2, 70_000))
    messages.evidence("job", Evidence("n", 1, incident.id, stacks))
    kept = [rank for group in stack_groups(incident) for rank in group["ranks"]]
    assert sorted(kept) == [0, 1]
