"""Which monitor a launcher connects to: the configured one, its own, or the one that group rank 0 publishes."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwatch.contract import env
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.monitor import discovery as module
from rankwatch_launcher.monitor.discovery import FACT, FACT_SECONDS, MonitorDiscovery
from rankwatch_launcher.options import Options

URL = "http://monitor:9560"


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
        self.discovery = MonitorDiscovery(Options(**options), self._connect, "h:29400")

    def _connect(self, job_id: str, url: str, token: str, *, ready: object = None, patience: float = 0.0) -> None:
        self.connected.append((job_id, url, token))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (env.MONITOR_URL, env.JOB_ID, env.JOB_NAME, env.TOKEN):
        monkeypatch.setenv(name, "")


def test_group_rank_0_publishes_the_configured_monitor_and_the_job_id_but_not_its_token() -> None:
    scene = Scene(0, monitor_url=URL, token="t", job_id="j")
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.connected == [("j", URL, "t")]
    assert scene.store.find(FACT) == {"url": URL, "token": "", "job_id": "j"}


def test_an_own_monitor_publishes_a_token_that_may_only_ingest_and_ranks_get_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANKWATCH_MONITOR_TOKEN", "control")
    own = SimpleNamespace(url=URL, token="control", ingest_token="ingest", start=lambda: None, wait_ready=bool)
    monkeypatch.setattr(module.process, "available", lambda: True)
    monkeypatch.setattr(module, "LocalMonitor", lambda *_: own)
    scene = Scene(0, job_id="j", token="the user's, for another monitor")
    scene.discovery.on_rendezvous(scene.rendezvous)
    assert scene.store.find(FACT) == {"url": URL, "token": "ingest", "job_id": "j"}
    assert scene.connected == [("j", URL, "control")]
    assert os.environ[env.TOKEN] == "ingest"
    assert "control" not in os.environ.values()


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
    assert scene.store.find(FACT) == {"url": "", "token": "", "job_id": "j"}


def test_a_monitor_that_cannot_be_started_does_not_stop_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no free port")

    monkeypatch.setattr(module.process, "available", lambda: True)
    monkeypatch.setattr(module, "LocalMonitor", refuse)
    scene = Scene(0, job_id="j")
    scene.discovery.begin_alone()
    assert (scene.connected, scene.discovery.holds_monitor) == ([], False)
