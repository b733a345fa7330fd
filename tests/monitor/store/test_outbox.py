"""Messages are committed with what they are about, delivered after that, and gone once they need no more delivery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monitor.core.scene import Scene
from monitor.store.conftest import Place
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.codec import incident_row, job_row
from rankwatch_monitor.store.outbox import Outbox
from rankwatch_monitor.store.repository import Repository

Open = Callable[..., Repository]


def row(number: int, queue: str = "q", job: str = "job") -> dict[str, Any]:
    return {"queue": queue, "key": f"k{number}", "number": number, "job_id": job, "at": 1.5, "body": {"n": number}}


def test_what_was_kept_is_there_after_a_restart_in_its_order(place: Place, opened: Open) -> None:
    kept: list[int] = []
    first = opened(place)
    Outbox(first).keep([(row(number), lambda number=number: kept.append(number)) for number in (3, 1, 2)])
    first.close()
    assert kept == [3, 1, 2], "each is reported once it is kept"
    second = opened(place)
    assert Outbox(second).load() == [row(1), row(2), row(3)]


def test_messages_of_a_shared_database_are_read_with_their_job_only(place: Place, opened: Open) -> None:
    scene = Scene(hosts=2).run(10)
    store = opened(place, shared=True)
    messages = Outbox(store)
    store.save(schema.jobs, job_row(scene.job))
    messages.keep([(row(2, job=scene.job.id), lambda: None), (row(1, job="another"), lambda: None)])
    assert store.flush()
    assert messages.load() == []
    assert store.load_job(scene.job.id, scene.now) is not None
    assert messages.take_loaded(scene.job.id) == [row(2, job=scene.job.id)]
    assert messages.take_loaded("another") == []


def test_one_that_is_removed_is_gone_even_from_the_same_batch(store: Repository) -> None:
    messages = Outbox(store)
    messages.keep([(row(1), lambda: None), (row(2), lambda: None), (row(1, "other"), lambda: None)])
    messages.remove("q", "k1")
    messages.remove("q", "was never there")
    assert store.flush()
    assert messages.load() == [row(1, "other"), row(2)]
    assert store.writer.errors == 0


def test_messages_go_with_every_row_about_a_job_in_one_transaction(store: Repository, place: Place) -> None:
    scene = Scene(hosts=2).run(10).hang(2).until_found().run(20)
    asked: list[str] = []
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((place.count("messages"), place.count("incidents")))

    def about(job_id: str) -> list[tuple[dict[str, Any], Any]]:
        asked.append(job_id)
        return [(row(len(asked), job=job_id), look)]

    messages = Outbox(store)
    messages.attach(about)
    store.save(schema.incidents, incident_row(scene.job.incidents[0]))
    assert store.flush()
    assert seen == [(1, 1)], "when its delivery begins both are committed"
    store.save(schema.jobs, job_row(scene.job))
    store.save(schema.transitions, {"job_id": scene.job.id, "at": 1.0, "state": "running", "reason": ""})
    assert asked == [scene.job.id] * 3
    assert store.flush()
    assert len(messages.load()) == 3


def test_a_database_that_refuses_does_not_keep_a_message_from_being_delivered(store: Repository, place: Place) -> None:
    place.ask("drop table messages")
    reported: list[str] = []
    Outbox(store).attach(lambda _: [(row(1), lambda: reported.append("message"))])
    store.save(
        schema.transitions, {"job_id": "j", "at": 1.0, "state": "lost", "reason": ""}, lambda: reported.append("row")
    )
    assert store.flush()
    assert reported == ["message", "row"]
    assert store.writer.errors > 0


def test_messages_that_cannot_be_read_yet_do_not_end_the_start_and_come_with_their_jobs(
    place: Place, opened: Open
) -> None:
    scene = Scene(hosts=2).run(10)
    first = opened(place)
    first.save(schema.jobs, job_row(scene.job))
    Outbox(first).keep([(row(number, job=scene.job.id), lambda: None) for number in (2, 1)])
    first.close()
    place.ask("alter table messages rename to elsewhere")
    second = opened(place)
    messages = Outbox(second)
    assert messages.load() == []
    place.ask("alter table elsewhere rename to messages")
    second._load_pending_jobs()
    assert messages.take_loaded(scene.job.id) == [row(1, job=scene.job.id), row(2, job=scene.job.id)]
    assert messages.take_loaded(scene.job.id) == []
