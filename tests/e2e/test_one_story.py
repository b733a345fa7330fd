"""One incident, the same everywhere: API, log, terminal, report, Prometheus, the page, a webhook, W&B."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.training import STEP_LIMIT, Training
from support.browser import chromium
from support.http_receiver import HttpReceiver, http_receiver
from support.monitor_process import RunningMonitor, running_monitor
from support.wandb_files import written_runs

RANK, STEP = 1, 35
PAGE = "https://monitor.example"


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as made:
        yield made


@pytest.fixture
def reported(tmp_path: Path, receiver: HttpReceiver) -> Iterator[RunningMonitor]:
    """A monitor with all of its publishers."""
    flags = ("--webhook", f"json={receiver.url}/hook", "--external-url", PAGE)
    wandb = ("--wandb-project", "story", "--wandb-mode", "offline", "--wandb-dir", str(tmp_path / "files"))
    (tmp_path / "files").mkdir()
    with running_monitor(tmp_path / "monitor", *flags, *wandb) as monitor:
        yield monitor


def command(monitor: RunningMonitor, *arguments: str, code: int = 0) -> str:
    """What a command prints, with all white space made one blank: sentences are wrapped at the terminal's width."""
    done = subprocess.run(
        [sys.executable, "-m", "rankwatch", *arguments, "--monitor", monitor.url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def on_the_page(url: str, job: str) -> str:
    """The text of the job's page in a real browser."""
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{url}/#/jobs/{job}")
        page.locator(".verdict > h2").wait_for()
        return " ".join(page.inner_text("body").split())


def captured(training: Training) -> dict[str, Any]:
    """The incident, once the stacks are in and nothing more is done about it."""

    def settled() -> dict[str, Any]:
        found = training.incidents()
        there = bool(found) and found[0]["timeline"]["captured"] and found[0]["phase"] == "detected"
        return found[0] if there else {}

    return training.until("the stacks of the hang are in", settled)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_incident_is_reported_the_same_everywhere(
    training: Training, reported: RunningMonitor, receiver: HttpReceiver, tmp_path: Path
) -> None:
    training.follow(reported.url)
    limit = ("--section-timeout", f"step={STEP_LIMIT}", "--on-hang", "capture")
    training.run(*limit, ranks=2, inject=f"rank={RANK},step={STEP},kind=hang")
    incident = captured(training)
    reason, job = incident["reason"], training.job
    assert re.match(rf"Rank {RANK} on \S+ has been in section 'step' for [\d.]+ s, over its configured limit", reason)

    assert reason in reported.printed(), "the log"
    assert incident["title"] in command(reported, "status", job, code=3), "the terminal"
    assert reason in command(reported, "incidents", job, incident["id"]), "one incident in the terminal"
    assert reason in command(reported, "report", job), "the report"
    assert training.api is not None
    metrics = training.api.metrics()
    blamed = [dict(labels) for (name, labels) in metrics if name == "rankwatch_culprit"]
    assert [(each["job"], each["rank"], each["reason"]) for each in blamed] == [(job, str(RANK), reason)], "Prometheus"
    shown = on_the_page(reported.url, job)
    assert incident["title"] in shown, "the page"

    command(reported, "order", job, "restart", "--reason", "seen in the terminal", "--yes")
    over = training.incident()
    assert training.finish() == [0]
    assert (over["id"], over["reason"], over["action"]) == (incident["id"], reason, "restart")
    messages = [each.json for each in receiver.taken]
    about = [message for message in messages if message.get("incident", {}).get("id") == incident["id"]]
    assert [message["event"] for message in about] == ["incident_opened", "incident_closed"], "the webhook"
    assert about[0]["incident"]["reason"] in reported.printed()
    assert about[1]["incident"]["reason"] == reason

    reported.process.terminate()
    reported.process.wait(20)
    (run,) = written_runs(tmp_path / "files")
    assert [row["reason"] for row in run.tables("incidents")[-1]] == [reason], "W&B"
    (alert,) = run.alerts
    about, action, link = alert.text.split("\n")
    assert about in reported.printed(), "W&B's alert"
    # An alert states what is being done when it is made, which on a busy machine is after the order.
    ordered = "action: restart; an operator ordered restart: seen in the terminal"
    assert action in ("action: capture; the policy is to capture", ordered)
    assert link == f"{PAGE}/#/jobs/{job}/incidents/{incident['id']}", "it leads to the incident's page"
