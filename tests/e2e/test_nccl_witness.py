"""NCCL's own answer beside our verdict, in real jobs: a rank answers as NCCL's RAS does, and the launcher asks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from e2e.story import assert_blamed
from e2e.training import FAULT, STEP_LIMIT, STEPS, Training
from support.ports import free_port

pytestmark = pytest.mark.timeout(240)


def hung(training: Training, accused: int) -> None:
    """A job of three ranks, of which rank 2 hangs and NCCL accuses one."""
    script = ("--steps", str(STEPS), "--nccl-accuses", str(accused))
    launcher = training.run(
        *("--section-timeout", f"step={STEP_LIMIT}"),
        ranks=3,
        script=script,
        inject=f"rank=2,step={FAULT},kind=hang",
        NCCL_RAS_ADDR=f"localhost:{free_port()}",
    )
    assert launcher.wait() == 0, launcher.printed()


def test_where_nccl_accuses_the_same_rank_both_are_shown(watched: Training) -> None:
    hung(watched, 2)
    incident = watched.incident()
    assert_blamed(incident, 2, "behind")
    (answer,) = incident["nccl"]
    assert (answer["version"], answer["accused"], answer["witness"]) == ("2.28.9", [2], "agrees")
    assert watched.api is not None
    shown = subprocess.run(
        [
            sys.executable,
            "-m",
            "rankwatch",
            "incidents",
            watched.job,
            incident["id"],
            "--monitor",
            str(watched.api.base_url),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer["lines"][0][:40] in " ".join(shown.stdout.split())


def test_where_nccl_accuses_another_rank_nobody_is_named(watched: Training) -> None:
    hung(watched, 1)
    incident = watched.incident()
    assert incident["culprits"] == []
    (answer,) = incident["nccl"]
    assert (answer["accused"], answer["witness"]) == ([1], "others")
    assert watched.summary()["restarts"] == 1, "what has to be done does not depend on who it was"


def test_diagnose_shows_what_nccl_answers_about_a_job_that_nothing_watches(watched: Training) -> None:
    address = {"NCCL_RAS_ADDR": f"localhost:{free_port()}"}
    script = ("--uninstrumented", "--nccl-accuses", "1")
    watched.torchrun("--standalone", "--nproc-per-node", "3", script=script, **address)
    watched.until("all ranks have started", lambda: len(watched.steps("start")) == 3 and watched.checkpoint() > 0)
    watched.strike("rank=1,kind=hang")
    deadline = time.monotonic() + 120

    def seen() -> dict[str, object]:
        done = subprocess.run(
            [sys.executable, "-m", "rankwatch", "diagnose", "--json"],
            env={**os.environ, **address},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        jobs = json.loads(done.stdout)["jobs"] if done.stdout.startswith("{") else []
        pids = {line["pid"] for of_rank in watched.reported().values() for line in of_rank}
        mine = [job for job in jobs if {rank["pid"] for rank in job["ranks"]} & pids]
        return mine[0] if mine else {}

    found = seen()
    while not found.get("nccl") and time.monotonic() < deadline:
        found = seen()
    (answer,) = found["nccl"]  # type: ignore[misc]
    assert (answer["accused"], answer["witness"]) == ([1], "agrees")
