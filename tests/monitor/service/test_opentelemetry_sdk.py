"""The OpenTelemetry SDK alone, with no line of Rankwatch: its job appears and its hang is found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import pytest
import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from support.monitor_process import Api, RunningMonitor
from support.waiting import wait_for

WORLD = 3
INTERVAL = 0.2


class SdkRank:
    """One rank, instrumented by the documented names alone."""

    def __init__(self, url: str, job: str, rank: int, prefix: str) -> None:
        self.iteration = 5
        self.entered = time.monotonic()
        self._session = requests.Session()
        self._session.trust_env = False
        exporter = OTLPMetricExporter(
            endpoint=f"{url}/v1/metrics", compression=Compression.Gzip, session=self._session, timeout=60
        )
        resource = Resource(
            {
                "service.name": job,
                "service.instance.id": f"{job}-{rank}",
                "host.name": "sdk-host",
                f"{prefix}dl.rank": rank,
                f"{prefix}dl.world_size": WORLD,
            }
        )
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=INTERVAL * 1000)
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("trainer")
        meter.create_observable_gauge("rankwatch.iteration", [self._iteration], unit="{step}")
        meter.create_observable_gauge("rankwatch.section.open.duration", [self._open], unit="s")

    def _iteration(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self.iteration)]

    def _open(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(time.monotonic() - self.entered, {"rankwatch.section": "step"})]

    def complete_step(self) -> None:
        self.iteration, self.entered = self.iteration + 1, time.monotonic()

    def shutdown(self) -> None:
        self._provider.shutdown()
        self._session.close()


@pytest.fixture(params=["", "nv."], ids=["dl", "nv.dl"])
def ranks(request: pytest.FixtureRequest, monitor: RunningMonitor, job: str) -> Iterator[list[SdkRank]]:
    with ExitStack() as stack:
        made = []
        for rank in range(WORLD):
            made.append(SdkRank(monitor.url, job, rank, request.param))
            stack.callback(made[-1].shutdown)
        yield made


def test_a_job_appears_and_a_hang_is_found_and_ends(api: Api, job: str, ranks: list[SdkRank]) -> None:
    def reporting() -> bool:
        return any(each["id"] == job and each["ranks_reporting"] == WORLD for each in api.jobs())

    wait_for(reporting, "all ranks of the SDK's job report")
    for rank in ranks:
        rank.complete_step()
    api.change_policy(job, section_timeouts={"step": 30.0})
    assert api.incidents(job) == [], "nothing is wrong yet"

    for rank in (ranks[0], ranks[2]):
        rank.complete_step()
    wait_for(lambda: [r["iteration"] for r in api.ranks(job)] == [7, 6, 7], "the monitor sees which is behind")
    api.change_policy(job, section_timeouts={"step": 0.6})
    (incident,) = wait_for(lambda: api.incidents(job), "the hang is found")
    assert (incident["kind"], incident["section"]) == ("section_overrun", "step")
    assert "sdk-host" in incident["reason"]
    culprits = wait_for(lambda: [c["rank"] for c in api.incidents(job)[0]["culprits"]], "somebody is blamed")
    assert culprits == [1]

    api.change_policy(job, section_timeouts={"step": 60.0})
    for rank in ranks:
        rank.complete_step()
    closed = wait_for(lambda: [i for i in api.incidents(job) if i["closed_at"]], "the incident closes")
    assert [i["id"] for i in closed] == [incident["id"]]
