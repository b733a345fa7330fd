"""A monitor in trouble and a Prometheus that scrapes it: what dashboards are run against. Everything in it is real.

One job has all there is: eight ranks on two nodes and a spare, windows of steps and kernel timings with a slow rank, a
restart, lost telemetry, and then a hang that is only observed.
"""

from __future__ import annotations

import re
import runpy
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from support.launcher import PlayedLauncher
from support.monitor_process import Api
from support.otlp import PROTOBUF, add_kernels, add_window, rank_report
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "dashboards" / "prometheus"
SHORT = "short-hang"
"""A job that hung once, for less time than lies between two scrapes."""
JOB, WORLD, SLOW, STEP = "llama-8b", 8, 5, 0.4


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def sent(api: Api, *reports: ResourceMetrics) -> None:
    api.report(*reports)


def window(api: Api, iteration: int, attempt: int, dropped: int) -> None:
    """One window of all ranks: rank 5 computes for longer, and the others wait for it."""
    reports = []
    for rank in range(WORLD):
        compute = (0.2 if rank == SLOW else 0.1) + 0.001 * ((rank + iteration // 8) % 3)
        parts = {"data": 0.01, "host": 0.05, "compute": compute, "communication": STEP - 0.06 - compute}
        report = rank_report(
            JOB, rank, WORLD, iteration=iteration, first_iteration=8, attempt=attempt, host=f"node-{rank // 4}"
        )
        statistics = dict.fromkeys(("median", "tail", "max", "mean"), compute)
        operations = {f"all_reduce dp ({rank % 3})": (0.1, 1000)}
        add_window(report, iteration, sections={"forward": statistics}, parts=parts, operations=operations)
        gemm = 0.002 if rank == SLOW else 0.001
        add_kernels(report, {"gemm": dict.fromkeys(("min", "median", "tail", "max", "mean"), gemm)})
        lost = report.scope_metrics[0].metrics.add()
        lost.name, lost.sum.is_monotonic, lost.sum.aggregation_temporality = "rankwatch.telemetry.dropped", True, 2
        point = lost.sum.data_points.add()
        point.as_int = dropped
        point.attributes.add(key="rankwatch.reason").value.string_value = "queue_full"
        if rank == 0:
            logged = report.scope_metrics[0].metrics.add(name="rankwatch.training.scalar", unit="1")
            loss = logged.gauge.data_points.add(as_double=2.0 + 1.0 / iteration)
            loss.attributes.add(key="rankwatch.scalar").value.string_value = "loss"
        reports.append(report)
    sent(api, *reports)


def trouble(api: Api, metrics: Api) -> None:
    """Play the job from its start until it hangs, waiting for Prometheus to have seen what it must see before."""

    def seen(expression: str) -> None:
        wait_for(lambda: asked(metrics, expression), f"Prometheus has {expression}", 60)

    nodes = [PlayedLauncher(api, JOB, f"node-{n}", range(4 * n, 4 * n + 4)) for n in range(2)]
    for node in nodes:
        node.register()
    failed = {"name": "storage", "state": "failed", "reason": "no_space", "evidence": {"path": "/ckpt"}}
    PlayedLauncher(api, JOB, "node-unfit", ()).register(checks=[failed])
    api.change_policy(JOB, section_timeouts={"step": 30.0}, silence_timeout=None, observe_only=True)
    for node in nodes:
        node.start(1, WORLD)
    window(api, 8, 1, 1)
    seen(f'rankwatch_job_restarts_total{{job="{JOB}"}} == 0')
    wait_for(lambda: asked(metrics, f'rankwatch_goodput_ratio{{job="{JOB}"}}'), "goodput is known after a minute", 90)
    for node in nodes:
        node.events({"kind": "restarting", "reason": "rank 3 exited with code 1"})
        node.start(2, WORLD)
    iteration = 8

    def named() -> object:
        nonlocal iteration
        iteration += 8
        window(api, iteration, 2, iteration)
        return api.read(f"/jobs/{JOB}/stragglers")["stragglers"]

    wait_for(named, "the straggler is named", 30)
    seen(f'rankwatch_straggler{{job="{JOB}"}}')
    # The monitor counts time some 15 to 30 s after it is known what it was spent on.
    seen(f'rate(rankwatch_job_time_seconds_total{{job="{JOB}"}}[1m]) > 0')
    assert api.post("/v1/metrics", content=b"no OTLP", headers=PROTOBUF).status_code == 400
    hung = [
        rank_report(
            JOB, rank, WORLD, attempt=2, iteration=iteration - (rank == SLOW), open_sections={"step": 40.0},
            host=f"node-{rank // 4}",
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    sent(api, *hung)
    wait_for(lambda: api.incidents(JOB), "the hang is found")
    seen(f'ALERTS{{alertname="RankwatchActionWithheld",alertstate="firing",job="{JOB}"}}')


class Prometheus(Api):
    """A Prometheus that scrapes the monitor."""

    process: subprocess.Popen[bytes]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It scrapes nothing meanwhile."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def short_hang(api: Api, metrics: Prometheus) -> None:
    """Three ranks, one behind in its step for a moment: the hang begins and ends between two scrapes."""
    scraped = f'timestamp(rankwatch_job_state{{job="{SHORT}",state="running"}})'

    def report(*, behind: bool, iteration: int, seconds: float) -> None:
        reports = [
            rank_report(
                SHORT, rank, 3, iteration=iteration - (behind and rank == 1), open_sections={"step": seconds},
                host="node-s",
            )
            for rank in range(3)
        ]  # fmt: skip
        sent(api, *reports)

    def newest() -> float:
        found = asked(metrics, scraped)
        return float(found[0]["value"][1]) if found else 0.0

    report(behind=False, iteration=8, seconds=0.1)
    api.change_policy(SHORT, section_timeouts={"step": 2.0}, silence_timeout=None, observe_only=True)
    before = wait_for(newest, "the job was scraped", 30)
    wait_for(lambda: newest() > before, "it was scraped again just now", 30)
    with metrics.paused():
        report(behind=True, iteration=9, seconds=3.0)
        api.judge_now(SHORT)
        assert api.job(SHORT)["state"] == "hung"
        report(behind=False, iteration=10, seconds=0.1)
        api.judge_now(SHORT)
        assert api.job(SHORT)["state"] == "running"


@contextmanager
def prometheus(folder: Path, monitor: str) -> Iterator[Prometheus]:
    """Prometheus with the shipped configuration and rules, but less patience, scraping every half second."""
    folder.mkdir()
    runpy.run_path(str(PROMETHEUS / "shortened.py"))["write"](folder / "rules", 600.0)
    shipped = (PROMETHEUS / "prometheus.yml").read_text()
    quick = re.sub(r"(scrape|evaluation)_(interval|timeout): \w+", r"\1_\2: 500ms", shipped)
    (folder / "prometheus.yml").write_text(quick)
    (folder / "targets").mkdir()
    (folder / "targets" / "monitors.yml").write_text(f'- targets: ["{monitor}"]\n')
    (folder / "targets" / "alertmanagers.yml").write_text("[]\n")
    command = [tool("prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0"]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)

    def address() -> str | None:
        assert process.poll() is None, log.read_text()
        found = re.search(r'msg="?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)', log.read_text())
        return found and found[1]

    try:
        with Prometheus(f"http://{wait_for(address, 'Prometheus listens', 30)}") as api:
            api.process = process
            wait_for(lambda: api.get("/-/ready").is_success, "Prometheus is ready", 30)
            yield api
    finally:
        process.kill()
        process.wait(60)


def asked(metrics: Api, expression: str) -> list[dict[str, Any]]:
    """What Prometheus answers now; fails in its words when it refuses."""
    reply = metrics.post("/api/v1/query", data={"query": expression}).json()
    assert reply["status"] == "success", f"{expression}: {reply.get('error')}"
    return reply["data"]["result"]  # type: ignore[no-any-return]
