"""What a monitor takes while it is under load: CPU time, memory, files, threads, rows, and its own metrics."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import requests

from rankwatch.contract.semconv import API_PREFIX
from rankwatch_monitor.publish.prometheus.names import INGEST_REPORTS, TICK_ERRORS, TICK_SECONDS

SCRAPE_SECONDS: Final = 15.0
PROBE_SECONDS: Final = 0.25
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What a process has taken so far; memory, threads and files are of now."""

    cpu: float
    """Seconds of all threads."""
    waited: float
    """Seconds for which its main thread could have run and had no processor."""
    peak: float
    """The most memory it ever held, MiB."""
    rss: float
    """MiB."""
    threads: int
    files: int


def usage(pid: int) -> Usage:
    """Of a process, from ``/proc``.

    Raises:
        OSError: there is no such process.
    """
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    status = dict(line.partition(":")[::2] for line in (folder / "status").read_text().splitlines())

    def mib(name: str) -> float:
        return int(status[name].split()[0]) / 1024

    return Usage(
        (int(fields[11]) + int(fields[12])) / _TICKS,
        processor_waits(pid),
        mib("VmHWM"),
        mib("VmRSS"),
        int(status["Threads"]),
        len(list((folder / "fd").iterdir())),
    )


def processor_waits(pid: int) -> float:
    """Seconds for which the main thread of a process could have run and had no processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def rows(database: Path) -> int:
    """Rows in all tables of a monitor's SQLite file; 0 while there is none."""
    if not database.exists():
        return 0
    with sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True, timeout=5) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        counts = [connection.execute(f'select count(*) from "{name}"').fetchone()[0] for name in tables]
    connection.close()
    return int(sum(counts))


class Api:
    """A monitor's API as the benchmark asks it; each thread wants one of its own."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False

    def get(self, path: str, timeout: float = 30.0) -> Any:
        """The JSON of a path below ``/api/v1``; None when it is not there, or the monitor does not answer."""
        try:
            answer = self._session.get(f"{self.url}{API_PREFIX}{path}", timeout=timeout)
        except requests.RequestException:
            return None
        return answer.json() if answer.ok else None

    def incidents(self, job: str) -> list[dict[str, Any]]:
        """The incidents of a job, the newest first; none while the monitor does not answer."""
        found: list[dict[str, Any]] = (self.get(f"/jobs/{job}/incidents") or {"incidents": []})["incidents"]
        return found

    def change_policy(self, job: str, changes: dict[str, Any]) -> bool:
        """Change a job's policy; return whether it was taken."""
        where = f"{self.url}{API_PREFIX}/jobs/{quote(job)}/policy"
        try:
            return bool(self._session.patch(where, json=changes, timeout=30).ok)
        except requests.RequestException:
            return False

    def metrics(self) -> tuple[dict[str, float], int]:
        """Samples of ``/metrics`` without labels by name, and its length in bytes.

        Raises:
            requests.RequestException: the monitor does not answer.
        """
        answer = self._session.get(f"{self.url}/metrics", timeout=30)
        answer.raise_for_status()
        own = (
            line.split(" ") for line in answer.text.splitlines() if line.startswith("rankwatch_") and "{" not in line
        )
        return {fields[0]: float(fields[1]) for fields in own}, len(answer.content)


class Repeated:
    """Does something again and again on a thread, from its start to its stop."""

    def __init__(self, every: float) -> None:
        self._every, self._stopped = every, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin; the first time comes at once."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for what is under way, and end."""
        self._stopped.set()
        self._thread.join(60)

    def once(self) -> None:
        """What is done."""
        raise NotImplementedError

    def _run(self) -> None:
        while True:
            self.once()
            if self._stopped.wait(self._every):
                return


class Scraper(Repeated):
    """Scrapes ``/metrics``, as Prometheus would, and keeps what it reports of the monitor itself."""

    def __init__(self, api: Api) -> None:
        super().__init__(SCRAPE_SECONDS)
        self.api = api
        self.seconds: list[float] = []
        """How long each scrape took."""
        self.bytes = self.failed = 0
        self.tick_seconds: list[float] = []
        self.tick_errors = 0.0
        self.reports = 0.0
        """Reports that the monitor states it took."""

    def stop(self) -> None:
        """Scrape once more and end."""
        super().stop()
        self.once()

    def once(self) -> None:
        """Scrape."""
        began = time.monotonic()
        try:
            reported, self.bytes = self.api.metrics()
        except (requests.RequestException, ValueError):
            self.failed += 1
            return
        self.seconds.append(time.monotonic() - began)
        self.tick_seconds.append(reported[TICK_SECONDS.name])
        self.tick_errors = reported[TICK_ERRORS.name]
        self.reports = reported[INGEST_REPORTS.name]


class Prober(Repeated):
    """Asks ``/readyz`` four times a second, as an orchestrator would."""

    def __init__(self, url: str) -> None:
        super().__init__(PROBE_SECONDS)
        self.seconds: list[float] = []
        self.failed = 0
        self._url = f"{url.rstrip('/')}/readyz"
        self._session = requests.Session()
        self._session.trust_env = False

    def once(self) -> None:
        """Ask."""
        began = time.monotonic()
        try:
            ready = self._session.get(self._url, timeout=30).ok
        except requests.RequestException:
            ready = False
        self.seconds.append(time.monotonic() - began)
        self.failed += not ready
