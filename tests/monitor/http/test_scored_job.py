"""A real monitor that receives windows and kernel timings of eight ranks, one of them slow: what is shown."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rankwatch_monitor.publish.prometheus import names as names
from support.monitor_process import Api, RunningMonitor, environment
from support.otlp import add_kernels, add_window, rank_report
from support.waiting import wait_for

WORLD, SLOW = 8, 5
STEP = 0.4


def send(api: Api, job: str, iteration: int) -> None:
    """One window of all ranks: the slow one computes for longer, and the others wait for it in their collectives."""
    reports = []
    for rank in range(WORLD):
        wobble = 0.001 * ((rank + iteration // 8) % 3)
        compute = (0.2 if rank == SLOW else 0.1) + wobble
        parts = {"data": 0.01, "host": 0.05, "compute": compute, "communication": STEP - 0.06 - compute}
        report = rank_report(job, rank, WORLD, iteration=iteration, host=f"host-{rank // 4}")
        sections = {"forward": {"median": compute, "tail": compute, "max": compute, "mean": compute}}
        operations = {f"all_reduce dp ({rank % 3})": (0.1, 1000)}
        add_window(report, iteration, sections=sections, parts=parts, operations=operations)
        gemm = 0.002 if rank == SLOW else 0.001
        add_kernels(report, {"gemm": {"min": gemm, "median": gemm, "tail": gemm, "max": gemm, "mean": gemm}})
        reports.append(report)
    api.report(*reports)


def named_straggler(api: Api, job: str) -> str:
    """A job whose straggler has been named."""
    iteration = 0

    def named() -> list:
        nonlocal iteration
        iteration += 8
        send(api, job, iteration)
        return api.read(f"/jobs/{job}/stragglers")["stragglers"]  # type: ignore[return-value]

    wait_for(named, "the straggler is named")
    return job


@pytest.fixture(scope="module")
def slow(monitor: RunningMonitor) -> str:
    """One that no test changes."""
    with Api(monitor.url) as api:
        return named_straggler(api, "slow")


def test_scores_stragglers_and_verdict_are_the_same_everywhere(monitor: RunningMonitor, api: Api, slow: str) -> None:
    shown = api.read(f"/jobs/{slow}/scores")
    row = shown["ranks"][SLOW]  # type: ignore[index]
    assert row["gpu_relative"] == row["gpu_robust"] == 0.5
    assert row["lateness"] == pytest.approx(0.1, abs=0.01)
    [blamed] = shown["stragglers"]  # type: ignore[misc]
    assert (blamed["rank"], blamed["host"], blamed["cause"]) == (SLOW, "host-1", "compute")
    assert api.ranks(slow)[SLOW]["scores"]["gpu_robust"] == 0.5

    text = api.get(f"/api/v1/jobs/{slow}/scores/report").text
    assert text.startswith("GPU relative performance:\n Worst performing 5/8 ranks:\n  Rank=5 Node=host-1 Score=0.50\n")
    assert " ".join(blamed["reason"].split()) in " ".join(text.split())
    assert f"rank {SLOW} on host-1: compute" in api.get(f"/api/v1/jobs/{slow}/report").text

    metrics = {key: value for key, value in api.metrics().items() if dict(key[1]).get("job") == slow}
    assert {name for name, _ in metrics} >= {family.name for family in names.FROM_WINDOWS}
    [[_, labels]] = [key for key in metrics if key[0] == names.STRAGGLER.name]
    assert dict(labels)["reason"] == blamed["reason"]


def test_the_command_prints_the_report_and_the_scores_as_json(monitor: RunningMonitor, api: Api, slow: str) -> None:
    def command(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rankwatch", "report", slow, "--monitor", monitor.url, *more],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = command("--scores")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GPU relative performance:\n Worst performing 5/8 ranks:")
    assert "STRAGGLERS 1 now" in done.stdout
    assert json.loads(command("--scores", "--json").stdout)["ranks"][SLOW]["gpu_robust"] == 0.5
    whole = json.loads(command("--json").stdout)
    assert [each["rank"] for each in whole["stragglers"]] == [SLOW]
    assert whole["scores"]["ranks"][SLOW]["gpu_robust"] == 0.5


def test_a_threshold_changed_while_the_job_runs_holds_from_the_next_window_on(api: Api, job: str) -> None:
    slow = named_straggler(api, job)
    api.change_policy(slow, straggler_slowdown=0.9)
    iteration = 10_000

    def ended() -> bool:
        nonlocal iteration
        iteration += 8
        send(api, slow, iteration)
        shown = api.read(f"/jobs/{slow}/stragglers")["stragglers"]
        return all(each["ended"] is not None for each in shown)  # type: ignore[attr-defined]

    wait_for(ended, "what is asked for now makes no straggler any more")
    assert "STRAGGLERS none now; 1 earlier" in api.get(f"/api/v1/jobs/{slow}/report").text


def test_the_kernels_are_read_with_their_trend_and_a_schema(api: Api, slow: str) -> None:
    shown = api.read(f"/jobs/{slow}/kernels")
    [gemm] = shown["kernels"]  # type: ignore[misc]
    assert (gemm["name"], gemm["ranks"], gemm["share"]) == ("gemm", WORLD, 1.0)
    assert (gemm["median"], gemm["slowest"], gemm["relative"]) == (0.001, 0.002, 0.5)
    assert (gemm["slowest_rank"], gemm["slowest_host"]) == (SLOW, "host-1")
    assert gemm["trend"] == [0.001] * len(shown["points"])  # type: ignore[arg-type]
    assert shown["since"] == shown["points"][0]  # type: ignore[index]
    assert shown["reason"] == ""
    schema = api.get("/openapi.json").json()["components"]["schemas"]["KernelsView"]
    assert schema["properties"].keys() == shown.keys()


def test_a_job_without_kernel_timings_states_why(api: Api, job: str) -> None:
    api.report(rank_report(job, 0))
    shown = api.read(f"/jobs/{job}/kernels")
    assert (shown["kernels"], shown["at"], shown["since"]) == ([], None, None)
    assert "No rank has reported kernel timings yet" in shown["reason"]  # type: ignore[operator]
