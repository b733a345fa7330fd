"""Fixtures around a monitor process that the tests of one folder share; every test has a job of its own in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import rank_report, reports_of_all

_numbers = count(1)


@pytest.fixture(scope="package")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("monitor")) as running:
        yield running
        code = running.process.poll()
        assert code is None, f"the monitor that these tests share has ended meanwhile with code {code}"


@pytest.fixture
def api(monitor: RunningMonitor) -> Iterator[Api]:
    with Api(monitor.url) as client:
        yield client


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """The id of a job that nothing else uses."""
    return f"job-{next(_numbers)}"


State = Callable[[], Any]


@pytest.fixture
def state(api: Api, job: str) -> State:
    """All that the API shows of this test's job, and which jobs there are; what is refused must leave it as it was.

    What passes by itself (ages, the pace) is left out.
    """
    PlayedLauncher(api, job, "node-a", (0, 1)).register()
    reports = [rank_report(job, rank, 2, iteration=3, beats=1, heartbeat_age=0.0) for rank in range(2)]
    api.report(*reports)
    passing = {"iterations_per_second", "last_seen_age", "heartbeat_age", "report_age"}

    def without_ages(of: Any) -> Any:
        if isinstance(of, dict):
            return {key: without_ages(value) for key, value in of.items() if key not in passing}
        return [without_ages(each) for each in of] if isinstance(of, list) else of

    def look() -> Any:
        shown = api.job(job), api.ranks(job), api.incidents(job), [each["id"] for each in api.jobs()]
        return without_ages(list(shown))

    return look


@pytest.fixture
def launcher(api: Api, job: str) -> PlayedLauncher:
    """A job of four ranks that is well, with the launcher that runs it."""
    played = PlayedLauncher(api, job)
    played.register()
    played.start(1)
    api.report(*reports_of_all(job, 4))
    return played
