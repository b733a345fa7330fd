"""OpenTelemetry's JavaScript SDK as a second, real client of the monitor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from frameworks.environments import environment, run
from rankwatch_monitor.http.grpc_refusal import MESSAGE
from support.monitor_process import Api, RunningMonitor
from support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

CLIENT = Path(__file__).with_name("otel_client.js")


def export(kind: str, monitor: RunningMonitor, job: str, folder: Path) -> tuple[int, str]:
    modules = environment("js", "node_modules/@opentelemetry/sdk-metrics").parents[1]
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing")
    return run([node, CLIENT, kind, monitor.url, job], seconds=120, folder=folder, NODE_PATH=str(modules))


@pytest.mark.parametrize("kind", ["protobuf", "json", "protobuf-gzip", "json-gzip"])
def test_its_metrics_make_a_job(kind: str, monitor: RunningMonitor, api: Api, job: str, tmp_path: Path) -> None:
    code, said = export(kind, monitor, job, tmp_path)
    assert code == 0, said
    summary = api.read(f"/jobs/{job}")
    assert (summary["world_size"], summary["iteration"]) == (1, 41)
    assert "rejected" not in said


def test_its_grpc_exporter_shows_the_remedy(monitor: RunningMonitor, job: str, tmp_path: Path) -> None:
    code, said = export("grpc", monitor, job, tmp_path)
    assert code == 1
    assert f"12 UNIMPLEMENTED: {MESSAGE}" in said
    wait_for(lambda: "sends OTLP over gRPC" in monitor.log.read_text(), "the log has it")
