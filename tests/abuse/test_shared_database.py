"""Several monitors on one database: a name that a sender makes up holds no other job's lease up, and leaves nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rankwatch.contract.semconv import JOB_HEADER
from rankwatch_monitor.ingest.limits import Limits
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import PROTOBUF, body, reports_of_all
from support.waiting import wait_for


@pytest.fixture
def lease() -> str:
    return "3"


@pytest.fixture
def monitor(tmp_path: Path, lease: str) -> Iterator[RunningMonitor]:
    before = "import rankwatch_monitor.service.ownership as ownership; ownership.ABANDON_AFTER = 0.0"
    with running_monitor(tmp_path, "--token", "root", "--shared-as", "a", "--lease", lease, before=before) as running:
        yield running


@pytest.fixture
def root(monitor: RunningMonitor) -> Iterator[Api]:
    with Api(monitor.url, "root") as api:
        yield api


@pytest.fixture
def bound(monitor: RunningMonitor, root: Api) -> Iterator[Api]:
    """A client with a token that is bound to the jobs of team a."""
    made = root.post("/api/v1/tokens", json={"name": "team-a", "scope": "ingest", "jobs": ["a-*"]})
    with Api(monitor.url, made.json()["token"]) as api:
        yield api


def named(api: Api, job: str, content: bytes = b"") -> int:
    """The answer to a report whose head names a job, quoted as in a URL."""
    return api.post("/v1/metrics", content=content, headers={**PROTOBUF, JOB_HEADER: job}).status_code


def leases(monitor: RunningMonitor) -> list[str]:
    with closing(sqlite3.connect(monitor.database)) as connection:
        return [job for (job,) in connection.execute("select job_id from leases order by job_id")]


def taken_up(api: Api) -> None:
    """Wait until another team's job is taken up, and so whatever was asked for before it."""
    content = body(*reports_of_all("b", 2))
    wait_for(lambda: named(api, "b", content) == 200, "the other team's job is taken up")


@pytest.mark.parametrize("job", ["a-%00", "a-%0a", "a-" + "x" * 300, "a-%FF%2F"])
def test_no_lease_is_asked_for_what_can_be_no_id(monitor: RunningMonitor, root: Api, bound: Api, job: str) -> None:
    # PostgreSQL refuses a NUL and an index of long names, and with them all that is asked in one statement.
    named(bound, job)
    assert bound.get(f"/api/v1/jobs/{job.replace('%2F', '')}%0a/directives?wait=0").status_code == 422
    assert root.get(f"/api/v1/jobs/{job.replace('%2F', '')}%0a").status_code == 404
    taken_up(root)
    assert leases(monitor) == ["b"]


@pytest.mark.parametrize("lease", ["60"])  # a slow machine needs more than three seconds for as many requests
def test_a_bound_token_has_no_more_leases_than_jobs(monitor: RunningMonitor, root: Api, bound: Api) -> None:
    answers = [named(bound, f"a-{number}") for number in range(Limits().jobs_per_token + 20)]
    assert answers[0] == 429, "it is acquired meanwhile"
    assert answers[-1] == 403
    assert bound.get("/api/v1/jobs/a-one-more/directives?wait=0").status_code == 429
    assert "a-one-more" not in leases(monitor)
    taken_up(root)


def test_the_lease_of_a_job_that_never_appears_is_deleted(monitor: RunningMonitor, root: Api, bound: Api) -> None:
    assert named(bound, "a-1") == 429
    taken_up(root)
    wait_for(lambda: leases(monitor) == ["b"], "the lease is let go")
    content = body(*reports_of_all("a-1", 2))
    wait_for(lambda: named(bound, "a-1", content) == 200, "it is taken up once it reports")
    assert leases(monitor) == ["a-1", "b"]
