from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import fields

import pytest

import rankwatch
from rankwatch.recording import sections
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import Slots
from rankwatch.settings import Settings
from telemetry.receiver import Receiver


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what this machine sets, be it a scheduler or a proxy."""
    ours = {name for setting in fields(Settings) for name in setting.metadata["environment"]}
    for name in ours | {"MASTER_ADDR", "MASTER_PORT"} | {n for n in os.environ if n.startswith("OTEL_")}:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each test the hot path is detached and no thread of ours runs."""
    yield
    rankwatch.shutdown()
    sections.attach(None)
    for thread in threading.enumerate():
        if thread.name in ("rankwatch-liveness", "rankwatch-exporter"):
            thread.join(60)
            assert not thread.is_alive(), thread


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def recorder() -> Recorder:
    """A recorder on private slots, attached to the hot path; no threads."""
    recorder = Recorder(Slots.private())
    recorder.slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    sections.attach(recorder)
    return recorder
