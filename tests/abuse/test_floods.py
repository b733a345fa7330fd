"""One bound ingest token floods a monitor with registrations or evidence beside a healthy job of another team."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from rankwatch_monitor.ingest.limits import MIB, Limits
from support.launcher import PlayedLauncher
from support.monitor_process import Api, running_monitor
from support.otlp import PROTOBUF, body, rank_report
from support.waiting import wait_for

JOB: Final = "healthy"
WORLD: Final = 4
LIMIT: Final = 5.0
SECONDS: Final = 30.0
"""Of healthy work beside the flood."""
MARGIN: Final = 20.0
"""Seconds after its limit in which the hang must be found, and in which the monitor must say that it is ready: within
1 s on an idle machine."""
FACTS: Final = {f"f{number:02}" + "k" * 250: "v" * 255 for number in range(64)}


def resident(pid: int) -> int:
    """MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


Message = tuple[str, bytes]


def registration(number: int) -> Message:
    """Of launchers that do not exist."""
    facts = {**FACTS, "one of its own": str(number)}
    facts.pop(next(iter(FACTS)))
    node = {"node": f"node-{number:06}", "host": "h" * 200, "launcher_pid": 1, "local_world_size": 1}
    return "nodes", json.dumps({**node, "facts": facts}).encode()


def evidence(number: int) -> Message:
    """Stacks and logs, of 6 MiB in turn with what the fast lane takes."""
    return registration(number) if number == 1 else ("evidence", _evidence(600 if number % 2 else 40))


@cache
def _evidence(stacks: int) -> bytes:
    frames = [{"function": f"f{each}" * 20, "file": "/train.py", "line": each} for each in range(64)]
    stack = {"rank": 0, "pid": 1, "method": "py-spy", "frames": frames}
    log = {"rank": 0, "stream": "stderr", "host": "h", "path": "/log", "lines": ["x" * 300] * 20}
    sent = {"node": "node-000001", "attempt": 1, "incident_id": None, "stacks": [stack] * stacks}
    return json.dumps({**sent, "logs": [log] * 8}).encode()


class Flood:
    """Messages about one job, as fast as one connection takes them."""

    def __init__(self, url: str, token: str, message: Callable[[int], Message]) -> None:
        self._url, self._token, self._message = urlsplit(url), token, message
        self.answers: Counter[int] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        link = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=60)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        number = 0
        while not self._over.is_set():
            number += 1
            path, content = self._message(number)
            try:
                link.request("POST", f"/api/v1/jobs/team-a-big/{path}", content, headers)
                answer = link.getresponse()
                answer.read()
                self.answers[answer.status] += 1
            except (OSError, http.client.HTTPException):  # refused before all of it was sent
                link.close()
        link.close()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("message", "taken", "refused"), [(registration, {200}, 422), (evidence, {200, 204}, 429)])
def test_a_flood_of_one_team_delays_and_refuses_no_other_job(
    tmp_path: Path, message: Callable[[int], Message], taken: set[int], refused: int
) -> None:
    with (
        running_monitor(tmp_path, "--token", "root", "--ingest-token", "ranks") as monitor,
        contextlib.ExitStack() as on,
    ):
        owner, ranks = on.enter_context(Api(monitor.url, "root")), on.enter_context(Api(monitor.url, "ranks"))
        bound = {"name": "team-a", "scope": "ingest", "jobs": ["team-a-*"]}
        token = str(owner.post("/api/v1/tokens", json=bound).json()["token"])
        launcher = PlayedLauncher(ranks, JOB, ranks=range(WORLD))
        launcher.register(policy={"section_timeouts": {"step": LIMIT}, "on_hang": "log", "silence_timeout": None})
        launcher.start(1, WORLD)
        slowest = 0.0

        def report(step: int, age: float) -> None:
            sections = {"step": age}
            reports = [
                rank_report(JOB, rank, WORLD, iteration=step, open_sections=sections, attempt=1)
                for rank in range(WORLD)
            ]
            assert ranks.post("/v1/metrics", content=body(*reports), headers=PROTOBUF).status_code == 200

        def ready() -> None:
            nonlocal slowest
            asked = time.monotonic()
            assert owner.get("/readyz").status_code == 200
            slowest = max(slowest, time.monotonic() - asked)

        report(0, 0.1)
        wait_for(lambda: owner.job(JOB)["ranks_reporting"] == WORLD, "all ranks report", 60.0)
        before = resident(monitor.pid)
        with Flood(monitor.url, token, message) as flood:
            began, step = time.monotonic(), 0
            while time.monotonic() - began < SECONDS:
                report(step := step + 1, 0.1)
                ready()
                time.sleep(0.2)
            assert owner.incidents(JOB) == []
            wait_for(lambda: flood.answers[refused] > 0, "the limit of the token is reached", 120.0)
            hung = time.monotonic()

            def found() -> bool:
                report(step, time.monotonic() - hung)
                ready()
                return bool(owner.incidents(JOB))

            wait_for(found, "the hang is found", LIMIT + MARGIN)
            late = time.monotonic() - hung - LIMIT
            grown = resident(monitor.pid) - before
        print(f"{flood.answers}, +{grown} MiB, /readyz {slowest:.2f} s, found {late:.2f} s after its limit")  # noqa: T201
        assert set(flood.answers) == {*taken, refused}
        assert slowest < MARGIN
        assert grown < 6 * Limits().launcher_bytes_per_token // MIB
