"""Sequences of calls to the API, driven by schemathesis, with a token of each scope against a real monitor.

Calls take values from earlier responses: an order on an incident that was listed, a revocation of a token that was
made. Whatever the sequence, no answer is a fault of the monitor's, a token changes nothing beyond its scope, and every
order and change that was accepted is in the audit log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import FlakyStrategyDefinition

from abuse.test_schema import LEFT_OUT, toward_what_is_there
from support.described import described
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import reports_of_all

TOKENS: Final = {"ingest": "sends", "read": "looks", "control": "acts"}
RECORDED: Final = (("PATCH", "/policy"), ("POST", "/actions"), ("POST", "/tokens"), ("DELETE", "/tokens/{name}"))
"""Method and end of the path of what the audit log records when it is accepted."""


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    """A monitor with tokens and a job that a launcher runs."""
    flags = ("--token", TOKENS["control"], "--read-token", TOKENS["read"], "--ingest-token", TOKENS["ingest"])
    folder = tmp_path_factory.mktemp("scopes")
    with running_monitor(folder, *flags) as running, Api(running.url, TOKENS["control"]) as api:
        launcher = PlayedLauncher(api, "hanging", ranks=range(3))
        launcher.register(policy={"section_timeouts": {"step": 1.0}, "capture_deadline": 3600})
        launcher.start(1, 3)
        api.report(*reports_of_all("hanging", 3, overdue=5.0))
        launcher.next_directive("capture")
        yield running


def kept(api: Api) -> tuple[Any, ...]:
    """What only a control token may change."""
    return api.read("/jobs/hanging/policy"), api.read("/tokens"), len(api.read("/audit?limit=10000")["entries"])


def toward(case: Any) -> None:
    """Lead most calls to the job, and give tokens a valid name."""
    toward_what_is_there(case)
    if case.path_parameters.get("job_id") in ("watched", "over"):
        case.path_parameters["job_id"] = "hanging"
    if case.path.endswith("/tokens") and isinstance(case.body, dict) and isinstance(case.body.get("name"), str):
        case.body["name"] = f"team-{sum(map(ord, case.body['name']))}"


def drive(monitor: RunningMonitor, scope: str, examples: int) -> tuple[int, int]:
    """Run sequences of calls; how many were accepted, and how many of these the audit log records."""
    from schemathesis import checks  # here only: the import costs each worker of pytest a second

    every = [checks.content_type_conformance, checks.not_a_server_error, checks.response_schema_conformance]
    schema = described(monitor.url).exclude(path_regex=LEFT_OUT)
    accepted: list[tuple[str, str]] = []
    chosen = settings(
        max_examples=examples,
        stateful_step_count=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )

    class Calls(schema.as_state_machine()):  # type: ignore[misc]  # made at run time
        def before_call(self, case: Any) -> None:
            toward(case)

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": {"Authorization": f"Bearer {TOKENS[scope]}"}, "timeout": 20}

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            case.validate_response(response, checks=every)
            if response.status_code < 300:
                accepted.append((case.operation.method.upper(), case.operation.path))

    # The monitor keeps what earlier sequences did: hypothesis may find that the same choices lead elsewhere, and end.
    with contextlib.suppress(FlakyStrategyDefinition):
        Calls.run(settings=chosen)
    # Sequences begin with what a reader or an operator may call; these are all operations, each by itself.
    for found in schema.get_all_operations():

        @settings(chosen, max_examples=max(1, examples // 20))
        @given(case=found.ok().as_strategy())
        def call(case: Any) -> None:
            toward(case)
            response = case.call(session=None, headers={"Authorization": f"Bearer {TOKENS[scope]}"}, timeout=60)
            case.validate_response(response, checks=every)
            if response.status_code < 300:
                accepted.append((case.operation.method.upper(), case.operation.path))

        call()
    recorded = [
        call for call in accepted if any(call[0] == method and call[1].endswith(end) for method, end in RECORDED)
    ]
    return len(accepted), len(recorded)


@pytest.mark.parametrize("scope", ["ingest", "read"])
def test_no_sequence_of_calls_changes_something_beyond_the_scope(monitor: RunningMonitor, scope: str) -> None:
    with Api(monitor.url, TOKENS["control"]) as api:
        before = kept(api)
        accepted, recorded = drive(monitor, scope, 20)
        assert accepted > 5, "it came past the first door"
        assert recorded == 0
        assert kept(api) == before


def test_every_accepted_order_and_change_is_in_the_audit_log(monitor: RunningMonitor) -> None:
    with Api(monitor.url, TOKENS["control"]) as api:
        before = kept(api)[2]
        _, recorded = drive(monitor, "control", 20)
        assert recorded > 3
        assert kept(api)[2] - before == recorded


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scope", TOKENS)
def test_the_same_for_long(monitor: RunningMonitor, scope: str) -> None:
    with Api(monitor.url, TOKENS["control"]) as api:
        before = kept(api)
        _, recorded = drive(monitor, scope, 120)
        assert kept(api)[2] - before[2] == recorded
        if scope != "control":
            assert kept(api)[:2] == before[:2]
