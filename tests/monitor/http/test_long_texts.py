"""No text of a launcher is too long for what it reports: what a process said is cut, only names are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Final, get_args, get_type_hints

import pytest

from rankwatch.contract import messages
from rankwatch.contract.enums import WaitKind
from rankwatch.contract.messages import (
    Collective,
    Directive,
    DirectiveAck,
    Evidence,
    Frame,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
    RankLog,
    RankObservation,
    RankRequest,
    RankStack,
    RunClaim,
    Usage,
    Wait,
)
from rankwatch.contract.node_checks import CheckResult
from rankwatch_monitor.http.validation import check_evidence, clean_evidence
from support.launcher import PlayedLauncher
from support.monitor_process import Api

LENGTHS: Final = (300, 10_000, 40_000)
NAMES: Final = ("node", "host", "job_name", "run", "lost_node", "incident_id", "open_sections", "first_time")
"""A launcher, a host, a job that is called so does not exist; a rank's slots hold 63 bytes of a section's name."""
LONG_NAMES: Final = ("file", "function", "group", "operation", "calls", "method", "stream", "path")
"""Of stacks and logs: up to 16,384 characters."""
NODE: Final = "node-a"


@dataclass(frozen=True)
class Texts:
    """A shape, its required fields, and how a message with it is posted."""

    shape: type
    given: Mapping[str, Any]
    path: str

    def post(self, api: Api, job: str, **changed: Any) -> int:
        inner = {**self.given, **changed}
        stack = {"rank": 0, "pid": 1, "method": "py-spy", "frames": [], "process_state": "alive"}
        evidence = {"node": NODE, "attempt": 1, "incident_id": None, "stacks": []}
        frame = {"function": "train", "file": "/train.py", "line": 3}
        bodies: dict[type, Any] = {
            ProcessEvent: {"events": [inner]},
            RankStack: {**evidence, "stacks": [{**stack, "frames": [frame], **inner}]},
            Frame: {**evidence, "stacks": [{**stack, "frames": [inner]}]},
            Collective: {**evidence, "stacks": [{**stack, "frames": [frame], "collectives": [inner]}]},
            Wait: {**evidence, "stacks": [{**stack, "usage": {"seconds": 9.0, "looks": 4, "wait": inner}}]},
            RankLog: {**evidence, "logs": [inner]},
            CheckResult: {"node": NODE, "host": "h", "launcher_pid": 1, "local_world_size": 2, "checks": [inner]},
            RankObservation: {"node": NODE, "attempt": 1, "ranks": [inner]},
        }
        return api.post(f"/api/v1/jobs/{job}/{self.path}", json=bodies.get(self.shape, inner)).status_code


POSTED: Final = (
    Texts(NodeRegistration, {"node": NODE, "host": "h", "launcher_pid": 1, "local_world_size": 2}, "nodes"),
    Texts(RunClaim, {"run": "r", "host": "h", "launcher_pid": 1}, "runs"),
    Texts(DirectiveAck, {"node": NODE, "state": "done"}, "directives/1/acks"),
    Texts(ProcessEvent, {"node": NODE, "kind": "failed", "attempt": 1}, "process-events"),
    Texts(ProcessEvent, {"node": NODE, "kind": "exited", "attempt": 1, "rank": 0, "exit_code": 1}, "process-events"),
    Texts(ProcessEvent, {"node": NODE, "kind": "notice", "attempt": 1, "rank": 0}, "process-events"),
    Texts(NodeObservation, {"node": NODE, "attempt": 1}, "observations"),
    Texts(Evidence, {"node": NODE, "attempt": 1, "incident_id": None, "stacks": []}, "evidence"),
    Texts(RankStack, {"rank": 0, "pid": 1, "method": "py-spy"}, "evidence"),
    Texts(Frame, {"function": "f", "file": "/f.py", "line": 1}, "evidence"),
    Texts(Collective, {"group": "0", "operation": "barrier", "enqueued": 3, "completed": 2}, "evidence"),
    Texts(Wait, {"kind": "child"}, "evidence"),
    Texts(RankLog, {"rank": 0, "stream": "stderr", "host": "h", "path": "/log"}, "evidence"),
    Texts(CheckResult, {"name": "storage", "state": "failed"}, "nodes"),
    Texts(RankObservation, {"rank": 0, "pid": 1, "process_state": "alive"}, "observations"),
)
SENT_BY_THE_MONITOR: Final = (Directive,)
READ_BY_THE_LAUNCHER: Final = (RankRequest,)
"""From a file of a rank; what becomes of it is an event, whose texts are tried."""


def texts() -> Iterator[Any]:
    """Every text field of every shape, with a value of it by length."""
    for posted in POSTED:
        hints = get_type_hints(posted.shape)
        for each in fields(posted.shape):
            kind = hints[each.name]
            if kind in (str, str | None):
                make = str
            elif kind == tuple[str, ...]:
                make = lambda text: [text]  # noqa: E731
            elif kind == Mapping[str, str]:
                make = lambda text: {"fact": text}  # noqa: E731
            elif kind == Mapping[str, float]:
                make = lambda text: {text: 1.0}  # noqa: E731
            else:
                continue
            required = each.default is MISSING and each.default_factory is MISSING
            kind_of = posted.given.get("kind", "required" if required else "optional")
            yield pytest.param(posted, each.name, make, id=f"{posted.shape.__name__}-{kind_of}-{each.name}")


def has_text(kind: Any) -> bool:
    return kind is str or any(map(has_text, get_args(kind)))


def test_every_message_with_a_text_is_tried() -> None:
    shapes = [each for each in vars(messages).values() if is_dataclass(each) and each.__module__ == messages.__name__]
    with_text = {each for each in shapes if any(map(has_text, get_type_hints(each).values()))}
    assert with_text <= {each.shape for each in POSTED} | {*SENT_BY_THE_MONITOR, *READ_BY_THE_LAUNCHER}


@pytest.mark.parametrize(("posted", "name", "make"), list(texts()))
@pytest.mark.usefixtures("state")
def test_only_names_may_be_too_long(api: Api, job: str, posted: Texts, name: str, make: Any) -> None:
    for length in LENGTHS:
        status = posted.post(api, job, **{name: make("x" * length)})
        if name in NAMES or (name in LONG_NAMES and length > 16_384):
            assert status in (404, 422), length
        else:
            assert status in (200, 204), length


@pytest.mark.parametrize("length", LENGTHS)
def test_a_failure_is_recorded_however_long_its_texts_are(api: Api, job: str, length: int) -> None:
    PlayedLauncher(api, job, NODE, (0, 1)).register()
    cause = "rank 1 exited with code 1: " + "x" * length
    events = [
        {"node": NODE, "kind": "started", "attempt": 1, "rank": 0, "pid": 1, "world_size": 2},
        {"node": NODE, "kind": "failed", "attempt": 1, "reason": f"{cause}, no restart is allowed", "cause": cause},
    ]
    assert api.post(f"/api/v1/jobs/{job}/process-events", json={"events": events}).status_code == 204
    assert api.job(job)["state"] == "failed"
    assert api.job(job)["reason"].startswith(cause[:200])


def test_a_terminal_obeys_nothing_in_a_cause(api: Api, job: str) -> None:
    PlayedLauncher(api, job, NODE, (0, 1)).register()
    failed = {"node": NODE, "kind": "failed", "attempt": 1, "reason": "\x1b[2Jx", "cause": "\x1b[2Jx"}
    assert api.post(f"/api/v1/jobs/{job}/process-events", json={"events": [failed]}).status_code == 204
    assert "\x1b" not in api.get(f"/api/v1/jobs/{job}").text.encode().decode("unicode_escape")


def test_a_signal_of_many_digits_ends_a_rank(api: Api, job: str) -> None:
    PlayedLauncher(api, job, NODE, (0, 1)).register()
    started = {"node": NODE, "kind": "started", "attempt": 1, "rank": 0, "pid": 1, "world_size": 2}
    events = [started, {**started, "kind": "exited", "signal": "9" * 10_000}]
    assert api.post(f"/api/v1/jobs/{job}/process-events", json={"events": events}).status_code == 204
    assert api.ranks(job)[0]["state"] == "dead"


def test_names_of_what_is_waited_for_are_escaped_and_lose_no_evidence() -> None:
    wait = Wait(WaitKind.FILE_LOCK, "/l, held by \x1b[2J\ud800" + "\u202e" * 300, None, "\n" * 300)
    stack = RankStack(0, 1, "py-spy", usage=Usage(9.0, 4, wait=wait))
    captured = clean_evidence(Evidence(NODE, 1, None, (stack,)))
    check_evidence(captured, 64)
    usage = captured.stacks[0].usage
    assert usage is not None
    assert usage.wait is not None
    assert (usage.wait.target + usage.wait.through).isprintable()
    assert max(len(usage.wait.target), len(usage.wait.through)) <= 256
