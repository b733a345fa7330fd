"""What a launcher does around its agent: interruptions while it waits, its end without the store, its record."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.launcher.api import LaunchConfig

from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.coordination.decisions import RESTART, AttemptDecision, RestartBudget, StepRange
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.job import launcher as module
from rankwatch_launcher.job.launcher import Launcher
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import FAILED, PREEMPTED, STOPPED, Outcome


def config(**more: Any) -> LaunchConfig:
    return LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, run_id="job", rdzv_endpoint="host:1", **more)


# The place it prefers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "env", "rank"),
    [
        ({"rdzv_backend": "static", "rdzv_configs": {"rank": 3}}, {"GROUP_RANK": "1"}, 3),
        ({"rdzv_backend": "c10d"}, {"SLURM_JOB_ID": "7", "SLURM_NODEID": "4", "GROUP_RANK": "2"}, 4),
        ({"rdzv_backend": "c10d"}, {"GROUP_RANK": "2"}, 2),
        ({"rdzv_backend": "c10d"}, {"GROUP_RANK": "first"}, None),
        ({"rdzv_backend": "c10d"}, {}, None),
    ],
)
def test_the_preferred_rank_is_the_configured_one_or_the_schedulers(
    more: dict[str, Any], env: dict[str, str], rank: int | None
) -> None:
    assert module._preferred_rank(config(**more), env) == rank


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "name"),
    [("run.sh", ["-x"], "run.sh"), (module.sys.executable, ["-u", "train.py", "--lr"], "train.py")],
)
def test_the_table_of_failures_names_the_script(entrypoint: str, arguments: list[str], name: str) -> None:
    assert module._script_name(entrypoint, arguments) == name


# Interruptions while it waits for a place -----------------------------------------------------------------------------


class Waiting:
    """A launcher that has no ranks yet."""

    def __init__(self) -> None:
        self.store = JobStore(HashStore(), "job")
        self.signals: Any = SimpleNamespace(stop=signal.SIGTERM, stop_received=None)
        self.stop: Directive | None = None
        self.acks: list[tuple[AckState, str]] = []
        directives = SimpleNamespace(
            pending_stop=lambda: self.stop, ack=lambda directive, state, detail: self.acks.append((state, detail))
        )
        self.node: Any = SimpleNamespace(name="n", host="h", directives=directives)
        self.rendezvous: Any = SimpleNamespace(
            standing_by=False,
            store=self.store,
            members=SimpleNamespace(holds_store=False, wake=lambda: None),
        )
        self.interrupted: Callable[[], bool] = module._interruption(
            Options(stop_grace=50.0), self.node, self.rendezvous, self.signals
        )


def stop_directive() -> Directive:
    return Directive(id=1, kind=DirectiveKind.STOP, attempt=0, reason="ordered")


def test_without_a_signal_or_a_directive_it_waits() -> None:
    assert not Waiting().interrupted()


def test_a_stop_directive_ends_the_wait_of_a_launcher_without_a_place() -> None:
    scene = Waiting()
    scene.stop = stop_directive()
    assert scene.interrupted()
    outcome = module._ended_by_directive(scene.node)
    assert (outcome.state, outcome.code, scene.acks) == (STOPPED, 1, [(AckState.DONE, "no rank ran")])


def test_a_spare_leaves_a_stop_directive_to_the_launchers_with_ranks() -> None:
    scene = Waiting()
    scene.stop, scene.rendezvous.standing_by = stop_directive(), True
    assert not scene.interrupted()


@pytest.mark.parametrize("standing_by", [False, True])
def test_a_signal_ends_the_wait(standing_by: bool) -> None:
    scene = Waiting()
    scene.signals.stop_received, scene.rendezvous.standing_by = signal.SIGTERM, standing_by
    assert scene.interrupted()


def test_the_host_of_the_store_has_the_ranks_save_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    scene = Waiting()
    scene.signals.stop_received, scene.rendezvous.standing_by = signal.SIGTERM, True
    scene.rendezvous.members.holds_store = True
    assert not scene.interrupted()
    request = scene.store.stop_request(0)
    assert request is not None
    assert (request.by, request.state) == ("n", PREEMPTED)
    now[0] += 50.0 + module.LEAVE_SECONDS
    assert not scene.interrupted()
    now[0] += 0.1
    assert scene.interrupted()


@pytest.mark.parametrize(
    ("number", "standing_by", "state", "code"),
    [
        (signal.SIGTERM, False, PREEMPTED, 1),
        (signal.SIGINT, False, STOPPED, 130),
        (signal.SIGTERM, True, PREEMPTED, 0),
    ],
)
def test_the_outcome_of_a_signal(number: signal.Signals, standing_by: bool, state: str, code: int) -> None:
    scene = Waiting()
    scene.rendezvous.standing_by = standing_by
    outcome = module._ended_by_signal(scene.node, number, scene.signals, scene.rendezvous)
    assert (outcome.state, outcome.code) == (state, code)
    assert f"got {number.name}" in outcome.reason


# Its end --------------------------------------------------------------------------------------------------------------


def test_without_the_store_the_ranks_are_killed_first_and_the_exit_is_reached_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []

    def broken() -> None:
        raise OSError("no link")

    class Exited(BaseException):
        pass

    def leave(code: int) -> None:
        done.append(f"exit {code}")
        raise Exited

    monkeypatch.setattr(module.os, "_exit", leave)
    node: Any = SimpleNamespace(host="h", report=lambda kind, reason: done.append(str(kind)), close=broken)
    agent: Any = SimpleNamespace(kill_ranks=lambda: done.append("kill"))
    discovery: Any = SimpleNamespace(job_id="j", close=lambda: done.append("close"))
    reaper: Any = SimpleNamespace(dismiss=lambda: done.append("dismiss"))
    launcher = Launcher(Options(outcome=str(tmp_path / "{node}.json")), config())
    with pytest.raises(Exited):
        launcher._on_store_timeout(node, agent, discovery, reaper, 180.0, frozenset())
    assert done == ["kill", str(ProcessEventKind.FAILED), "close", "dismiss", "exit 1"]
    written = json.loads((tmp_path / "h.json").read_text())
    assert (written["state"], written["job_id"]) == (FAILED, "j")


def test_the_record_of_the_job_has_the_furthest_step_and_the_restarts_of_all_nodes() -> None:
    store = JobStore(HashStore(), "job")
    crash = AttemptDecision(RESTART, "a crash", exclude={"b": "ECC errors"})
    store.end_attempt(1, crash, by="b", budget=RestartBudget(3), steps=StepRange(0, 40))
    members = SimpleNamespace(excluded=lambda latest: tuple(latest.items()))
    rendezvous: Any = SimpleNamespace(
        attempt=1, joined=True, store=store, members=members, decision=lambda: store.decision(1)
    )
    node: Any = SimpleNamespace(steps=lambda: StepRange(0, 30))
    assert module._job_record(rendezvous, node) == {
        "attempt": 1,
        "iteration": 40,
        "restarts": 1,
        "excluded": (("b", "ECC errors"),),
    }


def test_an_outcome_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    node: Any = SimpleNamespace(host="h")
    module._write(Outcome(FAILED, 1), str(tmp_path / "file" / "outcome.json"), node)
    assert not (tmp_path / "file" / "outcome.json").exists()
    assert any("cannot be written" in message for message in caplog.messages)
