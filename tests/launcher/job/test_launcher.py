"""What a launcher does around its agent: the place it prefers, interruptions while it waits, its record."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.launcher.api import LaunchConfig

from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.coordination.decisions import RESTART, AttemptDecision, RestartBudget, StepRange
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.job import launcher as module
from rankwatch_launcher.node.identity import Identity
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import PREEMPTED


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
    assert module.preferred_rank(config(**more), env) == rank


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "name"),
    [("run.sh", ["-x"], "run.sh"), (module.sys.executable, ["-u", "train.py", "--lr"], "train.py")],
)
def test_the_table_of_failures_names_the_script(entrypoint: str, arguments: list[str], name: str) -> None:
    assert module.script_name(entrypoint, arguments) == name


# Interruptions while it waits for a place -----------------------------------------------------------------------------


class Waiting:
    """A launcher that has no ranks yet."""

    def __init__(self) -> None:
        self.store = JobStore(HashStore(), "job")
        self.signals: Any = SimpleNamespace(stop=signal.SIGTERM, stop_received=None)
        self.stop: Directive | None = None
        directives = SimpleNamespace(pending_stop=lambda: self.stop)
        session: Any = SimpleNamespace(directives=directives)
        self.rendezvous: Any = SimpleNamespace(
            standing_by=False,
            store=self.store,
            members=SimpleNamespace(holds_store=False, wake=lambda: None),
        )
        self.interrupted: Callable[[], bool] = module.interruption(
            Options(stop_grace=50.0), Identity("h", "h", "n"), session, self.rendezvous, self.signals
        )


def stop_directive() -> Directive:
    return Directive(id=1, kind=DirectiveKind.STOP, attempt=0, reason="ordered")


def test_without_a_signal_or_a_directive_it_waits() -> None:
    assert not Waiting().interrupted()


def test_a_stop_directive_ends_the_wait_of_a_launcher_without_a_place() -> None:
    scene = Waiting()
    scene.stop = stop_directive()
    assert scene.interrupted()


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


# Its record -----------------------------------------------------------------------------------------------------------


def test_the_record_of_the_job_has_the_furthest_step_and_the_restarts_of_all_nodes() -> None:
    store = JobStore(HashStore(), "job")
    crash = AttemptDecision(RESTART, "a crash", exclude={"b": "ECC errors"})
    store.end_attempt(1, crash, by="b", budget=RestartBudget(3), steps=StepRange(0, 40))
    members = SimpleNamespace(excluded=lambda latest: tuple(latest.items()))
    rendezvous: Any = SimpleNamespace(
        attempt=1, joined=True, store=store, members=members, decision=lambda: store.decision(1)
    )
    files: Any = SimpleNamespace(steps=lambda: StepRange(0, 30))
    assert module.job_record(rendezvous, files) == {
        "attempt": 1,
        "iteration": 40,
        "restarts": 1,
        "excluded": (("b", "ECC errors"),),
    }
