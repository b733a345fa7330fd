"""Launchers that join, from a process of their own: all are known to the monitor, and what fails is sent again."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import requests
from _load_fleet import Fleet, Shape
from _load_joining import Crowd, Joining, plan
from _load_measure import Api

from support.http_receiver import http_receiver
from support.monitor_process import RunningMonitor, running_monitor
from support.waiting import wait_for

NODES = 40


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("joining")) as running:
        yield running


def fleet(name: str, nodes: int = NODES) -> Fleet:
    return Fleet(Shape(2 * nodes, ranks_a_request=2, name=name))


def known(monitor: RunningMonitor, job: str) -> int:
    """Launchers of a job by the monitor's own count."""
    lines = requests.get(f"{monitor.url}/metrics", timeout=30).text.splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith(f'rankwatch_job_nodes{{job="{job}"')]
    return int(sum(map(float, counts)))


class Running:
    """A crowd that joins on a thread, until :meth:`figures`."""

    def __init__(self, url: str, name: str, nodes: int = NODES) -> None:
        self.crowd = Crowd(plan(fleet(name, nodes), url, within=0.2))
        self._reading, self._writing = os.pipe()
        self._figures: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def figures(self) -> dict[str, Any]:
        os.close(self._writing)
        self._thread.join()
        os.close(self._reading)
        return self._figures

    def _run(self) -> None:
        self._figures = self.crowd.run(self._reading)


def test_all_launchers_register_and_report_their_ranks(monitor: RunningMonitor) -> None:
    running = Running(monitor.url, "join")
    try:
        wait_for(lambda: running.crowd.statuses["process-events 204"] == NODES, "all launchers join")
        assert known(monitor, "join-00000") == NODES
        assert Api(monitor.url).get("/jobs/join-00000")["world_size"] == 2 * NODES
    finally:
        figures = running.figures()
    assert figures["launchers lost"] == 0
    assert figures["launchers' answers"] == {"nodes 200": NODES, "process-events 204": NODES}
    for name in ("registered after it was due, s", "registration from its connect, s", "connected later than due, s"):
        assert figures[name]["n"] == NODES, name
    assert figures["registered after it was due, s"]["max"] >= figures["connected later than due, s"]["max"] > 0


def test_each_receives_a_directive_once_and_asks_for_those_after_it(monitor: RunningMonitor) -> None:
    running = Running(monitor.url, "hear")
    try:
        wait_for(lambda: running.crowd.statuses["process-events 204"] == NODES, "all launchers join")
        job = f"{monitor.url}/api/v1/jobs/hear-00000"
        requests.post(f"{job}/actions", json={"action": "capture"}, timeout=30).raise_for_status()
        wait_for(lambda: running.crowd.statuses["asked 200"] == NODES, "all launchers receive it")
    finally:
        running.figures()
    assert {launcher.last for launcher in running.crowd.launchers} == {1}
    assert running.crowd.statuses["asked 200"] == NODES, "a directive that was received is not asked for again"


def test_what_is_refused_or_not_answered_is_sent_again() -> None:
    with http_receiver() as receiver:
        receiver.answers.body = json.dumps({"last_directive": 0}).encode()
        receiver.answers.first = [503, 200, 429]
        receiver.away()
        running = Running(receiver.url, "again", 1)
        statuses = running.crowd.statuses
        try:
            wait_for(lambda: statuses["nodes 0"], "nothing listens")
            receiver.back()
            wait_for(lambda: statuses["process-events 200"] and statuses["asked 501"] > 1, "the launcher joins")
        finally:
            figures = running.figures()
        paths = [each.path.rpartition("/")[2] for each in receiver.posted]
    assert paths == ["nodes", "nodes", "process-events", "process-events"]
    assert (statuses["nodes 503"], statuses["nodes 200"], statuses["process-events 429"]) == (1, 1, 1)
    assert figures["launchers lost"] == 0


def test_a_process_states_those_that_never_joined_as_lost() -> None:
    with http_receiver() as receiver:
        receiver.away()
        with closing(Joining(fleet("lost", 3), receiver.url, within=0.0)) as joining:
            joining.start()
            figures = joining.figures()
    assert figures["launchers lost"] == 3
