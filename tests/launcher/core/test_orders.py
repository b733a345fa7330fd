"""Events in any order: an attempt is decided once, stacks precede every kill, nothing is killed twice, it always ends.

``ORDERS`` sets how many orders are tried.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwatch.contract.enums import AckState, DirectiveKind, NoRestart, RankRequestKind
from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher.coordination.decisions import (
    FAIL,
    RESTART,
    STOP,
    AttemptDecision,
    StopProposal,
    StopRequest,
)
from rankwatch_launcher.core import effects, events
from rankwatch_launcher.core.exits import RankError, RankExit
from rankwatch_launcher.core.state import AttemptState, Over, Running, Settling, Site, WaitingForPeers
from rankwatch_launcher.core.step import step, takes_directives
from rankwatch_launcher.outcome import FAILED, FINISHED, PREEMPTED, STOPPED

ORDERS = int(os.environ.get("ORDERS", "2000"))
ERRORS = (None, RankError("ValueError: bad batch"), RankError("RuntimeError: connection closed by peer"))


@dataclass
class World:
    """What surrounds an attempt: it answers effects as the shell does, and checks their order."""

    state: AttemptState
    peer: AttemptDecision | None
    """What another launcher has stored; None: nothing yet."""
    stubborn: bool
    """The ranks do not end when they get SIGTERM."""
    unkillable: bool = False
    """They do not end when they are killed, either: they are stuck in the kernel."""
    lost: bool = False
    now: float = 0.0
    done: list[effects.Effect] = field(default_factory=list)
    dying: list[int] = field(default_factory=list)
    """Ranks that got a signal that ends them, whose exits have not been seen."""
    given: int = 0
    untaken: deque[Directive] = field(default_factory=deque)
    taken: list[Directive] = field(default_factory=list)

    def take(self, event: events.Event) -> None:
        ahead = deque([event])
        while ahead:
            self.state, wanted = step(self.state, ahead.popleft())
            for effect in wanted:
                self.check(effect)
                self.done.append(effect)
                if (answer := self.answer(effect)) is not None:
                    ahead.append(answer)
        assert self.state.live or not isinstance(self.state.phase, Running | Settling), "a last exit leads on"

    def check(self, effect: effects.Effect) -> None:
        """What no order of events may lead to."""
        before = [type(each) for each in self.done]
        assert effects.Close not in before or isinstance(effect, effects.Ack), "nothing happens after the end"
        if isinstance(effect, effects.Propose | effects.Kill | effects.Capture):
            assert type(effect) not in before, "decided, captured and killed once"
        ending = [each for each in self.done if isinstance(each, effects.SignalRanks) and each.ending]
        if isinstance(effect, effects.Capture) or (isinstance(effect, effects.SignalRanks) and effect.ending):
            assert effects.Kill not in before, "stacks before a kill"
            assert not ending, "and before a signal that precedes it"
        if isinstance(effect, effects.Ack):
            assert effect.directive in self.taken
            assert effect.directive not in [each.directive for each in self.done if isinstance(each, effects.Ack)]

    def answer(self, effect: effects.Effect) -> events.Event | None:
        match effect:
            case effects.Propose() | effects.RequestStop() | effects.PublishFinish() if self.lost:
                return events.StoreLost(self.now)
            case effects.Propose(decision):
                self.peer = self.peer or decision
                return events.Stored(self.now, self.peer)
            case effects.Capture():
                return events.Captured(self.now)
            case effects.SetStopStep(number, origin):
                return events.StopStepSet(self.now, origin, number > 10, 10)
            case effects.SignalRanks(number, ending) if ending or number == signal.SIGTERM:
                self.dying += [] if self.stubborn else self.state.live
            case effects.Kill():
                self.dying = [] if self.unkillable else [*self.state.live]
        return None

    def exited(self, rank: int, code: int, error: RankError | None = None, *, expendable: bool = False) -> None:
        if rank in self.state.live:
            self.dying = [each for each in self.dying if each != rank]
            error = error if code > 0 else None
            message = error.message if error is not None else ""
            exit_ = RankExit(rank, rank, 100 + rank, code, message, expected=expendable, error=error)
            self.take(events.Exited(self.now, (exit_,)))

    def give(self, directive: Directive) -> None:
        self.given += 1
        self.untaken.append(replace(directive, id=self.given))

    def pass_time(self, seconds: float, *, flag: bool = False) -> None:
        self.now += seconds
        for rank in self.dying[:1]:
            self.exited(rank, -signal.SIGTERM)
        self.take(events.Tick(self.now, failing=flag, ignored=flag))
        if self.untaken and takes_directives(self.state):
            self.taken.append(self.untaken.popleft())
            self.take(events.Directed(self.now, self.taken[-1], restarts_left=flag))

    def see_peer(self, decision: AttemptDecision) -> None:
        self.peer = self.peer or decision
        self.take(events.Decided(self.now, self.peer))

    def end(self) -> None:
        """Nothing more happens but what must: the ranks end one day, as do those of the peers."""
        for _ in range(400):
            if isinstance(self.state.phase, Over):
                return
            self.pass_time(1.0)
            if self.now > 250 and isinstance(self.state.phase, Running) and self.state.live:
                self.exited(self.state.live[0], 0)
            if isinstance(self.state.phase, WaitingForPeers):
                self.take(events.StoreLost(self.now) if self.lost else events.PeersFinished(self.now))
        raise AssertionError(f"no end is reached: {self.state.phase}")


sites = st.builds(
    Site,
    node=st.just("n"),
    host=st.just("h"),
    hostname=st.just("h"),
    attempt=st.just(1),
    ranks=st.integers(1, 4).map(lambda ranks: tuple(range(ranks))),
    started_at=st.just(0.0),
    nodes=st.integers(1, 2),
    first=st.booleans(),
    kill_signal=st.sampled_from([signal.SIGKILL, signal.SIGINT]),
)
decisions = st.builds(
    AttemptDecision,
    verdict=st.sampled_from([RESTART, FAIL, STOP]),
    reason=st.just("elsewhere"),
    fault=st.booleans(),
    counted=st.booleans(),
)
codes = st.sampled_from([0, 0, 1, 1, 2, 16, 17, -6, -9])
directives = st.builds(
    Directive,
    id=st.just(0),
    kind=st.sampled_from([DirectiveKind.RESTART, DirectiveKind.STOP, DirectiveKind.SAVE_AND_STOP]),
    attempt=st.just(1),
    reason=st.just("ordered"),
    stop_step=st.sampled_from([None, 5, 20]),
    no_restart=st.sampled_from(["", NoRestart.USED_UP]),
)
requests = st.builds(
    RankRequest,
    action=st.sampled_from([RankRequestKind.STOP_JOB, RankRequestKind.EXCLUDE_NODE]),
    reason=st.just("NaN"),
    rank=st.just(0),
)
proposals = st.builds(
    StopProposal,
    number=st.integers(0, 3),
    step=st.sampled_from([None, 5, 20]),
    request=st.builds(StopRequest, st.just("preempted"), st.just("n"), st.sampled_from([PREEMPTED, STOPPED])),
)
happenings = st.one_of(
    st.tuples(st.just("exit"), st.integers(0, 3), codes, st.sampled_from(ERRORS), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([0.05, 0.2, 1.0, 6.0, 20.0]), st.booleans()),
    st.tuples(st.just("directive"), directives),
    st.tuples(st.just("request"), requests),
    st.tuples(st.just("signal"), st.sampled_from([None, 0])),
    st.tuples(st.just("propose"), proposals),
    st.tuples(st.just("peer"), decisions),
    st.tuples(st.just("stuck")),
    st.tuples(st.just("lost"), st.booleans(), st.booleans()),
    st.tuples(st.just("finished")),
)


def happens(world: World, what: str, *details: object) -> None:
    match what, *details:
        case "exit", int(rank), int(code), error, bool(expendable):
            assert error is None or isinstance(error, RankError)
            world.exited(rank, code, error, expendable=expendable)
        case "time", float(seconds), bool(flag):
            world.pass_time(seconds, flag=flag)
        case "directive", Directive() as directive:
            world.give(directive)
        case "request", RankRequest() as request:
            world.take(events.Requested(world.now, (request,)))
        case "signal", rank:
            assert rank is None or isinstance(rank, int)
            world.take(events.Signalled(world.now, "SIGTERM", rank))
        case "propose", StopProposal() as proposal:
            world.take(events.Proposed(world.now, proposal))
        case "peer", AttemptDecision() as decision if world.state.site.nodes > 1:
            world.see_peer(decision)
        case ["stuck"]:
            world.take(events.Stuck(world.now, 30.0))
        case "lost", bool(needed), bool(ended):
            world.lost = True
            world.take(events.StoreLost(world.now, needed, ended))
        case ["finished"]:
            world.take(events.PeersFinished(world.now))


def run(site: Site, endure: int, course: list[tuple[object, ...]]) -> None:
    """Let an attempt take a course, to its end, and check it; ``endure``: 1 for SIGTERM, 2 for SIGKILL, too."""
    world = World(AttemptState(site), None, stubborn=endure > 0, unkillable=endure > 1)
    for what, *details in course:
        happens(world, str(what), *details)
    world.end()
    state, phase = world.state, world.state.phase
    assert isinstance(phase, Over)
    kinds = [type(effect) for effect in world.done]
    assert kinds.count(effects.Close) == 1
    acked = [effect for effect in world.done if isinstance(effect, effects.Ack)]
    if not phase.lost:
        taken = {directive.id for directive in world.taken}
        assert {ack.directive.id for ack in acked} == taken, "each directive that was taken is acknowledged"
    if effects.Kill not in kinds:
        assert not state.live, "no rank is left behind"
        assert state.outcome.state in (FINISHED, STOPPED, PREEMPTED)
        return
    if phase.lost:
        return
    assert world.peer is not None
    assert phase.restart == (world.peer.verdict == RESTART), "the first stored decision wins"
    if world.peer.fault:
        assert kinds.index(effects.Capture) < kinds.index(effects.Kill), "stacks before a kill"
    if world.peer.verdict == FAIL:
        assert state.outcome.state == FAILED
    for ack in acked:
        if ack.directive == state.directive and ack.directive.kind is DirectiveKind.RESTART:
            assert phase.restart == (ack.state is AckState.DONE)


@pytest.mark.timeout(600 + ORDERS)
@settings(max_examples=ORDERS, deadline=None, suppress_health_check=list(HealthCheck))
@given(sites, st.integers(0, 2), st.lists(happenings, max_size=14))
def test_whatever_the_order_an_attempt_is_decided_once_and_ends(
    site: Site, endure: int, course: list[tuple[object, ...]]
) -> None:
    run(site, endure, course)


def test_a_state_is_never_changed_in_place() -> None:
    state = AttemptState(Site("n", "h", "h", 1, (0, 1), 0.0))
    kept = replace(state)
    world = World(state, None, stubborn=False)
    world.exited(0, 3)
    world.end()
    assert state == kept != world.state
