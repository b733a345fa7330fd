"""The agent's loop over an in-memory store: exits, directives and other launchers' decisions; no process is started."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.agent import agent as module
from rankwatch_launcher.agent.agent import Agent
from rankwatch_launcher.agent.attempt_end import describe_exit
from rankwatch_launcher.agent.processes import RankExits
from rankwatch_launcher.coordination.decisions import (
    FAIL,
    RESTART,
    STOP,
    AttemptDecision,
    RestartBudget,
    StepRange,
    StopProposal,
    StopRequest,
)
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import CODE_DO_NOT_REQUEUE, FAILED, FINISHED, PREEMPTED, STOPPED
from rankwatch_launcher.torch_compat import DistError


class Ranks:
    """Stands for the rank processes: ``exits`` are handed out one ``wait`` at a time, everything else is recorded."""

    def __init__(self, count: int, done: list[str]) -> None:
        self.all = tuple(RankProcess(rank, rank, 1000 + rank) for rank in range(count))
        self.exits: list[dict[int, int]] = []
        """By rank: the exit codes that each ``wait`` finds."""
        self.done = done

    def wait(self, timeout: float, wake: int | None = None) -> list[RankProcess]:
        found = self.exits.pop(0) if self.exits else {}
        for rank, code in found.items():
            self.all[rank].code = code
        return [self.all[rank] for rank in found]

    def wait_all(self, timeout: float) -> list[RankProcess]:
        return self.wait(timeout)

    def alive(self) -> list[RankProcess]:
        return [rank for rank in self.all if rank.code is None]

    def terminate(self, timeout: float, number: int = signal.SIGTERM, **_: Any) -> None:
        self.done.append(f"terminate {signal.Signals(number).name}")

    def signal(self, number: int) -> None:
        self.done.append(f"signal {signal.Signals(number).name}")

    def kill(self, timeout: float) -> list[RankProcess]:
        self.done.append("kill")
        return []

    def close(self) -> None:
        self.done.append("close")


def test_a_rank_that_raised_and_then_aborted_had_not_finished(tmp_path: Path) -> None:
    # Its interpreter shut Rankwatch down as it ended, and NCCL's watchdog aborted it.
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": {"message": "AcceleratorError: CUDA error", "rankwatch": {"at": 7.0}}}))
    context: Any = SimpleNamespace(error_files={0: str(file)}, stderrs={})
    rank = RankProcess(0, 0, 1000)
    rank.code = -signal.SIGABRT
    recorded = RankExits((rank,), lambda local_rank: True).record(rank, context)
    assert (recorded.had_finished, recorded.consequence) == (False, False)
    assert describe_exit(recorded, "h") == "rank 0 on h was killed by SIGABRT after AcceleratorError: CUDA error"


class Scene:
    """One launcher of a job; what it does is recorded in ``done`` in its order."""

    def __init__(self, ranks: int = 2, nodes: int = 1, restarts: int = 3, options: Options | None = None) -> None:
        self.done: list[str] = []
        self.events: list[tuple[ProcessEventKind, dict[str, Any]]] = []
        self.acks: list[tuple[int, AckState, str]] = []
        self.directives: list[Directive] = []
        self.reserve: set[int] = set()
        self.explained: dict[int, str] = {}
        self.store = JobStore(HashStore(), "job")
        self.steps: StepRange | None = None
        self.captured: set[str | None] = set()
        node: Any = SimpleNamespace(
            name="n",
            host="h",
            hostname="h",
            attempt=1,
            directives=SimpleNamespace(
                wake=None,
                take=lambda attempt: self.directives.pop(0) if self.directives else None,
                ack=lambda directive, state, detail="", *_: self.acks.append((directive.id, state, detail)),
            ),
            requests=list,
            read_requests=lambda: None,
            readings=dict,
            had_shut_down=lambda local_rank: False,
            expendable=lambda local_rank: local_rank in self.reserve,
            exit_reason=lambda process: self.explained.get(process.rank, ""),
            report=lambda kind, reason="", **details: self.events.append((kind, {"reason": reason, **details})),
            budget=lambda configured: configured,
            steps=lambda: self.steps,
            captured=lambda incident: incident in self.captured,
            capture=self._capture,
            complete=lambda: False,
            set_stop_step=lambda step, preempts=False: (True, 7),
        )
        self.rendezvous: Any = SimpleNamespace(
            store=self.store,
            attempt=1,
            rank=0,
            world_size=nodes,
            decision=lambda: self.store.decision(1),
            members=SimpleNamespace(answer_stop=lambda *_: None, wake=lambda: None),
        )
        spec = WorkerSpec(
            role="default",
            local_world_size=ranks,
            entrypoint="python",
            args=(),
            rdzv_handler=self.rendezvous,
            max_restarts=restarts,
            monitor_interval=0.1,
        )
        signals: Any = SimpleNamespace(stop=signal.SIGTERM, stop_received=None, polled=True)
        reaper: Any = SimpleNamespace(forget=lambda: None, add=lambda pid: None)
        self.agent = Agent(
            spec,
            DefaultLogsSpecs(),
            options=options or Options(),
            node=node,
            rendezvous=self.rendezvous,
            reaper=reaper,
            signals=signals,
            on_rendezvous=lambda _: None,
        )
        self.node = node
        self.ranks: Any = Ranks(ranks, self.done)
        self.agent._ranks = self.ranks
        self.agent._exits = RankExits(self.ranks.all, node.had_shut_down)
        self.agent._stop._ranks = self.ranks

    def _capture(self, deadline: float, *, incident: str | None, last: bool = False, **_: Any) -> int:
        self.done.append(f"capture {incident} within {deadline:g} s")
        return 1

    def kinds(self) -> list[ProcessEventKind]:
        return [kind for kind, _ in self.events]

    def stops_at(self, step: int | None, state: str = PREEMPTED) -> None:
        """All launchers have agreed on a stop step; None: on SIGTERM."""
        self.store.propose_stop(1, StopProposal(1, step, StopRequest("preempted", "n", state)))
        self.agent._stop.follow_proposal()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for other launchers costs no time here."""
    monkeypatch.setattr(module, "LOOP_SECONDS", 0.001)
    monkeypatch.setattr(module, "RERUN_SECONDS", 0.01)


def directive(kind: DirectiveKind, **more: Any) -> Directive:
    return Directive(id=5, kind=kind, attempt=1, reason="ordered", **more)


# Watching -------------------------------------------------------------------------------------------------------------


def test_ranks_that_all_exit_with_zero_have_finished() -> None:
    scene = Scene()
    scene.ranks.exits.append({0: 0})
    scene.ranks.exits.append({1: 0})
    assert scene.agent._watch() is None
    assert scene.kinds() == [ProcessEventKind.EXITED] * 2
    result = scene.agent._finish()
    assert (result.state, scene.agent.outcome.state, scene.agent.outcome.code) == (WorkerState.SUCCEEDED, FINISHED, 0)


def test_a_crash_is_reported_with_its_rank_and_becomes_a_restart() -> None:
    scene = Scene()
    scene.explained[1] = "out of memory"
    scene.ranks.exits.append({1: -signal.SIGKILL})
    decision = scene.agent._watch()
    assert decision is not None
    assert (decision.verdict, decision.fault, decision.counted) == (RESTART, True, True)
    ((kind, event),) = scene.events
    assert (kind, event["rank"], event["signal"], event["exit_code"]) == (ProcessEventKind.EXITED, 1, "SIGKILL", None)
    assert event["message"] == "out of memory"


def test_a_reserve_rank_that_fails_restarts_nothing_while_others_run() -> None:
    scene = Scene(ranks=2)
    scene.reserve.add(1)
    scene.ranks.exits.append({1: 1})
    scene.ranks.exits.append({0: 0})
    assert scene.agent._watch() is None
    assert [event["spared"] for _, event in scene.events] == [True, False]


def test_when_all_ranks_here_fail_none_of_them_was_expendable() -> None:
    scene = Scene(ranks=2)
    scene.reserve |= {0, 1}
    scene.ranks.exits.append({0: 1, 1: 1})
    decision = scene.agent._watch()
    assert decision is not None
    assert decision.verdict == RESTART


def test_a_rejected_result_leaves_the_decision_to_the_launcher_that_knows_why() -> None:
    scene = Scene(nodes=2)
    scene.ranks.exits.append({0: 17, 1: 17})
    decision = scene.agent._watch()
    assert decision is not None
    assert (decision.verdict, decision.code) == (FAIL, 17)


def test_a_crash_during_a_graceful_stop_waits_for_the_other_ranks_and_ends_as_the_stop() -> None:
    scene = Scene(ranks=2)
    scene.stops_at(20)
    scene.ranks.exits.append({0: 3})
    scene.ranks.exits.append({1: 0})
    decision = scene.agent._watch()
    assert decision is not None
    assert (decision.verdict, decision.fault, decision.state) == (STOP, False, PREEMPTED)


def test_ranks_that_save_and_exit_after_the_stop_step_end_the_job_as_preempted() -> None:
    scene = Scene(ranks=1)
    scene.stops_at(20)
    scene.ranks.exits.append({0: 0})
    assert scene.agent._watch() is None
    scene.agent._finish()
    assert (scene.agent.outcome.state, scene.agent.outcome.code) == (PREEMPTED, 0)


def test_another_launchers_decision_ends_the_attempt_here() -> None:
    scene = Scene(nodes=2)
    proposed = AttemptDecision(RESTART, "rank 3 crashed elsewhere")
    scene.store.end_attempt(1, proposed, by="other", budget=RestartBudget(3))
    decision = scene.agent._watch()
    assert decision is not None
    assert (decision.reason, decision.by) == ("rank 3 crashed elsewhere", "other")


def test_without_the_store_a_graceful_stop_goes_on_and_anything_else_ends() -> None:
    scene = Scene(nodes=2)

    def lost(*_: Any) -> None:
        raise DistError("connection reset")

    scene.rendezvous.store = SimpleNamespace(stop_proposal=lost)
    with pytest.raises(DistError):
        scene.agent._follow_others()
    scene.rendezvous.store = scene.store
    scene.stops_at(20)
    scene.rendezvous.store = SimpleNamespace(stop_proposal=lost)
    assert scene.agent._follow_others() is None


def test_when_the_store_is_lost_the_ranks_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()

    def lost(*_: Any) -> None:
        raise DistError("connection reset")

    monkeypatch.setattr(scene.agent, "_initialize_workers", lambda _: None)
    monkeypatch.setattr(scene.agent, "_watch", lost)
    with pytest.raises(DistError):
        scene.agent._invoke_run()
    assert scene.done == ["kill"]


# Directives -----------------------------------------------------------------------------------------------------------


def test_a_restart_directive_is_acknowledged_once_its_ranks_are_killed() -> None:
    scene = Scene()
    scene.directives = [directive(DirectiveKind.RESTART, incident_id="i1", deadline=8.0)]
    decision = scene.agent._watch()
    assert decision is not None
    assert scene.acks == []
    assert scene.agent._end_attempt(decision) is None
    assert scene.acks == [(5, AckState.DONE, "")]
    assert scene.done[:2] == ["capture i1 within 8 s", "kill"], "stacks are captured before the ranks are killed"


def test_stacks_that_the_incident_has_are_not_captured_again() -> None:
    scene = Scene()
    scene.captured.add("i1")
    scene.directives = [directive(DirectiveKind.RESTART, incident_id="i1")]
    decision = scene.agent._watch()
    assert decision is not None
    scene.agent._end_attempt(decision)
    assert scene.done[0] == "kill"


def test_a_restart_directive_beyond_the_budget_is_refused_and_the_ranks_run_on() -> None:
    scene = Scene(restarts=0)
    scene.directives = [directive(DirectiveKind.RESTART)]
    assert scene.agent._on_directive() is None
    ((number, state, _),) = scene.acks
    assert (number, state, scene.done) == (5, AckState.REFUSED, [])


def test_a_restart_directive_that_the_job_turns_into_a_failure_is_refused() -> None:
    scene = Scene()
    scene.directives = [directive(DirectiveKind.RESTART)]
    decision = scene.agent._watch()
    assert decision is not None
    scene.store.end_attempt(1, AttemptDecision(FAIL, "a rank crashed"), by="other", budget=RestartBudget(3))
    scene.agent._end_attempt(decision)
    assert scene.acks == [(5, AckState.REFUSED, "a rank crashed")]
    assert scene.agent.outcome.state == FAILED


def test_a_stop_directive_terminates_before_it_kills_and_captures_nothing() -> None:
    scene = Scene()
    scene.directives = [directive(DirectiveKind.STOP)]
    decision = scene.agent._watch()
    assert decision is not None
    result = scene.agent._end_attempt(decision)
    assert result is not None
    assert scene.done == ["terminate SIGTERM", "kill", "close"]
    assert (scene.agent.outcome.state, scene.agent.outcome.code) == (STOPPED, 1)
    assert scene.acks == [(5, AckState.DONE, "")]


# Ending ---------------------------------------------------------------------------------------------------------------


def test_a_crash_captures_the_survivors_before_it_kills_them() -> None:
    scene = Scene()
    assert scene.agent._end_attempt(AttemptDecision(RESTART, "rank 1 crashed")) is None
    assert scene.done == ["capture None within 0.6 s", "kill", "close"]
    assert scene.kinds() == [ProcessEventKind.RESTARTING]
    assert scene.store.restarts() == 1


def test_regrouping_nodes_is_neither_evidence_nor_a_restart() -> None:
    scene = Scene(nodes=2)
    decision = AttemptDecision(RESTART, "node b has joined", counted=False, fault=False)
    assert scene.agent._end_attempt(decision) is None
    assert (scene.done, scene.events, scene.store.restarts()) == (["kill", "close"], [], 0)


def test_the_configured_signal_precedes_the_kill() -> None:
    scene = Scene(options=Options(rank_termination_signal="SIGINT"))
    scene.agent._end_attempt(AttemptDecision(RESTART, "node b has joined", counted=False, fault=False))
    assert scene.done == ["terminate SIGINT", "kill", "close"]


def test_the_budget_ends_the_job_with_the_restart_that_it_does_not_hold() -> None:
    scene = Scene(restarts=2)
    for attempt in (1, 2):
        scene.rendezvous.attempt = attempt
        assert scene.agent._end_attempt(AttemptDecision(RESTART, "rank 1 crashed")) is None
    scene.rendezvous.attempt = 3
    result = scene.agent._end_attempt(AttemptDecision(RESTART, "rank 1 crashed"))
    assert result is not None
    assert (result.state, scene.agent.outcome.state, scene.agent.outcome.code) == (WorkerState.FAILED, FAILED, 1)
    assert scene.store.restarts() == 2


def test_attempts_without_progress_end_the_job_with_the_code_that_forbids_a_requeue() -> None:
    scene = Scene(restarts=20, options=Options(policy={"max_no_progress": 2}))
    for attempt in (1, 2, 3):
        scene.rendezvous.attempt, scene.steps = attempt, StepRange(20, 30)
        result = scene.agent._end_attempt(AttemptDecision(RESTART, "rank 1 crashed"))
    assert result is not None
    assert (scene.agent.outcome.state, scene.agent.outcome.code) == (FAILED, CODE_DO_NOT_REQUEUE)
    assert CODE_DO_NOT_REQUEUE == 93, "schedulers and scripts know the number"


def test_a_restart_that_the_monitor_orders_precedes_a_stop_that_is_agreed_on() -> None:
    scene = Scene()
    scene.store.request_stop(1, StopRequest("preempted", "n", PREEMPTED))
    scene.directives.append(directive(DirectiveKind.RESTART))
    decision = scene.agent._watch()
    assert decision is not None
    assert scene.agent._end_attempt(decision) is None
    assert (scene.store.restarts(), scene.acks) == (1, [(5, AckState.DONE, "")])


def test_a_crash_while_a_stop_is_agreed_on_becomes_the_stop() -> None:
    scene = Scene()
    scene.store.request_stop(1, StopRequest("preempted", "n", PREEMPTED))
    result = scene.agent._end_attempt(AttemptDecision(RESTART, "rank 1 crashed"))
    assert result is not None
    assert (scene.agent.outcome.state, scene.store.restarts()) == (PREEMPTED, 0)


# Peers ----------------------------------------------------------------------------------------------------------------


def test_a_node_that_has_finished_waits_until_all_have() -> None:
    scene = Scene(nodes=2)
    scene.store.finish(1, 1)  # the other one
    assert scene.agent._wait_for_peers() is None


def test_a_node_that_has_finished_follows_a_restart_of_the_others() -> None:
    scene = Scene(nodes=2)
    scene.store.end_attempt(1, AttemptDecision(RESTART, "rank 3 crashed"), by="other", budget=RestartBudget(3))
    decision = scene.agent._wait_for_peers()
    assert decision is not None
    assert decision.verdict == RESTART


def test_ranks_that_have_saved_and_stopped_do_not_run_again_for_a_lost_node() -> None:
    scene = Scene(nodes=2)
    scene.stops_at(20)
    scene.store.end_attempt(1, AttemptDecision(RESTART, "node b is lost"), by="other", budget=RestartBudget(3))
    assert scene.agent._wait_for_peers() is None


def test_a_directive_that_finds_no_rank_is_acknowledged() -> None:
    scene = Scene(nodes=2)
    scene.directives = [directive(DirectiveKind.STOP)]
    looks = iter((False, True))  # the other node arrives between two looks
    scene.rendezvous.store = SimpleNamespace(
        finish=scene.store.finish, all_finished=lambda *_: next(looks), stop_proposal=scene.store.stop_proposal
    )
    assert scene.agent._wait_for_peers() is None
    assert scene.acks == [(5, AckState.DONE, "the ranks here had already exited")]
