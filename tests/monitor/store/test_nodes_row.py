"""Each launcher is stored in a row of its own, when it changes."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from monitor.store.conftest import Place
from rankwatch.contract.enums import NodeRole
from rankwatch.contract.messages import Evidence, Frame, NodeObservation, NodeRegistration, RankStack
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.service.persistence import (
    CROWD_INTERVAL,
    FEW_NODES,
    LATE_EVIDENCE_QUIET,
    SAVE_INTERVAL,
    Persistence,
)
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.repository import Repository


def numbered(count: int) -> Job:
    """A job with so many launchers."""
    job = Job("many", 1.0)
    for number in range(count):
        apply(job, NodeRegistration(f"n{number}", f"h{number}", 7, 8), 1.0)
    return job


def stored(store: Repository, place: Place) -> tuple[int, int]:
    """How many rows of launchers there are, and how many launchers a monitor would take up from them."""
    assert store.flush()
    job = store.load_job("many", 2.0)
    return place.count("launchers"), len(job.nodes) if job is not None else -1


def test_launchers_come_back_from_their_own_rows(store: Repository, place: Place) -> None:
    scene = Scene(job_id="one", hosts=2).run(10)
    Persistence(store).save(scene.job, scene.now)
    assert store.flush()
    assert "registration" not in str(place.ask("select body from jobs")[0][0])
    job = store.load_job("one", scene.now)
    assert job is not None
    assert job_row(job)["body"]["nodes"] == job_row(scene.job)["body"]["nodes"] != []
    assert job.columns.launchers == scene.job.columns.launchers


def test_those_that_have_not_changed_are_not_written_again(store: Repository, place: Place) -> None:
    persistence, job = Persistence(store), numbered(2)
    persistence.save(job, 10.0)
    assert stored(store, place) == (2, 2)
    place.ask("delete from launchers")
    persistence.save(job, 20.0)
    assert stored(store, place) == (0, 0)
    apply(job, NodeObservation("n0", 0, role=NodeRole.SPARE, role_reason="one too many"), 21.0)
    persistence.save(job, 21.0)
    assert stored(store, place) == (1, 1)
    apply(job, NodeRegistration("n2", "h2", 7, 8), 22.0)
    persistence.save(job, 22.0)
    assert stored(store, place) == (2, 2), "only the one that is new"


@pytest.mark.parametrize("restarted", [False, True])
def test_one_that_is_forgotten_has_no_row(store: Repository, place: Place, restarted: bool) -> None:
    persistence, job = Persistence(store), numbered(3)
    persistence.save(job, 10.0)
    assert stored(store, place) == (3, 3)
    if restarted:
        persistence, loaded = Persistence(store), store.load_job("many", 11.0)
        assert loaded is not None
        job = loaded
        persistence.on_loaded(job)
    job.begin_run(12.0)
    apply(job, NodeRegistration("n1", "h1", 7, 8), 12.0)
    persistence.save(job, 12.0)
    assert stored(store, place) == (1, 1)


def test_launchers_of_a_past_that_was_read_late_leave_no_row(store: Repository, place: Place) -> None:
    Persistence(store).save(numbered(3), 10.0)
    assert stored(store, place) == (3, 3)
    persistence, job, past = Persistence(store), Job("many", 20.0), store.load_job("many", 20.0)
    assert past is not None
    apply(job, NodeRegistration("new", "h", 7, 8), 20.0)
    persistence._merge(job, past, Policy(), 21.0, lambda _job, _past: None)
    assert stored(store, place) == (1, 1)


def test_a_crowd_is_stored_within_a_second_and_its_launchers_within_five(store: Repository, place: Place) -> None:
    persistence, job = Persistence(store), numbered(FEW_NODES + 1)
    persistence.save(job, 10.0)
    assert stored(store, place) == (FEW_NODES + 1,) * 2
    apply(job, NodeRegistration("late", "h", 7, 8), 10.1)
    job.launches = 1
    persistence.save(job, 10.1)
    persistence.save_if_due(job, 10.2)
    assert store.flush()
    assert store.load_job("many", 11.0).launches == 0  # type: ignore[union-attr]
    persistence.save_if_due(job, 10.0 + CROWD_INTERVAL)
    assert stored(store, place) == (FEW_NODES + 1,) * 2
    assert store.load_job("many", 11.0).launches == 1  # type: ignore[union-attr]
    persistence.save(job, 10.1 + SAVE_INTERVAL)
    assert stored(store, place) == (FEW_NODES + 2,) * 2


def test_what_must_be_stored_is_stored_whole(store: Repository, place: Place) -> None:
    persistence, job = Persistence(store), numbered(FEW_NODES + 1)
    persistence.save(job, 10.0)
    apply(job, NodeRegistration("late", "h", 7, 8), 10.1)
    persistence.save_all(job, 10.1)
    assert stored(store, place) == (FEW_NODES + 2,) * 2


def test_evidence_that_comes_after_the_end_of_an_incident_is_stored(store: Repository) -> None:
    scene = Scene(job_id="one", hosts=2).run(10).hang(2).until_found().run(20)
    persistence, (incident,) = Persistence(store), scene.job.incidents
    persistence.save_incident(incident)
    persistence.save(scene.job, scene.now)
    late = RankStack(3, 9, "py-spy", (Frame("late", "train.py", 7),))
    evidence = Evidence("node-1", incident.attempt, incident.id, (late,))
    assert not incident.open
    apply(scene.job, evidence, scene.now)
    persistence.save_late_evidence(scene.job, evidence, scene.now)
    persistence.save_if_due(scene.job, scene.now + LATE_EVIDENCE_QUIET)
    assert store.flush()
    job = store.load_job("one", scene.now)
    assert job is not None
    assert "late" in [group.frames[0].function for group in job.incidents[0].stacks.groups()]
