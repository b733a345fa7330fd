"""A real OpenTelemetry Collector with a configuration that this project ships, unchanged, on a port of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.monitor_process import environment
from support.ports import free_port, listens
from support.waiting import wait_for

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "dashboards" / "collector"
BUILT = ROOT / "build" / "otelcol"


def binary() -> str:
    """The path of a Collector; skips the test where there is none."""
    found = shutil.which("otelcol-contrib") or (str(BUILT) if BUILT.exists() else None)
    if found is None:
        pytest.skip("otelcol-contrib is not installed, and scripts/otelcol.sh has built none")
    return found


def command(name: str, port: int) -> list[str]:
    """The command line for the shipped file ``name``, which listens on ``port`` and publishes no metrics of its own."""
    own = (
        f"yaml:receivers::otlp::protocols::http::endpoint: 127.0.0.1:{port}",
        "yaml:service::telemetry::metrics::level: none",
    )
    return [binary(), *(f"--config={each}" for each in (SHIPPED / name, *own))]


def variables(endpoint: str) -> dict[str, str]:
    """The environment that both files ask for."""
    tokens = {"COLLECTOR_TOKEN": "collector-token", "RANKWATCH_INGEST_TOKEN": "ingest-token"}
    return environment(RANKWATCH_ENDPOINT=endpoint, NO_PROXY="127.0.0.1", **tokens)


@dataclass(frozen=True, slots=True)
class RunningCollector:
    """A Collector that listens."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def printed(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def running_collector(
    folder: Path, name: str, endpoint: str, *, port: int | None = None, flags: Sequence[str] = ()
) -> Iterator[RunningCollector]:
    """Start a Collector that sends to ``endpoint``, wait until it listens, and end it whatever happens."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    log = folder / "collector.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command(name, port), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables(endpoint),
        )

    def ready() -> bool:
        assert process.poll() is None, f"the Collector ended with code {process.returncode}:\n{log.read_text()}"
        return listens(port)

    try:
        wait_for(ready, "the Collector listens")
        yield RunningCollector(f"http://127.0.0.1:{port}", port, process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
