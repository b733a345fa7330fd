"""Membership services of two launchers over an in-memory store: they meet, answer a stop and leave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from torch.distributed import HashStore

from launcher.conftest import wait_for
from rankwatch_launcher.coordination import service as module
from rankwatch_launcher.coordination.decisions import RestartBudget, StepRange, StopRequest
from rankwatch_launcher.coordination.membership import Member, MembershipRules, NodeProgress
from rankwatch_launcher.coordination.service import LauncherCalls, MembershipService
from rankwatch_launcher.coordination.store import JobStore

Join = Callable[[str], MembershipService]


@pytest.fixture
def shared() -> HashStore:
    return HashStore()


@pytest.fixture
def join(shared: HashStore) -> Iterator[Join]:
    made: list[MembershipService] = []

    def begin(name: str) -> MembershipService:
        service = MembershipService(
            shared,
            "job",
            Member(name, f"host-{name}", 1),
            MembershipRules(2, 2),
            LauncherCalls(
                budget=lambda: RestartBudget(3),
                progress=lambda: NodeProgress(StepRange(0, 7), 1.0, follows_stop_step=True),
                on_lost=lambda *_: None,
                on_store_timeout=lambda *_: None,
            ),
        )
        made.append(service)
        service.join()
        service.wait_for_place(0)
        return service

    yield begin
    for service in made:
        service.leave("the test is over", timeout=0.0)


def test_launchers_meet_and_agree_on_a_stop_step(join: Join, shared: HashStore) -> None:
    services = [join("a"), join("b")]
    for service in services:
        place = wait_for(lambda s=service: s.place(1))
        service.take_place(place)
    store = JobStore(shared, "job")
    store.request_stop(1, StopRequest("preempted", "a", "preempted"))
    services[0].wake()
    wait_for(lambda: store.stop_proposal(1))
    for service in services:
        service.answer_stop(0, True, None)
    proposal = wait_for(lambda: (found := store.stop_proposal(1)) and found.number == 1 and found)
    assert proposal.step > 7


def test_a_launcher_that_leaves_is_recorded_with_its_reason(join: Join, shared: HashStore) -> None:
    service = join("a")
    service.leave("it got SIGTERM", timeout=0.0)
    (member,) = JobStore(shared, "job").members(["a"])
    assert member.left == "it got SIGTERM"


def test_a_store_that_does_not_respond_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORE_TIMEOUT_SECONDS", 0.0)
    detected: list[float] = []
    work = itertools.count(1)
    progressing = [True]
    service = MembershipService(
        HashStore(),
        "job",
        Member("a", "h", 1),
        MembershipRules(1, 1, node_timeout=0.5, silent_after=0.5),
        LauncherCalls(
            budget=lambda: RestartBudget(3),
            progress=lambda: NodeProgress(work=next(work) if progressing[0] else 0),
            on_lost=lambda *_: None,
            on_store_timeout=lambda silence, _: detected.append(silence),
        ),
    )
    checks = iter([False] * 20 + [True])
    monkeypatch.setattr(service._ended, "wait", lambda _: next(checks, True))
    service._guard()
    assert detected == [], "ranks that make progress need no store"
    progressing[0] = False
    checks = iter([False, True])
    service._guard()
    assert detected == [], "one check is within the interval of a heartbeat"
    checks = iter([False] * 8)
    service._guard()
    assert len(detected) == 1
