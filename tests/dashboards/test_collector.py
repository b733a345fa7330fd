"""The shipped configurations in a real OpenTelemetry Collector: what it accepts, merges, keeps apart and gives up."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from support.collector import SHIPPED, RunningCollector, command, running_collector, variables
from support.http_receiver import HttpReceiver, Posted, http_receiver
from support.otlp import PROTOBUF, body, rank_report
from support.waiting import wait_for

RANKS = range(4)


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as made:
        yield made


@pytest.fixture
def node(tmp_path: Path, receiver: HttpReceiver) -> Iterator[RunningCollector]:
    """A node's Collector, which sends to the receiver."""
    with running_collector(tmp_path, "node.yml", receiver.url) as made:
        yield made


def report(url: str, job: str, rank: int = 0, step: int = 1, **headers: str) -> int:
    """Send what one rank reports; the status that it is answered."""
    content = body(rank_report(job, rank, len(RANKS), iteration=step))
    return httpx.post(f"{url}/v1/metrics", content=content, headers=PROTOBUF | headers, trust_env=False).status_code


def members(posted: Posted) -> list[tuple[str, int, int]]:
    """Job, rank and step of each report in a request."""
    assert posted.headers["content-encoding"] == "gzip"
    found = []
    for each in ExportMetricsServiceRequest.FromString(gzip.decompress(posted.body)).resource_metrics:
        named = {attribute.key: attribute.value for attribute in each.resource.attributes}
        step = each.scope_metrics[0].metrics[0].gauge.data_points[0].as_int
        found.append((named["rankwatch.job.id"].string_value, named["dl.rank"].int_value, step))
    return found


def delivered(receiver: HttpReceiver) -> set[tuple[str, int, int]]:
    """The reports that arrived."""
    return {member for posted in receiver.taken for member in members(posted)}


@pytest.mark.parametrize("name", ["node.yml", "collector.yml"])
def test_the_collector_accepts_the_file(name: str) -> None:
    program, *flags = command(name, 4318)
    done = subprocess.run(
        [program, "validate", *flags],
        env=variables("http://127.0.0.1:9560"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_nodes_jobs_stay_apart_and_keep_their_header(node: RunningCollector, receiver: HttpReceiver) -> None:
    sent = {(job, rank, 1) for job in ("first", "second") for rank in RANKS}
    for job, rank, step in sorted(sent, key=lambda each: each[1]):
        assert report(node.url, job, rank, step, **{"Rankwatch-Job": f"{job}%20"}) == 200
    wait_for(lambda: delivered(receiver) == sent, "all reports arrive")
    for posted in receiver.taken:
        assert {f"{job}%20" for job, _, _ in members(posted)} == {posted.headers["rankwatch-job"]}
        assert posted.headers["authorization"] == "Bearer ingest-token"


def test_reports_without_a_job_in_the_header_go_on_too(node: RunningCollector, receiver: HttpReceiver) -> None:
    assert report(node.url, "foreign") == 200
    wait_for(lambda: delivered(receiver) == {("foreign", 0, 1)}, "it arrives")
    assert receiver.taken[0].headers["rankwatch-job"] == ""


def test_a_node_may_see_any_number_of_jobs(node: RunningCollector, receiver: HttpReceiver) -> None:
    sent = {(f"job-{number}", 0, 1) for number in range(150)}
    assert {report(node.url, job, **{"Rankwatch-Job": job}) for job, _, _ in sent} == {200}
    wait_for(lambda: delivered(receiver) == sent, "the reports of all jobs arrive")


def test_what_the_monitor_puts_off_is_sent_again(node: RunningCollector, receiver: HttpReceiver) -> None:
    receiver.answers.first = [429, 503]
    receiver.answers.headers = {"Retry-After": "1"}
    assert report(node.url, "j", **{"Rankwatch-Job": "j"}) == 200
    wait_for(lambda: delivered(receiver) == {("j", 0, 1)}, "it arrives with the third request")
    assert [posted.status for posted in receiver.posted] == [429, 503, 200]
    assert {posted.headers["rankwatch-job"] for posted in receiver.posted} == {"j"}


def test_an_old_report_is_given_up(node: RunningCollector, receiver: HttpReceiver) -> None:
    receiver.away()
    assert report(node.url, "j", step=1, **{"Rankwatch-Job": "j"}) == 200
    wait_for(lambda: "Dropping data" in node.printed(), "it is given up")
    receiver.back()
    assert report(node.url, "j", step=2, **{"Rankwatch-Job": "j"}) == 200
    wait_for(lambda: receiver.taken, "the next one arrives")
    assert delivered(receiver) == {("j", 0, 2)}


def test_what_is_on_its_way_is_delivered_at_the_end(node: RunningCollector, receiver: HttpReceiver) -> None:
    assert report(node.url, "j", **{"Rankwatch-Job": "j"}) == 200
    node.process.terminate()
    assert node.process.wait(20) == 0
    assert delivered(receiver) == {("j", 0, 1)}


def test_a_further_backend_gets_the_same_also_while_the_monitor_is_away(tmp_path: Path, receiver: HttpReceiver) -> None:
    with http_receiver() as backend:
        own = f"yaml:exporters::otlphttp/backend::endpoint: {backend.url}"
        flags = [f"--config={SHIPPED / 'backend.yml'}", f"--config={own}"]
        with running_collector(tmp_path, "node.yml", receiver.url, flags=flags) as node:
            assert report(node.url, "j", **{"Rankwatch-Job": "j"}) == 200
            wait_for(lambda: delivered(receiver) == delivered(backend) == {("j", 0, 1)}, "both have it")
            receiver.away()
            assert report(node.url, "j", step=2, **{"Rankwatch-Job": "j"}) == 200
            wait_for(lambda: ("j", 0, 2) in delivered(backend), "the backend has the next one")
    assert backend.taken[0].headers.get("authorization", "") == "", "the monitor's token stays with the monitor"


def test_a_cluster_s_collector_asks_ranks_for_its_token(tmp_path: Path, receiver: HttpReceiver) -> None:
    with running_collector(tmp_path, "collector.yml", receiver.url) as cluster:
        assert report(cluster.url, "j") == 401
        assert report(cluster.url, "j", Authorization="Bearer ingest-token") == 401
        assert report(cluster.url, "j", step=2, Authorization="Bearer collector-token") == 200
        wait_for(lambda: receiver.taken, "it arrives")
    assert delivered(receiver) == {("j", 0, 2)}
    assert receiver.taken[0].headers["authorization"] == "Bearer ingest-token"
