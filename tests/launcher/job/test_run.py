"""A launcher from its start to its outcome, with an agent that ends as scripted: no rank, no monitor, no network."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig

from rankwatch.contract import env as environment
from rankwatch_launcher import torch_compat
from rankwatch_launcher.coordination.rendezvous import Interrupted, JobOver
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.job import launcher as module
from rankwatch_launcher.job.launcher import Launcher
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import FAILED, FINISHED, PREEMPTED, STOPPED, Outcome


class Scene:
    """One launcher; ``agent_runs`` is what its agent does, and ``done`` what else is called, in order."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.folder = folder
        self.agent_runs: Callable[[], RunResult | None] = lambda: None
        self.agent_outcome = Outcome(FINISHED, 0)
        self.join: Callable[[], None] = lambda: None
        self.signals: Any = None
        self.folders: list[Path] = []
        self.store = JobStore(HashStore(), "job")
        self.rendezvous: Any = SimpleNamespace(
            alone=True,
            joined=True,
            standing_by=False,
            attempt=1,
            rank=0,
            store=self.store,
            decision=lambda: None,
            members=SimpleNamespace(
                holds_store=True,
                excluded=lambda latest: (),
                leave=lambda reason, *, timeout, needed: self.done.append(f"leave, needed: {needed}"),
            ),
            join=self._join,
            shutdown=lambda: self.done.append("rendezvous shut down"),
        )
        discovery: Any = SimpleNamespace(
            job_id="job-1",
            holds_monitor=True,
            monitor_url="",
            on_rendezvous=None,
            begin_alone=lambda: self.done.append("monitor begun"),
            close=lambda: self.done.append("monitor closed"),
        )
        monkeypatch.setattr(module, "MonitorDiscovery", lambda *_: discovery)
        monkeypatch.setattr(module, "OrphanReaper", self._reaper)
        monkeypatch.setattr(module, "rendezvous_of", lambda _: self.rendezvous)
        monkeypatch.setattr(module, "MembershipService", lambda *given, **_: SimpleNamespace(calls=given[4]))
        monkeypatch.setattr(module, "Agent", self._agent)
        # Names of the environment that a launcher sets for its ranks.
        for name in (torch_compat.SIGNALS, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", environment.STOP_SIGNAL):
            monkeypatch.setenv(name, "")  # so that it is put back as it was
            monkeypatch.delenv(name)
        for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
            monkeypatch.delenv(name, raising=False)

    def _reaper(self, folder: Path) -> Any:
        self.folders.append(folder)
        return SimpleNamespace(dismiss=lambda: self.done.append("reaper dismissed"))

    def _join(self, make: Any) -> None:
        self.members = make(None, True)
        self.join()

    def _agent(self, spec: Any, config: Any, options: Any, around: Any, **_: Any) -> Any:
        self.spec, self.signals = spec, around.signals
        events = {"get_event_failed": lambda: "failed", "get_event_succeeded": lambda: "succeeded"}
        return SimpleNamespace(
            run=lambda: self.agent_runs(),
            outcome=self.agent_outcome,
            kill_ranks=lambda: self.done.append("ranks killed"),
            **dict.fromkeys(torch_compat.PRIVATE_ATTRIBUTES),
            **events,
        )

    def run(self, **options: Any) -> Launcher:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=2,
            run_id="job",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            logs_specs=DefaultLogsSpecs(log_dir=str(self.folder / "logs")),
        )
        self.launcher = Launcher(Options(outcome=str(self.folder / "outcome.json"), **options), config)
        self.launcher.run("python", ["-u", "train.py"])
        return self.launcher

    def written(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "outcome.json").read_text())
        return found


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is recorded for torch's own event log."""
    recorded: list[Any] = []
    monkeypatch.setattr(module.events, "record", lambda event, destination="null": recorded.append(event))
    return recorded


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Any]) -> Iterator[Scene]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    made = Scene(tmp_path, monkeypatch)
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)
    assert made.folders
    assert not any(folder.exists() for folder in made.folders), "files in /dev/shm outlive the process"


def raising(error: BaseException) -> Callable[[], Any]:
    def end() -> Any:
        raise error

    return end


def test_a_job_that_finishes_is_closed_written_down_and_left_in_order(scene: Scene, events: list[Any]) -> None:
    launcher = scene.run()
    assert (launcher.outcome.state, launcher.outcome.code, launcher.outcome.job_id) == (FINISHED, 0, "job-1")
    assert (scene.written()["state"], scene.written()["attempt"]) == (FINISHED, 1)
    assert events == ["succeeded"]
    closed = scene.store.outcome()
    assert closed is not None
    assert closed.state == FINISHED
    assert scene.done == [
        *("monitor begun", "leave, needed: True", "monitor closed"),
        *("reaper dismissed", "rendezvous shut down"),
    ]
    assert launcher.summary, "the launcher with the monitor has the last lines"


def test_after_the_job_no_signal_interrupts_what_must_be_completed(scene: Scene) -> None:
    scene.run()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_ranks_that_fail_become_torchs_error_with_the_scripts_name(scene: Scene, events: list[Any]) -> None:
    failure = ProcessFailure(local_rank=1, pid=99, exitcode=3, error_file="/none")
    scene.agent_outcome = Outcome(FAILED, 1, "rank 1 crashed")
    scene.agent_runs = lambda: RunResult(WorkerState.FAILED, failures={1: failure})
    with pytest.raises(ChildFailedError) as failed:
        scene.run()
    assert (failed.value.name, failed.value.failures) == ("python", {1: failure})
    assert (scene.written()["code"], scene.written()["reason"]) == (1, "rank 1 crashed")


def test_a_stopped_jobs_killed_ranks_are_no_error(scene: Scene) -> None:
    scene.agent_outcome = Outcome(STOPPED, 1, "ordered")
    failure = ProcessFailure(local_rank=1, pid=99, exitcode=-9, error_file="/none")
    scene.agent_runs = lambda: RunResult(WorkerState.FAILED, failures={1: failure})
    assert scene.run().outcome.state == STOPPED


def test_a_job_that_ended_before_ends_this_launcher_as_it_did(scene: Scene, events: list[Any]) -> None:
    scene.join = raising(JobOver(Outcome(FAILED, 93, "no progress")))
    launcher = scene.run()
    assert (launcher.outcome.state, launcher.outcome.code, launcher.outcome.reason) == (FAILED, 93, "no progress")
    assert events == ["failed"]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch_compat.DistError("connection reset"), True),
        (RendezvousConnectionError("refused"), True),
        (RendezvousTimeoutError("node b is missing"), False),
        (TimeoutError("too late"), False),
    ],
)
def test_without_a_rendezvous_the_launcher_fails_with_the_reason(scene: Scene, error: Exception, lost: bool) -> None:
    scene.agent_runs = raising(error)
    launcher = scene.run()
    assert (launcher.outcome.state, launcher.outcome.code) == (FAILED, 1)
    assert str(error) in launcher.outcome.reason
    assert ("store at localhost:0" in launcher.outcome.reason) == lost
    assert scene.done[-3:] == ["monitor closed", "reaper dismissed", "rendezvous shut down"]


@pytest.mark.parametrize(
    ("number", "state", "code"),
    [(signal.SIGTERM, PREEMPTED, 1), (signal.SIGINT, STOPPED, 130), (signal.SIGHUP, STOPPED, 1)],
)
def test_a_signal_that_ends_the_ranks(scene: Scene, number: signal.Signals, state: str, code: int) -> None:
    scene.agent_runs = raising(SignalException("got it", number))
    launcher = scene.run()
    assert (launcher.outcome.state, launcher.outcome.code) == (state, code)


def test_a_stop_signal_while_no_rank_runs(scene: Scene) -> None:
    def interrupted() -> None:
        scene.signals.polled = True
        os.kill(os.getpid(), signal.SIGTERM)
        raise Interrupted

    scene.join = interrupted
    launcher = scene.run()
    assert (launcher.outcome.state, launcher.outcome.code) == (PREEMPTED, 1)
    assert scene.store.outcome() is None, "the other launchers go on"


def test_a_mistake_of_the_launcher_itself_is_raised_after_everything_is_closed(scene: Scene) -> None:
    scene.agent_runs = raising(KeyError("a defect"))
    with pytest.raises(KeyError):
        scene.run()
    assert scene.done[-3:] == ["monitor closed", "reaper dismissed", "rendezvous shut down"]
    assert scene.written()["state"] == FAILED


@pytest.mark.parametrize(("complete", "flagged"), [(True, True), (False, False)])
def test_the_finished_flag_is_written_on_success_if_asked_for(scene: Scene, complete: bool, flagged: bool) -> None:
    scene.run(finished_flag=str(scene.folder / "flag"), complete_on_success=complete)
    assert (scene.folder / "flag").exists() == flagged


def test_another_launcher_of_the_job_has_the_last_lines(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.rendezvous.alone, scene.rendezvous.rank = False, 1
    monkeypatch.setattr(module, "MonitorDiscovery", lambda *_: elsewhere)
    elsewhere: Any = SimpleNamespace(job_id="job-1", holds_monitor=False, on_rendezvous=None, close=lambda: None)
    assert scene.run().summary is None
    assert "leave, needed: False" in scene.done


def test_the_ranks_environment(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    scene.run(stop_signal="SIGUSR2")
    assert os.environ[torch_compat.SIGNALS] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    assert os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert os.environ[environment.STOP_SIGNAL] == str(int(signal.SIGUSR2)), "Slurm signals the ranks, too"
    assert (scene.spec.local_world_size, scene.spec.args, scene.spec.entrypoint) == (2, ("-u", "train.py"), "python")


def test_a_torch_without_what_the_agent_needs_is_reported(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "PRIVATE_ATTRIBUTES", ("_store", "_none"))
    agent: Any = SimpleNamespace(_store=None)
    monkeypatch.setattr(module, "Agent", lambda *_, **__: agent)
    with pytest.raises(RuntimeError, match="lacks _none"):
        scene.run()


def test_without_the_store_all_is_closed_from_another_thread_but_what_needs_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exited(BaseException):
        pass

    def leave(code: int) -> None:
        scene.done.append(f"exit {code}")
        raise Exited

    def lost() -> None:
        scene.members.calls.on_store_timeout(180.0, frozenset())

    monkeypatch.setattr(module.os, "_exit", leave)
    scene.agent_runs = lost  # type: ignore[assignment]
    with pytest.raises(Exited):
        scene.run()
    assert scene.done == [
        *("monitor begun", "ranks killed", "monitor closed", "reaper dismissed", "rendezvous shut down"),
        "exit 1",
    ]
    assert (scene.written()["state"], scene.written()["job_id"]) == (FAILED, "job-1")


def test_an_outcome_that_cannot_be_written_ends_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    (scene.folder / "outcome.json").mkdir()
    assert scene.run().outcome.state == FINISHED
    assert any("cannot be written" in message for message in caplog.messages)
