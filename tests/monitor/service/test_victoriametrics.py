"""Forwarding into a real OTLP backend, VictoriaMetrics: what ranks sent can be queried there, and the verdicts too."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.monitor_process import Api, running_monitor
from support.otlp import rank_report
from support.waiting import wait_for

BINARY = shutil.which("victoria-metrics")


@pytest.fixture
def victoria(tmp_path: Path) -> Iterator[httpx.Client]:
    if BINARY is None:
        pytest.skip("victoria-metrics is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = (f"-httpListenAddr={address}", f"-storageDataPath={tmp_path / 'data'}", "-loggerLevel=ERROR")
    process = subprocess.Popen([BINARY, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False) as client:

            def ready() -> bool:
                assert process.poll() is None, f"it ended with code {process.returncode}"
                try:
                    return client.get("/health").status_code == 200
                except httpx.TransportError:
                    return False

            wait_for(ready, "VictoriaMetrics is ready", 40)
            yield client
    finally:
        process.kill()
        process.wait(10)


def latest(victoria: httpx.Client, query: str) -> list[dict]:
    victoria.get("/internal/force_flush")
    answer = victoria.get("/api/v1/query", params={"query": query, "latency_offset": "1ms"})
    assert answer.status_code == 200, answer.text
    found: list[dict] = answer.json()["data"]["result"]
    return found


def test_what_ranks_state_and_what_is_reported_of_them_arrives(tmp_path: Path, victoria: httpx.Client) -> None:
    flags = ("--forward", f"{str(victoria.base_url).rstrip('/')}/opentelemetry")
    settings = {"NO_PROXY": "127.0.0.1"}
    with running_monitor(tmp_path, *flags, settings=settings) as monitor, Api(monitor.url) as api:
        reports = [rank_report("gpt", rank, 2, iteration=41 + rank, idle=0.0) for rank in range(2)]
        api.report(*reports)
        steps = wait_for(lambda: latest(victoria, '{__name__="rankwatch.iteration"}'), "the ranks' steps are there", 30)
        assert sorted(float(series["value"][1]) for series in steps) == [41.0, 42.0]
        states = wait_for(
            lambda: latest(victoria, '{__name__="rankwatch.job.state"} == 1'), "the job's state is there", 30
        )
        assert [series["metric"]["rankwatch.job.id"] for series in states] == ["gpt"]
        assert "answers" not in monitor.printed(), "nothing is refused"
