"""The rendezvous of one launcher over an in-memory store: places, spares, deadlines, interruptions, addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from rankwatch.contract.enums import NodeRole
from rankwatch_launcher.coordination import rendezvous as module
from rankwatch_launcher.coordination import rendezvous as rendezvous_module
from rankwatch_launcher.coordination.decisions import RESTART, AttemptDecision, RestartBudget
from rankwatch_launcher.coordination.membership import Place, Roster
from rankwatch_launcher.coordination.rendezvous import (
    Interrupted,
    JobOver,
    Rendezvous,
    hosted_store,
    only_on,
    workers_of,
)
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.coordination.store_file import MasterAddress
from rankwatch_launcher.outcome import FAILED, FINISHED, Outcome
from rankwatch_launcher.torch_compat import DistError


class Scene:
    """A launcher named ``a``; the coordinator is the test."""

    def __init__(self, join_timeout: float = 600.0, endpoint: str = "127.0.0.1:0") -> None:
        self.shared = HashStore()
        self.store = JobStore(self.shared, "job")
        self.taken: list[int] = []
        self.now = 100.0
        self.pauses = 0
        self.at_pause: dict[int, Any] = {}
        parameters = RendezvousParameters("c10d", endpoint, "job", 1, 2)
        self.rendezvous = Rendezvous(parameters, join_timeout=join_timeout)
        self.members: Any = SimpleNamespace(
            store=self.store,
            join=lambda: None,
            wait_for_place=lambda after: None,
            place=lambda attempt: self.store.place(attempt, "a"),
            take_place=lambda place: self.taken.append(place.attempt),
        )
        self.rendezvous._members = self.members

    def clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pauses move the clock, and what is planned for one happens in it."""

        def sleep(seconds: float) -> None:
            self.now += max(seconds, 0.5)
            self.pauses += 1
            assert self.pauses < 10_000, "it waits forever"
            if (what := self.at_pause.pop(self.pauses, None)) is not None:
                what()

        monkeypatch.setattr(module.time, "sleep", sleep)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def publish(self, attempt: int, role: NodeRole = NodeRole.ACTIVE, group_rank: int = 0, nodes: int = 1) -> None:
        place = Place(
            attempt=attempt,
            role=role,
            reason="" if role is NodeRole.ACTIVE else "full",
            group_rank=group_rank,
            group_world_size=nodes,
            first_rank=2 * group_rank,
            world_size=2 * nodes,
            first_role_rank=2 * group_rank,
            role_world_size=2 * nodes,
        )
        active = ("a",) if role is NodeRole.ACTIVE else ("b",)
        before = self.store.roster(attempt - 1) if attempt > 1 else None
        self.store.settle_roster(Roster(attempt, active, (), {}))
        self.store.publish_roster(Roster(attempt, active, (), {}), {"a": place}, before)

    def end(self, attempt: int) -> None:
        self.store.end_attempt(attempt, AttemptDecision(RESTART, "a crash"), by="b", budget=RestartBudget(9))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene()
    made.clock(monkeypatch)
    yield made
    made.rendezvous.shutdown()


def test_a_place_gives_the_attempt_its_store_and_address(scene: Scene) -> None:
    scene.publish(1)
    place, info = scene.rendezvous.next_attempt()
    assert (place.attempt, scene.rendezvous.attempt, scene.taken) == (1, 1, [1])
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info is not None
    address = scene.store.find("master/1", MasterAddress)
    assert address == MasterAddress("127.0.0.1", info.bootstrap_store_info.master_port)
    info.store.set("key", "of attempt 1")
    assert not scene.store.attempt_store(2).check(["key"]), "attempts do not share keys"


def test_each_attempt_has_a_new_store_for_its_ranks(scene: Scene) -> None:
    scene.publish(1)
    first = scene.rendezvous.next_attempt()[1].bootstrap_store_info
    held = scene.rendezvous._ranks_store
    scene.at_pause[1] = lambda: scene.publish(2)
    second = scene.rendezvous.next_attempt()[1].bootstrap_store_info
    assert first is not None
    assert second is not None
    assert scene.rendezvous._ranks_store is not held
    assert first.master_port != second.master_port


def test_a_launcher_has_ended_where_its_host_refuses_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        rendezvous = Rendezvous(RendezvousParameters("c10d", f"127.0.0.1:{port}", "job", 1, 2), join_timeout=600.0)
        assert not rendezvous.host_has_ended(), "only the connection broke"
    assert rendezvous.host_has_ended()
    rendezvous.shutdown()


def test_an_attempt_is_joined_once(scene: Scene) -> None:
    scene.publish(1)
    scene.rendezvous.next_attempt()
    scene.at_pause[3] = lambda: scene.publish(2)
    assert scene.rendezvous.next_attempt()[0].attempt == 2
    assert scene.taken == [1, 2]


def test_the_address_comes_from_the_launcher_of_group_rank_0(scene: Scene) -> None:
    scene.publish(1, group_rank=1, nodes=2)
    scene.at_pause[2] = lambda: scene.store.publish("master/1", {"address": "10.0.0.1", "port": 7})
    _, info = scene.rendezvous.next_attempt()
    assert info.bootstrap_store_info is not None
    found = info.bootstrap_store_info
    assert (found.master_addr, found.master_port, info.rank) == ("10.0.0.1", 7, 1)
    assert scene.rendezvous._ranks_store is None


def test_an_attempt_that_ends_before_it_began_is_skipped(scene: Scene) -> None:
    scene.publish(1, group_rank=1, nodes=2)  # its master is lost and publishes no address
    scene.at_pause[2] = lambda: scene.end(1)
    scene.at_pause[4] = lambda: scene.publish(2)
    assert scene.rendezvous.next_attempt()[0].attempt == 2


def test_a_spare_waits_without_a_deadline_and_is_announced_once(scene: Scene) -> None:
    announced: list[NodeRole] = []
    scene.rendezvous.on_standby = lambda place: announced.append(place.role)
    scene.publish(1, NodeRole.SPARE)
    scene.at_pause[3000] = lambda: scene.publish(2)  # 1500 s, more than the timeout
    seen: list[bool] = []
    scene.at_pause[2000] = lambda: seen.append(scene.rendezvous.standing_by)
    assert scene.rendezvous.next_attempt()[0].attempt == 2
    assert (announced, seen, scene.rendezvous.standing_by) == ([NodeRole.SPARE], [True], False)


def test_a_spare_of_an_attempt_that_has_ended_waits_like_the_others(scene: Scene) -> None:
    scene.publish(1, NodeRole.SPARE)
    scene.end(1)
    with pytest.raises(RendezvousTimeoutError):
        scene.rendezvous.next_attempt()
    assert scene.now - 100.0 == pytest.approx(600.0, abs=2.0)


def test_a_timeout_names_what_was_waited_for(scene: Scene) -> None:
    scene.store.set_waiting_reason("1 of at least 2 nodes are ready")
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes are ready; gave up after 600 s"):
        scene.rendezvous.next_attempt()


def test_waiting_ends_with_the_job(scene: Scene) -> None:
    scene.at_pause[5] = lambda: scene.store.close(Outcome(FAILED, 1, "no restart is left"))
    with pytest.raises(JobOver) as over:
        scene.rendezvous.next_attempt()
    assert over.value.outcome.reason == "no restart is left"
    assert scene.rendezvous.is_closed()


def test_launchers_that_are_expected_poll_as_rarely_as_those_that_are_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    parameters = RendezvousParameters("c10d", "127.0.0.1:0", "job", 12_500, 12_500)
    rendezvous = Rendezvous(parameters, join_timeout=600.0)
    rendezvous._members = scene.members
    monkeypatch.setattr(rendezvous, "sleep", lambda seconds: (pauses.append(seconds), scene.publish(1)))
    rendezvous.next_attempt()
    rendezvous.shutdown()
    assert pauses == [2.5]


def test_waiting_is_interrupted(scene: Scene) -> None:
    asked: list[bool] = []
    scene.rendezvous.interrupted = lambda: bool(asked.append(True)) or len(asked) > 3
    with pytest.raises(Interrupted):
        scene.rendezvous.next_attempt()
    assert scene.pauses == 3


def test_an_address_that_does_not_answer_is_the_users_to_mend(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise DistError("no route to host")

    monkeypatch.setattr(module, "TCPStore", refused)
    scene.publish(1)
    with pytest.raises(RendezvousError, match="--local-addr"):
        scene.rendezvous.next_attempt()


# Joining --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    made.clock(monkeypatch)
    made.rendezvous._members = None
    monkeypatch.setattr(made.rendezvous, "_connect", lambda: made.shared)
    monkeypatch.setattr(made.rendezvous, "_is_held_here", lambda store: True)
    return made


def test_joining_registers_with_the_launchers_of_the_store(joining: Scene) -> None:
    joined: list[bool] = []
    joining.members.join = lambda: joined.append(True)
    assert not joining.rendezvous.joined
    joining.rendezvous.join(lambda store, held: joining.members)
    assert (joining.rendezvous.joined, joined) == (True, [True])


def test_there_is_nothing_to_join_once_the_job_has_finished(joining: Scene) -> None:
    joining.store.close(Outcome(FINISHED, 0))
    with pytest.raises(JobOver):
        joining.rendezvous.join(lambda store, held: joining.members)
    assert joining.pauses == 0


def test_the_store_of_a_launch_that_failed_is_waited_out(joining: Scene) -> None:
    joining.store.close(Outcome(FAILED, 1, "the launch before"))
    fresh = SimpleNamespace(store=JobStore(HashStore(), "job"), join=lambda: None)
    made = [joining.members] * 3
    joining.rendezvous.join(lambda store, held: made.pop() if made else fresh)
    assert joining.rendezvous.members is fresh


def test_the_store_of_a_launch_that_failed_is_not_waited_for_forever(joining: Scene) -> None:
    joining.store.close(Outcome(FAILED, 1, "the launch before"))
    with pytest.raises(JobOver):
        joining.rendezvous.join(lambda store, held: joining.members)
    assert joining.now - 100.0 == pytest.approx(30.0, abs=2.0)


# Torch's interface ----------------------------------------------------------------------------------------------------


def test_torch_is_never_told_to_regroup_and_never_closes_the_job(scene: Scene) -> None:
    assert (scene.rendezvous.num_nodes_waiting(), scene.rendezvous.get_run_id()) == (0, "job")
    with pytest.raises(RendezvousClosedError):
        scene.rendezvous.set_closed()
    scene.publish(1)
    assert scene.rendezvous.next_rendezvous().rank == 0


def test_the_ranks_of_a_node_follow_its_place() -> None:
    place = Place(
        attempt=1,
        role=NodeRole.ACTIVE,
        reason="",
        group_rank=1,
        group_world_size=2,
        first_rank=4,
        world_size=8,
        first_role_rank=2,
        role_world_size=4,
    )
    workers = workers_of(place, 2)
    assert [(w.local_rank, w.global_rank, w.role_rank, w.world_size) for w in workers] == [(0, 4, 2, 8), (1, 5, 3, 8)]


# Where a store listens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "alone", "listens"),
    [
        (["10.0.0.5"], False, "10.0.0.5"),
        (["10.0.0.5"], True, "10.0.0.5"),
        (["10.0.0.5", "10.1.0.5"], False, ""),
        (["127.0.1.1"], False, ""),
        (["127.0.1.1"], True, "127.0.1.1"),
        ([], False, ""),
    ],
    ids=["one", "one, alone", "two", "loopback", "loopback, alone", "another machine's"],
)
def test_a_store_for_a_name_listens_on_the_address_that_all_its_clients_reach(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], alone: bool, listens: str
) -> None:
    monkeypatch.setattr(rendezvous_module, "_own_addresses", lambda _: addresses)
    assert only_on("node1", alone=alone) == listens


def test_a_store_for_a_name_of_this_machine_listens_on_its_address_alone() -> None:
    with pytest.MonkeyPatch.context() as patch:
        known = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: known("127.0.0.5", *rest, **more))
        address = only_on("node1", alone=True)
    assert address == "127.0.0.5"
    store = hosted_store("node1", 0, address)
    with socket.create_connection(("127.0.0.5", store.port), 5.0):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", store.port), 5.0)
