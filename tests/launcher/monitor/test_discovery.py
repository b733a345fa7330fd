"""Which monitor a launcher connects to: the configured one, its own, or the one that group rank 0 publishes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwatch.contract import env, records
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.monitor import discovery as module
from rankwatch_launcher.monitor.discovery import FACT, FACT_SECONDS, MonitorDiscovery, Published
from rankwatch_launcher.options import Options

URL = "http://monitor:9560"


class Node:
    """A node whose claims are refused so many times."""

    run = ""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.claimed: list[tuple[str, str, str]] = []

    def claim(self, job_id: str, url: str, token: str) -> str:
        self.claimed.append((job_id, url, token))
        return "it runs already" if len(self.claimed) <= self.refusals else ""


class Scene:
    """A launcher with a rank in the group, and what it connects to."""

    def __init__(self, rank: int, **options: Any) -> None:
        self.connected: list[tuple[str, str, str]] = []
        self.store = JobStore(HashStore(), "job")
        self.interrupted = self.ended = False
        self.rendezvous: Any = SimpleNamespace(
            rank=rank,
            store=self.store,
            master_addr="h",
            interrupted=lambda: self.interrupted,
            attempt_ended=lambda: self.ended,
        )
        self.node: Node | None = options.pop("node", None)
        self.discovery = MonitorDiscovery(Options(**options), self._connect, "h:29400", self.node)

    def _connect(self, job_id: str, url: str, token: str, *, ready: object = None, patience: float = 0.0) -> None:
        self.connected.append((job_id, url, token))


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("RANKWATCH_MONITOR_DATABASE", raising=False)
    for name in (env.MONITOR_URL, env.JOB_ID, env.JOB_NAME, env.TOKEN):
        monkeypatch.setenv(name, "")


def test_group_rank_0_publishes_the_configured_monitor_and_the_job_id_but_not_its_token() -> None:
    scene = Scene(0, monitor_url=URL, token="t", job_id="j")
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == [("j", URL, "t")]
    assert scene.store.find(FACT, Published) == Published("j", URL, "")


def test_an_own_monitor_publishes_a_token_that_may_only_ingest_and_ranks_get_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANKWATCH_MONITOR_TOKEN", "control")
    own = SimpleNamespace(url=URL, token="control", ingest_token="ingest", start=lambda: None, wait_ready=bool)
    monkeypatch.setattr(module.process, "available", lambda: True)
    monkeypatch.setattr(module, "LocalMonitor", lambda *_: own)
    scene = Scene(0, job_id="j", token="the user's, for another monitor")
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.store.find(FACT, Published) == Published("j", URL, "ingest")
    assert scene.connected == [("j", URL, "control")]
    assert os.environ[env.TOKEN] == "ingest"
    assert "control" not in env.of_ranks(os.environ).values()


@pytest.mark.parametrize("secret", ["", "of the launchers"])
def test_with_a_secret_the_store_tells_the_token_of_an_own_monitor_to_launchers_alone(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SimpleNamespace(url=URL, token="control", ingest_token="to-ingest", start=lambda: None, wait_ready=bool)
    monkeypatch.setattr(module.process, "available", lambda: True)
    monkeypatch.setattr(module, "LocalMonitor", lambda *_: own)
    shared, first, second, other = HashStore(), Scene(0, job_id="j"), Scene(1), Scene(1)
    for scene, known in ((first, secret), (second, secret), (other, "another" if secret else "")):
        scene.rendezvous.store = JobStore(shared, "job", known)
    first.discovery.on_rendezvous(first.rendezvous)
    assert (b"to-ingest" in shared.get("rankwatch/job/fact/monitor")) is not bool(secret)
    second.discovery.on_rendezvous(second.rendezvous)
    assert second.connected == [("j", URL, "to-ingest")]
    other.ended = True
    other.discovery.on_rendezvous(other.rendezvous)
    assert other.connected == ([] if secret else [("j", URL, "to-ingest")])


@pytest.mark.parametrize("given", ["", "ingest"])
def test_ranks_of_a_named_monitor_get_the_ingest_token_if_there_is_one(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.TOKEN, "control")
    monkeypatch.setenv(env.INGEST_TOKEN, given)
    scene = Scene(0, monitor_url=URL, token="control", job_id="j")
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == [("j", URL, "control")]
    assert os.environ[env.TOKEN] == (given or "control")


@pytest.mark.parametrize(
    ("published", "kept"), [({"url": URL, "token": "ingest"}, False), ({"url": URL, "token": ""}, True), ({}, False)]
)
def test_a_collector_is_used_with_a_named_monitor_only(
    published: dict[str, str], kept: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(env.COLLECTOR_URL, "http://127.0.0.1:4318")
    own = SimpleNamespace(url=URL, token="control", ingest_token="ingest", start=lambda: None, wait_ready=bool)
    monkeypatch.setattr(module.process, "available", lambda: True)
    monkeypatch.setattr(module, "LocalMonitor", lambda *_: own)
    scene = Scene(1 if published else 0)
    if published:
        scene.store.publish(FACT, published | {"job_id": "j"})
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert [url for _, url, _ in scene.connected] == [URL]
    assert (env.COLLECTOR_URL in os.environ) is kept
    assert (f"{env.COLLECTOR_URL} is ignored" not in caplog.text) is kept


def test_a_users_token_is_not_sent_to_an_address_that_the_store_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TOKEN, "the user's")
    scene = Scene(1, token="the user's")
    scene.store.publish(FACT, {"url": URL, "token": "", "job_id": "j"})
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == [("j", URL, "")]
    assert env.TOKEN not in os.environ


def test_other_launchers_follow_what_is_published_once() -> None:
    scene = Scene(1)
    scene.store.publish(FACT, {"url": URL, "token": "t", "job_id": "j"})
    for _ in range(2):
        scene.discovery.on_rendezvous(scene.rendezvous)
    assert (scene.connected, scene.discovery.job_id) == ([("j", URL, "t")], "j")


def test_a_launcher_that_becomes_group_rank_0_later_keeps_the_jobs_monitor() -> None:
    scene = Scene(0, job_id="other")
    scene.store.publish(FACT, {"url": URL, "token": "", "job_id": "j"})
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == [("j", URL, "")]
    assert not scene.discovery.holds_monitor


def test_a_spare_follows_too() -> None:
    scene = Scene(-1)
    scene.store.publish(FACT, {"url": URL, "token": "", "job_id": "j"})
    scene.discovery.on_standby(scene.rendezvous)
    assert scene.connected == [("j", URL, "")]


@pytest.mark.parametrize("why", ["interrupted", "ended", "timed out"])
def test_waiting_for_a_publisher_that_is_lost_ends_and_is_repeated(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, FACT_SECONDS + 1.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now, FACT_SECONDS + 1.0))
    scene = Scene(1)
    scene.interrupted, scene.ended = why == "interrupted", why == "ended"
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == []
    scene.store.publish(FACT, {"url": URL, "token": "", "job_id": "j"})
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == [("j", URL, "")]


def test_without_an_installed_monitor_the_job_runs_unmonitored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.process, "available", lambda: False)
    scene = Scene(0, job_id="j")
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == []
    assert scene.store.find(FACT, Published) == Published("j", "", "")


def test_a_monitor_that_cannot_be_started_does_not_stop_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no free port")

    monkeypatch.setattr(module.process, "available", lambda: True)
    monkeypatch.setattr(module, "LocalMonitor", refuse)
    scene = Scene(0, job_id="j")
    scene.discovery.begin_alone()
    assert (scene.connected, scene.discovery.holds_monitor) == ([], False)


# Two runs of one id ---------------------------------------------------------------------------------------------------


@pytest.fixture
def console(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    return caplog


def test_the_launcher_that_decides_on_the_id_claims_it_and_others_take_its_run() -> None:
    first = Scene(0, monitor_url=URL, token="t", job_id="j", node=Node())
    first.discovery.on_rendezvous(first.rendezvous)
    assert first.node is not None
    assert (first.node.claimed, first.connected) == ([("j", URL, "t")], [("j", URL, "t")])
    second = Scene(1, monitor_url=URL, token="t", node=Node())
    second.rendezvous.store = first.store
    second.discovery.on_rendezvous(second.rendezvous)
    assert second.node is not None
    assert (second.node.claimed, second.connected) == ([], [("j", URL, "t")])
    assert second.node.run == first.node.run != ""


def test_a_run_that_has_just_ended_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLAIM_AGAIN_SECONDS", 0.001)
    scene = Scene(0, monitor_url=URL, job_id="j", node=Node(refusals=3))
    scene.discovery.begin_alone()
    assert scene.connected == [("j", URL, "")]


def test_an_id_that_another_run_has_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, console: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLAIM_SECONDS", 0.0)
    monkeypatch.setattr(module, "CLAIM_AGAIN_SECONDS", 0.001)
    scene = Scene(0, monitor_url=URL, job_id="j", node=Node(refusals=1_000_000))
    scene.discovery.on_rendezvous(scene.rendezvous)
    [(job_id, url, _)] = scene.connected
    assert job_id == scene.discovery.job_id == os.environ[env.JOB_ID]
    assert job_id != "j"
    assert job_id.startswith("j-")
    fact = scene.store.find(FACT, Published)
    assert fact is not None
    assert (url, fact.job_id) == (URL, job_id), "the other launchers take it too"
    assert "it runs already" in console.text
    assert job_id in console.text


def test_a_record_on_this_host_that_another_run_writes_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, console: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RECORD_SECONDS", 0.0)
    monkeypatch.setattr(module.process, "available", lambda: True)
    own = SimpleNamespace(url=URL, token="c", ingest_token="i", start=lambda: None, wait_ready=bool)
    monkeypatch.setattr(module, "LocalMonitor", lambda *_: own)
    record = module.process.records_folder(os.environ) / records.file_name("j")
    lock = os.open(f"{record}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scene = Scene(0, job_id="j", node=Node())
        scene.discovery.begin_alone()
    finally:
        os.close(lock)
    [(job_id, _, _)] = scene.connected
    assert job_id.startswith("j-")
    assert "runs on this host already" in console.text
    free = Scene(0, job_id="j", node=Node())
    free.discovery.begin_alone()
    assert free.connected == [("j", URL, "c")]
