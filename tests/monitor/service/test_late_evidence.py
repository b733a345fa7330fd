"""Stacks that thousands of launchers send after their incident was closed are stored together, off the event loop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from monitor.service.test_monitor import Moved
from rankwatch.contract.enums import Action, ProcessEventKind
from rankwatch.contract.messages import Collective, Evidence, Frame, NodeRegistration, ProcessEvent, RankStack
from rankwatch_monitor.core.events import Order
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.incident.state_machine import Closed, transition
from rankwatch_monitor.core.incident_record import Ended
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.service.persistence import LATE_EVIDENCE_INTERVAL, LATE_EVIDENCE_QUIET
from rankwatch_monitor.store.repository import Repository

NODES = 200


def stack(rank: int) -> RankStack:
    group = Collective("dp", "all_reduce", 9, 8)
    return RankStack(rank, 100 + rank, "py-spy", (Frame("train", "train.py", 7),), collectives=(group,))


def test_evidence_of_a_closed_incident_is_encoded_once_a_period_and_never_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    original = Stacks.to_json

    def counted(self: Stacks) -> dict[str, Any]:
        encoded.append(threading.current_thread().name)
        return original(self)

    monkeypatch.setattr(Stacks, "to_json", counted)
    clock, path = Moved(), str(tmp_path / "rankwatch.db")
    monitor = Monitor(repository=Repository(path), clock=clock)
    try:
        job = monitor.register("job", "job")
        for node in range(NODES):
            monitor.submit("job", NodeRegistration(f"n{node}", f"h{node}", 1, 1, "job"))
            monitor.submit("job", ProcessEvent(f"n{node}", ProcessEventKind.STARTED, 1, rank=node, world_size=NODES))
        monitor.submit("job", Order(Action.CAPTURE, "a look"))
        incident = job.incidents[-1]
        transition(incident, Closed(clock.now(), Ended.WENT_ON, "over"), clock.now())
        assert monitor.repository is not None
        assert monitor.repository.flush(60.0)
        encoded.clear()
        for node in range(NODES):
            monitor.submit("job", Evidence(f"n{node}", 1, incident.id, (stack(node),)))
            monitor.tick()
        assert encoded == [], "more may come"
        clock.at += LATE_EVIDENCE_QUIET
        monitor.tick()
        assert monitor.repository.flush(60.0)
        assert len(encoded) == 1, "not once a message"
        assert "MainThread" not in encoded
        for _ in range(int(2 * LATE_EVIDENCE_INTERVAL)):
            clock.at += LATE_EVIDENCE_QUIET / 2  # it keeps arriving
            monitor.submit("job", Evidence("n0", 1, incident.id, (stack(0),)))
            monitor.tick()
        assert monitor.repository.flush(60.0)
        assert 2 <= len(encoded) <= 3, "what keeps arriving is stored at intervals"
    finally:
        monitor.close()
    reopened = Repository(path)
    try:
        stored = reopened.load_job("job", clock.now())
        assert stored is not None
        assert len(stored.incidents[-1].stacks) == NODES
    finally:
        reopened.close()


def test_evidence_that_arrives_last_is_stored_at_the_end(tmp_path: Path) -> None:
    clock, path = Moved(), str(tmp_path / "rankwatch.db")
    monitor = Monitor(repository=Repository(path), clock=clock)
    job = monitor.register("job", "job")
    monitor.submit("job", NodeRegistration("n", "h", 1, 1, "job"))
    monitor.submit("job", ProcessEvent("n", ProcessEventKind.STARTED, 1, rank=0, world_size=1))
    monitor.submit("job", Order(Action.CAPTURE, "a look"))
    incident = job.incidents[-1]
    transition(incident, Closed(clock.now(), Ended.WENT_ON, "over"), clock.now())
    monitor.submit("job", Evidence("n", 1, incident.id, (stack(0),)))
    monitor.close()
    reopened = Repository(path)
    try:
        stored = reopened.load_job("job", clock.now())
        assert stored is not None
        assert len(stored.incidents[-1].stacks) == 1
    finally:
        reopened.close()
