"""``rankwatch status`` against a real monitor: output, exit codes, and the live screen on a real terminal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch.cli.status import query, render
from rankwatch.cli.status.command import status
from rankwatch.cli.terminal import Terminal
from rankwatch.monitor_client import MonitorClient
from support.launcher import AT_WORK, WAITING, PlayedLauncher
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.otlp import add_window, attributes, rank_report, reports_of_all
from support.pseudo_terminal import ENTER, LEAVE, Seat, seated
from support.waiting import wait_for

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(monitor: RunningMonitor, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Ask ``rankwatch status``: its exit code and what it printed."""

    def asked(*arguments: str) -> tuple[int, str]:
        code = status([*arguments, "--monitor", monitor.url])
        return code, capsys.readouterr().out

    return asked


def report(api: Api, *reports: object) -> None:
    api.report(*reports)  # type: ignore[arg-type]


def hang(api: Api, job: str) -> PlayedLauncher:
    """Four ranks, of which rank 2 is behind in its step and the others wait; their stacks have been taken."""
    launcher = PlayedLauncher(api, job)
    launcher.register(policy={"section_timeouts": {"step": 10}, "on_hang": "capture"})
    launcher.start(1)
    report(api, *reports_of_all(job, 4))
    report(api, *reports_of_all(job, 4, overdue=12.5))
    capture = launcher.next_directive("capture")
    launcher.send_stacks(capture, {0: WAITING, 1: WAITING, 2: AT_WORK, 3: WAITING})
    launcher.acknowledge(capture)
    wait_for(lambda: api.incidents(job)[0]["phase"] == "detected", "the stacks are taken in")
    return launcher


def test_a_job_that_is_well(api: Api, job: str, ask: Ask) -> None:
    report(api, *reports_of_all(job, 4))
    code, printed = ask(job)
    assert code == 0
    lines = printed.splitlines()
    assert lines[0] == f"JOB {job} is RUNNING"
    assert lines[1] == "  All 4 ranks make progress"
    assert lines[2].startswith("  step 7, 4 of 4 ranks reporting, attempt 1, 0 restarts of 3, began 20")
    assert "  running  4  (0-3)" in lines
    assert "INCIDENT" not in printed
    assert "STRAGGLERS" not in printed


def test_what_a_healthy_job_rests_on_stands_below_its_figures(monitor: RunningMonitor, api: Api, job: str) -> None:
    report(api, *reports_of_all(job, 4))
    snapshot = query.job_snapshot(MonitorClient(monitor.url), job)
    account = [{"text": "a step takes 1.00 s", "warns": False}, {"text": "no GPU is throttled", "warns": False}]
    stated = {**snapshot.job, "account": account}
    lines = render.job_lines(replace(snapshot, job=stated), Terminal(140), 100.0)
    assert lines[3] == "  a step takes 1.00 s; no GPU is throttled"


def test_a_hang_names_the_rank_the_reason_the_limit_and_what_was_done(api: Api, job: str, ask: Ask) -> None:
    hang(api, job)
    code, printed = ask(job)
    assert code == 3
    [incident] = api.incidents(job)
    flat = " ".join(printed.split())
    assert flat.startswith(f"JOB {job} is HUNG {incident['title']} since ")
    assert "4 ranks idle, " in flat
    assert flat.count(incident["title"]) == 1, "what was reported at the top is not stated again"
    assert "waiting 3 (0-1, 3)" in flat
    assert "hung 1 (2)" in flat
    assert "INCIDENT section over its limit for" in flat
    assert "culprit: rank 2 on node-a, behind" in flat
    assert f"rankwatch incidents {job} {incident['id'].removeprefix(f'{job}-')}" in flat
    assert "action: capture; the policy is to capture" in flat
    assert "node-a active 0-3" in flat


def test_the_table_has_every_job_with_its_reason_below_it(api: Api, job: str, ask: Ask) -> None:
    hang(api, job)
    code, printed = ask()
    assert code == 3
    lines = printed.splitlines()
    assert {"JOB", "STATE", "STEP", "RANKS"} <= set(lines[0].split())
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{job} "))
    assert "hung" in lines[at]
    assert "4/4" in lines[at]
    assert "healthy" not in lines[at]
    assert " ".join(" ".join(lines[at + 1 : at + 3]).split()).startswith("Rank 2 on node-a hangs in ")


def test_a_job_without_a_step_is_not_called_healthy() -> None:
    reason = "No step has completed yet: its ranks report"
    unknown = {"iteration": None, "iterations_per_second": None, "goodput": None}
    counts = {"started_at": 0.0, "ranks_reporting": 2, "world_size": 2, "restarts": 0, "max_restarts": 3}
    shown = {**WELL, **unknown, **counts, "id": "a", "name": "a", "verdict": "no_step", **titled(reason)}
    row, below = render.fleet_lines([shown], Terminal(140), 100.0)[1:]
    assert "no step" in row
    assert below.strip() == reason


def test_what_a_person_should_do_stands_below_the_reason() -> None:
    counts = {"started_at": 0.0, "ranks_reporting": 2, "world_size": 2, "restarts": 0, "max_restarts": 3}
    known = {"iteration": 7, "iterations_per_second": 0.0, "goodput": 0.9, "verdict": "healthy", "open_incidents": 1}
    shown = {**WELL, **counts, **known, "id": "a", "name": "a", "state": "hung", **titled("Rank 1 hangs.")}
    wait = "Wait: the launchers restart the ranks; meanwhile check GPU 5"
    for advised, line in (
        (advice("Restart the ranks"), ["next: Restart the ranks"]),
        (advice(wait, waits=True), [wait]),
        (None, []),
    ):
        job = {**shown, "advice": advised}
        below = render.fleet_lines([job], Terminal(140), 100.0)[2:]
        assert [line.strip() for line in below] == ["Rank 1 hangs.", *line]


def advice(text: str, *steps: str, waits: bool = False, command: str = "", **more: Any) -> dict[str, Any]:
    """An advice whose first step has a command."""
    made = [{"text": each, "command": command * (n == 0), "host": "", "note": ""} for n, each in enumerate(steps)]
    return {"text": text, "waits": waits, "steps": made, "alternatives": [], "notes": [], **more}


def test_all_steps_about_a_job_stand_below_it_alone() -> None:
    counts = {"started_at": 0.0, "ranks_reporting": 2, "world_size": 2, "restarts": 0, "max_restarts": 3}
    known = {"iteration": 7, "iterations_per_second": 1.0, "goodput": 0.9, "verdict": "worker", **titled("Slow.")}
    look, then = "Look at the GPU of rank 1.", "If it stays slow, restart without host-1."
    job = {**WELL, **counts, **known, "id": "a", "name": "a", "advice": advice(look[:-1], look, then)}
    below = render.fleet_lines([job], Terminal(140), 100.0)[2:]
    assert [line.strip() for line in below] == ["Slow.", f"next: {look[:-1]}"]
    lines = [line.strip() for line in render.state_lines(job, Terminal(140), 100.0)]
    assert lines[2:] == [f"next, 1: {look}", f"next, 2: {then}"]


def test_what_is_awaited_stands_above_what_can_be_looked_at_meanwhile() -> None:
    job = {**WELL, "id": "a", "name": "a", "state": "hung", "reason": ""}
    waits = advice("Wait; meanwhile check GPU 5", "Check GPU 5.", waits=True, command="nvidia-smi")
    lines = [line.strip() for line in render.state_lines({**job, "advice": waits}, Terminal(140), 100.0)]
    assert lines[2:] == ["Wait; meanwhile check GPU 5", "Check GPU 5.", "nvidia-smi"]


def test_each_answer_of_a_host_that_is_not_heard_has_a_line() -> None:
    alternatives = ["One is in state D: restart.", "All are in state S or R: look on."]
    step = "Look at this job's launcher on node b."
    advised = advice(step[:-1], step, command="ssh b ps -p 7", alternatives=alternatives)
    job = {**WELL, "id": "a", "name": "a", "state": "hung", "reason": "", "advice": advised}
    lines = [line.strip() for line in render.state_lines(job, Terminal(140), 100.0)]
    assert lines[2:] == [f"next: {step}", "ssh b ps -p 7", *alternatives]


def test_json_holds_the_same_facts(api: Api, job: str, ask: Ask) -> None:
    hang(api, job)
    code, printed = ask(job, "--json")
    shown = json.loads(printed)
    assert code == 3
    assert shown["in_trouble"] is True
    assert shown["ranks"] == {"waiting": [0, 1, 3], "hung": [2]}
    assert shown["incident"]["id"] == api.incidents(job)[0]["id"]
    code, printed = ask("--json")
    shown = json.loads(printed)
    assert code == 3
    assert {each["id"]: each["in_trouble"] for each in shown["jobs"]}[job] is True


def test_a_straggler_is_trouble_and_is_named_in_the_monitors_words(api: Api, job: str, ask: Ask) -> None:
    iteration = 0

    def named() -> list[dict]:
        nonlocal iteration
        iteration += 8
        reports = []
        for rank in range(8):
            compute = (0.2 if rank == 5 else 0.1) + 0.001 * ((rank + iteration // 8) % 3)
            made = rank_report(job, rank, 8, iteration=iteration, host=f"host-{rank // 4}")
            parts = {"data": 0.01, "host": 0.05, "compute": compute, "communication": 0.34 - compute}
            add_window(made, iteration, sections={"forward": {"median": compute}}, parts=parts)
            reports.append(made)
        report(api, *reports)
        return api.read(f"/jobs/{job}/stragglers")["stragglers"]  # type: ignore[return-value]

    [blamed] = wait_for(named, "the straggler is named")
    code, printed = ask(job)
    assert code == 3
    flat = " ".join(printed.split())
    assert f"STRAGGLERS 1 now {blamed['reason']}" in flat
    assert "GPU-minutes so far; action: log" in flat


def test_an_unknown_job_is_a_usage_error(
    monitor: RunningMonitor, api: Api, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report(api, *reports_of_all(job, 1))
    assert status(["no-such-job", "--monitor", monitor.url]) == 2
    assert capsys.readouterr().err.startswith("rankwatch status: there is no job 'no-such-job'")


def test_a_monitor_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["--monitor", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("rankwatch status: no monitor answers at http://127.0.0.1:9")


def test_https_for_a_monitor_that_speaks_http_is_named(
    monitor: RunningMonitor, capsys: pytest.CaptureFixture[str]
) -> None:
    secure = monitor.url.replace("http:", "https:")
    assert status(["--monitor", secure]) == 2
    assert capsys.readouterr().err == f"rankwatch status: what listens at {secure} speaks http: give {monitor.url}\n"


def test_ctrl_c_while_waiting_for_an_answer_prints_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with seated([sys.executable, "-m", "rankwatch", "status", "--monitor", url], environment(TERM="xterm")) as seat:
            with mute.accept()[0]:  # it is connected, and waits for an answer
                seat.press("\x03")
                assert seat.ended() == 130
            assert "Traceback" not in seat.seen


def test_a_monitor_without_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_monitor(tmp_path) as empty:
        assert status(["--monitor", empty.url]) == 0
    assert capsys.readouterr().out == "no job yet: 'rankwatch run' starts one\n"


@pytest.mark.parametrize("arguments", [["--watch"], ["--watch", "--json"]])
def test_watching_needs_a_terminal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status(arguments) == 2
    assert capsys.readouterr().err.startswith("rankwatch status: --watch ")


# On a terminal --------------------------------------------------------------------------------------------------------


def watching(url: str, job: str, **more: int) -> AbstractContextManager[Seat]:
    command = [sys.executable, "-m", "rankwatch", "status", job, "--watch", "--monitor", url]
    return seated(command, environment(TERM="xterm-256color"), **more)


@pytest.mark.parametrize("leave", ["q", "\x03", "\x04"])
def test_quitting_restores_the_terminal(monitor: RunningMonitor, api: Api, job: str, leave: str) -> None:
    report(api, *reports_of_all(job, 4))
    with watching(monitor.url, job) as seat:
        seen = seat.until("q leaves")
        assert seen.startswith(ENTER)
        assert "RUNNING" in seen
        seat.press(leave)
        assert seat.ended() == 0
        assert seat.seen.count(LEAVE) == 1
        assert seat.seen.rstrip().endswith(LEAVE), "nothing is written after the shell's screen is back"
        assert "\x1b[?25h" in seat.seen
        assert seat.as_it_was


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(
    monitor: RunningMonitor, api: Api, job: str, number: signal.Signals
) -> None:
    report(api, *reports_of_all(job, 4))
    with watching(monitor.url, job) as seat:
        seat.until("q leaves")
        os.kill(seat.process.pid, number)
        assert seat.ended() == 0
        assert LEAVE in seat.seen
        assert seat.as_it_was


def test_a_job_that_gets_into_trouble_is_redrawn_and_is_the_exit_code(
    monitor: RunningMonitor, api: Api, job: str
) -> None:
    report(api, *reports_of_all(job, 4))
    with watching(monitor.url, job) as seat:
        seat.until("RUNNING")
        hang(api, job)
        seat.until("HUNG")
        seat.until("culprit: rank 2")
        seat.press("q")
        assert seat.ended() == 3


def test_a_lost_monitor_is_shown_and_retried(tmp_path: Path, job: str) -> None:
    def visible(seat: Seat, url: str) -> None:
        seat.until("q leaves")
        seat.forget()
        seat.until(url)

    with running_monitor(tmp_path) as first, Api(first.url) as api:
        report(api, *reports_of_all(job, 4))
        # The database writes behind: a job that a monitor has only just learned of may die with it.
        wait_for(lambda: first.database.stat().st_size > 0 and api.job(job)["iteration"] == 7, "the job is known")
        with watching(first.url, job) as seat:
            visible(seat, first.url)
            first.kill()
            seat.until("THE MONITOR IS AWAY since")
            assert seat.seen.rindex("step 7") > seat.seen.rindex(first.url), "the last answer stays in sight"
            port = first.url.rpartition(":")[2]
            seat.forget()
            with running_monitor(tmp_path / "second", "--port", port, database=first.database):
                seat.until(first.url)
                assert seat.process.poll() is None
                seat.press("q")
                assert seat.ended() in (0, 3)
            assert seat.as_it_was


def test_ctrl_c_while_the_monitor_is_away_is_its_exit_code(tmp_path: Path, job: str) -> None:
    with running_monitor(tmp_path) as running, Api(running.url) as api:
        report(api, *reports_of_all(job, 4))
        with watching(running.url, job) as seat:
            seat.until("q leaves")
            running.kill()
            seat.until("THE MONITOR IS AWAY since")
            seat.press("\x03")
            assert seat.ended() == 1
            assert seat.as_it_was


def test_what_is_too_much_for_a_small_terminal_is_counted(monitor: RunningMonitor, api: Api, job: str) -> None:
    hang(api, job)
    with watching(monitor.url, job, columns=60, lines=12) as seat:
        seat.until("below: arrow keys, PgUp, PgDn; q leaves")
        drawn = seat.seen.partition("\x1b[H")[2].partition("\x1b[J")[0]
        assert drawn.count("\r\n") == 11
        seat.resize(140, 60)
        seat.forget()
        seat.until("NODES")
        seat.press("q")
        assert seat.ended() == 3


def test_ctrl_z_gives_the_shell_its_screen_and_fg_brings_the_picture_back(
    monitor: RunningMonitor, api: Api, job: str
) -> None:
    report(api, *reports_of_all(job, 4))
    with watching(monitor.url, job) as seat:
        seat.until("q leaves")
        seat.forget()
        os.kill(seat.process.pid, signal.SIGTSTP)
        stat = Path(f"/proc/{seat.process.pid}/stat")
        # A session leader without a job-control parent is not stopped by SIGTSTP's default: the kernel drops it.
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T" or ENTER in seat.seen, "it stops")
        seat.until(LEAVE)
        os.kill(seat.process.pid, signal.SIGCONT)
        seat.until(ENTER)
        seat.until("q leaves")
        seat.press("q")
        assert seat.ended() == 0
        assert seat.as_it_was


def test_a_job_that_is_not_known_yet_is_waited_for(monitor: RunningMonitor, api: Api, job: str) -> None:
    with watching(monitor.url, job) as seat:
        seat.until("waiting for job")
        report(api, *reports_of_all(job, 1))
        seat.until("JOB ")
        seat.press("q")
        assert seat.ended() in (0, 3)


# Without a monitor ----------------------------------------------------------------------------------------------------


def titled(words: str) -> dict[str, str]:
    return {"headline": words, "title": words}


WELL = {
    "state": "running", "open_incidents": 0, "open_stragglers": 0, "ended_at": None, "advice": None, "headline": "",
    "title": "All 2 ranks make progress", "since": None, "idle": 0, "lost": None, "next": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "alone", "trouble"),
    [
        ({}, True, False),
        ({"state": "starting"}, False, False),
        ({"state": "hung"}, False, True),
        ({"state": "restarting"}, False, True),
        ({"state": "lost"}, False, True),
        ({"open_incidents": 1}, False, True),
        ({"open_stragglers": 1}, False, True),
        ({"state": "failed", "ended_at": 900.0}, False, True),
        ({"state": "failed", "ended_at": -9000.0}, False, False),
        ({"state": "failed", "ended_at": -9000.0}, True, True),
        ({"state": "stopped", "open_stragglers": 1}, True, False),
        ({"state": "finished", "open_incidents": 1}, True, False),
    ],
)
def test_what_counts_as_trouble(more: dict, alone: bool, trouble: bool) -> None:
    assert query.in_trouble({**WELL, **more}, 1000.0, alone=alone) is trouble


@pytest.mark.parametrize(
    ("logged", "counts", "found"),
    [
        ([2.5, None, None], [None, 3.0, 60.0], {"values": 63, "last_finite": 2.5}),
        ([None, None], [1.0, 1.0], {"values": 2, "last_finite": None}),
        ([2.5, 2.5], [1.0, 1.0], {"values": 2, "last_finite": None}),
        ([2.5, None, 2.0], [None, 3.0, None], None),
    ],
)
def test_logged_values_are_not_finite_until_one_is_again(logged: list, counts: list, found: dict | None) -> None:
    trends = {"logged": {"loss": logged, "lr": [0.1]}, "non_finite": {"loss": counts}}
    assert query.not_finite(trends) == ({} if found is None else {"loss": found})


def test_a_loss_that_is_nan_is_stated(api: Api, job: str, ask: Ask) -> None:
    made = rank_report(job, 0, 1, beats=1)
    metric = made.scope_metrics[0].metrics.add(name="rankwatch.training.scalar.non_finite", unit="1")
    metric.sum.data_points.add(as_int=3).attributes.extend(attributes({"rankwatch.scalar": "loss"}))
    report(api, made)
    words = "LOGGED loss is NaN or infinite: 3 values, never finite in the last hour"
    wait_for(lambda: words in " ".join(ask(job)[1].split()), "a point of the trends has them")
    assert json.loads(ask(job, "--json")[1])["not_finite"] == {"loss": {"values": 3, "last_finite": None}}


def test_the_import_of_rankwatch_brings_nothing_of_this() -> None:
    code = (
        "import sys, rankwatch; print([m for m in sys.modules if m in ('argparse', 'termios') or 'rankwatch.st' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_job_that_another_monitor_watches_stands_in_the_table() -> None:
    """As ``GET /jobs`` lists it where several monitors share a database: what only its own monitor knows is missing."""
    row = {"id": "far", "name": "far", "state": "running", "reason": "", "world_size": 64, "ranks_reporting": None}
    row |= {"attempt": 1, "started_at": 40.0, "goodput": None, "monitor": "b"}

    class Shared(MonitorClient):
        def read(self, path: str) -> dict[str, object]:
            return {"jobs": [row, {**row, "id": "nobody-s", "monitor": None}]}

    jobs = query.list_jobs(Shared("http://127.0.0.1:1"))
    assert not any(query.in_trouble(job, 100.0, alone=False) for job in jobs)
    lines = render.fleet_lines(jobs, Terminal(100), 100.0)
    assert lines[1].split() == ["far", "running", "64", "60.0", "s"]
    assert lines[2].strip() == "watched by monitor b"
    assert lines[3].split()[0] == "nobody-s"
    assert len(lines) == 4


def test_the_table_fits_a_narrow_terminal() -> None:
    shown = {
        **WELL,
        "id": "an-id-that-is-quite-long-for-a-job-0123456789",
        "name": "gpt",
        "reason": "",
        "iteration": 123456,
        "iterations_per_second": 12.5,
        "started_at": 0.0,
        "ranks_reporting": 16384,
        "world_size": 16384,
        "restarts": 1,
        "max_restarts": 3,
        "goodput": 0.93,
        "verdict": "healthy",
    }
    for width in (40, 60, 80, 140):
        lines = render.fleet_lines([shown], Terminal(width), 100.0)
        assert max(map(len, lines)) <= width
        assert "running" in lines[1]
    assert "12.50 steps/s" in lines[1]
