"""What the pool does: parks one step at a time, keeps its bounds, and states why a rank starts fresh."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.conftest import FakeMonitor, Launcher, wait_for
from launcher.starts import THE_NEXT, Starts
from rankwatch.contract.enums import ProcessState
from rankwatch_launcher import procfs
from rankwatch_launcher.cli.flags import STANDBY
from rankwatch_launcher.prewarm import handle
from rankwatch_launcher.prewarm import pool as standby
from rankwatch_launcher.prewarm.handle import Command
from rankwatch_launcher.prewarm.pool import PrewarmPool, PrewarmSettings
from rankwatch_launcher.procfs import Memory, process_state

GIB = 1 << 30


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    (tmp_path / "train.py").write_text("print('ran')\n")
    made = Starts(tmp_path)
    yield made
    made.close()


def module(starts: Starts, name: str, text: str) -> None:
    (starts.folder / f"{name}.py").write_text(text)
    starts.base = (*starts.base, name)


def train(starts: Starts) -> list[str]:
    return [str(starts.folder / "train.py")]


def taken(pool: PrewarmPool, starts: Starts, **changes: str) -> str:
    """Start the next attempt's rank; return what was reported if it was not taken from the standby, else nothing."""
    before = set(pool._logged)
    process = pool.take(0, (sys.executable, "-u", *train(starts)), {**os.environ, **THE_NEXT, **changes}, 2, 2)
    if process is not None:
        assert process.wait(60) == 0
        return ""
    return " ".join(pool._logged - before) or "nothing was said"


# What makes a rank start fresh ----------------------------------------------------------------------------------------


def test_another_port_and_attempt_are_no_reason(starts: Starts) -> None:
    assert taken(starts.ready(starts.pool(), train(starts)), starts) == ""


def test_a_variable_that_is_read_at_import_is_named(starts: Starts) -> None:
    pool = starts.ready(starts.pool(), train(starts))
    assert "OMP_NUM_THREADS has changed since the worker was started" in taken(pool, starts, OMP_NUM_THREADS="7")
    assert not pool._workers
    assert not pool.disabled, "the next one is parked with what this rank was given"


def test_another_command_is_not_used(starts: Starts) -> None:
    pool = starts.ready(starts.pool(), train(starts))
    env = {**os.environ, **THE_NEXT}
    assert pool.take(0, (sys.executable, "-u", *train(starts), "--more"), env, 2, 2) is None
    assert any("the command has changed" in line for line in pool._logged)


def test_one_that_is_still_importing_is_left_to_it(starts: Starts) -> None:
    gate = starts.folder / "gate"
    os.mkfifo(gate)
    module(starts, "slow", f"open({str(gate)!r}).read()")
    pool = starts.pool()
    starts.wish(pool, train(starts))

    def importing() -> bool:
        pool.tick()
        return any(p.busy == "slow" for p in pool._workers.values())

    wait_for(importing)
    assert taken(pool, starts) == "nothing was said"
    gate.write_text("")
    starts.ready(pool, train(starts))
    assert taken(pool, starts) == ""


# What ends the standby ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("import not_there", "late cannot be imported ahead: ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit(0)", "late cannot be imported ahead: SystemExit: 0"),
        ("import os; os._exit(9)", "exited while it imported late (exit code 9)"),
        ("import os; os.write(2, b'x\\nno license\\n'); os.abort()", "(signal 6: no license)"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), name='beat').start()", "(beat)"),
        ("print('x' * 2000000)", "prints more than"),
    ],
)
def test_an_import_that_cannot_be_done_ahead_is_reported_once(
    starts: Starts, monkeypatch: pytest.MonkeyPatch, text: str, printed: str
) -> None:
    logged: list[tuple[int, str]] = []
    # Not by way of handlers: an earlier test in this process may have given the logger one of its own.
    monkeypatch.setattr(standby.logger, "log", lambda level, words, *values: logged.append((level, words % values)))
    module(starts, "late", text)
    pool = starts.ready(starts.pool(), train(starts))
    assert printed in pool.disabled
    assert not pool._workers
    for _ in range(3):
        pool.tick()
    assert taken(pool, starts) == "nothing was said"
    assert [(level, printed in words) for level, words in logged] == [(logging.WARNING, True)]


def test_a_module_that_makes_a_context_on_the_accelerator_is_refused(starts: Starts) -> None:
    # A stand-in for torch on a machine with a GPU: the script's folder comes first in sys.path.
    (starts.folder / "torch.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: True)\n")
    module(starts, "greedy", "import torch")
    pool = starts.ready(starts.pool(), train(starts))
    assert (
        pool.disabled
        == "greedy cannot be imported ahead: it creates a context on the accelerator (torch.cuda.is_initialized())"
    )


def test_one_that_dies_while_it_waits_is_reported(starts: Starts) -> None:
    pool = starts.ready(starts.pool(), train(starts))
    (waiting,) = pool._workers.values()
    os.kill(waiting.process.pid, signal.SIGKILL)

    def noticed() -> str:
        pool.tick()
        return pool.disabled

    assert "of local rank 0 exited while it waited (signal 9)" in wait_for(noticed)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["/bin/true"], "not by the launcher's own"),
        ([sys.executable, "-u", "-X", "dev", "train.py"], "Python option -X"),
        ([sys.executable, "-u", "nowhere.py"], "nowhere.py is not a file"),
        ([sys.executable, "train.py"], "not started with python -u"),
        ([sys.executable, "-u"], "no script"),
    ],
)
def test_commands_that_cannot_be_parked_are_named(argv: list[str], why: str, tmp_path: Path) -> None:
    pool = PrewarmPool(PrewarmSettings(), dict, settle_seconds=0.0)
    assert pool.take(0, argv, dict(os.environ), 2, 2) is None
    pool.tick()
    assert why in pool.disabled
    assert pool._probe is None


def test_the_scripts_folder_leads(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link.py").symlink_to(tmp_path / "a.py")
    python = sys.executable
    script = Command.of([python, "-u", "b/link.py", "x"], python, str(tmp_path))
    assert isinstance(script, Command)
    assert (script.first, script.main) == (str(tmp_path), str(tmp_path / "b/link.py"))
    module = Command.of([python, "-u", "-m", "a"], python, str(tmp_path))
    assert isinstance(module, Command)
    assert (module.first, module.main) == (str(tmp_path), "")


# When, and how much ---------------------------------------------------------------------------------------------------


def test_nothing_is_parked_before_the_attempt_has_settled(starts: Starts) -> None:
    now = 0.0
    pool = PrewarmPool(PrewarmSettings(), dict, base=("json",), clock=lambda: now)
    starts.pools.append(pool)
    starts.wish(pool, train(starts))
    now = standby.SETTLE_SECONDS - 0.1
    pool.tick()
    assert pool._probe is None
    now = standby.SETTLE_SECONDS
    pool.tick()
    assert pool._probe is not None


def test_one_import_at_a_time(starts: Starts) -> None:
    pool = starts.pool()
    env = {**os.environ, **THE_NEXT}
    for local_rank in range(3):
        pool.take(local_rank, (sys.executable, "-u", *train(starts)), env, 2, 2)
    most = 0

    def all_ready() -> bool:
        nonlocal most
        pool.tick()
        most = max(most, sum(bool(p.busy) for p in pool._workers.values()))
        return sum(p.imported == ["json"] for p in pool._workers.values()) == 3

    wait_for(all_ready)
    assert most == 1


def test_one_that_grows_beyond_its_limit_ends_the_standby(starts: Starts) -> None:
    pool = starts.pool(memory=1 << 20)
    starts.ready(pool, train(starts))
    wait_for(lambda: pool.tick() or pool.disabled)
    assert "GiB, more than --standby-memory 0.000976562" in pool.disabled
    assert not pool._workers


def test_none_is_parked_while_memory_is_short(starts: Starts) -> None:
    pool = starts.pool()
    free = 3 * GIB
    pool.memory = lambda: Memory(free, 64 * GIB)
    starts.wish(pool, train(starts))
    waits = "standby waits for memory: 3.0 GiB available, less than --standby-memory (2 GiB) plus a margin of 2 GiB"
    wait_for(lambda: pool.tick() or waits in pool._logged)
    assert not pool._workers
    free = 5 * GIB
    starts.ready(pool, train(starts))
    (waiting,) = pool._workers.values()
    free = GIB // 2
    wait_for(lambda: pool.tick() or not pool._workers)
    assert process_state(waiting.process.pid) is ProcessState.EXITED
    assert "standby releases its memory: 0.5 GiB available" in pool._logged
    assert not pool.disabled


# By default -----------------------------------------------------------------------------------------------------------


class Automatic:
    """A pool that was not asked for, with a clock, ranks and memory of the test's own."""

    def __init__(self, starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.steps, self.library = 0.0, 0, True
        self.memory = Memory(30 * GIB, 64 * GIB)
        reading = SimpleNamespace(first_iteration=0)
        self.pool = PrewarmPool(
            PrewarmSettings(automatic=True),
            lambda: {0: reading} if self.steps else {},  # type: ignore[arg-type, return-value]
            base=("json",),
            clock=lambda: self.now,
            memory=lambda: self.memory,
        )
        monkeypatch.setattr(standby, "OURS", ())
        monkeypatch.setattr(procfs, "maps_library", lambda pid, name: self.library and (pid, name) == (77, "libtorch"))
        starts.pools.append(self.pool)
        starts.wish(self.pool, train(starts))
        self.pool.started(0, 77)

    def begins(self) -> bool:
        self.pool.tick()
        return self.pool._probe is not None

    def worker(self) -> handle.PrewarmedWorker:
        wait_for(lambda: self.pool.tick() or self.pool._workers)
        (worker,) = self.pool._workers.values()
        return worker


@pytest.fixture
def automatic(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> Automatic:
    return Automatic(starts, monkeypatch)


def test_the_first_seconds_belong_to_the_job(automatic: Automatic) -> None:
    automatic.steps, automatic.now = 1, standby.SETTLE_SECONDS - 0.1
    assert not automatic.begins()
    automatic.now = standby.SETTLE_SECONDS
    assert automatic.begins()


def test_a_job_without_steps_is_given_a_minute(automatic: Automatic) -> None:
    automatic.now = standby.AUTOMATIC_SETTLE_SECONDS - 0.1
    assert not automatic.begins()
    automatic.now = standby.AUTOMATIC_SETTLE_SECONDS
    assert automatic.begins()


def test_nothing_is_prewarmed_for_ranks_without_torch(automatic: Automatic) -> None:
    automatic.library, automatic.now = False, standby.AUTOMATIC_SETTLE_SECONDS
    assert not automatic.begins()
    automatic.library = True
    assert not automatic.begins(), "the maps of a rank are long, so they are not read at every tick"
    automatic.now += standby.LIBRARY_CHECK_SECONDS
    assert automatic.begins()


def test_a_quarter_of_the_memory_is_left_to_the_job(automatic: Automatic) -> None:
    automatic.now, automatic.memory = standby.AUTOMATIC_SETTLE_SECONDS, Memory(18 * GIB - 1, 64 * GIB)
    waits = "standby waits for memory: 18.0 GiB available, less than --standby-memory (2 GiB) plus a margin of 16 GiB"
    wait_for(lambda: automatic.pool.tick() or waits in automatic.pool._logged)
    automatic.memory = Memory(18 * GIB, 64 * GIB)
    worker = automatic.worker()
    automatic.memory = Memory(8 * GIB - 1, 64 * GIB)
    automatic.now += standby.MEMORY_CHECK_SECONDS
    wait_for(lambda: automatic.pool.tick() or not automatic.pool._workers)
    assert process_state(worker.process.pid) is ProcessState.EXITED


def test_what_stands_in_its_way_is_no_warning(
    automatic: Automatic, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[int] = []
    monkeypatch.setattr(standby.logger, "log", lambda level, *_: levels.append(level))
    automatic.now = standby.AUTOMATIC_SETTLE_SECONDS
    os.kill(automatic.worker().process.pid, signal.SIGKILL)
    wait_for(lambda: automatic.pool.tick() or automatic.pool.disabled)
    assert levels == [logging.INFO]
    assert starts.pools[-1].take(0, (sys.executable, "-u", *train(starts)), {**os.environ, **THE_NEXT}, 2, 2) is None


# In a job -------------------------------------------------------------------------------------------------------------

RESTARTED = """
own = Own()
own.pulse()
meet()
say(f"sum {together():g} pid {os.getpid()}")
own.words[layout.FIRST_ITERATION] = 1
own.words[layout.FIRST_STEP_AT] = time.monotonic_ns()
own.done(0)
while FIRST and not Path("go").exists():
    time.sleep(0.01)
if FIRST and RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
together()
finish()
"""


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("flags", [(), ("--standby",)], ids=["by default", "asked for"])
def test_a_killed_rank_is_followed_by_ranks_from_the_standby(
    start: Callable[..., Launcher],
    script: Callable[[str], str],
    monitor: FakeMonitor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    monkeypatch.delenv(STANDBY)
    launcher = start("--verbose", "--monitor", monitor.url, *flags, "--nproc-per-node", "2", script(RESTARTED))
    wait_for(
        lambda: "2 prewarmed workers have imported torch" in launcher.output or launcher.process.poll() is not None,
        200.0,
    )
    (tmp_path / "go").touch()
    assert launcher.wait(100.0) == 0, launcher.output
    second = {e["local_rank"]: e["pid"] for e in monitor.events("started") if e["attempt"] == 2}
    for local_rank, pid in second.items():
        assert f"local rank {local_rank} starts from a prewarmed worker (pid {pid})" in launcher.output
        assert f"<rank {local_rank} attempt 2: sum 2 pid {pid}>" in launcher.output


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_launcher_that_is_killed_leaves_no_parked_interpreter(
    start: Callable[..., Launcher], script: Callable[[str], str], monitor: FakeMonitor
) -> None:
    launcher = start("--monitor", monitor.url, "--standby", "--verbose", "--nproc-per-node", "1", script(RESTARTED))
    wait_for(
        lambda: "1 prewarmed workers have imported torch" in launcher.output or launcher.process.poll() is not None,
        150.0,
    )
    assert launcher.process.poll() is None, launcher.output
    launcher.process.kill()
    launcher.process.wait()
    # The fixture fails if anything that the launcher has started outlives it.


def test_a_worker_that_cannot_be_killed_is_left_behind(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in uninterruptible sleep."""
    pool = starts.ready(starts.pool(), train(starts))
    (worker,) = pool._workers.values()
    monkeypatch.setattr(handle, "KILLED_SECONDS", 0.1)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    os.kill(worker.process.pid, signal.SIGSTOP)  # else it ends by itself when the pool closes its pipe
    pool.close()
    assert worker.process.poll() is None
    monkeypatch.undo()
    os.killpg(worker.process.pid, signal.SIGKILL)
    assert worker.process.wait(60) == -signal.SIGKILL
