"""Nothing is remembered of processes that a restart has replaced: a job's memory does not grow with its restarts."""

from __future__ import annotations

import gc

import pytest

from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch_monitor.core.events import RankIdentity
from rankwatch_monitor.ingest import metrics_decoder
from rankwatch_monitor.ingest.lru import SWEPT
from rankwatch_monitor.ingest.routes import OtlpEndpoints
from rankwatch_monitor.service.monitor import Monitor
from support.otlp import add_window, body, rank_report

RANKS, JOB = 96, "restarted"


class Stage:
    """A job whose ranks a launcher has started, and reports of them, as bytes."""

    def __init__(self) -> None:
        self.monitor = Monitor()
        self.monitor.register(JOB, JOB)
        self.monitor.submit(JOB, NodeRegistration("n", "h", 1, RANKS))
        self.endpoints = OtlpEndpoints(self.monitor.ingest, replaced=self.monitor.replaced)

    def start(self, attempt: int) -> None:
        """The launcher starts all ranks."""
        for rank in range(RANKS):
            started = ProcessEvent("n", ProcessEventKind.STARTED, attempt, rank=rank, pid=rank + 1, world_size=RANKS)
            self.monitor.submit(JOB, started)
        self.monitor.tick()

    def report(self, attempt: int) -> None:
        """Each rank reports a window."""
        for rank in range(RANKS):
            report = rank_report(JOB, rank, RANKS, iteration=8, attempt=attempt, open_sections={"step": 1.0})
            add_window(report, 8, sections={"step": {"median": 1.0}})
            assert self.endpoints.take_protobuf(body(report)) is None


def remembered() -> list[int]:
    """The attempts of all processes of which anything is remembered, anywhere."""
    gc.collect()
    return sorted({each.attempt for each in gc.get_objects() if isinstance(each, RankIdentity) and each.job_id == JOB})


def sweep_always(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWEEP_INTERVAL", "SWEEP_ON"):
        monkeypatch.setattr(metrics_decoder, name, 0.0)


def test_a_process_is_forgotten_once_its_attempt_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_always(monkeypatch)
    stage = Stage()
    for attempt in (1, 2):
        stage.start(attempt)
        stage.report(attempt)
    for _ in range(SWEPT // 32):
        stage.report(2)
    assert remembered() == [2]


def test_a_process_is_remembered_while_its_attempt_may_be_returned_to(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_always(monkeypatch)
    stage = Stage()
    stage.start(1)
    stage.report(1)
    stage.monitor.submit(JOB, NodeRegistration("false", "x", 1, 1))
    stage.monitor.submit(JOB, ProcessEvent("false", ProcessEventKind.STARTED, 2, rank=0, pid=1, world_size=1))
    stage.monitor.tick()
    for _ in range(SWEPT // 32):
        stage.report(2)
    assert remembered() == [1, 2]


def test_ranks_share_the_names_of_their_job_and_host() -> None:
    stage = Stage()
    stage.start(1)
    stage.report(1)
    gc.collect()
    known = [each for each in gc.get_objects() if isinstance(each, RankIdentity) and each.job_id == JOB]
    assert len(known) == RANKS
    assert len({id(name) for each in known for name in (each.job_id, each.job_name)}) == 1
    assert len({id(each.host) for each in known}) == 1
