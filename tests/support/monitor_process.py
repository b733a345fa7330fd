"""A real monitor in a process of its own: ``python -m rankwatch_monitor`` on a free port of loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from prometheus_client.parser import text_string_to_metric_families

from support.forked import MONITOR, ForkedPopen
from support.otlp import PROTOBUF, body
from support.waiting import wait_for

START_SECONDS = 90.0
"""A start takes 2 s on an idle machine; the rest is for a busy one."""


@dataclass(frozen=True, slots=True)
class RunningMonitor:
    """A monitor that listens. ``log`` is the file with all it wrote."""

    url: str
    pid: int
    log: Path
    database: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(60)

    def printed(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")


class Api(httpx.Client):
    """A client of one monitor with words for what tests ask most. Proxies of the machine are left aside."""

    def __init__(self, url: str, token: str | None = None, **more: object) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__(base_url=url, headers=headers, trust_env=False, timeout=60.0, **more)  # type: ignore[arg-type]

    def read(self, path: str) -> dict[str, object]:
        """The JSON of a path below ``/api/v1`` that must be there."""
        answer = self.get(f"/api/v1{path}")
        assert answer.status_code == 200, f"GET {path}: {answer.status_code} {answer.text}"
        found: dict[str, object] = answer.json()
        return found

    def jobs(self) -> list[dict]:
        return self.read("/jobs")["jobs"]  # type: ignore[return-value]

    def job(self, job: str) -> dict:
        return self.read(f"/jobs/{quote(job, safe='')}")

    def ranks(self, job: str) -> list[dict]:
        return self.read(f"/jobs/{quote(job, safe='')}/ranks")["ranks"]  # type: ignore[return-value]

    def incidents(self, job: str) -> list[dict]:
        return self.read(f"/jobs/{quote(job, safe='')}/incidents")["incidents"]  # type: ignore[return-value]

    def change_policy(self, job: str, **changes: object) -> dict:
        answer = self.patch(f"/api/v1/jobs/{quote(job, safe='')}/policy", json=changes)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def export(
        self, content: bytes, path: str = "/v1/metrics", headers: Mapping[str, str] = PROTOBUF
    ) -> httpx.Response:
        """The answer to encoded OTLP. As a rank does, repeat a request for which the monitor is overloaded."""

        def answered() -> httpx.Response | None:
            answer = self.post(path, content=content, headers=headers)
            return None if answer.status_code == 503 and "retry-after" in answer.headers else answer

        return wait_for(answered, "the monitor has time for telemetry")  # type: ignore[return-value]

    def report(self, *reports: ResourceMetrics) -> None:
        """Send reports that are taken."""
        answer = self.export(body(*reports))
        assert answer.status_code == 200, answer.text

    def judge_now(self, job: str) -> None:
        """Have a job judged before this returns, so that what is not found afterwards was not there."""
        self.change_policy(job)

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """What ``/metrics`` states: (sample name, sorted labels) -> value."""
        answer = self.get("/metrics")
        assert answer.status_code == 200, answer.text
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def rejected(self) -> dict[str, float]:
        """Items that were turned away so far, by reason."""
        # Its own lines alone: parsing the samples of all jobs of a shared monitor takes most of a second.
        answer = self.get("/metrics")
        assert answer.status_code == 200, answer.text
        found = re.findall(r'^rankwatch_ingest_rejected_total\{reason="(\w+)"\} (\S+)$', answer.text, re.M)
        return {reason: float(value) for reason, value in found}


def environment(**more: str) -> dict[str, str]:
    """The environment of a monitor: this process's own without its settings for Rankwatch or OpenTelemetry."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANKWATCH_", "OTEL_"))}
    return kept | more


@contextlib.contextmanager
def running_monitor(
    folder: Path,
    *arguments: str,
    database: Path | None = None,
    settings: Mapping[str, str] | None = None,
    fails: bool = False,
    before: str = "",
) -> Iterator[RunningMonitor]:
    """Start a monitor whose files lie in ``folder``, wait until it listens, and kill it in the end whatever happens.

    Args:
        folder: for its log, its ready file and, unless ``database`` is given, its database.
        arguments: further flags.
        database: a SQLite file that may be there already.
        settings: environment variables for it.
        fails: its log may hold a traceback; otherwise one is a failure of the test.
        before: Python code that the process runs first, to shorten a constant that nothing configures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    database = database or folder / "rankwatch.db"
    ready, log = folder / "ready.json", folder / "monitor.log"
    ready.unlink(missing_ok=True)
    code = f"{before}\nimport runpy; runpy.run_module('rankwatch_monitor', run_name='__main__', alter_sys=True)"
    program = ["-c", code] if before else ["-m", "rankwatch_monitor"]
    command = [sys.executable, *program, "--port", "0", "--ready-file", str(ready)]
    if not any("token" in word for word in arguments) and not any("TOKEN" in name for name in settings or {}):
        command.append("--no-token")
    with log.open("wb") as output:
        process = ForkedPopen(
            [*command, "--database", str(database), *arguments],
            preload=MONITOR,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(**(settings or {})),
        )

    def listens() -> bool:
        assert process.poll() is None, f"the monitor ended with code {process.returncode}:\n{log.read_text()}"
        return ready.exists()

    try:
        wait_for(listens, "the monitor writes its ready file", START_SECONDS)
        reported = json.loads(ready.read_text())
        yield RunningMonitor(reported["url"], reported["pid"], log, database, process)
        printed = log.read_text(errors="replace")
        assert fails or "Traceback" not in printed, f"the monitor's log has a traceback:\n{printed[-6000:]}"
    finally:
        process.kill()
        process.wait(60)
