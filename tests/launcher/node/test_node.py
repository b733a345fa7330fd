"""A node without ranks of its own: requests, budget, events and settings, with a link that records."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from rankwatch.contract import env, ft_state
from rankwatch.contract.enums import NodeRole, ProcessEventKind, RankRequestKind
from rankwatch.contract.messages import RankRequest
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots
from rankwatch_launcher.coordination.decisions import RestartBudget, StepRange
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.node.node import MAX_FACT, Node, monitor_fact
from rankwatch_launcher.node.slots import NodeSlots


class Link:
    """Records posts."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, Any]]] = []

    def post(self, path: str, body: Any, *, delay: float = 0.0) -> None:
        self.posts.append((path, body()))

    def close(self, timeout: float) -> None:
        pass

    def events(self) -> list[dict[str, Any]]:
        return [event for path, body in self.posts if path == "process-events" for event in body["events"]]


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def node(link: Link) -> Iterator[Node]:
    made = Node("train", 1, {"max_restarts": 3})
    made.link = link  # type: ignore[assignment]
    yield made
    made.close()


def rank(node: Node, *, iteration: int = 4) -> Slots:
    """The slots of local rank 0, as the rank itself creates them."""
    folder = node.prepare(1)
    slots = Slots.create(folder / env.slots_file(0))
    slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    slots.words[layout.FIRST_ITERATION] = 1
    slots.words[layout.ITERATION] = iteration + 1
    return slots


def ask(node: Node, slots: Slots, *requests: RankRequest) -> None:
    for number, request in enumerate(requests, 1):
        (node.folder.path / "attempt-1" / env.request_file(0, number)).write_text(json.dumps(asdict(request)))
    slots.words[layout.REQUESTS] = len(requests)


def test_requests_for_the_job_are_kept_for_the_agent_and_notices_are_posted(node: Node, link: Link) -> None:
    slots = rank(node)
    ask(
        node,
        slots,
        RankRequest(RankRequestKind.TELL, "the loss jumped", 0, notice="wrong_result"),
        RankRequest(RankRequestKind.STOP_JOB, "NaN", 0),
    )
    assert [request.action for request in node.requests()] == [RankRequestKind.STOP_JOB]
    assert node.requests() == []
    (event,) = link.events()
    assert (event["kind"], event["reason"]) == (ProcessEventKind.NOTICE, "the loss jumped")


def test_the_monitors_policy_overrides_the_configured_restart_budget(node: Node) -> None:
    configured = RestartBudget(3, 2)
    assert node.budget(configured) == configured
    node.apply_settings({"launcher": {"max_restarts": 9}, "limits": {"heartbeat": 5.0}})
    assert node.budget(configured) == RestartBudget(9, 2)


def test_settings_reach_ranks_of_later_attempts_without_the_launchers_part(node: Node) -> None:
    node.apply_settings({"launcher": {"max_restarts": 9}, "limits": {"heartbeat": 5.0}})
    slots = rank(node)
    node.readings()
    assert slots.settings()[1] == {"limits": {"heartbeat": 5.0}}


def test_steps_are_read_from_the_slots(node: Node) -> None:
    assert node.steps() is None
    rank(node, iteration=4)
    assert node.steps() == StepRange(0, 4)


def test_started_ranks_are_reported_and_reported_again_when_the_monitor_lost_its_store(node: Node, link: Link) -> None:
    rank(node)
    node.started([RankProcess(0, 0, 99)], 1)
    node._on_registered({}, False)
    assert [event["pid"] for event in link.events()] == [99]
    node._on_registered({}, True)
    assert [event["pid"] for event in link.events()] == [99, 99]


def test_a_spare_has_no_attempt(node: Node) -> None:
    rank(node)
    node.stand_by(NodeRole.SPARE, "full")
    assert (node.attempt, node.readings(), node.role) == (0, {}, (NodeRole.SPARE, "full"))
    assert node.set_stop_step(5) == (False, None)


def test_settings_that_arrive_while_an_attempt_is_prepared_are_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving: list[threading.Thread] = []
    write = NodeSlots.write_settings

    def interrupted(slots: NodeSlots, settings: Any) -> None:
        write(slots, settings)
        if not arriving:  # the link's thread, before the new attempt is published
            arriving.append(threading.Thread(target=node.apply_settings, args=({"profiling": {"stride": 7}},)))
            arriving[0].start()
            arriving[0].join(0.5)

    monkeypatch.setattr(NodeSlots, "write_settings", interrupted)
    slots = rank(node)
    arriving[0].join(60.0)
    assert not arriving[0].is_alive()
    node.readings()
    assert slots.settings()[1] == {"profiling": {"stride": 7}}


@pytest.mark.parametrize(
    ("url", "fact"),
    [
        ("http://monitor:8421/", {"monitor": "http://monitor:8421"}),
        ("https://user:secret@monitor/watch?token=secret", {"monitor": "https://monitor/watch"}),
        ("http://monitor/" + "x" * MAX_FACT, {}),
        ("", {}),
    ],
)
def test_the_address_of_the_monitor_is_a_fact_without_credentials(url: str, fact: dict[str, str]) -> None:
    assert monitor_fact(url) == fact


def test_calculated_limits_are_registered_as_learned_ones_and_other_changes_as_policy(node: Node, link: Link) -> None:
    slots = rank(node)
    changes = {"calculate_timeouts": True, "section_timeouts": {"step": 2.5}, "heartbeat_timeout": 9.0}
    request = RankRequest(RankRequestKind.CHANGE_POLICY, "", 0, policy=changes, calculated=True)
    ask(node, slots, request)
    node.read_requests()
    ((path, registered),) = link.posts
    assert (path, registered["policy"]) == ("nodes", {"max_restarts": 3, "calculate_timeouts": True})
    learned = ft_state.read(registered["ft_state"])
    assert (learned.sections, learned.heartbeat) == ({"step": 2.5}, 9.0)
    ask(node, slots, request, request)
    node.read_requests()
    assert len(link.posts) == 1, "nothing new"


def test_configured_limits_are_registered_as_policy(node: Node, link: Link) -> None:
    slots = rank(node)
    ask(node, slots, RankRequest(RankRequestKind.CHANGE_POLICY, "", 0, policy={"section_timeouts": {"step": 180.0}}))
    node.read_requests()
    ((_, registered),) = link.posts
    assert registered["policy"]["section_timeouts"] == {"step": 180.0}
    assert not registered["ft_state"]
