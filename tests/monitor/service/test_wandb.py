"""A monitor that publishes to Weights & Biases: what is in the files, how it ends, and errors about wrong flags."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from e2e.training import Training
from rankwatch_monitor.publish.wandb.run import run_id
from rankwatch_monitor.settings import read
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.otlp import gauge, rank_report, reports_of_all
from support.processes import MARK, end_marked, marked
from support.waiting import wait_for
from support.wandb_files import WrittenRun, written_runs

WORLD = 3
LIMIT = 2.0
KEY = "0123456789" * 4


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark for processes; all that carry it are gone in the end."""
    made = uuid4().hex
    yield made
    end_marked(made)


def services(mark: str) -> list[int]:
    return [pid for pid, command in marked(mark).items() if "wandb-core" in command]


def offline(folder: Path) -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    return ("--wandb-project", "p", "--wandb-mode", "offline", "--wandb-dir", str(folder), "--wandb-series", "all")


def send(api: Api, job: str, *, attempt: int = 1, overdue: float = 0.0, resumed_at: int | None = None) -> None:
    reports = reports_of_all(job, WORLD, attempt=attempt, overdue=overdue, resumed_at=resumed_at)
    api.report(*reports)


def ended(monitor: RunningMonitor, seconds: float = 60.0) -> None:
    """End a monitor in order."""
    monitor.process.terminate()
    assert monitor.process.wait(seconds) == 0, monitor.printed()


def only(folder: Path) -> WrittenRun:
    (run,) = written_runs(folder)
    return run


@pytest.mark.long
def test_one_run_over_an_incident_and_a_restart_of_the_monitor(tmp_path: Path, mark: str) -> None:
    """A rank hangs, the job is restarted, the monitor is ended and started again: each incident is alerted once."""
    job, files, database = "team:gpt", tmp_path / "files", tmp_path / "rankwatch.db"
    own = {MARK: mark, "WANDB_RUN_ID": "of-the-training", "RANKWATCH_TOKEN": "a-secret-token"}
    flags = (*offline(files), "--token", "a-secret-token")
    with running_monitor(tmp_path / "first", *flags, database=database, settings=own) as monitor:
        with Api(monitor.url, "a-secret-token") as api:
            launcher = PlayedLauncher(api, job, ranks=range(WORLD))
            launcher.register(policy={"section_timeouts": {"step": LIMIT}}, job_name="gpt")
            launcher.start(1, WORLD)
            send(api, job)
            send(api, job, overdue=LIMIT + 1)
            launcher.send_stacks(launcher.next_directive("capture"), {})
            (incident,) = wait_for(lambda: api.incidents(job), "the hang is found")
            # In its first snapshot there was no hang yet; ten seconds later there may be another.
            wait_for(lambda: any(run.alerts for run in written_runs(files)), "the alert is in the file", 40.0)
        ended(monitor, 30.0)
    assert services(mark) == []
    first = only(files)
    assert first.finished

    first_url = monitor.url
    with running_monitor(tmp_path / "second", *flags, database=database, settings=own) as monitor:
        with Api(monitor.url, "a-secret-token") as api:
            launcher.api = api
            launcher.start(2, WORLD)
            send(api, job, attempt=2, resumed_at=8)
            wait_for(lambda: api.incidents(job)[0]["closed_at"], "the incident is over")
            shown = api.job(job)
            # A slow machine may leave W&B no time for it while the monitor ends.
            wait_for(lambda: any(run.rows for run in written_runs(files)[1:]), "a row is in the file")
        ended(monitor)
    assert services(mark) == []
    first, second = written_runs(files)
    assert first.run.run_id == second.run.run_id == run_id(job)
    assert (second.run.display_name, second.run.run_group) == (first.run.display_name, job)
    (alert,) = first.alerts
    link = f"{first_url}/#/jobs/team%3Agpt/incidents/{quote(incident['id'], safe='')}"
    reason, action, to_incident = alert.text.split("\n")
    assert (reason, to_incident, alert.level) == (incident["reason"], link, "ERROR")
    assert action.endswith("action: restart; the policy is to restart")
    assert second.alerts == [], "none is called twice"
    assert second.rows[0]["_step"] > first.rows[-1]["_step"]
    (row,) = second.tables("incidents")[-1]
    assert (row["id"], row["reason"], row["open"]) == (incident["id"], incident["reason"], False)
    assert row["culprits"].startswith("rank 2 on ")
    assert row["total_s"] >= row["detect_s"] > 0
    assert (second.last("iteration"), second.last("attempt"), second.last("open_incidents")) == (8, 2, 0)
    assert second.last("restarts") == shown["restarts"]
    leaked = [file for file in files.rglob("*") if file.is_file() and b"a-secret-token" in file.read_bytes()]
    assert not leaked, "the command line is not published"


def windows(job: str, number: int, slow: int) -> list[ResourceMetrics]:
    """What four ranks tell of a window and of their kernels; one has a kernel that takes twice as long."""
    made = []
    for rank in range(4):
        report = rank_report(job, rank, 4, iteration=8 * number, open_sections={"step": 0.1}, attempt=1)
        longer = 0.04 if rank == slow else 0.02
        gauge(report, "rankwatch.window.iteration", 8 * number)
        gauge(report, "rankwatch.window.steps", 8)
        for part, seconds in {"compute": longer, "communication": 0.1 - longer, "host": 0.01, "data": 0.01}.items():
            gauge(report, "rankwatch.step.part", seconds, rankwatch__part=part)
        for statistic in ("min", "median", "tail", "max", "mean"):
            about = {"rankwatch__statistic": statistic}
            gauge(report, "rankwatch.kernel.duration", longer, rankwatch__kernel="gemm", **about)
            if statistic != "min":
                gauge(report, "rankwatch.window.section.duration", longer, rankwatch__section="forward", **about)
        gauge(report, "rankwatch.kernel.calls", 100, rankwatch__kernel="gemm")
        gauge(report, "rankwatch.window.section.calls", 8, rankwatch__section="forward")
        made.append(report)
    return made


def test_scores_and_a_straggler_from_what_ranks_send(tmp_path: Path, mark: str) -> None:
    with running_monitor(tmp_path / "m", *offline(tmp_path), settings={MARK: mark}) as monitor:
        with Api(monitor.url) as api:
            send(api, "job")
            api.change_policy("job", straggler_reference="fastest", relative_threshold=0.75)
            number = 0

            def found() -> bool:
                nonlocal number
                number += 1
                api.report(*windows("job", number, slow=2))
                assert not api.rejected()
                return any(run.alerts for run in written_runs(tmp_path))

            wait_for(found, "the straggler is alerted", 40.0)
        ended(monitor)
    run = only(tmp_path)
    assert [run.last(f"gpu_relative_{end}") for end in ("min", "median", "max")] == pytest.approx([0.5, 1.0, 1.0])
    assert run.last("gpu_robust_min") == pytest.approx(0.5)
    assert run.last("section/forward/relative_min") == pytest.approx(0.5)
    assert run.last("open_stragglers") == 1
    assert run.last("lateness_max") == pytest.approx(0.02, abs=0.001)
    assert run.last("step_seconds") == pytest.approx(0.12, abs=0.001)
    worst = run.tables("worst_ranks")[-1][0]
    assert (worst["rank"], worst["gpu_relative"]) == (2, pytest.approx(0.5))
    (straggler,) = run.tables("stragglers")[-1]
    (alert,) = run.alerts
    reason, link = alert.text.splitlines()
    assert (reason, alert.level) == (straggler["reason"], "WARN") == (worst["reason"], "WARN")
    assert link.endswith("/#/jobs/job")
    assert alert.title.startswith("rank 2 is slow")


def test_a_monitor_that_is_killed_leaves_its_rows_and_no_process(tmp_path: Path, mark: str) -> None:
    with running_monitor(tmp_path / "m", *offline(tmp_path), settings={MARK: mark}) as monitor:
        with Api(monitor.url) as api:
            send(api, "job")
        wait_for(lambda: any(run.rows for run in written_runs(tmp_path)), "the row is in the file", 40.0)
        assert services(mark)
        monitor.kill()
        wait_for(lambda: not services(mark), "W&B's process has noticed that the monitor is gone")
    assert only(tmp_path).last("attempt") == 1


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A port that takes connections and never states a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


@pytest.mark.long
def test_a_server_that_never_answers_holds_up_neither_the_monitor_nor_its_end(
    tmp_path: Path, mark: str, silent_server: int
) -> None:
    flags = ("--wandb-project", "p", "--wandb-mode", "online", "--wandb-dir", str(tmp_path))
    own = {MARK: mark, "WANDB_BASE_URL": f"http://127.0.0.1:{silent_server}", "WANDB_API_KEY": KEY}
    with running_monitor(tmp_path / "m", *flags, settings=own) as monitor:
        with Api(monitor.url) as api:
            send(api, "job")
            wait_for(lambda: services(mark), "W&B's process was started", 40.0)
            begun = time.monotonic()
            api.judge_now("job")
            assert time.monotonic() - begun < 8.0
        ended(monitor, 30.0)
        assert "W&B did not accept everything within 10 s" in monitor.printed()
    assert services(mark) == []


def test_no_key_is_one_warning_and_no_question(tmp_path: Path, mark: str) -> None:
    flags = ("--wandb-project", "p", "--wandb-mode", "online", "--wandb-dir", str(tmp_path))
    own = {MARK: mark, "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_API_KEY": ""}
    with running_monitor(tmp_path / "m", *flags, settings=own) as monitor:
        with Api(monitor.url) as api:
            send(api, "one")
            send(api, "two")
            wait_for(lambda: "No API key" in monitor.printed(), "the warning is logged", 40.0)
        ended(monitor)
        assert monitor.printed().count("publishing to W&B failed") == 1


# The command line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--wandb-project", "p", "--wandb-mode", "off"), ("--wandb-mode", "'off'", "online, offline or disabled")),
        (("--wandb-mode", "offline"), ("--wandb-mode", "--wandb-project", "RANKWATCH_MONITOR_WANDB_PROJECT")),
        (("--wandb-entity", "team"), ("--wandb-entity", "--wandb-project")),
        (("--wandb-project", "p", "--wandb-dir", "/dev/null/such"), ("--wandb-dir", "/dev/null/such")),
    ],
)
def test_what_makes_no_sense_is_reported(flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as refusal:
        read(flags, {})
    assert [word for word in words if word not in str(refusal.value)] == []


def test_the_mode_is_the_flags_then_wandbs_own_then_online() -> None:
    project = ("--wandb-project", "p")
    assert read(project, {}).wandb_mode == "online"
    assert read(project, {"WANDB_MODE": "offline"}).wandb_mode == "offline"
    assert read((*project, "--wandb-mode", "online"), {"WANDB_MODE": "offline"}).wandb_mode == "online"
    assert read((), {"RANKWATCH_MONITOR_WANDB_PROJECT": "p", "WANDB_MODE": "disabled"}).wandb_mode == "disabled"
    assert read((), {"WANDB_MODE": "offline"}).wandb_mode is None


def test_wandb_is_not_imported_unless_asked_for() -> None:
    words = "import sys, rankwatch_monitor.cli; print([m for m in sys.modules if m.split('.')[0] == 'wandb'])"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "[]"


@pytest.fixture
def without_wandb(tmp_path: Path) -> dict[str, str]:
    """The environment of an interpreter that finds everything but wandb."""
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = staticmethod(lambda name, *more: None if name == 'wandb' else find(name, *more))\n"
    )
    return environment(PYTHONPATH=str(folder))


def test_without_wandb_the_flag_is_refused(without_wandb: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankwatch_monitor", "--port", "0", "--database", "none", "--wandb-project", "p"],
        capture_output=True,
        text=True,
        timeout=60,
        env=without_wandb,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'rankwatch[wandb]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_wandb_what_the_environment_asks_for_is_a_warning(
    tmp_path: Path, without_wandb: dict[str, str]
) -> None:
    asked = {"PYTHONPATH": without_wandb["PYTHONPATH"], "RANKWATCH_MONITOR_WANDB_PROJECT": "p"}
    with running_monitor(tmp_path / "m", settings=asked) as monitor:
        with Api(monitor.url) as api:
            send(api, "job")
            assert api.job("job")["state"] == "running"
        ended(monitor)
        assert "pip install 'rankwatch[wandb]'" in monitor.printed()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    job = Training(tmp_path, "a job")
    yield job
    job.close()


@pytest.mark.long
def test_a_monitor_beside_its_launcher_is_found_by_the_environment(training: Training, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    asked = {"PROJECT": "p", "MODE": "offline", "DIR": str(files)}
    launcher = training.start(
        [
            "-m",
            "rankwatch",
            "run",
            "--nproc-per-node",
            "2",
            "--job-id",
            training.job,
            *training.script("--steps", "90"),
        ],
        **{f"RANKWATCH_MONITOR_WANDB_{name}": value for name, value in asked.items()},
    )
    assert launcher.wait() == 0, launcher.printed()
    run = only(files)
    assert run.run.run_id == run_id(training.job) != training.job
    assert run.summary["rankwatch/state"] == "finished"
    assert run.last("iteration") >= 80
    assert (run.finished, run.exit_code) == (True, 0)


def test_the_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    read(("--wandb-project", "p", "--wandb-dir", str(folder)), {})
    assert folder.is_dir()
