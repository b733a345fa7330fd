"""Registrations, evidence, events, observations and acknowledgements with arbitrary values in them.

Each is refused, or taken in; then everything that is shown of its job can be written as JSON and as metrics. The same
sequence in every run.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from fastapi import HTTPException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rankwatch.contract.messages import DirectiveAck, Evidence, NodeObservation, NodeRegistration
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.http.launchers import LauncherMessages, ProcessEvents
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.publish.prometheus.exposition import Own, exposition
from rankwatch_monitor.publish.text import report
from rankwatch_monitor.service.monitor import Monitor

WORDS: Final = (
    "", "first", "step", "\ud800", "\x1b[2J", "a\nb", "\u202e", "x" * 300, "x" * 20_000, "NaN", "1e999", "default_pg",
    "started", "exited", "notice", "node_lost", "finished", "restarting", "stopping", "done", "refused", "rerun",
)  # fmt: skip
NUMBERS: Final = (0, 1, 2, -1, -2, 10**15, 2**63 - 1, 2**63, 2**70, 0.5, -0.5, float("nan"), float("inf"), 1e308)
WILD: Final = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=8,
)

FRAME: Final = {"function": "train", "file": "/train.py", "line": 3}
GROUP: Final = {"group": "default_pg", "operation": "all_reduce", "enqueued": 3, "completed": -1, "ranks": [0, 1]}
STACK: Final = {
    "rank": 0, "pid": 1, "method": "py-spy", "frames": [FRAME], "collectives": [GROUP], "error": "",
    "usage": {"seconds": 9.0, "looks": 4, "wait": {"kind": "socket", "target": "a", "through": "b", "seconds": 1.0}},
    "process_state": "alive",
}  # fmt: skip
LOG: Final = {"rank": 0, "stream": "stderr", "host": "h", "path": "/l", "lines": ["boom"], "shared": True}
MEMBER: Final = {"host": "10.0.0.1", "pid": 1, "member": 0, "dead": False}
COMMUNICATOR: Final = {
    "name": "feed", "size": 2, "missing": [MEMBER], "failures": [{"what": "ABORT", "ranks": 1, "members": [MEMBER]}],
    "progress": [
        {"counts": {"AllReduce": 2}, "ranks": 1, "members": [MEMBER]}, {"counts": {"AllReduce": 1}, "ranks": 1},
    ],
}  # fmt: skip
NCCL: Final = {
    "version": "2.28.9", "communicators": [COMMUNICATOR], "total": 1, "missing": [MEMBER], "going_on": 1,
    "timeouts": 1, "seconds": 0.1,
}  # fmt: skip
SEEN: Final = {"rank": 0, "pid": 1, "process_state": "stopped", "pulse_age": 1.0, "open_sections": {"step": 9.0}}
EVENT: Final = {
    "node": "first",
    "kind": "exited",
    "attempt": 1,
    "rank": 0,
    "exit_code": 1,
    "message": "boom",
    "age": 0.0,
}
MESSAGES: Final[dict[str, dict[str, Any]]] = {
    "nodes": {
        "node": "first", "host": "h", "launcher_pid": 1, "local_world_size": 2, "attempt": 1, "job_name": "j",
        "policy": {"section_timeouts": {"step": 5.0}}, "facts": {"torch": "2.6"},
        "ft_state": {"current_timeouts": {"section": {"section": {"step": 9.0}, "calculated_sections": ["step"]}}},
    },
    "evidence": {
        "node": "first", "attempt": 1, "incident_id": "open", "stacks": [STACK], "logs": [LOG], "age": 0.5,
        "seconds": 0.1, "ras": NCCL, "dumps": [{"rank": 0, "data": "eJyrrgUAAXUA+Q==", "size": 16}],
    },
    "process-events": {"events": [EVENT]},
    "observations": {"node": "first", "attempt": 1, "ranks": [SEEN], "age": 0.0, "role": "active"},
    "acks": {"node": "first", "state": "refused", "detail": "no", "max_iteration": 5},
}  # fmt: skip
TYPES: Final[dict[str, TypeAdapter[Any]]] = {
    "nodes": TypeAdapter(NodeRegistration),
    "evidence": TypeAdapter(Evidence),
    "process-events": TypeAdapter(ProcessEvents),
    "observations": TypeAdapter(NodeObservation),
    "acks": TypeAdapter(DirectiveAck),
}


@st.composite
def changed(draw: st.DrawFn, message: Any) -> Any:
    """A message in which one value, at any depth, is replaced, removed or repeated."""
    if isinstance(message, dict) and message and draw(st.integers(0, 9)):
        name = draw(st.sampled_from(sorted(message)))
        if not draw(st.integers(0, 9)):
            return {key: value for key, value in message.items() if key != name}
        return {**message, name: draw(changed(message[name]))}
    if isinstance(message, list) and message and draw(st.integers(0, 9)):
        return [draw(changed(message[0])), *message] if draw(st.booleans()) else [draw(changed(message[0]))]
    return draw(WILD)


def monitor_of_a_hung_job() -> Monitor:
    monitor = Monitor(limits=Limits(ranks_per_job=64, name_length=64))
    messages = LauncherMessages(monitor)
    take(messages, "nodes", MESSAGES["nodes"])
    started = [{**EVENT, "kind": "started", "rank": rank, "world_size": 2, "pid": 1} for rank in (0, 1)]
    take(messages, "process-events", {"events": started})
    take(messages, "process-events", MESSAGES["process-events"])
    return monitor


def take(messages: LauncherMessages, kind: str, body: Any) -> bool:
    """Whether a message was taken in; otherwise it was refused in words."""
    monitor = messages.monitor
    try:
        message = TYPES[kind].validate_python(json.loads(json.dumps(body)))
        match kind:
            case "nodes":
                messages.registration("job", message)
                monitor.register("job", message.job_name)
                monitor.submit("job", message)
            case "evidence":
                messages.evidence("job", message)
            case "process-events":
                messages.events("job", message)
            case "observations":
                messages.observation("job", message)
            case "acks":
                messages.ack("job", 1, message)
    except (ValidationError, HTTPException):
        return False
    return True


def check_what_is_shown(monitor: Monitor) -> None:
    job, now = monitor.jobs["job"], monitor.clock.now()
    monitor.tick()
    assert not monitor.failing, "its evaluation raised"
    for incident in job.incidents:
        shown = {**incident.to_json(), "stacks": job_view.stack_groups(incident)}
        shown["groups"] = [each._asdict() for each in incident.stacks.group_progress()]
        json.dumps(shown, allow_nan=False, ensure_ascii=False).encode()
    views = [
        job_view.summary(job, now),
        job_view.ranks(job, now),
        job_view.launchers(job, now),
        job_view.goodput(job, now),
    ]
    json.dumps(plain(views), allow_nan=False, ensure_ascii=False).encode()
    report.text(job, now).encode()
    exposition([job], Own(0, {}, 0.0, 0, 0), now)


@pytest.mark.parametrize("kind", MESSAGES)
def test_arbitrary_messages_of_launchers_are_refused_or_can_be_shown(kind: str) -> None:
    monitor = monitor_of_a_hung_job()
    assert monitor.jobs["job"].incidents
    messages = LauncherMessages(monitor)
    incident = monitor.jobs["job"].incidents[0].id
    whole = MESSAGES[kind] if kind != "evidence" else {**MESSAGES[kind], "incident_id": incident}
    assert take(messages, kind, whole)
    outcomes: set[bool] = set()

    @settings(max_examples=80, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(body=changed(whole))
    def send(body: Any) -> None:
        outcomes.add(take(messages, kind, body))
        check_what_is_shown(monitor)

    send()
    assert outcomes == {True, False}, "some are taken in, some refused"
