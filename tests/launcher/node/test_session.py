"""A session without a monitor: requests, budget, events and settings, with a link that records."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from launcher.here import Here
from rankwatch.contract import env, ft_state
from rankwatch.contract.enums import ProcessEventKind, RankRequestKind
from rankwatch.contract.messages import RankRequest
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots
from rankwatch_launcher.coordination.decisions import RestartBudget, StepRange
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.node.session import MAX_FACT, monitor_fact
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
def node(link: Link) -> Iterator[Here]:
    with Here(policy={"max_restarts": 3}) as made:
        made.session.use(link)  # type: ignore[arg-type]
        yield made


def rank(node: Here, *, iteration: int = 4) -> Slots:
    """The slots of local rank 0, as the rank itself creates them."""
    folder = node.files.prepare(1)
    slots = Slots.create(folder / env.slots_file(0))
    slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    slots.words[layout.FIRST_ITERATION] = 1
    slots.words[layout.ITERATION] = iteration + 1
    return slots


def ask(node: Here, slots: Slots, *requests: RankRequest) -> None:
    for number, request in enumerate(requests, 1):
        (node.files.folder.path / "attempt-1" / env.request_file(0, number)).write_text(json.dumps(asdict(request)))
    slots.words[layout.REQUESTS] = len(requests)


def test_requests_for_the_job_are_kept_for_the_agent_and_notices_are_posted(node: Here, link: Link) -> None:
    slots = rank(node)
    ask(
        node,
        slots,
        RankRequest(RankRequestKind.TELL, "the loss jumped", 0, notice="wrong_result"),
        RankRequest(RankRequestKind.STOP_JOB, "NaN", 0),
    )
    assert [request.action for request in node.session.requests()] == [RankRequestKind.STOP_JOB]
    assert node.session.requests() == []
    (event,) = link.events()
    assert (event["kind"], event["reason"]) == (ProcessEventKind.NOTICE, "the loss jumped")


def test_the_monitors_policy_overrides_the_configured_restart_budget(node: Here) -> None:
    configured = RestartBudget(3, 2)
    assert node.session.budget(configured) == configured
    node.session.apply_settings({"launcher": {"max_restarts": 9}, "limits": {"heartbeat": 5.0}})
    assert node.session.budget(configured) == RestartBudget(9, 2)


def test_settings_reach_ranks_of_later_attempts_without_the_launchers_part(node: Here) -> None:
    node.session.apply_settings({"launcher": {"max_restarts": 9}, "limits": {"heartbeat": 5.0}})
    slots = rank(node)
    node.files.readings()
    assert slots.settings()[1] == {"limits": {"heartbeat": 5.0}}


def test_steps_are_read_from_the_slots(node: Here) -> None:
    assert node.files.steps() is None
    rank(node, iteration=4)
    assert node.files.steps() == StepRange(0, 4)


def test_started_ranks_are_reported_and_reported_again_when_the_monitor_lost_its_store(node: Here, link: Link) -> None:
    rank(node)
    node.session.started(node.files.started([RankProcess(0, 0, 99)], 1))
    node.session.registered({}, False)
    assert [event["pid"] for event in link.events()] == [99]
    node.session.registered({}, True)
    assert [event["pid"] for event in link.events()] == [99, 99]


def test_a_spare_has_no_attempt(node: Here) -> None:
    rank(node)
    node.files.leave()
    assert (node.session.attempt, node.files.readings()) == (0, {})
    assert node.files.set_stop_step(5) == (False, None)


def test_settings_that_arrive_while_an_attempt_is_prepared_are_kept(
    node: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving: list[threading.Thread] = []
    write = NodeSlots.write_settings

    def interrupted(slots: NodeSlots, settings: Any) -> None:
        write(slots, settings)
        if not arriving:  # the link's thread, before the new attempt is published
            arriving.append(threading.Thread(target=node.session.apply_settings, args=({"profiling": {"stride": 7}},)))
            arriving[0].start()
            arriving[0].join(0.5)

    monkeypatch.setattr(NodeSlots, "write_settings", interrupted)
    slots = rank(node)
    arriving[0].join(60.0)
    assert not arriving[0].is_alive()
    node.files.readings()
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


def test_calculated_limits_are_registered_as_learned_ones_and_other_changes_as_policy(node: Here, link: Link) -> None:
    slots = rank(node)
    changes = {"calculate_timeouts": True, "section_timeouts": {"step": 2.5}, "heartbeat_timeout": 9.0}
    request = RankRequest(RankRequestKind.CHANGE_POLICY, "", 0, policy=changes, calculated=True)
    ask(node, slots, request)
    node.session.requests()
    ((path, registered),) = link.posts
    assert (path, registered["policy"]) == ("nodes", {"max_restarts": 3, "calculate_timeouts": True})
    learned = ft_state.read(registered["ft_state"])
    assert (learned.sections, learned.heartbeat) == ({"step": 2.5}, 9.0)
    ask(node, slots, request, request)
    node.session.requests()
    assert len(link.posts) == 1, "nothing new"


def test_configured_limits_are_registered_as_policy(node: Here, link: Link) -> None:
    slots = rank(node)
    ask(node, slots, RankRequest(RankRequestKind.CHANGE_POLICY, "", 0, policy={"section_timeouts": {"step": 180.0}}))
    node.session.requests()
    ((_, registered),) = link.posts
    assert registered["policy"]["section_timeouts"] == {"step": 180.0}
    assert not registered["ft_state"]
