"""Directives: what is carried out at once, what is queued for the agent, what is superseded."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rankwatch.contract.enums import AckState, DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.monitor.directives import DirectiveInbox
from support.waiting import wait_for


class Target:
    """A node in its third attempt."""

    attempt = 3

    def __init__(self) -> None:
        self.settings: list[Any] = []
        self.captured = threading.Event()
        self.watched: list[tuple[float, str | None]] = []
        self.compared: list[int] = []

    def capture(
        self, deadline: float, *, incident: str | None, directive: int | None = None, last: bool = False
    ) -> int:
        assert (deadline, incident, directive, last) == (2.0, "i1", 1, False)
        self.captured.set()
        return 4

    def watch(self, seconds: float, incident: str | None) -> None:
        self.watched.append((seconds, incident))

    def compare(self, rank: int) -> None:
        self.compared.append(rank)

    def apply_settings(self, settings: Any) -> None:
        self.settings.append(settings)


class Scene:
    def __init__(self) -> None:
        self.target, self.acks, self.acked = Target(), list[tuple[int, AckState]](), threading.Event()
        self.inbox = DirectiveInbox(self.target, self._ack)

    def _ack(self, directive: Directive, state: AckState, _detail: str, _furthest: int | None) -> None:
        self.acks.append((directive.id, state))
        self.acked.set()

    def receive(self, kind: DirectiveKind, attempt: int = 3, **fields: Any) -> None:
        self.inbox.receive(Directive(id=1, kind=kind, attempt=attempt, reason="r", **fields))


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    os.close(made.inbox.wake)
    os.close(made.inbox._wake_end)


def test_settings_are_applied_at_once(scene: Scene) -> None:
    scene.receive(DirectiveKind.SETTINGS, 0, settings={"a": 1})
    assert (scene.target.settings, scene.acks) == ([{"a": 1}], [(1, AckState.DONE)])


def test_a_capture_runs_on_a_thread_and_is_acknowledged(scene: Scene) -> None:
    scene.receive(DirectiveKind.CAPTURE, deadline=2.0, incident_id="i1")
    assert scene.acked.wait(60.0)
    assert scene.target.captured.is_set()
    assert scene.acks == [(1, AckState.DONE)]


def test_the_capture_of_a_suspicion_is_followed_by_a_watch(scene: Scene) -> None:
    scene.receive(DirectiveKind.CAPTURE, deadline=2.0, incident_id="i1", watch=60.0)
    wait_for(lambda: scene.target.watched == [(60.0, "i1")], "the watch begins", 60.0)
    assert scene.acks == [(1, AckState.DONE)]


def shown(caplog: pytest.LogCaptureFixture) -> list[tuple[str, tuple[str, ...]]]:
    """The events so far: word, and what follows."""
    return [(str(r.__dict__["word"]), r.__dict__["more"]) for r in caplog.records if "word" in r.__dict__]


def test_what_is_told_has_the_monitors_word_and_what_follows(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rankwatch")
    scene.receive(DirectiveKind.TELL, word="SUSPECT", headlines=("Rank 1 waits", "Rank 1"), acts_in=300.0)
    scene.receive(DirectiveKind.TELL, word="HANG", follows="the policy only records")
    scene.receive(DirectiveKind.TELL, word="BACK", headlines=("step 46 after 10.0 s",))
    (suspect, follows), *others = shown(caplog)
    assert (suspect, len(follows)) == ("SUSPECT", 2)
    assert others == [("HANG", ("the policy only records",)), ("BACK", ())]
    (first,) = [r.__dict__["whats"] for r in caplog.records if r.__dict__.get("word") == "SUSPECT"]
    assert first == ("Rank 1 waits", "Rank 1")
    assert len(scene.acks) == 3


def test_what_has_no_word_and_captures_are_not_shown(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.receive(DirectiveKind.TELL)
    scene.receive(DirectiveKind.TELL, word="of a newer monitor")
    scene.receive(DirectiveKind.CAPTURE, deadline=2.0, incident_id="i1", word="HANG")
    assert scene.acked.wait(10.0)
    assert shown(caplog) == []


@pytest.mark.parametrize("kind", [DirectiveKind.RESTART, DirectiveKind.STOP, DirectiveKind.SAVE_AND_STOP])
def test_an_order_without_a_word_is_shown_all_the_same(
    scene: Scene, caplog: pytest.LogCaptureFixture, kind: DirectiveKind
) -> None:
    scene.receive(kind)
    assert [word for word, _ in shown(caplog)] == [{"save_and_stop": "SAVE"}.get(kind, kind.upper())]


@pytest.mark.parametrize("kind", [DirectiveKind.RESTART, DirectiveKind.STOP, DirectiveKind.CAPTURE])
def test_a_directive_for_an_earlier_attempt_is_superseded(scene: Scene, kind: DirectiveKind) -> None:
    scene.receive(kind, attempt=2)
    assert scene.acks == [(1, AckState.SUPERSEDED)]
    assert scene.inbox.take(3) is None


def test_a_restart_wakes_the_loop_and_is_taken_once(scene: Scene) -> None:
    scene.receive(DirectiveKind.RESTART)
    assert select.select([scene.inbox.wake], [], [], 0)[0]
    taken = scene.inbox.take(3)
    assert taken is not None
    assert taken.kind is DirectiveKind.RESTART
    assert scene.inbox.take(3) is None
    assert not select.select([scene.inbox.wake], [], [], 0)[0]


def test_a_queued_restart_is_superseded_by_a_later_attempt_and_a_queued_stop_is_not(scene: Scene) -> None:
    scene.receive(DirectiveKind.RESTART)
    scene.receive(DirectiveKind.STOP)
    taken = scene.inbox.take(4)
    assert taken is not None
    assert taken.kind is DirectiveKind.STOP
    assert scene.acks == [(1, AckState.SUPERSEDED)]


def test_a_pending_stop_stays_queued_and_a_restart_is_none(scene: Scene) -> None:
    scene.receive(DirectiveKind.RESTART)
    assert scene.inbox.pending_stop() is None
    scene.receive(DirectiveKind.SAVE_AND_STOP)
    assert scene.inbox.pending_stop() is not None
    assert scene.inbox.pending_stop() is not None


def test_what_a_slow_rank_does_is_looked_at_when_it_is_told(scene: Scene) -> None:
    scene.receive(DirectiveKind.TELL, word="SLOW", headlines=("rank 0 on vm is slow",), slow_rank=0)
    scene.receive(DirectiveKind.TELL, word="BACK", headlines=("rank 0 on vm is as fast as its peers again",))
    assert scene.target.compared == [0]
