"""One sender of each hostile kind beside a healthy job, each with a valid ingest token: a hang is found in time."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import PROTOBUF, body, rank_report, reports_of_all
from support.waiting import wait_for

CONTROL, INGEST = "control-secret", "ingest-secret"
JOB: Final = "healthy"
WORLD: Final = 4
LIMIT: Final = 5.0
"""Seconds a step may take."""
SECONDS: Final = 30.0
"""Of healthy work beside the hostile senders."""
MARGIN: Final = 60.0
"""Seconds after its limit in which the hang must be found: 1 s on an idle machine."""
HEAD: Final = f"POST /v1/metrics HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {INGEST}\r\nContent-Length: %d\r\n\r\n"


class Target:
    """The monitor as a hostile sender sees it."""

    def __init__(self, monitor: RunningMonitor) -> None:
        parts = urlsplit(monitor.url)
        self.address = (str(parts.hostname), int(parts.port or 0))
        self.api = Api(monitor.url, INGEST)
        self.over = threading.Event()
        self.dice = random.Random(1)

    def post(self, path: str, **content: Any) -> None:
        self.api.request("POST", path, **content)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=10)


def bomb(target: Target) -> None:
    """Bodies that inflate to a thousand times their size."""
    packed = gzip.compress(bytes(100 * 2**20), 1)
    while not target.over.wait(0.2):
        target.post("/v1/metrics", content=packed, headers={**PROTOBUF, "Content-Encoding": "gzip"})


def slow_body(target: Target) -> None:
    """Bodies that arrive byte by byte, ten at a time."""
    with contextlib.ExitStack() as opened:
        members = [opened.enter_context(target.connect()) for _ in range(10)]
        for member in members:
            member.sendall((HEAD % 10_000).encode())
        while not target.over.wait(1.0):
            for member in members:
                member.sendall(b"\0")


def million_names(target: Target) -> None:
    """Jobs and sections that are called otherwise every time."""
    while not target.over.wait(0.02):
        number = target.dice.randrange(10**9)
        sections = {f"section-{number}-{n}": 1.0 for n in range(50)}
        report = rank_report(f"named-{number % 5000}", 0, 1, iteration=1, open_sections=sections)
        target.post("/v1/metrics", content=body(report), headers=PROTOBUF)


def attempt_jumps(target: Target) -> None:
    """Reports of attempts of the healthy job that do not exist."""
    while not target.over.wait(0.05):
        report = rank_report(
            JOB, target.dice.randrange(WORLD), 1, iteration=10**9, attempt=target.dice.choice([2, 10**15])
        )
        target.post("/v1/metrics", content=body(report), headers=PROTOBUF)


def false_nodes(target: Target) -> None:
    """Launchers of the healthy job that do not exist, with another policy."""
    while not target.over.wait(0.1):
        node = f"false-{target.dice.randrange(10**9)}"
        launcher = PlayedLauncher(target.api, JOB, node, ranks=[0])
        facts = {f"fact {number}": "x" * 200 for number in range(60)}
        launcher.register(facts=facts, policy={"section_timeouts": {"step": 9000.0}, "detection": False})


def garbage(target: Target) -> None:
    """Bytes that are no request, and bodies that are no message."""
    while not target.over.wait(0.05):
        noise = target.dice.randbytes(5000)
        with target.connect() as stranger:
            stranger.sendall(noise)
        for path in ("/v1/metrics", "/v1/traces", f"/api/v1/jobs/{JOB}/evidence"):
            target.post(path, content=noise, headers=PROTOBUF)


def unread_responses(target: Target) -> None:
    """Requests whose responses are never read."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: m\r\n\r\n"
    while not target.over.wait(0.5):
        with target.connect() as stranger:
            stranger.settimeout(2.0)
            for _ in range(100):
                stranger.sendall(request)
            target.over.wait(2.0)


def flood(target: Target) -> None:
    """Valid reports without a pause."""
    content = body(*reports_of_all("flood", 64, overdue=0.0))
    while not target.over.is_set():
        target.post("/v1/metrics", content=content, headers=PROTOBUF)


SENDERS: Final = (bomb, slow_body, million_names, attempt_jumps, false_nodes, garbage, unread_responses, flood)


def repeat(send: Callable[[Target], None], target: Target) -> None:
    """Go on whatever the monitor answers, and begin again when it hangs up."""
    while not target.over.is_set():
        with contextlib.suppress(OSError, httpx.HTTPError, AssertionError):
            send(target)


@contextlib.contextmanager
def hostile(monitor: RunningMonitor) -> Iterator[None]:
    targets = [Target(monitor) for _ in SENDERS]
    threads = [threading.Thread(target=repeat, args=pair, daemon=True) for pair in zip(SENDERS, targets, strict=True)]
    try:
        for thread in threads:
            thread.start()
        yield
        assert all(thread.is_alive() for thread in threads), "every sender is at work until the end"
    finally:
        for target in targets:
            target.over.set()
        for thread in threads:
            thread.join(60.0)
        for target in targets:
            target.api.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hostile_senders_delay_no_verdict_on_a_healthy_job(tmp_path: Path) -> None:
    flags = ("--token", CONTROL, "--ingest-token", INGEST)
    with (
        running_monitor(tmp_path, *flags) as monitor,
        Api(monitor.url, INGEST) as ranks,
        Api(monitor.url, CONTROL) as owner,
    ):
        ranks.timeout = owner.timeout = httpx.Timeout(60.0)
        launcher = PlayedLauncher(ranks, JOB, ranks=range(WORLD))
        launcher.register(policy={"section_timeouts": {"step": LIMIT}, "on_hang": "log", "silence_timeout": None})
        launcher.start(1, WORLD)

        def report(step: int, age: float) -> None:
            """What all ranks report; a rank would send it again with the next one if the monitor is busy."""
            reports = [
                rank_report(JOB, rank, WORLD, iteration=step, open_sections={"step": age}, attempt=1)
                for rank in range(WORLD)
            ]
            with contextlib.suppress(httpx.TransportError):
                ranks.post("/v1/metrics", content=body(*reports), headers=PROTOBUF)

        report(0, 0.1)
        wait_for(lambda: owner.job(JOB)["ranks_reporting"] == WORLD, "all ranks report", 60.0)
        with hostile(monitor):
            began, step = time.monotonic(), 0
            while time.monotonic() - began < SECONDS:
                report(step := step + 1, 0.1)
                time.sleep(0.3)
            assert owner.incidents(JOB) == []
            assert owner.job(JOB)["attempt"] == 1
            assert owner.job(JOB)["stale_reports"] > 0
            hung = time.monotonic()

            def found() -> bool:
                report(step, time.monotonic() - hung)
                return bool(owner.incidents(JOB))

            wait_for(found, "the hang is found", LIMIT + MARGIN)
            late = time.monotonic() - hung - LIMIT
        print(f"found {late:.2f} s after its limit")  # noqa: T201
        assert owner.incidents(JOB)[0]["kind"] == "section_overrun"
        assert owner.read(f"/jobs/{JOB}/policy")["section_timeouts"] == {"step": LIMIT}
        wait_for(lambda: owner.get("/readyz").status_code == 200, "ready again", 60.0)
