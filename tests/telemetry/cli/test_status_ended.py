"""``rankwatch status`` of a job that has ended: its ranks, why no restart followed, and what to do next."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.cli.status.command import status
from rankwatch.cli.status.render import state_lines
from rankwatch.cli.terminal import Terminal
from rankwatch_monitor.core.views import job_view
from support.launcher import PlayedLauncher
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor
from support.otlp import reports_of_all
from support.waiting import wait_for


def ended(api: Api, job: str, kind: str, reason: str, **more: str) -> None:
    launcher = PlayedLauncher(api, job)
    launcher.register()
    launcher.start(1)
    api.report(*reports_of_all(job, 4))
    launcher.events({"node": launcher.node, "kind": kind, "attempt": 1, "reason": reason, **more})
    wait_for(lambda: api.job(job)["state"] == kind, "the job has ended")


def test_a_failed_job_has_ended_ranks_and_a_next_step(
    monitor: RunningMonitor, api: Api, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = "rank 1 on node-a exited with code 1"
    why = f"{cause}; all 3 restarts are used up (--max-restarts)"
    ended(api, job, "failed", why, cause=cause, no_restart="used_up")
    status([job, "--monitor", monitor.url])
    printed = " ".join(capsys.readouterr().out.split())
    assert "next: Remove the cause, then launch the job again." in printed
    assert "ended 4 (0-3)" in printed
    assert "running" not in printed
    status(["--monitor", monitor.url])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(job))
    assert "/4" not in row, "an ended job has no ranks that report"


def test_a_finished_job_has_finished_ranks_and_no_next_step(
    monitor: RunningMonitor, api: Api, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(api, job, "finished", "")
    status([job, "--monitor", monitor.url])
    printed = " ".join(capsys.readouterr().out.split())
    assert "finished 4 (0-3)" in printed
    assert "next:" not in printed


def test_a_lost_job_has_the_steps_of_its_page_each_with_its_command() -> None:
    scene = Scene(4, hosts=2).run(20).cut_host(0).cut_host(1).run(200)
    job = job_view.summary(scene.job, scene.now)
    first, *others = job["advice"]["steps"]
    lines = state_lines(job, Terminal(200), scene.now)
    assert f"  next, 1: {first['text']}" in lines
    assert lines[lines.index(f"  next, 1: {first['text']}") + 1] == f"    {first['command']}"
    assert [f"  next, {n}: {step['text']}" in lines for n, step in enumerate(others, 2)] == [True, True]
