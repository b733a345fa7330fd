"""The supervisor of ``--job-retries``: first over a small program that ends as instructed, then over real launchers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.conftest import SOURCES, FakeMonitor, Launcher, marked, wait_for

Start = Callable[..., Launcher]
Script = Callable[[str], str]
PATIENCE = 200.0
"""Seconds within which torch has been imported four times, also on a machine that is far too busy."""

SUPERVISOR = """
import json, os, sys
from rankwatch_launcher.job import supervisor
from rankwatch_launcher.log import to_stderr
to_stderr()
plan = supervisor.RetryPlan(**json.loads(sys.argv[1]))
sys.exit(supervisor.supervise(plan, ["--steps", "5"], os.environ, command=[sys.executable, "child.py"]))
"""
CHILD = '''
"""Stands for the launcher: notes each launch, then does what the line of its number states."""
import json, os, signal, sys
from pathlib import Path
from rankwatch_launcher.job import supervisor
from rankwatch_launcher.outcome import Outcome

supervision = supervisor.bind_to_supervisor(os.environ)
launches = Path("launches")
number = len(launches.read_text().splitlines()) if launches.exists() else 0
seen = {"word": supervision.job_suffix, "job": os.environ.get("RANKWATCH_JOB_ID"), "argv": sys.argv[1:]}
seen["pid"] = os.getpid()
seen["hidden"] = supervisor.SUPERVISED not in os.environ

def end(state, code, **more):
    Outcome(state, code, **more).write(Path(os.environ["RANKWATCH_OUTCOME"]))
    sys.exit(code)

def failed(code=1, **more):
    end("failed", code, **more)

def on_signal(number, frame):
    with open("signals", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    end("preempted", 0, reason="got " + signal.Signals(number).name)

def wait():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, on_signal)
    Path("waiting").touch()
    while True:
        signal.pause()

def note():
    with launches.open("a") as file:
        file.write(json.dumps(seen) + "\\n")

lines = Path("lines").read_text().splitlines()
note()
exec(lines[min(number, len(lines) - 1)])
'''


class Supervised:
    """A real supervisor over the small program."""

    def __init__(self, folder: Path, lines: list[str], plan: dict[str, Any]) -> None:
        self.folder = folder
        (folder / "child.py").write_text(CHILD)
        (folder / "lines").write_text("\n".join(lines))
        self.log = (folder / "log").open("wb")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RANKWATCH_", "FAULT_TOL"))}
        path = os.pathsep.join(map(str, SOURCES))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, json.dumps({"budget": 2, "no_progress": 3, **plan})],
            cwd=folder,
            env={**env, "PYTHONPATH": path, "RW_TEST_MARK": str(folder)},
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def launches(self) -> list[dict[str, Any]]:
        file = self.folder / "launches"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def signals(self) -> list[str]:
        return (self.folder / "signals").read_text().split()

    def until_waiting(self) -> None:
        wait_for((self.folder / "waiting").exists)

    def wait(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Start a supervisor; at teardown neither it nor its child may be left."""
    begun: list[Supervised] = []

    def begin(*lines: str, **plan: Any) -> Supervised:
        begun.append(Supervised(tmp_path, list(lines), plan))
        return begun[-1]

    yield begin
    for one in begun:
        one.process.kill()
        one.process.wait()
        one.log.close()
    gone = wait_for(lambda: not marked(str(tmp_path)), 10.0, fail=False)
    for pid in marked(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)
    assert gone, "the child outlived its supervisor"


Supervise = Callable[..., Supervised]


def test_a_job_that_fails_is_launched_again_as_the_same_job(supervise: Supervise) -> None:
    one = supervise("failed(reason='rank 1 crashed')", "sys.exit(1)", "end('finished', 0)")
    assert one.wait() == 0, one.output
    assert len(one.launches) == 3
    assert len({launch["word"] for launch in one.launches}) == 1, "one job over all launches"
    assert {tuple(launch["argv"]) for launch in one.launches} == {("--steps", "5")}
    assert all(launch["hidden"] for launch in one.launches), "ranks must not inherit it"
    assert "relaunching the job in 1 s (retry 1 of 2): failed: rank 1 crashed" in one.output
    assert "relaunching the job in 2 s (retry 2 of 2): the launcher ended with exit code 1" in one.output
    assert "the job is not relaunched: the job has finished" in one.output


def test_an_id_that_the_launchers_agreed_on_is_kept(supervise: Supervise) -> None:
    one = supervise("failed(job_id='train-77')", "end('finished', 0)")
    assert one.wait() == 0, one.output
    assert [launch["job"] for launch in one.launches] == [None, "train-77"]


@pytest.mark.parametrize(
    ("line", "plan", "code", "launches"),
    [
        ("failed()", {"budget": 1}, 1, 2),
        ("failed(93)", {}, 93, 1),
        ("end('stopped', 1)", {}, 1, 1),
        ("failed(iteration=7)", {"no_progress": 1}, 93, 2),
        ("Path('flag').touch(); failed()", {"flag": "flag"}, 0, 1),
    ],
)
def test_it_ends_with_the_right_code_after_the_right_number_of_launches(
    supervise: Supervise, line: str, plan: dict[str, Any], code: int, launches: int
) -> None:
    one = supervise(line, **plan)
    assert one.wait() == code, one.output
    assert len(one.launches) == launches, one.output


def test_the_outcome_of_an_earlier_launch_is_not_taken_for_that_of_a_killed_one(supervise: Supervise) -> None:
    one = supervise("end('preempted', 0)", "os.kill(os.getpid(), signal.SIGKILL)", budget=0)
    assert one.wait() == 137, one.output
    assert "(no retry is counted): the job was preempted" in one.output
    assert "the launcher was killed by SIGKILL; no retry of the job is allowed" in one.output


def test_the_outcome_can_be_read_where_the_user_wants_it(supervise: Supervise, tmp_path: Path) -> None:
    one = supervise("failed()", "end('finished', 0, iteration=9)", outcome="deep/outcome.json")
    assert one.wait() == 0, one.output
    assert json.loads((tmp_path / "deep" / "outcome.json").read_text())["iteration"] == 9


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_reaches_the_launcher_once_and_nothing_follows(supervise: Supervise, name: str) -> None:
    one = supervise("wait()")
    one.until_waiting()
    os.killpg(one.process.pid, signal.Signals[name])  # as a terminal does: to the whole group
    assert one.wait() == 0, one.output
    assert one.signals == [name]
    assert len(one.launches) == 1
    assert "the job is not relaunched" in one.output


def test_a_failure_on_a_sigterm_is_not_retried_either(supervise: Supervise) -> None:
    one = supervise("Path('waiting').touch(); signal.pause()")
    one.until_waiting()
    one.process.terminate()
    assert one.wait() == 143, one.output
    assert len(one.launches) == 1


def test_a_signal_between_two_launches_ends_it(supervise: Supervise) -> None:
    one = supervise("failed()", budget=9)
    wait_for(lambda: "relaunching the job in 4 s" in one.output)
    one.process.terminate()
    assert one.wait() == 1, one.output
    assert len(one.launches) == 3
    assert "the job is not relaunched: got SIGTERM" in one.output


def test_a_launcher_does_not_outlive_a_killed_supervisor(supervise: Supervise) -> None:
    one = supervise("wait()")
    one.until_waiting()
    one.process.kill()
    wait_for(lambda: not marked(str(one.folder)))
    assert one.signals == ["SIGTERM"], "it could save"


# Real launchers -----------------------------------------------------------------------------------------------------

FAIL_ONCE = """
say("job " + os.environ["RANKWATCH_JOB_ID"])
assert "RANKWATCH_SUPERVISED" not in os.environ
assert "RANKWATCH_OUTCOME" not in os.environ
if not Path("failed").exists():
    Path("failed").touch()
    os._exit(3)
finish()
"""
HANG_ONCE = """
say("job")
if not Path("failed").exists():
    Path("failed").touch()
    say("hangs")
    signal.pause()
finish()
"""
WAIT = "say('up')\nsignal.pause()\n"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_real_job_succeeds_on_its_retry(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--job-retries", "1", "--max-restarts", "0", script(FAIL_ONCE))
    assert launcher.wait(PATIENCE) == 0, launcher.output
    jobs = [line.rpartition("job ")[2] for line in launcher.output.splitlines() if ": job " in line]
    assert len(jobs) == 2
    assert len(set(jobs)) == 1, "a job without an id is one job over its retries"
    assert jobs[0].startswith("train-")
    assert "relaunching the job in 1 s (retry 1 of 1)" in launcher.output


@pytest.mark.parametrize(("no_restart", "launches"), [("used_up", 2), ("", 1)])
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_hang_without_a_restart_left_is_retried_and_a_wanted_stop_is_not(
    start: Start, script: Script, monitor: FakeMonitor, no_restart: str, launches: int
) -> None:
    launcher = start("--monitor", monitor.url, "--job-retries", "1", script(HANG_ONCE))
    wait_for(lambda: "hangs" in launcher.output)
    monitor.order("stop", 1, no_restart=no_restart)
    monitor.until(lambda: monitor.events("failed") or monitor.events("stopped"))
    monitor.directives.clear()  # a real one sends a launcher those that follow its registration
    code = launcher.wait(PATIENCE)
    assert (code, launcher.output.count(": job>")) == (0 if no_restart else 1, launches), launcher.output
    ends = [body["kind"] for body in monitor.events() if body["kind"] in ("failed", "stopped", "finished")]
    assert ends == (["failed", "finished"] if no_restart else ["stopped"])
    assert [body["no_restart"] for body in monitor.events("failed")] == ([no_restart] if no_restart else [])


@pytest.mark.timeout(300)
def test_the_supervisor_stays_small_and_takes_its_launcher_along(
    start: Start, script: Script, monitor: FakeMonitor, tmp_path: Path
) -> None:
    launcher = start("--monitor", monitor.url, "--job-retries", "3", script(WAIT))
    monitor.until(lambda: monitor.events("started"), PATIENCE)
    wait_for(lambda: ": up>" in launcher.output, PATIENCE)
    assert "libtorch" not in Path(f"/proc/{launcher.process.pid}/maps").read_text()
    assert len(marked(str(tmp_path))) > 2
    launcher.process.kill()
    wait_for(lambda: not marked(str(tmp_path)), PATIENCE)
    assert "relaunching the job" not in launcher.output


@pytest.mark.parametrize("retries", [(), ("--job-retries", "2")])
@pytest.mark.timeout(300)
def test_a_complete_training_is_not_run_again(start: Start, script: Script, tmp_path: Path, retries: Any) -> None:
    flag = tmp_path / "finished"
    flag.touch()
    launcher = start(*retries, script("say('up')\n"), env={"FAULT_TOL_FINISHED_FLAG_FILE": str(flag)})
    assert launcher.wait(PATIENCE) == 0, launcher.output
    assert f"training is complete ({flag} exists)" in launcher.output
    assert "up>" not in launcher.output


@pytest.mark.timeout(300)
def test_a_mistake_on_the_command_line_is_not_retried(start: Start, script: Script) -> None:
    launcher = start("--job-retries", "2", "--on-hang", "explode", script("finish()\n"))
    assert launcher.wait(PATIENCE) == 2
    assert "must be one of" in launcher.output
    foreign = start("--job-retries", "2", "--no-such-flag", "1", script("finish()\n"))
    assert foreign.wait(PATIENCE) == 2
    assert "the command line is invalid" in foreign.output


@pytest.mark.timeout(300)
def test_an_abbreviated_flag_is_obeyed_and_plain_torchrun_is_retried_too(start: Start, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import sys\nsys.exit(5)\n")
    launcher = start("--job-ret", "1", "--no-monitor", "plain.py")
    assert launcher.wait(PATIENCE) == 1, launcher.output
    assert "relaunching the job in 1 s (retry 1 of 1)" in launcher.output
    assert "the only retry of the job is used up" in launcher.output
