"""The detector on two real ranks, under the real launcher and a real monitor: by itself, and by Bridge's own module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.training import Training
from support.forked_ranks import run_command
from support.wheels import unpacked

RANKS = Path(__file__).with_name("straggler_ranks.py")
TESTS = Path(__file__).parents[3]

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


def run(training: Training, manager: str = "none") -> Any:
    assert training.api is not None
    named = ("--nproc-per-node", "2", "--monitor", str(training.api.base_url), "--job-id", training.job)
    script = (str(RANKS), "--folder", str(training.folder), "--manager", manager)
    return training.start([*run_command(), *named, *script], PYTHONPATH=str(TESTS))


def reports(training: Training, rank: int = 0) -> list[dict[str, Any]]:
    file = training.folder / f"reports-{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_slow_rank_is_in_the_report(watched: Training) -> None:
    launcher = run(watched)
    wanted = [[1, "the-host"]]
    watched.until("a report has the slow rank", lambda: [each for each in reports(watched) if each["slow"] == wanted])
    last = reports(watched)[-1]
    assert (last["rank"], last["sections"]["products"], last["gpus"]) == (0, [0, 1], [0, 1])
    assert watched.finish() == [0], launcher.printed()
    assert any("products" in each["local"] for each in reports(watched)), "what this rank measured itself"
    assert reports(watched, rank=1) == [], "rank 0 reports on all"


def test_bridges_straggler_manager_prints_its_report(
    watched: Training, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = unpacked("megatron-bridge==0.3.1", tmp_path_factory.mktemp("bridge"))
    launcher = run(watched, str(theirs / "megatron/bridge/training/nvrx_straggler.py"))
    watched.until("a report with both ranks is printed", lambda: "gpu_relative_perf/median" in launcher.printed())
    printed = launcher.printed()
    for wanted in ("GPU relative performance:", "GPU individual performance:", "  Rank=0 Node=", "  Rank=1 Node="):
        assert wanted in printed, printed[-3000:]
    assert watched.finish() == [0], printed[-3000:]
