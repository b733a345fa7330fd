"""The API as its own description states, driven by schemathesis against a real monitor with jobs in it.

Whatever is sent, fitting or not: no answer is a fault of the monitor's, each has the shape that the description
promises, and every refusal is a problem document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from support.described import described
from support.launcher import AT_WORK, PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import add_kernels, add_window, rank_report, reports_of_all
from support.turns import turn_of_commit

LEFT_OUT: Final = r"/events$|^/metrics$"
"""Streams have no end, and promtool judges what stands in the metrics."""
WORLD: Final = 3


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    """A monitor with a job that hangs and was asked for stacks, one that is only watched, and one that is over."""
    with running_monitor(tmp_path_factory.mktemp("described")) as running, Api(running.url) as api:
        launcher = PlayedLauncher(api, "hanging", ranks=range(WORLD))
        launcher.register(policy={"section_timeouts": {"step": 1.0}, "capture_deadline": 3600})
        launcher.start(1, WORLD)
        reports = reports_of_all("hanging", WORLD, overdue=5.0)
        add_window(reports[0], 64, sections={"step": {"median": 0.5, "tail": 0.7, "max": 1.0, "mean": 0.6}})
        add_kernels(reports[0], {"gemm": {"min": 0.1, "median": 0.2, "tail": 0.3, "max": 0.4, "mean": 0.2}})
        api.report(*reports)
        capture = launcher.next_directive("capture")
        launcher.send_stacks(capture, {0: AT_WORK})
        for job, ended in (("watched", False), ("over", True)):
            api.report(rank_report(job, 0, 1, iteration=3, ended=ended))
        yield running


def drive(monitor: RunningMonitor, examples: int, number: int) -> dict[str, int]:
    """Send ``examples`` calls to each operation; how many answers there were of each status."""
    from schemathesis import checks  # here only: the import costs each worker of pytest a second

    every = [
        *(checks.content_type_conformance, checks.not_a_server_error),
        *(checks.response_schema_conformance, checks.status_code_conformance),
    ]
    schema = described(monitor.url).exclude(path_regex=LEFT_OUT)
    answers: dict[str, int] = {}
    with Api(monitor.url) as api:
        for found in schema.get_all_operations():
            operation = found.ok()

            @seed(number)
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=(Phase.explicit, Phase.generate),
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def call(case: Any) -> None:
                toward_what_is_there(case)
                answer = case.call(session=None, timeout=60)
                case.validate_response(answer, checks=every)
                status = str(answer.status_code)
                answers[status] = answers.get(status, 0) + 1
                if answer.status_code >= 400:
                    assert answer.headers["content-type"][0] == "application/problem+json"
                    assert json.loads(answer.content)["status"] == answer.status_code

            call()
            assert api.get("/readyz").status_code == 200, f"not ready after {operation.label}"
    return answers


def toward_what_is_there(case: Any) -> None:
    """Lead three of four calls to a job that is there, and have no call wait for news."""
    places = case.path_parameters
    if places and "job_id" in places:
        number = sum(map(ord, str(places["job_id"])))
        places["job_id"] = ("hanging", "watched", "over", places["job_id"])[number % 4]
    query = case.query
    if query and isinstance(query.get("wait"), int | float) and query["wait"] > 0:
        query["wait"] = 0
    elif case.path.endswith("/directives") and not (query and "wait" in query):
        case.query = {**(query or {}), "wait": 0}
    if isinstance(case.body, dict) and "node" in case.body and isinstance(case.body["node"], str):
        case.body["node"] = "node-a" if len(case.body["node"]) % 2 else case.body["node"]


def test_answers_are_as_described(monitor: RunningMonitor) -> None:
    answers = drive(monitor, 6, 1)
    assert {"200", "204", "404", "422"} <= answers.keys(), "it came past the first door"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_answers_are_as_described_for_long(monitor: RunningMonitor) -> None:
    drive(monitor, 40, turn_of_commit(1000))
