"""Where the time of a real run went: a rank hangs, all are restarted, and the report accounts for each second."""

from __future__ import annotations

import subprocess
import sys

import pytest

from e2e.training import FAULT, RESUMED, STEP_LIMIT, STEPS, Training

pytestmark = pytest.mark.timeout(240)


def test_the_ledger_and_the_report_of_a_hang(watched: Training) -> None:
    limit = ("--section-timeout", f"step={STEP_LIMIT}")
    launcher = watched.run(*limit, ranks=2, script=("--steps", str(STEPS)), inject=f"rank=1,step={FAULT},kind=hang")
    assert launcher.wait() == 0, launcher.printed()
    incident, api = watched.incident(), watched.api
    assert api is not None
    line, shown = incident["timeline"], api.read(f"/jobs/{watched.job}/goodput")
    spent, (row,) = shown["buckets"], shown["incidents"]

    job = api.job(watched.job)
    assert sum(spent.values()) == pytest.approx(job["ended_at"] - job["started_at"], rel=0.005)
    assert STEP_LIMIT - 2 < spent["hang"] <= line["detected"] - line["since"] + 0.01
    assert spent["handling"] == pytest.approx(line["restarted"] - line["detected"], abs=0.1)
    assert spent["restart"] == pytest.approx(line["first_step"] - line["restarted"], abs=0.1)
    assert spent["startup"] > 0
    assert spent["recomputed"] > 0
    assert spent["productive"] > 0
    assert spent["unseen"] == spent["down"] == spent["stalled"] == 0
    assert 0 < shown["ratio"] < 1

    phases = ("detect_s", "decide_s", "capture_s", "restart_s", "first_step_s")
    assert sum(row[name] for name in phases) == pytest.approx(row["total_s"], abs=0.01)
    assert row["steps_lost"] == FAULT - RESUMED

    done = subprocess.run(
        [sys.executable, "-m", "rankwatch", "report", watched.job, "--monitor", str(api.base_url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert f"JOB {job['name']}" in words
    assert "is FINISHED" in words
    assert " ".join(incident["reason"].split()) in words
    assert f"{FAULT - RESUMED} steps lost" in words
    assert "rankwatch_injected_hang" in words
