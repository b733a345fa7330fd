"""One job by itself, and the list of all."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from monitor.core.scene import Scene
from monitor.store.conftest import Place
from rankwatch_monitor.store import performance_codec, schema
from rankwatch_monitor.store.codec import directive_row, incident_row, job_row
from rankwatch_monitor.store.repository import Repository
from support.windows import COMPUTE, Ranks, slower


def keep(store: Repository, name: str) -> Scene:
    scene = Scene(job_id=name, hosts=2).run(10).hang(2).until_found().run(20)
    store.save(schema.jobs, job_row(scene.job))
    for incident in scene.job.incidents:
        store.save(schema.incidents, incident_row(incident))
    for directive in scene.job.directives:
        store.save(schema.directives, directive_row(name, directive))
    assert store.flush()
    return scene


def test_one_job_is_read_as_all_are(store: Repository) -> None:
    scene = keep(store, "one")
    keep(store, "other")
    windows = Ranks(8).run(4).run(6, slower(3, COMPUTE, 0.4))
    body = performance_codec.snapshot(windows.job.performance)
    store.save(schema.performances, {"job_id": "one"}, deferred=lambda: {"body": body()})
    assert store.flush()
    job = store.load_job("one", scene.now)
    assert job is not None
    assert job_row(job) == job_row(scene.job)
    assert (job.incidents, job.directives) == (scene.job.incidents, scene.job.directives)
    assert job.performance.stragglers == windows.job.performance.stragglers != []
    assert store.load_job("never", scene.now) is None


def test_one_that_cannot_be_read_begins_again_and_is_reported(store: Repository, place: Place, caplog) -> None:  # type: ignore[no-untyped-def]
    keep(store, "one")
    place.ask("update jobs set body = '{}'")
    assert store.load_job("one", 1.0) is None
    assert store.load(1.0) == []
    assert "the stored job one is unreadable and starts without its past" in caplog.text


def test_a_database_that_cannot_be_asked_is_an_error(store: Repository, place: Place) -> None:
    place.ask("alter table jobs rename to elsewhere")
    for ask in (lambda: store.load_job("one", 1.0), lambda: store.summaries(5)):
        try:
            ask()
        except SQLAlchemyError:
            continue
        raise AssertionError("a job that cannot be asked for is not one that is not there")


def test_the_list_has_the_newest_jobs_with_state_and_holder(store: Repository, place: Place) -> None:
    scenes = {name: keep(store, name) for name in ("a", "b", "c")}
    for at, (name, scene) in enumerate(scenes.items()):
        store.save(schema.jobs, {**job_row(scene.job), "last_heard": 100.0 + at})
        for when, state in ((1.0, "starting"), (2.0, "hung")):
            if name != "a":
                store.save(schema.transitions, {"job_id": name, "at": when, "state": state, "reason": ""})
    lease = {"owner": "m1", "url": "http://m1", "generation": 1}
    store.save(schema.leases, {"job_id": "c", **lease, "ends_at": 4e9})
    store.save(schema.leases, {"job_id": "b", **lease, "ends_at": 1.0})
    assert store.flush()
    found = store.summaries(2)
    assert [(each.id, each.state, each.holder) for each in found] == [("c", "hung", "m1"), ("b", "hung", None)]
    job = scenes["c"].job
    assert found[0][1:2] + found[0][3:6] == (job.name, job.world_size, job.attempt, job.created_at)
    assert store.summaries(9)[2].state == "", "of one without a transition nothing is known"
