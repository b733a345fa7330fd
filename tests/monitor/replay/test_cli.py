"""``rankwatch replay``: the recording of a real monitor gives the same incidents again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwatch_monitor.replay.cli import policy_changes, replay
from rankwatch_monitor.replay.recording import Entry, Recording, Writer
from support.launcher import AT_WORK, WAITING, PlayedLauncher
from support.monitor_process import Api, running_monitor
from support.otlp import reports_of_all
from support.pipeline_trace import Trace, write
from support.simulator.straggler_plan import Slow, Slowdown, StragglerPlan
from support.simulator.straggler_scene import START, StragglerScene
from support.waiting import wait_for

WORLD = 3
LIMIT = 2.0
SAME = ("id", "kind", "culprits", "affected", "section", "limit", "action", "attempt", "phase", "confirmed", "outcome")


def send(api: Api, *, attempt: int = 1, overdue: float = 0.0, resumed_at: int | None = None) -> None:
    reports = reports_of_all("job", WORLD, attempt=attempt, overdue=overdue, resumed_at=resumed_at)
    api.report(*reports)


def hang_and_restart(api: Api) -> list[dict[str, Any]]:
    """A rank hangs, the launcher sends stacks and restarts, the job goes on; the incidents as the API shows them."""
    launcher = PlayedLauncher(api, "job", ranks=range(WORLD))
    launcher.register(policy={"section_timeouts": {"step": LIMIT}})
    launcher.start(1, WORLD)
    send(api)
    send(api, overdue=LIMIT + 1)
    capture = launcher.next_directive("capture")
    launcher.send_stacks(capture, {rank: AT_WORK if rank == 2 else WAITING for rank in range(WORLD)})
    launcher.acknowledge(launcher.next_directive("restart"))
    launcher.events({"kind": "restarting", "reason": "ordered"})
    launcher.start(2, WORLD)
    send(api, attempt=2, resumed_at=5)
    wait_for(lambda: api.incidents("job")[0]["closed_at"], "the incident is closed")
    return api.incidents("job")


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert replay([str(path), "--json", *more]) == 0
    reported: dict[str, Any] = json.loads(capsys.readouterr().out)
    return reported


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A recording of a real monitor that was instructed to end, and the incidents that it had shown."""
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "run.jsonl.gz"
    with running_monitor(folder, "--record", str(path)) as monitor, Api(monitor.url) as api:
        incidents = hang_and_restart(api)
        monitor.process.terminate()
        assert monitor.process.wait(20) == 0
    return path, incidents


def test_a_real_monitor_s_recording_gives_the_same_incidents(
    recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, incidents = recorded
    reported = replayed(path, capsys)
    (job,) = reported["jobs"]
    assert (reported["lost"], reported["truncated"]) == (0, False)
    assert len(incidents) == len(job["incidents"]) == 1
    for was, now in zip(incidents, job["incidents"], strict=True):
        assert {name: was[name] for name in SAME} == {name: now[name] for name in SAME}
        assert abs(was["opened_at"] - now["opened_at"]) <= 0.25
        assert [c["rank"] for c in now["culprits"]] == [2]
    assert [d["kind"] for d in job["directives"]][:2] == ["capture", "restart"]


def test_it_is_the_same_each_time(
    recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = (replayed(recorded[0], capsys) for _ in range(2))
    assert first == again


def test_another_policy_shows_what_would_have_happened(
    recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    (lenient,) = replayed(recorded[0], capsys, "--policy", "section_timeouts=step=60")["jobs"]
    assert lenient["incidents"] == []
    (observing,) = replayed(recorded[0], capsys, "--policy", "observe_only=true")["jobs"]
    assert {d["kind"] for d in observing["directives"]} == {"tell"}, "of the hang, and of its end"
    assert observing["incidents"][0]["action"] == "log"


def test_a_monitor_that_was_killed_leaves_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl.zst"
    with running_monitor(tmp_path, "--record", str(path)) as monitor, Api(monitor.url) as api:
        send(api)
        wait_for(lambda: _reports(path) >= WORLD, "the reports are in the file")
        monitor.kill()
    assert replayed(path, capsys)["events"] == WORLD


def _reports(path: Path) -> int:
    """Whole lines of events in a file that is being written."""
    if not path.stat().st_size:
        return 0
    return sum(entry.event is not None for entry in Recording(path))


def test_it_is_reported(recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    assert replay([str(recorded[0]), "--job", "job"]) == 0
    printed = capsys.readouterr().out
    assert "job job: 3 ranks, attempt 2" in printed
    assert "Rank 2 on node-a has been in section 'step'" in printed
    assert "directive 2: restart (not delivered)" in printed
    assert "2 (behind)" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{none}"], "cannot read"),
        (["{text}"], "line 1"),
        (["{good}", "--job", "other"], "holds no job 'other'"),
        (["{good}", "--policy", "colour=red"], "unknown policy setting 'colour'"),
        (["{good}", "--policy", "silence_timeout"], "NAME=VALUE"),
        (["{good}", "--policy", "silence_timeout=-3"], "silence_timeout must be"),
        (["{good}", "--policy", "section_timeouts=step"], "NAME=SECONDS"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(
    arguments: Sequence[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, good = tmp_path / "notes.txt", tmp_path / "good.jsonl"
    text.write_text("buy milk\nand bread\n")
    good.write_text('{"rankwatch": "recording", "version": 1, "at": 1.0}\n{"at": 2.0}\n')
    places = {"none": tmp_path / "none", "text": text, "good": good}
    assert replay([argument.format(**places) for argument in arguments]) == 2
    assert words in capsys.readouterr().err


def test_policies_are_read_as_what_they_are() -> None:
    given = ["observe_only=true", "silence_timeout=none", "max_restarts=5", "on_hang=log"]
    given += ["section_timeouts=step=10", "section_timeouts=data=5,evaluation=600"]
    assert policy_changes(given) == {
        "observe_only": True,
        "silence_timeout": None,
        "max_restarts": 5,
        "on_hang": "log",
        "section_timeouts": {"step": 10.0, "data": 5.0, "evaluation": 600.0},
    }


# Stragglers -----------------------------------------------------------------------------------------------------------


def recorded_scene(path: Path, plan: StragglerPlan) -> Path:
    """A recording of what the ranks of a scene would have told a monitor."""
    writer = Writer(path, START)
    for at, reports in StragglerScene(plan).windows():
        for report in reports:
            writer.write(Entry(at, plan.job_id, report))
    writer.write(Entry(at + 5.0))  # the monitor was awake for longer
    writer.close()
    return path


def straggling(job_id: str, fault: Slowdown | None, *, windows: int = 12) -> StragglerPlan:
    return StragglerPlan(world=8, ranks_a_host=2, windows=windows, fault=fault, job_id=job_id, seed=5)


def test_a_recording_shows_which_rank_was_slow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = straggling("slow", Slowdown(Slow.HOST, 0.3, (3,), since=4))
    path = recorded_scene(tmp_path / "run.jsonl.gz", plan)
    reported = replayed(path, capsys)
    assert reported["verdict"] == "worker"
    (straggler,) = reported["stragglers"]
    assert (straggler["rank"], straggler["host"], straggler["cause"]) == (3, "node-1", "host")
    assert straggler["lateness"] == pytest.approx(0.3, rel=0.3)
    assert "Rank 3 on node-1 is slow" in straggler["reason"]
    assert reported["cost_gpu_hours"] > 0
    (job,) = reported["jobs"]
    assert job["stragglers"] == reported["stragglers"]
    stated = straggler["reason"].partition(" wait ")[0]  # the figures follow the windows, and are not logged anew
    assert [printed["text"].partition(" wait ")[0] for printed in job["said"]] == [stated]
    assert replay([str(path)]) == 0
    assert "verdict over 12 windows: worker" in capsys.readouterr().out
    healthy = replayed(recorded_scene(tmp_path / "twin.jsonl.gz", plan.healthy()), capsys)
    assert (healthy["verdict"], healthy["stragglers"], healthy["cost_gpu_hours"]) == ("healthy", [], 0)


def test_of_several_jobs_the_worst_is_reported_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(tmp_path / "run.jsonl", START)
    plans = (straggling("fine", None), straggling("slow", Slowdown(Slow.COMPUTE, 0.3, (6,))))
    events = [(at, p.job_id, r) for p in plans for at, reports in StragglerScene(p).windows() for r in reports]
    for at, job_id, report in sorted(events, key=lambda each: each[0]):
        writer.write(Entry(at, job_id, report))
    writer.close()
    reported = replayed(tmp_path / "run.jsonl", capsys)
    assert {job["id"]: job["verdict"] for job in reported["jobs"]} == {"fine": "healthy", "slow": "worker"}
    assert (reported["verdict"], [s["rank"] for s in reported["stragglers"]]) == ("worker", [6])


def test_another_policy_judges_stragglers_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded_scene(tmp_path / "run.jsonl", straggling("slow", Slowdown(Slow.HOST, 0.2, (3,))))
    assert replayed(path, capsys)["verdict"] == "worker"
    assert replayed(path, capsys, "--policy", "straggler_slowdown=0.5")["verdict"] == "healthy"
    off = replayed(path, capsys, "--policy", "straggler_detection=false")
    assert (off["verdict"], off["windows"]) == ("healthy", {})


def test_a_table_of_operations_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace("worker", 0.3)
    path = write(tmp_path / "trace.parquet", trace.rows(), 1e6)
    reported = replayed(path, capsys)
    assert reported["verdict"] == "worker"
    (straggler,) = reported["stragglers"]
    assert {"rank", "host", "score", "lateness", "cause", "reason"} <= set(straggler)
    assert (straggler["rank"], straggler["cause"]) == (trace.victim_rank, "compute")
    assert (reported["table"]["ranks"], reported["table"]["steps"]) == (16, 30)
    assert reported["table"]["notes"][0].startswith("times are taken as us")
    assert reported["cost_gpu_hours"] > 0
    assert replay([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "operations of 16 ranks in 30 steps" in printed
    assert straggler["reason"] in printed
    healthy = replayed(write(tmp_path / "twin.csv.gz", Trace().rows()), capsys)
    assert (healthy["verdict"], healthy["stragglers"], healthy["cost_gpu_hours"]) == ("healthy", [], 0)


def test_a_table_is_judged_by_the_policy_that_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "trace.csv", Trace("worker", 0.3).rows())
    assert replayed(path, capsys, "--policy", "straggler_slowdown=0.5")["verdict"] == "healthy"


@pytest.mark.parametrize(
    ("name", "text", "more", "words"),
    [
        ("t.csv", "rank,step\n0,0\n", (), "has no column optype, start_ts, duration"),
        ("t.csv", "", (), "is empty"),
        ("t.csv", "rank,step,optype,start_ts,duration\n0,0,a,x,1\n", (), "line 2, column start_ts"),
        (
            "t.csv",
            "rank,step,optype,start_ts,duration\n0,0,a,0,1\n",
            ("--job", "j"),
            "--job selects a job",
        ),
        (
            "t.jsonl",
            '{"rankwatch": "recording", "version": 1}\n',
            ("--time-unit", "ms"),
            "--time-unit is for operation",
        ),
    ],
)
def test_what_cannot_be_judged_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, more: Sequence[str], words: str
) -> None:
    (tmp_path / name).write_text(text)
    assert replay([str(tmp_path / name), *more]) == 2
    assert words in capsys.readouterr().err
