"""Clocks that jump or differ by hours, and two processes that claim one rank: no false alarm, and none missed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from abuse.decoder_target import START, Edge
from rankwatch.cli.common import EXIT_TROUBLE
from rankwatch.cli.status.command import status
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import add_window, body, rank_report
from support.waiting import wait_for

HOUR = 3600.0
WORLD = 4
LIMIT = 2.0
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)

REAL_WAITS = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
"""Only the wall clock is another. libfaketime's correction for old versions of glibc, which a measurement switches on,
on some machines without need, makes every timed wait for a lock end at once or late, the interpreter's among them:
two threads that share it then take turns of 0.2 s."""


def at_work(job: str, step: int, hung: int | None = None, clock: float = 0.0) -> list[ResourceMetrics]:
    """What all ranks report at one moment, each by a clock of its own: rank r's is ``clock`` + 3 (r - 1) hours off."""
    reports = []
    for rank in range(WORLD):
        age = LIMIT + 3 if rank == hung else 0.1
        report = rank_report(job, rank, WORLD, attempt=1, iteration=step, progress=0, open_sections={"step": age},
                             host=f"node-{rank}", beats=step, heartbeat_age=age)  # fmt: skip
        if step % 8 == 0:
            add_window(report, step, sections={"step": {"median": 0.5, "tail": 0.6, "max": 0.7, "mean": 0.5}})
        off = int((clock + 3 * HOUR * (rank - 1)) * 1e9)
        for metric in report.scope_metrics[0].metrics:
            for point in metric.gauge.data_points:
                point.time_unix_nano += off
        reports.append(report)
    return reports


@pytest.fixture
def jumping(tmp_path: Path) -> Iterator[tuple[RunningMonitor, Path]]:
    """A monitor whose wall clock goes as the file states; its monotonic clock is the machine's."""
    if FAKETIME is None:
        pytest.skip("libfaketimeMT.so.1 is missing: apt install libfaketime")
    reported = tmp_path / "clock"
    reported.write_text("+0s")
    settings = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(reported),
        "FAKETIME_NO_CACHE": "1",
        **REAL_WAITS,
    }
    with running_monitor(tmp_path / "monitor", settings=settings) as monitor:
        yield monitor, reported


@pytest.mark.timeout(120)
def test_the_hosts_clock_jumps_while_ranks_of_other_clocks_train(jumping: tuple[RunningMonitor, Path]) -> None:
    monitor, reported = jumping
    with Api(monitor.url) as api:
        launcher = PlayedLauncher(api, "jump", ranks=range(WORLD))
        launcher.register(
            policy={"section_timeouts": {"step": LIMIT}, "silence_timeout": 5.0, "heartbeat_timeout": 3.0}
        )
        launcher.start(1, WORLD)
        step = 0

        def train(clock: float, hung: int | None = None) -> None:
            nonlocal step
            step += 1
            sent = body(*at_work("jump", step, hung, clock))
            assert api.export(sent).status_code == 200

        for offset in ("+5h", "-9h", "+400d", "-400d", "+0s"):
            reported.write_text(offset)
            for _ in range(9):
                train({"+5h": 5 * HOUR, "-9h": -9 * HOUR}.get(offset, 0.0))
                api.judge_now("jump")
            assert api.incidents("jump") == [], f"a jump of {offset} is no hang"
            assert api.job("jump")["state"] in ("starting", "running")
            assert (ready := api.get("/readyz")).status_code == 200, ready.text
        assert api.job("jump")["iteration"] == step
        reported.write_text("-9h")
        train(0.0, hung=2)
        (incident,) = wait_for(lambda: api.incidents("jump"), "a real hang is found after the jumps")
        assert [culprit["rank"] for culprit in incident["culprits"]] == [2]
        now = time.time()
        assert abs(incident["opened_at"] - now) < 60, (
            "its times are those of the monitor's one clock, which did not jump"
        )
        line = [at for at in incident["timeline"].values() if at is not None]
        assert line == sorted(line)


@pytest.mark.long
def test_a_monitor_that_starts_on_another_clock_takes_up_its_jobs(tmp_path: Path) -> None:
    """Its database was written hours later, or hours earlier, than it now is: the job goes on, unharmed."""
    if FAKETIME is None:
        pytest.skip("libfaketimeMT.so.1 is missing: apt install libfaketime")
    database = tmp_path / "rankwatch.db"
    for round_, offset in enumerate(("+0s", "+7h", "-7h")):
        settings = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, **REAL_WAITS}
        with (
            running_monitor(tmp_path / offset, database=database, settings=settings) as monitor,
            Api(monitor.url) as api,
        ):
            for step in range(10 * round_ + 1, 10 * round_ + 9):
                api.report(*at_work("moved", step))
                api.change_policy("moved", section_timeouts={"step": LIMIT}, silence_timeout=5.0)
                api.judge_now("moved")
            assert api.job("moved")["iteration"] == 10 * round_ + 8
            assert len(api.incidents("moved")) == round_, offset
            sent = body(*at_work("moved", 10 * round_ + 9, hung=1))
            assert api.export(sent).status_code == 200
            wait_for(lambda: len(api.incidents("moved")) == round_ + 1, "a hang is found on this clock too")  # noqa: B023
            sent = body(*at_work("moved", 10 * round_ + 10))
            assert api.export(sent).status_code == 200
            wait_for(lambda: api.incidents("moved")[0]["closed_at"], "it goes on")
            # Rows are written in their order.
            monitor.process.terminate()
            assert monitor.process.wait(60) == 0


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def send_report(
    edge: Edge, instance: str, step: int, *, started: float | None = None, host: str = "a", age: float = 0.1
) -> None:
    reported = {"service.instance.id": instance, "process.creation.time": None if started is None else iso(started)}
    report = rank_report("j", 0, 1, iteration=step, open_sections={"step": age}, host=host, resource=reported)
    edge.post(body(report), traces=False, encoded="protobuf", encoding="")
    edge.clock.seconds += 1
    edge.look()


@pytest.mark.parametrize("first_started", [START + 5 * HOUR, START + 3e9])
@pytest.mark.parametrize("host", ["a", "b"])
def test_a_process_from_the_future_does_not_hold_its_rank_for_ever(first_started: float, host: str) -> None:
    """It was started by a clock that runs ahead, and is gone; its successor's clock is right."""
    edge = Edge()
    for step in range(3):
        send_report(edge, "from the future", step, started=first_started)
    edge.clock.seconds += 400
    for step in range(50):
        send_report(edge, "right", step, started=START + 100, host=host)
    job = edge.monitor.jobs["j"]
    assert (job.columns.instances[0], job.columns.iteration_R[0]) == ("right", 49)
    send_report(edge, "right", 50, started=START + 100, host=host, age=4000.0)
    edge.monitor.job("j").policy = job.policy.changed({"section_timeouts": {"step": 60}})
    edge.look()
    assert job.incidents, "a hang of the successor is found"


def test_a_successor_on_a_host_whose_clock_is_behind_owns_its_rank_at_once() -> None:
    """Start times of two hosts cannot be compared."""
    edge = Edge()
    send_report(edge, "first", 5, started=START, host="a")
    send_report(edge, "second", 6, started=START - 3 * HOUR, host="b")
    assert edge.monitor.jobs["j"].columns.instances[0] == "second"
    send_report(edge, "first", 7, started=START, host="a")
    assert edge.monitor.jobs["j"].columns.instances[0] == "second", "reports of the replaced one are ignored"


def test_the_old_process_of_a_rank_that_keeps_reporting_is_ignored() -> None:
    edge = Edge()
    send_report(edge, "old", 90, started=START)
    send_report(edge, "new", 3, started=START + 10)
    for step in range(91, 95):
        send_report(edge, "old", step, started=START, age=500.0)
        send_report(edge, "new", step - 80, started=START + 10)
    job = edge.monitor.jobs["j"]
    assert job.columns.iteration_R[0] == 14
    assert job.stale.count == 4
    assert job.incidents == []


def test_two_processes_that_claim_one_rank_hide_no_hang() -> None:
    """Without start times the newcomer owns the rank; that the other goes on does not hide that it is stuck."""
    edge = Edge()
    send_report(edge, "one", 1)
    send_report(edge, "two", 1)
    job = edge.monitor.jobs["j"]
    job.policy = job.policy.changed({"section_timeouts": {"step": 5}})
    for step in range(2, 8):
        send_report(edge, "one", step)
        send_report(edge, "two", 1, age=float(step))
    assert job.columns.instances[0] == "two"
    assert [incident.kind for incident in job.incidents] == ["section_overrun"]


def test_a_histogram_of_a_clock_that_was_set_back_is_still_counted() -> None:
    """Cumulative points carry the sender's time; one that is earlier but counts more is new."""
    edge = Edge()
    now_ns = int((START + 60) * 1e9)
    for at, count in ((now_ns, 10), (now_ns - int(5 * HOUR * 1e9), 14), (now_ns - int(4 * HOUR * 1e9), 20)):
        report = rank_report("j", 0, 1, iteration=count)
        metric = report.scope_metrics[0].metrics.add(name="rankwatch.section.duration")
        metric.histogram.aggregation_temporality = 2  # type: ignore[assignment]
        point = metric.histogram.data_points.add(start_time_unix_nano=now_ns - 10**9, time_unix_nano=at, count=count)
        point.sum, point.min, point.max = 0.5 * count, 0.5, 0.5
        point.attributes.add(key="rankwatch.section").value.string_value = "step"
        edge.post(body(report), traces=False, encoded="protobuf", encoding="")
    assert edge.monitor.jobs["j"].durations.sections["step"].count == 20


@pytest.mark.parametrize("offset", ["+7h", "-7h"])
def test_a_command_states_ages_by_the_monitors_clock(
    tmp_path: Path, offset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if FAKETIME is None:
        pytest.skip("libfaketimeMT.so.1 is missing: apt install libfaketime")
    settings = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, **REAL_WAITS}
    with running_monitor(tmp_path, settings=settings) as monitor, Api(monitor.url) as api:
        api.report(*at_work("away", 1))
        api.change_policy("away", section_timeouts={"step": LIMIT}, silence_timeout=600.0, on_hang="log")
        api.report(*at_work("away", 1, hung=1))
        wait_for(lambda: api.incidents("away"), "the hang is found")
        assert status(["away", "--monitor", monitor.url]) == EXIT_TROUBLE
        shown = capsys.readouterr().out
        assert (found := re.search(r"INCIDENT [a-z ]+ for ([\d.]+) s,", shown)), shown
        assert float(found[1]) >= LIMIT
