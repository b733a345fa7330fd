"""NCCL's own answer beside our verdict, in real jobs: a rank answers as NCCL's RAS does, and the launcher asks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_where_nccl_accuses_the_same_rank_both_are_shown(watched: Training, tmp_path: Path) -> None:
    hung(watched, 2)
    incident = watched.incident()
    assert_blamed(incident, 2, "behind")
    (answer,) = incident["nccl"]
    assert (answer["version"], answer["accused"], answer["witness"]) == ("2.28.9", [2], "agrees")
    assert watched.api is not None
    rankwatch = [sys.executable, "-m", "rankwatch", "incidents", watched.job, incident["id"]]
    rankwatch += ["--monitor", str(watched.api.base_url)]
    shown = subprocess.run(rankwatch, capture_output=True, text=True, timeout=60, check=True)
    assert incident["flight_dumps"]["ranks"] == [0, 1, 2]
    folder = tmp_path / "dumps"
    subprocess.run([*rankwatch, "--flight-recorder", str(folder)], timeout=60, check=True)
    reader = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "--prefix", "trace_"]
    read = subprocess.run(reader, capture_output=True, text=True, timeout=120, check=True)
    assert "all_reduce" in read.stdout + read.stderr, "torch's own reader takes the dumps of the incident"
    assert answer["lines"][0][:40] in " ".join(shown.stdout.split())


def test_where_nccl_accuses_another_rank_nobody_is_named(watched: Training) -> None:
    hung(watched, 1)
    incident = watched.incident()
    assert incident["culprits"] == []
    (answer,) = incident["nccl"]
    assert (answer["accused"], answer["witness"]) == ([1], "others")
    assert watched.summary()["restarts"] == 1, "what has to be done does not depend on who it was"
