"""Flight recorder dumps of a job's newest incidents are kept within bounds, and read as an archive over HTTP."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from monitor.service.test_monitor import Moved
from rankwatch.contract import flight
from rankwatch.contract.enums import Action, ProcessEventKind
from rankwatch.contract.flight import FlightDump, packed
from rankwatch.contract.messages import Evidence, NodeRegistration, ProcessEvent
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.events import Order
from rankwatch_monitor.core.incident.state_machine import Closed, transition
from rankwatch_monitor.core.incident_record import Ended, Incident
from rankwatch_monitor.core.views.flight_dumps import KEPT_INCIDENTS
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.store.repository import Repository


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[Monitor]:
    made = Monitor(repository=Repository(str(tmp_path / "rankwatch.db")), clock=Moved())
    made.register("job", "job")
    made.submit("job", NodeRegistration("n", "h", 1, 2, "job"))
    made.submit("job", ProcessEvent("n", ProcessEventKind.STARTED, 1, rank=0, world_size=2))
    yield made
    made.close()


def client_of(monitor: Monitor) -> TestClient:
    return TestClient(create_app(monitor), base_url="http://127.0.0.1")


def incident(monitor: Monitor) -> Incident:
    """A new incident; the one before is over."""
    job = monitor.job("job")
    for each in job.incidents:
        if each.open:
            transition(each, Closed(monitor.clock.now(), Ended.WENT_ON, "over"), monitor.clock.now())
    monitor.clock.at += 10.0  # type: ignore[attr-defined]
    monitor.submit("job", Order(Action.CAPTURE, "a look"))
    return job.incidents[-1]


def send(monitor: Monitor, about: Incident, *dumps: FlightDump) -> None:
    monitor.submit("job", Evidence("n", 1, about.id, (), dumps=dumps))


def read(monitor: Monitor, about: Incident) -> tuple[int, dict[str, Any]]:
    """The status, and each file of the archive."""
    answer = client_of(monitor).get(f"/api/v1/jobs/job/incidents/{about.id}/flight-recorder")
    if answer.status_code != 200:
        return answer.status_code, {}
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as opened:
        return 200, {name: json.loads(opened.read(name)) for name in opened.namelist()}


def test_dumps_are_stored_and_read_as_an_archive(monitor: Monitor) -> None:
    about = incident(monitor)
    send(monitor, about, *packed({0: b'{"version": "2.10"}', 1: b'{"version": "old"}'}))
    send(monitor, about, *packed({1: b'{"version": "new"}'}))
    assert read(monitor, about) == (
        200,
        {"trace_0.json": {"version": "2.10"}, "trace_1.json": {"version": "new"}},
    )
    assert list(about.dumps) == [0, 1]
    shown = client_of(monitor).get(f"/api/v1/jobs/job/incidents/{about.id}").json()["flight_dumps"]
    assert shown == {
        "ranks": [0, 1],
        "bytes": sum(about.dumps.values()),
        "path": f"/api/v1/jobs/job/incidents/{about.id}/flight-recorder",
    }
    assert "eJ" not in json.dumps(about.to_json()), "the incident itself holds none of it"


def test_the_record_of_a_job_that_is_over_has_them(monitor: Monitor, tmp_path: Path) -> None:
    about = incident(monitor)
    send(monitor, about, *packed({0: b'{"version": "2.10"}'}))
    monitor.close()
    later = Monitor(repository=Repository(str(tmp_path / "rankwatch.db")), read_only=True)
    try:
        assert read(later, later.job("job").incidents[-1]) == (200, {"trace_0.json": {"version": "2.10"}})
    finally:
        later.close()


def test_without_dumps_there_is_nothing_to_read(monitor: Monitor) -> None:
    about = incident(monitor)
    assert read(monitor, about)[0] == 404
    assert client_of(monitor).get(f"/api/v1/jobs/job/incidents/{about.id}").json()["flight_dumps"] is None


def test_those_of_the_newest_incidents_are_kept(monitor: Monitor) -> None:
    found = [incident(monitor) for _ in range(KEPT_INCIDENTS + 2)]
    for each in found:
        send(monitor, each, *packed({0: b"{}", 1: b"{}"}))
    assert [read(monitor, each)[0] for each in found] == [404] * 2 + [200] * KEPT_INCIDENTS
    send(monitor, found[0], *packed({0: b"{}"}))
    assert read(monitor, found[0])[0] == 404, "what comes later than newer ones is not kept"
    repository = monitor.repository
    assert repository is not None
    assert repository.flush(60.0)
    with repository.engine.connect() as connection:
        (rows,) = connection.exec_driver_sql("select count(*) from flight_dumps").one()
    assert rows == 2 * KEPT_INCIDENTS


def test_one_incident_has_a_bound(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MAX_INCIDENT", 30)
    about = incident(monitor)
    send(monitor, about, FlightDump(0, "x" * 20, 20))
    send(monitor, about, FlightDump(1, "x" * 20, 20), FlightDump(flight.MAX_RANKS, "x", 1))
    assert about.dumps == {0: 20}
    assert read(monitor, about)[0] == 503, "it is no dump, which only a reader finds"


def test_without_a_database_none_is_kept() -> None:
    monitor = Monitor(clock=Moved())
    monitor.register("job", "job")
    monitor.submit("job", NodeRegistration("n", "h", 1, 2, "job"))
    monitor.submit("job", ProcessEvent("n", ProcessEventKind.STARTED, 1, rank=0, world_size=2))
    about = incident(monitor)
    send(monitor, about, *packed({0: b"{}"}))
    assert about.dumps == {}
    monitor.close()
