"""What Prometheus gets: judged by promtool, scraped and asked by a real Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch_monitor.publish.prometheus import names as names
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor
from support.otlp import PROTOBUF, gauge, rank_report
from support.waiting import wait_for

INTERVAL = "2s"


@pytest.fixture
def hung(api: Api, job: str) -> str:
    """A job with all there is to publish: an open incident with a culprit, a closed one, and telemetry it lost."""
    for seconds in (0.1, 3.0, 0.2, 3.0):
        reports = [
            rank_report(
                job,
                rank,
                3,
                iteration=8 - (rank == 1 and seconds > 1),
                open_sections={"step": seconds},
                host='a "quoted"\\host',
            )
            for rank in range(3)
        ]
        gauge(reports[0], "rankwatch.telemetry.dropped", 4, rankwatch__reason="queue full")
        gauge(reports[0], "rankwatch.training.scalar", 2.5, rankwatch__scalar="loss")
        api.report(*reports)
        api.change_policy(job, section_timeouts={"step": 2.0})
    api.post("/v1/metrics", content=b"rubbish", headers=PROTOBUF)
    failed = {"name": "storage", "state": "failed", "reason": "no_space", "evidence": {"path": "/ckpt"}}
    PlayedLauncher(api, f"{job}-unfit", "node-a", (0,)).register(checks=[failed])
    return job


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def test_promtool_finds_nothing_wrong(api: Api, hung: str) -> None:
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=api.get("/metrics").content, capture_output=True, timeout=30
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_every_family_is_in_the_table_with_its_kind_labels_and_meaning(api: Api, hung: str) -> None:
    text = api.get("/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    meanings = dict(re.findall(r"^# HELP (\S+) (.*)$", text, flags=re.MULTILINE))
    assert kinds == {family.name: family.kind for family in names.FAMILIES}
    assert meanings == {family.name: family.meaning for family in names.FAMILIES}
    labels = {family.name: set(family.labels) for family in names.FAMILIES}
    samples = api.metrics()  # of all jobs of this monitor, those of other tests included
    elsewhere = {*names.FROM_WINDOWS, *names.FROM_PUBLISHERS}  # tests/monitor/publish/prometheus/test_exposition.py
    elsewhere.add(names.GOODPUT)  # not in the first minute of a job (tests/monitor/http/test_goodput.py)
    assert set(labels) - {family.name for family in elsewhere} <= {name for name, _ in samples}, "each at least once"
    assert all({label for label, _ in given} == labels[name] for name, given in samples)


def test_the_samples_of_a_hung_job(api: Api, hung: str) -> None:
    def of(name: str, **labels: str) -> float | None:
        return api.metrics().get((name, tuple(sorted({"job": hung, **labels}.items()))))

    assert of("rankwatch_job_state", state="hung") == 1
    assert of("rankwatch_job_state", state="running") == 0
    assert (of("rankwatch_job_ranks", state="hung"), of("rankwatch_job_ranks", state="waiting")) == (1, 2)
    assert of("rankwatch_incidents_total", kind="section_overrun") == 2
    assert of("rankwatch_incident_open", kind="section_overrun", action="log") == 1
    assert of("rankwatch_telemetry_dropped_total", reason="queue full") == 4
    incident = api.incidents(hung)[0]
    assert of("rankwatch_job_reason", state="hung", reason=incident["reason"]) == 1
    why = "no launcher of Rankwatch runs this job, so it can only be watched"
    assert of("rankwatch_action_withheld", wanted="restart", reason=why) == 1
    assert (of("rankwatch_job_instrumented"), of("rankwatch_job_restarts_left")) == (1, 3)
    received = of("rankwatch_job_last_heard_timestamp_seconds")
    assert received is not None
    assert abs(time.time() - received) < 60
    blamed = {"rank": "1", "host": 'a "quoted"\\host', "class": "behind", "reason": incident["reason"]}
    assert of("rankwatch_culprit", **blamed) == 1


@pytest.fixture
def prometheus(tmp_path: Path, monitor: RunningMonitor) -> Iterator[str]:
    """The address of a real Prometheus that scrapes the monitor."""
    target = monitor.url.removeprefix("http://")
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}}}\n"
        f"scrape_configs: [{{job_name: rankwatch, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    log = tmp_path / "prometheus.log"
    flags = [
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen([tool("prometheus"), *flags], stdout=output, stderr=subprocess.STDOUT)
    try:

        def address() -> str | None:
            assert process.poll() is None, log.read_text()
            found = re.search(r'msg="?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)', log.read_text())
            return found and f"http://{found[1]}"

        yield wait_for(address, "Prometheus listens", 30)
    finally:
        process.kill()
        process.wait(10)


def test_a_real_prometheus_scrapes_it_and_answers(prometheus: str, hung: str) -> None:
    with Api(prometheus) as asked:

        def answer(query: str) -> list[dict]:
            reply = asked.get("/api/v1/query", params={"query": query})
            return reply.json()["data"]["result"] if reply.is_success else []

        (state,) = wait_for(lambda: answer(f'rankwatch_job_state{{exported_job="{hung}"}} == 1'), "it was scraped", 90)
        assert state["metric"]["state"] == "hung"
        (up,) = answer('up{job="rankwatch"}')
        assert up["value"][1] == "1"
