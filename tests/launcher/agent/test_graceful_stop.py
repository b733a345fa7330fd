"""The graceful stop of one node over an in-memory store: requests, proposals, directives, and its limits in time."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwatch.contract.enums import AckState, DirectiveKind, RankRequestKind
from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher.agent import graceful_stop
from rankwatch_launcher.agent.graceful_stop import AGREEMENT_SECONDS, GracefulStop
from rankwatch_launcher.coordination.decisions import RESTART, STOP, StopProposal, StopRequest
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.outcome import PREEMPTED, STOPPED


class Scene:
    """One node with one rank; everything around the graceful stop is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shutdown_timeout: float | None = None) -> None:
        self.now = 100.0
        monkeypatch.setattr(graceful_stop.time, "monotonic", lambda: self.now)
        self.store = JobStore(HashStore(), "job")
        self.requests: list[RankRequest] = []
        self.reading = SimpleNamespace(rank=0, stop_signalled=False)
        self.answers: list[tuple[int, bool, int | None]] = []
        self.acks: list[tuple[Any, ...]] = []
        self.sent: list[int] = []
        self.furthest = 10
        self.signals = SimpleNamespace(stop=signal.SIGTERM, stop_received=None)
        node: Any = SimpleNamespace(
            name="n",
            host="h",
            hostname="h",
            readings=lambda: {0: self.reading},
            requests=self._take,
            set_stop_step=lambda step, preempts=False: (step > self.furthest, self.furthest),
            report=lambda *_: None,
            directives=SimpleNamespace(ack=lambda directive, *rest: self.acks.append((directive.id, *rest))),
        )
        members = SimpleNamespace(answer_stop=lambda *answer: self.answers.append(answer), wake=lambda: None)
        rendezvous: Any = SimpleNamespace(store=self.store, attempt=1, world_size=2, members=members)
        ranks: Any = SimpleNamespace(signal=self.sent.append, alive=lambda: [SimpleNamespace(local_rank=0)])
        signals: Any = self.signals
        self.rendezvous = rendezvous
        self.stop = GracefulStop(node, rendezvous, signals, ranks, 50.0, shutdown_timeout)

    def _take(self) -> list[RankRequest]:
        taken, self.requests = self.requests, []
        return taken

    def propose(self, number: int, step: int | None) -> None:
        self.store.propose_stop(1, StopProposal(number, step, StopRequest("preempted", "n", PREEMPTED)))
        self.stop.follow_proposal()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def directive(**fields: Any) -> Directive:
    return Directive(id=7, kind=DirectiveKind.SAVE_AND_STOP, attempt=1, reason="ordered", deadline=30.0, **fields)


def test_a_received_stop_signal_becomes_one_request_to_all_launchers(scene: Scene) -> None:
    scene.signals.stop_received = signal.SIGTERM
    for _ in range(2):
        assert scene.stop.collect_requests(elsewhere=True) is None
    request = scene.store.stop_request(1)
    assert request is not None
    assert (request.by, request.state) == ("n", PREEMPTED)
    assert scene.stop.stopping is None, "nothing stops before a step is agreed on"


def test_a_rank_that_requests_a_stop_stops_the_job(scene: Scene) -> None:
    scene.requests = [RankRequest(RankRequestKind.STOP_JOB, "the loss is NaN", 0)]
    scene.stop.collect_requests(elsewhere=False)
    request = scene.store.stop_request(1)
    assert request is not None
    assert request.state == STOPPED


def test_a_rank_that_requests_the_exclusion_of_its_node_ends_the_attempt(scene: Scene) -> None:
    scene.requests = [RankRequest(RankRequestKind.EXCLUDE_NODE, "ECC errors", 0)]
    decision = scene.stop.collect_requests(elsewhere=True)
    assert decision is not None
    assert (decision.verdict, [*decision.exclude]) == (RESTART, ["n"])


def test_a_proposed_step_is_answered_and_followed(scene: Scene) -> None:
    scene.propose(0, None)
    scene.propose(1, 20)
    assert scene.answers == [(0, True, None), (1, True, 10)]
    assert scene.stop.stopping is not None
    assert (scene.stop.stopping.state, scene.stop.stopping.by_signal) == (PREEMPTED, False)


def test_a_step_that_a_rank_has_passed_is_refused(scene: Scene) -> None:
    scene.propose(1, 5)
    assert scene.answers == [(1, False, 10)]
    assert scene.stop.stopping is None


def test_without_a_step_the_ranks_get_sigterm(scene: Scene) -> None:
    scene.propose(1, None)
    assert scene.sent == [signal.SIGTERM]
    assert scene.stop.stopping is not None
    assert scene.stop.stopping.by_signal


def test_torchruns_shutdown_timeout_bounds_the_time_after_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, shutdown_timeout=3.0)
    assert scene.stop.term_seconds(15.0) == 3.0
    scene.propose(1, None)
    assert scene.sent == [signal.SIGTERM]
    assert scene.stop.stopping is not None
    assert scene.stop.stopping.until == scene.now + 3.0
    assert scene.stop.term_seconds(15.0) == 0.0, "these ranks have had their time"


def test_torchruns_shutdown_timeout_leaves_an_agreed_step_its_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, shutdown_timeout=3.0)
    scene.propose(1, 20)
    assert scene.stop.stopping is not None
    assert scene.stop.stopping.until == scene.now + 50.0
    assert scene.stop.term_seconds(15.0) == 3.0


def test_without_an_agreement_in_time_the_ranks_get_sigterm(scene: Scene) -> None:
    scene.signals.stop_received = signal.SIGTERM
    scene.stop.collect_requests(elsewhere=True)
    scene.now += AGREEMENT_SECONDS
    assert scene.stop.check_timeout() is None
    assert scene.sent == []
    scene.now += 0.1
    assert scene.stop.check_timeout() is None
    assert scene.sent == [signal.SIGTERM]


def test_many_launchers_which_poll_rarely_have_longer_to_agree(scene: Scene) -> None:
    scene.rendezvous.world_size = 12_500
    scene.signals.stop_received = signal.SIGTERM
    scene.stop.collect_requests(elsewhere=True)
    scene.now += AGREEMENT_SECONDS + 6.8
    assert scene.stop.check_timeout() is None
    assert scene.sent == []
    scene.now += 0.2  # of 3 polls, each every 2.5 s instead of 0.2
    scene.stop.check_timeout()
    assert scene.sent == [signal.SIGTERM]


def test_ranks_that_do_not_save_within_the_grace_period_are_stopped(scene: Scene) -> None:
    scene.propose(1, 20)
    scene.now += 50.0
    assert scene.stop.check_timeout() is None
    scene.now += 0.1
    decision = scene.stop.check_timeout()
    assert decision is not None
    assert (decision.verdict, decision.fault, decision.state) == (STOP, False, PREEMPTED)


def test_ranks_that_only_record_sigterm_are_not_waited_for(scene: Scene) -> None:
    scene.propose(1, None)
    assert scene.stop.check_timeout() is None
    scene.reading.stop_signalled = True
    decision = scene.stop.check_timeout()
    assert decision is not None
    assert decision.verdict == STOP


def test_a_directive_whose_step_has_passed_is_refused_with_the_furthest_step(scene: Scene) -> None:
    scene.stop.on_directive(directive(stop_step=5))
    ((number, state, _, furthest),) = scene.acks
    assert (number, state, furthest) == (7, AckState.REFUSED, 10)
    assert scene.stop.stopping is None


def test_a_directive_with_a_step_ahead_is_followed(scene: Scene) -> None:
    scene.stop.on_directive(directive(stop_step=20, incident_id="i1"))
    assert scene.acks == [(7, AckState.DONE)]
    assert scene.stop.stopping is not None
    assert (scene.stop.stopping.state, scene.stop.stopping.incident) == (STOPPED, "i1")
