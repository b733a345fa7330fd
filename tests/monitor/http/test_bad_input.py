"""Bad input to the API: the right status, words that help, a count on /metrics, and nothing else changed."""

from __future__ import annotations

import gzip
import json
from typing import Any, NamedTuple

import httpx
import pytest

from support.monitor_fixtures import State
from support.monitor_process import Api
from support.otlp import JSON, rank_report

MIB = 1024 * 1024
GZIP = {"Content-Encoding": "gzip"}
NODE = "node-a"
KNOWN = "a-watched-job"
"""Stands for the job of a test in the tables below."""

JOB = f"/api/v1/jobs/{KNOWN}"


class BadCall(NamedTuple):
    method: str
    path: str
    status: tuple[int, ...]
    words: tuple[str, ...]
    content: bytes = b""
    headers: dict[str, str] = JSON

    def of(self, job: str) -> BadCall:
        """The same call about another job."""
        words = tuple(word.replace(KNOWN, job) for word in self.words)
        return self._replace(path=self.path.replace(KNOWN, job), words=words)

    def send(self, api: Api) -> httpx.Response:
        return api.request(self.method, self.path, content=self.content, headers=self.headers)


def call(method: str, path: str, content: Any, status: int | tuple[int, ...], *words: str) -> BadCall:
    """A call with a JSON body. Python's JSON writes NaN and Infinity, as careless clients do."""
    return BadCall(
        method, path, status if isinstance(status, tuple) else (status,), words, json.dumps(content).encode()
    )


def policy(content: Any, *words: str) -> BadCall:
    return call("PATCH", f"{JOB}/policy", content, 422, *words)


def event(*words: str, **of: Any) -> BadCall:
    events = [{"node": NODE, "kind": "started", "attempt": 0, "rank": 0} | of]
    return call("POST", f"{JOB}/process-events", {"events": events}, 422, *words)


def observation(*words: str, **of: Any) -> BadCall:
    rank = {"rank": 0, "pid": 1, "process_state": "alive"} | of
    return call("POST", f"{JOB}/observations", {"node": NODE, "attempt": 0, "ranks": [rank]}, 422, *words)


def registration(job: str, *words: str, **of: Any) -> BadCall:
    content = {"node": "node-new", "host": "h", "launcher_pid": 1, "local_world_size": 2} | of
    return call("POST", f"/api/v1/jobs/{job}/nodes", content, 422, *words)


LOG = {"rank": 0, "stream": "stderr", "host": "h", "path": "/l", "lines": ["x"]}
STACK = {"rank": 0, "pid": 1, "method": "py-spy", "frames": [], "process_state": "alive"}
CAPTURED = {"node": NODE, "attempt": 0, "incident_id": None}
BEAT = {"node": "stranger", "attempt": 0, "ranks": []}

BAD_CALLS = {
    "unknown job": BadCall("GET", "/api/v1/jobs/nobody", (404,), ("nobody", "/api/v1/jobs")),
    "ranks of an unknown job": BadCall("GET", "/api/v1/jobs/nobody/ranks", (404,), ("nobody",)),
    "incidents of an unknown job": BadCall("GET", "/api/v1/jobs/nobody/incidents", (404,), ("nobody",)),
    "policy of an unknown job": call("PATCH", "/api/v1/jobs/nobody/policy", {}, 404, "nobody"),
    "order for an unknown job": call("POST", "/api/v1/jobs/nobody/actions", {"action": "stop"}, 404, "nobody"),
    "directives of an unknown job": BadCall("GET", "/api/v1/jobs/nobody/directives?wait=0", (404,), ("nobody",)),
    "events of an unknown job": call("POST", "/api/v1/jobs/nobody/process-events", {"events": []}, 404, "nobody"),
    "beat of an unknown job": call("POST", "/api/v1/jobs/nobody/observations", BEAT, 404, "nobody"),
    "unknown incident": BadCall("GET", f"{JOB}/incidents/77", (404,), ("77",)),
    "unknown path": BadCall("GET", "/api/v1/nothing", (404,), ("/api/v1/nothing",)),
    "unknown method": BadCall("DELETE", "/api/v1/jobs", (405,), ("DELETE", "GET")),
    "malformed JSON": BadCall("PATCH", f"{JOB}/policy", (400, 422), ("JSON",), b'{"detection": '),
    "malformed JSON order": BadCall("POST", f"{JOB}/actions", (400, 422), ("JSON",), b"{'action': 'stop'}"),
    "JSON in no UTF-8": BadCall("PATCH", f"{JOB}/policy", (400, 422), (), b'{"\xff": 1}'),
    "deep JSON": BadCall("PATCH", f"{JOB}/policy", (400, 422), (), b"[" * 100_000),
    "JSON of many values": BadCall("PATCH", f"{JOB}/policy", (413,), ("131072 values",), b"[" * 200_000),
    "no body": BadCall("PATCH", f"{JOB}/policy", (400, 422), ("body",)),
    "another content type": BadCall(
        "PATCH", f"{JOB}/policy", (415, 422), (), b'{"detection": false}', {"Content-Type": "text/plain"}
    ),
    "compressed JSON": BadCall(
        "PATCH", f"{JOB}/policy", (400, 415, 422), (), gzip.compress(b'{"detection": false}'), JSON | GZIP
    ),
    "body over the limit": BadCall("PATCH", f"{JOB}/policy", (413,), ("limit", "1048576"), b" " * (2 * MIB)),
    # Policies
    "a list as a policy": policy([], "body"),
    "unknown setting": policy({"hearbeat_timeout": 3}, "hearbeat_timeout", "heartbeat_timeout"),
    "negative timeout": policy({"heartbeat_timeout": -1}, "heartbeat_timeout", "above 0", "-1"),
    "zero timeout": policy({"silence_timeout": 0}, "silence_timeout", "above 0"),
    "NaN timeout": policy({"heartbeat_timeout": float("nan")}, "heartbeat_timeout", "nan"),
    "infinite timeout": policy({"section_timeouts": {"step": float("inf")}}, "'step'", "inf"),
    "timeout beyond all numbers": policy({"heartbeat_timeout": 10**400}, "heartbeat_timeout", "seconds"),
    "timeout in milliseconds": policy({"heartbeat_timeout": 1e9}, "heartbeat_timeout", "2592000"),
    "timeout as true": policy({"heartbeat_timeout": True}, "heartbeat_timeout", "True"),
    "section without a name": policy({"section_timeouts": {"": 3}}, "section"),
    "unknown action on a hang": policy({"on_hang": "explode"}, "on_hang", "explode", "restart"),
    "one good and one bad value": policy({"observe_only": True, "max_restarts": -1}, "max_restarts", "-1"),
    "deadline switched off": policy({"capture_deadline": None}, "capture_deadline", "seconds"),
    # Orders
    "unknown action": call("POST", f"{JOB}/actions", {"action": "explode"}, 422, "action", "'restart'"),
    "no action": call("POST", f"{JOB}/actions", {}, 422, "action"),
    "a long reason": call("POST", f"{JOB}/actions", {"action": "stop", "reason": "x" * 501}, 422, "reason", "500"),
    # Launchers
    "event of a negative rank": event("rank", "-1", rank=-1),
    "event of a rank beyond the limit": event("rank", "131072", rank=131_072),
    "event of a rank outside its world": event("rank 5", "world", rank=5, world_size=2),
    "event of an impossible world": event("world_size", "131072", world_size=10**15),
    "event with an unknown kind": event("kind", "'started'", kind="exploded"),
    "event with a NaN age": event("age", age=float("nan"), kind="exited", exit_code=1),
    "event with an infinite age": event("age", age=float("inf"), kind="exited", exit_code=1),
    "event with a negative age": event("age", age=-5.0, kind="exited", exit_code=1),
    "event with an exit code beyond all numbers": event("exit_code", exit_code=10**30, kind="exited"),
    "event with a pid beyond all numbers": event("pid", pid=10**30),
    "event with a negative attempt": event("attempt", attempt=-1),
    "second event of a stranger": call(
        "POST",
        f"{JOB}/process-events",
        {
            "events": [
                {"node": NODE, "kind": "exited", "attempt": 0, "rank": 0, "exit_code": 1},
                {"node": "stranger", "kind": "exited", "attempt": 0, "rank": 1, "exit_code": 1},
            ]
        },
        404,
        "stranger",
        f"/jobs/{KNOWN}/nodes",
    ),
    "event of a stranger": event("stranger", f"POST /api/v1/jobs/{KNOWN}/nodes", node="stranger")._replace(
        status=(404,)
    ),
    "beat of a stranger": call("POST", f"{JOB}/observations", BEAT, 404, "stranger", "register"),
    "poll of a stranger": BadCall("GET", f"{JOB}/directives?node=stranger&wait=0", (404,), ("stranger", "register")),
    "acknowledgement of a stranger": call(
        "POST", f"{JOB}/directives/1/acks", {"node": "stranger", "state": "done"}, 404, "stranger", "register"
    ),
    "stacks of a stranger": call(
        "POST", f"{JOB}/evidence", CAPTURED | {"node": "stranger", "stacks": []}, 404, "stranger", "register"
    ),
    "acknowledgement of an unknown kind": call(
        "POST", f"{JOB}/directives/1/acks", {"node": NODE, "state": "maybe"}, 422, "state", "'done'"
    ),
    "a poll that waits too long": BadCall("GET", f"{JOB}/directives?node={NODE}&wait=3600", (422,), ("wait", "30")),
    "a poll after no number": BadCall("GET", f"{JOB}/directives?node={NODE}&after=x&wait=0", (422,), ("after",)),
    "a poll that waits for NaN": BadCall("GET", f"{JOB}/directives?node={NODE}&wait=nan", (422,), ("wait",)),
    "observed rank beyond the limit": observation("rank", "131072", rank=131_072),
    "observed rank outside the world": observation("rank 9", "world", rank=9),
    "observed NaN age": observation("pulse_age", pulse_age=float("nan")),
    "observed infinite heartbeat age": observation("heartbeat_age", pulse_age=0.1, beats=1, heartbeat_age=float("inf")),
    "observed negative section": observation("step", pulse_age=0.1, uses_sections=True, open_sections={"step": -1.0}),
    "observed negative quiet": observation("quiet", pulse_age=0.1, quiet=-1.0),
    "observed first times that are no list": observation("first_time", pulse_age=0.1, first_time="step"),
    "observed NaN section": observation(
        "step", pulse_age=0.1, uses_sections=True, open_sections={"step": float("nan")}
    ),
    "observed iteration beyond all numbers": observation("iteration", pulse_age=0.1, iteration=10**30),
    "observed section with an endless name": observation(
        "section", pulse_age=0.1, uses_sections=True, open_sections={"s" * 10_000: 1.0}
    ),
    "more observed sections than the limit": observation(
        "256", pulse_age=0.1, uses_sections=True, open_sections={f"section {i}": 1.0 for i in range(1000)}
    ),
    "log without a path": call(
        "POST", f"{JOB}/evidence", CAPTURED | {"stacks": [], "logs": [{"rank": 0, "stream": "stderr"}]}, 422, "path"
    ),
    "stacks without ranks": call(
        "POST", f"{JOB}/evidence", CAPTURED | {"stacks": [{"pid": 1, "method": ""}]}, 422, "rank"
    ),
    "registration of a job with an endless id": registration("j" * 300, "256"),
    "registration of a job with a line break": registration(f"{KNOWN}%0Ab", "control characters"),
    "registration with an endless node name": registration(f"{KNOWN}-fresh", "node", "256", node="n" * 10_000),
    "registration with a file of something else": registration(f"{KNOWN}-fresh", "ft_state", ft_state={"model": 1}),
    "registration without a node name": registration(f"{KNOWN}-fresh", "node", node=""),
    "registration of too many bytes": registration(
        f"{KNOWN}-fresh", "bytes", "131072", ft_state={"numbers": [0] * 50_000}
    ),
    "registration with negative ranks": registration(f"{KNOWN}-fresh", "local_world_size", local_world_size=-1),
    "registration with a negative minimum": registration(f"{KNOWN}-fresh", "min_nodes", "-1", min_nodes=-1),
    "registration with a minimum that is no number": registration(f"{KNOWN}-fresh", "min_nodes", min_nodes="two"),
    "registration with a minimum above the limit": registration(
        f"{KNOWN}-fresh", "min_nodes 2000000 is above the limit of", "ranks per job", min_nodes=2_000_000
    ),
    "registration with a bad policy": registration(
        f"{KNOWN}-fresh", "heartbeat_timeout", policy={"heartbeat_timeout": -1}
    ),
    "registration with an unknown setting": registration(
        f"{KNOWN}-fresh", "timeout_heart", policy={"timeout_heart": 1}
    ),
    "registration with a missing field": call("POST", f"/api/v1/jobs/{KNOWN}-fresh/nodes", {"node": "n"}, 422, "host"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_answered_as_a_problem_and_changes_nothing(api: Api, job: str, state: State, name: str) -> None:
    bad, before = BAD_CALLS[name].of(job), state()
    answer = bad.send(api)
    assert answer.status_code in bad.status, answer.text[:1000]
    assert answer.headers["content-type"] == "application/problem+json"
    reported = answer.json()
    assert reported["status"] == answer.status_code
    assert reported["title"]
    assert reported["type"]
    said = f"{reported['detail']} {reported.get('remedy', '')}"
    assert all(word in said for word in bad.words), said[:1000]
    assert len(reported["detail"]) < 1000, "an answer does not echo what was sent at length"
    assert state() == before


@pytest.mark.parametrize(
    "name", ["unknown job", "malformed JSON", "unknown setting", "unknown action", "beat of a stranger", "no body"]
)
@pytest.mark.usefixtures("state")
def test_a_bad_call_is_counted(api: Api, job: str, name: str) -> None:
    before = sum(api.rejected().values())
    assert BAD_CALLS[name].of(job).send(api).is_client_error
    assert sum(api.rejected().values()) == before + 1


def test_an_order_for_a_job_that_is_only_watched_states_how_to_be_acted_on(api: Api, job: str) -> None:
    api.report(rank_report(job, 0, 1, iteration=3))
    answer = api.post(f"/api/v1/jobs/{job}/actions", json={"action": "restart"})
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert "rankwatch run" in answer.json()["detail"]
    assert api.incidents(job) == []
