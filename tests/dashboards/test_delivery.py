"""One alert from end to end: a rank hangs, and a webhook receives which and why. All but the webhook is the real thing.

Monitor -> Prometheus with the shipped configuration and rules -> Alertmanager with the shipped routes -> webhook. Made
quicker: the patience of the rules (``shortened.py``), the intervals of scraping, evaluating and grouping.
"""

from __future__ import annotations

import json
import queue
import re
import runpy
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.monitor_process import Api, running_monitor
from support.otlp import rank_report
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "dashboards" / "prometheus"
ALERTMANAGER = ROOT / "dashboards" / "alertmanager" / "alertmanager.yml"
JOB = "llama-8b"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


@contextmanager
def webhook() -> Iterator[tuple[str, queue.Queue[tuple[str, dict[str, Any]]]]]:
    """A server on loopback that keeps what it is sent: (path, JSON)."""
    reported: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reported.put((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", reported
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@contextmanager
def listening(command: list[str], log: Path) -> Iterator[str]:
    """A server of the Prometheus family on any free port; yields its address."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)

    def address() -> str | None:
        assert process.poll() is None, log.read_text()
        found = re.search(r'msg="?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)', log.read_text())
        return found and found[1]

    try:
        yield wait_for(address, f"{command[0]} listens", 30)
    finally:
        process.kill()
        process.wait(60)


@contextmanager
def alertmanager(folder: Path, hook: str) -> Iterator[str]:
    shipped = ALERTMANAGER.read_text().replace("http://127.0.0.1:9099", hook)
    quick = re.sub(r"group_wait: \w+", "group_wait: 1s", shipped)
    quick = re.sub(r"group_interval: \w+", "group_interval: 1s", quick)
    (folder / "alertmanager.yml").write_text(quick)
    command = [
        tool("prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    ]
    with listening(command, folder / "alertmanager.log") as address:
        yield address


@contextmanager
def prometheus(folder: Path, monitor: str, alerts_to: str) -> Iterator[str]:
    runpy.run_path(str(PROMETHEUS / "shortened.py"))["write"](folder / "rules", 600.0)
    shipped = (PROMETHEUS / "prometheus.yml").read_text()
    (folder / "prometheus.yml").write_text(
        re.sub(r"(scrape|evaluation)_(interval|timeout): \w+", r"\1_\2: 500ms", shipped)
    )
    (folder / "targets").mkdir()
    for name, target in (("monitors", monitor), ("alertmanagers", alerts_to)):
        (folder / "targets" / f"{name}.yml").write_text(f'- targets: ["{target}"]\n')
    command = [
        tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with listening(command, folder / "prometheus.log") as address:
        yield address


def hang(api: Api) -> str:
    """Three ranks in a step for 40 s, rank 1 behind the others; returns the monitor's sentence about it."""
    reports = [
        rank_report(JOB, rank, 3, iteration=7 - (rank == 1), open_sections={"step": 40.0}, host=f"node-{rank}")
        for rank in range(3)
    ]
    api.report(*reports)
    api.change_policy(JOB, section_timeouts={"step": 30.0}, silence_timeout=None)
    (incident,) = wait_for(lambda: api.incidents(JOB), "the hang is found")
    return str(incident["reason"])


def test_a_hung_rank_reaches_a_pager_with_its_name_and_the_reason(tmp_path: Path) -> None:
    tool("prometheus"), tool("prometheus-alertmanager")
    with (
        webhook() as (hook, reported),
        running_monitor(tmp_path / "monitor") as monitor,
        Api(monitor.url) as api,
        alertmanager(tmp_path, hook) as manager,
        prometheus(tmp_path, monitor.url.removeprefix("http://"), manager) as asked,
        Api(f"http://{asked}") as metrics,
    ):
        reason = hang(api)

        def firing() -> list[str]:
            reply = metrics.get("/api/v1/query", params={"query": f'ALERTS{{alertstate="firing", job="{JOB}"}}'})
            return [each["metric"]["alertname"] for each in reply.json()["data"]["result"]] if reply.is_success else []

        wait_for(lambda: "RankwatchJobHung" in firing(), "Prometheus has the alert", 60)
        path, sent = reported.get(timeout=60)
        if path == "/ticket":  # it fired in the evaluation before, when no page kept it back
            path, sent = reported.get(timeout=60)

        (alert,) = sent["alerts"]
        assert (path, sent["status"], sent["receiver"]) == ("/page", "firing", "page")
        assert alert["labels"] == {
            "alertname": "RankwatchJobHung",
            "job": JOB,
            "instance": monitor.url.removeprefix("http://"),
            "severity": "page",
            "scope": "job",
            "state": "hung",
        }
        assert JOB in alert["annotations"]["summary"]
        assert reason in alert["annotations"]["description"]
        assert "To blame: rank 1 on node-1 (behind)." in alert["annotations"]["description"]
        assert alert["annotations"]["runbook_url"] == "https://rankwatch.example/docs/runbook.md#rankwatchjobhung"

        # The same job has a ticket too (nothing may act on it), which the page keeps back.
        wait_for(lambda: "RankwatchActionWithheld" in firing(), "the ticket fires as well", 60)

        def held_back() -> bool:
            known = api.get(f"http://{manager}/api/v2/alerts").json()
            return any(
                a["labels"]["alertname"] == "RankwatchActionWithheld" and a["status"]["inhibitedBy"] for a in known
            )

        wait_for(held_back, "Alertmanager inhibits it", 60)

        # The ranks go on: the pager learns of the end as well.
        going = [rank_report(JOB, rank, 3, iteration=8, open_sections={"step": 0.1}) for rank in range(3)]
        api.report(*going)
        later = [reported.get(timeout=60)]
        while later[-1][0] != "/page" or later[-1][1]["status"] != "resolved":
            later.append(reported.get(timeout=60))
        # Groups of rules are evaluated at moments of their own: a ticket may fire before its page, or resolve after it.
        named = {(path, alert["labels"]["alertname"]) for path, sent in later for alert in sent["alerts"]}
        tickets = {("/ticket", "RankwatchActionWithheld"), ("/ticket", "RankwatchJobHangs")}  # of a hang that is over
        assert named <= {("/page", "RankwatchJobHung")} | tickets, "one page, its tickets"
