"""From a job to its receivers: filters, formats, what is kept, and what is taken up again after a restart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.core.accounted import Accounted
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.publish.http_post import fingerprint
from rankwatch_monitor.publish.publisher import Publishing
from rankwatch_monitor.publish.webhook.notices import Event
from rankwatch_monitor.publish.webhook.publisher import Receiver, Webhooks, events, receivers
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.outbox import Outbox
from rankwatch_monitor.store.repository import Repository
from support.http_receiver import Answers, HttpReceiver
from support.waiting import wait_for


class Shelf:
    """Keeps rows in memory, as the store does on disk."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}

    def load(self) -> list[dict[str, Any]]:
        return sorted(self.rows.values(), key=lambda row: row["number"])

    def take_loaded(self, job_id: str) -> list[dict[str, Any]]:
        return []

    def keep(self, rows: Iterable[tuple[Mapping[str, Any], Callable[[], None]]]) -> None:
        for row, then in rows:
            self.rows[row["queue"], row["key"]] = dict(row)
            then()

    def remove(self, queue: str, key: str) -> None:
        self.rows.pop((queue, key), None)


Begin = Callable[..., Webhooks]


@pytest.fixture
def scene() -> Accounted:
    return Accounted(ranks=4).run(20)


@pytest.fixture
def begin(receiver: HttpReceiver, scene: Accounted, fast_retries: None) -> Iterator[Begin]:
    made: list[Webhooks] = []

    def webhooks(*to: Receiver, **more: Any) -> Webhooks:
        chosen = to or (Receiver(receiver.url, "json"),)
        # The scene lives at its own time; a message is as old as the clock of this machine states.
        made.append(Webhooks(chosen, {scene.job.id: scene.job}, lambda: scene.now, **more))
        return made[-1]

    yield webhooks
    receiver.released.set()
    for each in made:
        each.close(10)


@pytest.fixture(autouse=True)
def scene_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenes begin long ago; here that is not too old."""
    monkeypatch.setattr("rankwatch_monitor.publish.webhook.delivery.GIVE_UP", float("inf"))


def hang_and_recover(scene: Accounted, webhooks: Webhooks) -> None:
    scene.hang(2)
    for _ in range(100):
        scene.run(1)
        webhooks.observe(scene.job, scene.now)


def reported(receiver: HttpReceiver) -> list[str]:
    return [each.json["event"] for each in receiver.taken]


def test_an_incident_reaches_every_receiver_in_its_format(
    receiver: HttpReceiver, scene: Accounted, begin: Begin
) -> None:
    shelf = Shelf()
    webhooks = begin(
        Receiver(f"{receiver.url}/json", "json", b"k"), Receiver(f"{receiver.url}/slack", "slack", b"k"), outbox=shelf
    )
    hang_and_recover(scene, webhooks)
    wait_for(lambda: len(receiver.taken) == 4, "two messages to each of two")
    assert [e.json["event"] for e in receiver.taken if e.path == "/json"] == ["incident_opened", "incident_closed"]
    assert all(each.json["blocks"] for each in receiver.taken if each.path == "/slack")
    assert all(each.headers["webhook-signature"].startswith("v1,") for each in receiver.taken)
    wait_for(lambda: not shelf.rows, "nothing is left")


def test_only_the_chosen_events_are_reported(receiver: HttpReceiver, scene: Accounted, begin: Begin) -> None:
    webhooks = begin(events={Event.INCIDENT_CLOSED, Event.JOB_FAILED})
    hang_and_recover(scene, webhooks)
    scene.finish(ProcessEventKind.FAILED, "no more")
    scene.run(2)
    webhooks.observe(scene.job, scene.now)
    wait_for(lambda: len(receiver.taken) == 2, "both are told")
    assert reported(receiver) == ["incident_closed", "job_failed"]


def test_what_was_not_delivered_is_taken_up_again(receiver: HttpReceiver, scene: Accounted, begin: Begin) -> None:
    shelf = Shelf()
    receiver.away()
    first = begin(outbox=shelf)
    hang_and_recover(scene, first)
    first.close(10)
    assert [row["body"]["event"] for row in shelf.load()] == ["incident_opened", "incident_closed"]
    receiver.back()
    second = begin(outbox=shelf)
    wait_for(lambda: not shelf.rows, "they are delivered")
    assert reported(receiver) == ["incident_opened", "incident_closed"]
    second.observe(scene.job, scene.now + 10)
    scene.finish(ProcessEventKind.FAILED, "no more")
    scene.run(2)
    second.observe(scene.job, scene.now + 20)
    wait_for(lambda: len(receiver.taken) == 3, "what is new comes after what was left")
    assert reported(receiver)[2:] == ["job_failed"], "and what was reported is not told again"


def test_of_a_job_that_moved_here_the_past_is_not_reported_again(
    receiver: HttpReceiver, scene: Accounted, begin: Begin
) -> None:
    """Its incident was reported by the monitor that watched it then; what comes from now on is told here."""
    webhooks = begin()
    later = Accounted(ranks=4).run(20)
    later.hang(1)
    later.run(100)
    assert not later.job.incidents[0].open
    Publishing((), (webhooks,)).adopt(later.job, later.now)
    webhooks.observe(later.job, later.now)
    later.finish(ProcessEventKind.FAILED, "no more")
    later.run(2)
    webhooks.observe(later.job, later.now)
    wait_for(lambda: receiver.taken, "its end is told")
    assert reported(receiver) == ["job_failed"]


def test_what_another_monitor_could_not_deliver_comes_before_what_is_new(
    receiver: HttpReceiver, scene: Accounted, begin: Begin, tmp_path: Path
) -> None:
    """The next holder of a job ends its incident at once, while the database still has the message of its beginning."""
    with closing(Repository(str(tmp_path / "shared.db"), shared=True)) as store:
        receiver.away()
        former = begin(outbox=Outbox(store))
        store.save(schema.jobs, job_row(scene.job))
        scene.hang(2)

        def announced() -> bool:
            former.observe(scene.job, scene.now)
            return store.flush() and former.deliveries[fingerprint(receiver.url)].waiting == 1

        scene.until(announced)
        former.close(10)
        assert scene.job.incidents[0].open
        receiver.back()

        next_holder = begin(outbox=Outbox(store))
        assert store.load_job(scene.job.id, scene.now) is not None
        next_holder.adopt(scene.job, scene.now)
        scene.run(60)
        assert not scene.job.incidents[0].open
        next_holder.observe(scene.job, scene.now)
        wait_for(lambda: len(receiver.taken) == 2, "both are delivered")
        assert reported(receiver) == ["incident_opened", "incident_closed"]


def test_messages_of_a_job_that_moved_away_are_left_to_its_next_monitor(
    receiver: HttpReceiver, scene: Accounted, begin: Begin
) -> None:
    receiver.answers = Answers(first=[None])
    shelf = Shelf()
    webhooks = begin(outbox=shelf)
    hang_and_recover(scene, webhooks)
    wait_for(lambda: receiver.posted, "the first of two is being sent")
    Publishing((), (webhooks,)).release(scene.job.id)
    receiver.released.set()
    receiver.away()
    (delivery,) = webhooks.deliveries.values()
    assert delivery.waiting == 0
    receiver.back()
    other = scene.job
    other.id = "another"
    scene.finish(ProcessEventKind.FAILED, "no more")
    scene.run(2)
    webhooks.observe(other, scene.now)
    wait_for(lambda: receiver.taken, "the thread works on")
    assert reported(receiver) == ["job_failed"]
    left = ["incident_opened", "incident_closed"]
    wait_for(lambda: [row["body"]["event"] for row in shelf.load()] == left, "what was taken is removed, nothing else")


def test_one_that_hangs_does_not_hold_up_the_other(receiver: HttpReceiver, scene: Accounted, begin: Begin) -> None:
    receiver.answers = Answers(first=[None])
    webhooks = begin(Receiver(f"{receiver.url}/one", "json"), Receiver(f"{receiver.url}/two", "json"))
    hang_and_recover(scene, webhooks)
    wait_for(lambda: len(receiver.taken) == 2, "the other one has both")
    assert len({each.path for each in receiver.taken}) == 1


def test_rows_of_a_receiver_that_was_removed_wait_for_it(
    receiver: HttpReceiver, scene: Accounted, begin: Begin
) -> None:
    shelf = Shelf()
    row = {"queue": "gone", "key": "k", "number": 41, "job_id": "j", "at": scene.now, "body": {}}
    shelf.rows["gone", "k"] = row
    webhooks = begin(outbox=shelf)
    assert shelf.load() == [row]
    kept = webhooks.rows_about(scene.job.id)
    assert kept == []
    scene.hang(2).until_found()
    ((new, deliver),) = [
        kept for kept in webhooks.rows_about(scene.job.id) if kept[0]["body"]["event"] == "incident_opened"
    ]
    assert new["number"] > 41, "what is new comes after all that waits"
    assert new["queue"] == fingerprint(receiver.url)
    assert receiver.posted == [], "and is not delivered before it is kept"
    deliver()
    wait_for(lambda: receiver.taken, "it is delivered")
    assert webhooks.rows_about("a job that the monitor has let go") == []


def test_a_job_that_cannot_be_reported_is_counted_and_does_no_harm(
    scene: Accounted, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhooks = begin()
    monkeypatch.setattr(scene.job.performance, "stragglers", None)
    webhooks.observe(scene.job, scene.now)
    webhooks.observe(scene.job, scene.now + 2)
    assert webhooks.errors == 2


# Settings -------------------------------------------------------------------------------------------------------------


def test_receivers_have_the_format_they_name_or_the_common_one() -> None:
    urls = ["https://a/x=1", "json=https://b/", "slack=https://c/?q=json=1"]
    assert [(receiver.url, receiver.form) for receiver in receivers(urls, "slack")] == [
        ("https://a/x=1", "slack"),
        ("https://b/", "json"),
        ("https://c/?q=json=1", "slack"),
    ]
    with pytest.raises(ValueError, match="--webhook-format must be slack or json, not 'teams'"):
        receivers(urls, "teams")
    with pytest.raises(ValueError, match=re.escape("--webhook needs a whole URL such as https://host/path")):
        receivers(["teams=https://a/"], "json")


@pytest.mark.parametrize(
    ("names", "count"), [("all", len(Event)), ("incident", 2), ("straggler, job_failed", 3), ("job", 5)]
)
def test_events_are_named_one_by_one_or_by_kind(names: str, count: int) -> None:
    assert len(events(names)) == count


@pytest.mark.parametrize("names", ["", " , ", "incidents", "job,nothing"])
def test_an_event_that_is_none_is_refused_with_those_that_there_are(names: str) -> None:
    with pytest.raises(ValueError, match=r"--webhook-events.*(incident_opened, incident_closed|omit it for all)"):
        events(names)
