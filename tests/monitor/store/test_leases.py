"""Which monitor holds a job when several monitors share a database: real ones, SQLite and PostgreSQL alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from sqlalchemy import Engine, event, select, update

from monitor.store.conftest import Place
from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.store import codec, schema
from rankwatch_monitor.store.leases import ORPHANED, Holder, LeaseResult, Leases
from rankwatch_monitor.store.repository import Repository
from support.waiting import wait_for

SHORT, MIDDLE, LONG = 0.5, 3.0, 60.0
"""Seconds of a lease that is to end in a test, whose holder takes over expired ones, and that is to last."""


class Side:
    """One monitor's leases, and what they reported."""

    def __init__(self, engine: Engine, name: str, duration: float, clock: Callable[[], float]) -> None:
        self.answers: list[tuple[str, LeaseResult]] = []
        self.lost: list[tuple[str, Holder | None]] = []
        self.wanted: list[tuple[str, str]] = []
        self.rounds = 0
        self.leases = Leases(engine, name, f"http://{name}", duration, clock=clock)
        self.leases.on_results = lambda answers: self.answers.extend(answers.items())
        self.leases.on_lost = lambda job, holder: self.lost.append((job, holder))
        self.leases.on_contended = lambda job, by, _: self.wanted.append((job, by))
        self.leases.on_renewed = self._round
        self.leases.start()

    def _round(self) -> None:
        self.rounds += 1

    def ask(self, job: str, *, contact: bool = True) -> LeaseResult:
        """Ask for a job and wait for the answer."""
        known = len(self.answers)

        def answered() -> list[tuple[str, LeaseResult]]:
            self.leases.request(job, contact=contact)
            return self.answers[known:]

        return wait_for(answered, f"the answer about {job}")[-1][1]

    def takes(self, job: str) -> None:
        """Ask for a job until it is ours."""
        wait_for(lambda: self.ask(job).acquired, f"{self.leases.name} takes {job}")


Start = Callable[..., Side]


@pytest.fixture
def store(place: Place, opened: Callable[..., Repository]) -> Repository:
    return opened(place, shared=True)


@pytest.fixture
def start(store: Repository) -> Iterator[Start]:
    """Starts a monitor's leases; all end with the test."""
    sides: list[Side] = []

    def begin(name: str, duration: float = LONG, clock: Callable[[], float] = time.monotonic) -> Side:
        sides.append(Side(store.engine, name, duration, clock))
        return sides[-1]

    yield begin
    for side in sides:
        side.leases.close()


def row(store: Repository, job: str) -> dict:
    with store.engine.connect() as connection:
        return dict(connection.execute(select(schema.leases).where(schema.leases.c.job_id == job)).mappings().one())


def owned(store: Repository, side: Side, job: str) -> bool:
    """Whether the database lets this side write of a job."""
    with store.engine.begin() as connection:
        return side.leases.owned(connection, {job}) == {job}


def test_the_monitor_that_is_asked_first_holds_the_job_and_the_other_learns_whose_it_is(
    store: Repository, start: Start
) -> None:
    a, b = start("a"), start("b")
    assert a.ask("j") == LeaseResult(True)
    assert b.ask("j") == LeaseResult(False, Holder("a", "http://a"))
    assert a.leases.holds("j")
    assert not b.leases.holds("j")
    assert b.leases.holder("j") == Holder("a", "http://a")
    assert (owned(store, a, "j"), owned(store, b, "j")) == (True, False)


def test_a_lease_is_renewed_for_as_long_as_its_holder_lives(store: Repository, start: Start) -> None:
    a, b = start("a", SHORT), start("b")
    a.takes("j")
    ends = row(store, "j")["ends_at"]
    wait_for(lambda: row(store, "j")["ends_at"] > ends + 2 * SHORT, "it is renewed")
    assert b.ask("j").acquired is False
    assert a.lost == []
    assert row(store, "j")["generation"] == 1


def test_the_job_of_one_that_died_goes_to_the_monitor_that_is_asked_next(store: Repository, start: Start) -> None:
    a = start("a", SHORT)
    a.takes("j")
    a.leases._closing = True  # it renews no more, and gives nothing back: as if killed
    a.leases._thread.join()
    b = start("b")
    b.takes("j")
    assert row(store, "j")["generation"] == 2
    assert (owned(store, a, "j"), owned(store, b, "j")) == (False, True)
    assert not a.leases.holds("j"), "its own clock showed it before"


def test_a_stopped_monitor_notices_and_reports_it(store: Repository, start: Start) -> None:
    stopped_at: list[float] = []
    # This one's clock stands while it is stopped: even then the database does not let it write.
    a = start("a", SHORT, clock=lambda: stopped_at[0] if stopped_at else time.monotonic())
    a.takes("j")
    hold = a.leases._renew
    a.leases._renew = lambda: None  # type: ignore[method-assign]
    b = start("b")
    stopped_at.append(time.monotonic())
    b.takes("j")
    assert a.leases.holds("j"), "by its own clock it does"
    assert not owned(store, a, "j")
    stopped_at.clear()
    a.leases._renew = hold  # type: ignore[method-assign]
    wait_for(lambda: a.lost, "it learns of it")
    assert a.lost == [("j", Holder("b", "http://b"))]
    assert not a.leases.holds("j")


def test_the_holder_stops_before_another_monitor_may_take_the_lease(start: Start) -> None:
    passed = [0.0]
    side = start("a", LONG, lambda: passed[0])
    wait_for(lambda: side.rounds, "nothing is renewed for long")
    assert side.ask("j").acquired
    passed[0] = 0.85 * LONG
    assert side.leases.holds("j")
    passed[0] = 0.95 * LONG
    assert not side.leases.holds("j")


def test_rows_of_a_job_that_is_anothers_are_not_written(store: Repository, start: Start) -> None:
    a, b = start("a"), start("b")
    a.takes("mine")
    b.takes("theirs")
    store.writer.fence = a.leases
    committed: list[str] = []
    for name in ("mine", "theirs"):
        store.save(schema.jobs, codec.job_row(Job(name, 1.0)), on_commit=lambda name=name: committed.append(name))  # type: ignore[misc]
    assert store.flush()
    assert committed == ["mine"]
    assert store.writer.fenced == 1
    with store.engine.connect() as connection:
        assert set(connection.execute(select(schema.jobs.c.id)).scalars()) == {"mine"}


def test_what_waits_of_an_earlier_time_is_not_written_over_what_others_wrote(store: Repository, start: Start) -> None:
    """The database was away, others had the job meanwhile, and now it is ours again."""
    a = start("a")
    a.takes("j")
    store.writer.fence = a.leases
    job = Job("j", 1.0)
    store.save(schema.jobs, codec.job_row(job))
    assert store.flush()
    with store.engine.begin() as connection:
        schema.jobs.drop(connection)  # nothing can be written
    job.restarts = 1
    store.save(schema.jobs, codec.job_row(job))
    wait_for(lambda: store.db_error, "the row waits")
    store.writer.forget("j")
    store.save(schema.directives, codec.directive_row("j", Directive(1, DirectiveKind.CAPTURE, 1, "why")))
    schema.jobs.create(store.engine)
    wait_for(lambda: not store.db_error, "the database works again")
    assert store.flush()
    with store.engine.connect() as connection:
        assert connection.execute(select(schema.jobs.c.id)).all() == []
        assert len(connection.execute(select(schema.directives.c.id)).all()) == 1, "what came after is written"


def test_a_monitor_of_the_same_name_takes_up_its_jobs_at_once(store: Repository, start: Start) -> None:
    before = start("a")
    before.takes("j")
    after = start("a")
    wait_for(lambda: after.answers, "it takes what was its own")
    assert after.answers == [("j", LeaseResult(True))]
    assert row(store, "j")["generation"] == 2
    assert (owned(store, before, "j"), owned(store, after, "j")) == (False, True)


def test_a_reader_takes_a_job_that_there_is_and_makes_none(store: Repository, start: Start) -> None:
    a = start("a")
    assert a.ask("never", contact=False) == LeaseResult(False, None)
    store.save(schema.jobs, codec.job_row(Job("old", 1.0)))
    assert store.flush()
    assert a.ask("old", contact=False) == LeaseResult(True)


def test_the_holder_learns_which_monitor_is_asked_instead(start: Start) -> None:
    a, b = start("a", SHORT), start("b")
    a.takes("j")
    b.ask("j", contact=False)
    rounds = a.rounds
    wait_for(lambda: a.rounds > rounds + 1, "the holder renews")
    assert a.wanted == []
    b.ask("j", contact=True)
    wait_for(lambda: ("j", "b") in a.wanted, "the holder learns of it")


def test_a_monitor_that_releases_a_job_leaves_it_to_the_next(store: Repository, start: Start) -> None:
    a, b = start("a"), start("b")
    a.takes("j")
    a.leases.release("j")
    assert not a.leases.holds("j")
    b.takes("j")
    a.leases.release("j")
    assert owned(store, b, "j"), "what is not one's own is not given away"


def test_what_is_dropped_while_it_is_being_renewed_stays_dropped(store: Repository, start: Start) -> None:
    a, b = start("a"), start("b")
    a.takes("j")
    wait_for(lambda: a.rounds, "it was renewed, and is not again for long")
    held = dict(a.leases._held)
    a.leases.release("j")
    a.leases._held.update(held)  # as a renewal sees it that began before
    a.leases._renew()
    b.takes("j")


def test_a_clock_of_the_database_that_was_set_back_blocks_no_one(store: Repository, start: Start) -> None:
    a = start("a")
    a.takes("j")
    wait_for(lambda: a.rounds, "it was renewed, and is not again for long")
    a.leases._closing = True
    with store.engine.begin() as connection:
        connection.execute(update(schema.leases).values(ends_at=schema.leases.c.ends_at + 3600.0))
    start("b").takes("j")


def test_a_database_that_is_away_is_reported_and_asked_again(store: Repository, start: Start) -> None:
    a = start("a", SHORT)
    a.takes("j")
    with store.engine.begin() as connection:
        schema.leases.drop(connection)
    wait_for(lambda: a.leases.db_error, "it is noticed")
    wait_for(lambda: not a.leases.holds("j"), "without a renewal it acts no more")
    schema.leases.create(store.engine)
    wait_for(lambda: not a.leases.db_error, "it answers again")
    a.takes("j")


def test_a_database_that_stays_away_is_reported_once(
    store: Repository, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = start("a", SHORT)
    a.takes("j")
    errors: list[str] = []
    renew = a.leases._renew

    def failing() -> None:
        errors.append(a.leases.db_error)
        renew()

    monkeypatch.setattr(a.leases, "_renew", failing)
    with store.engine.begin() as connection:
        schema.leases.drop(connection)
    wait_for(lambda: not a.leases.holds("j") and len(errors) > 40, "its lease and several looks have passed")
    said = [record.levelname for record in caplog.records if "the shared database" in record.getMessage()]
    assert said == ["ERROR"]
    assert all(errors[5:]), "it is known to be away all the time"
    schema.leases.create(store.engine)


def test_held_jobs_are_renewed_while_many_others_take_long_to_load(store: Repository, start: Start) -> None:
    passed = [0.0]
    side = start("a", LONG, lambda: time.monotonic() + passed[0])
    side.takes("mine")
    held = []

    def load(results: Mapping[str, LeaseResult]) -> None:
        for _ in results:
            passed[0] += LONG / 10  # megabytes of another monitor's job
            held.append(side.leases.holds("mine"))

    side.leases.on_results = load
    for number in range(40):
        side.leases.request(f"job-{number}", contact=True)
    wait_for(lambda: len(held) >= 40, "all are taken over")
    assert all(held), "its own job was lost meanwhile"
    assert side.lost == []


def test_a_crowd_of_jobs_is_acquired_in_few_transactions(store: Repository, start: Start) -> None:
    side = start("a", LONG, lambda: 0.0)
    wait_for(lambda: side.rounds, "its thread runs")
    begun: list[object] = []
    event.listen(store.engine, "begin", begun.append)
    jobs = {f"job {number}" for number in range(300)}
    with side.leases._changed:  # its thread waits until all are requested
        for job in jobs:
            side.leases.request(job, contact=True)
    wait_for(lambda: len(side.answers) == len(jobs), "all of them are acquired")
    assert all(side.leases.holds(job) for job in jobs)
    assert len(begun) < 20


def test_monitors_that_acquire_the_same_jobs_do_not_wait_for_each_other(store: Repository, start: Start) -> None:
    sides = [start(name, LONG, lambda: 0.0) for name in "ab"]
    gone = start("gone", SHORT)
    jobs = [f"job {number:03}" for number in range(200)]
    for job in jobs[::4]:
        gone.takes(job)
    stop(gone)
    wait_for(lambda: row(store, jobs[196])["ends_at"] < time.time(), "its last lease has expired")
    for first, second in zip(jobs, reversed(jobs), strict=True):
        sides[0].leases.request(first, contact=True)
        sides[1].leases.request(second, contact=True)
    wait_for(lambda: all(len(side.answers) == len(jobs) for side in sides), "both have their answers")
    assert [side.leases.db_error for side in sides] == ["", ""]
    assert sorted(job for side in sides for job in jobs if side.leases.holds(job)) == jobs


def test_expired_leases_are_shared_out_among_the_other_monitors(start: Start) -> None:
    """Nobody asks for the jobs: their ranks may have ended with their monitor."""
    others = [start(name, MIDDLE) for name in "ab"]
    for side in others:
        side.takes(f"its own of {side.leases.name}")
    gone = start("gone", SHORT)
    jobs = {f"job {number}" for number in range(40)}
    for job in jobs:
        gone.takes(job)
    stop(gone)

    def held() -> list[set[str]]:
        return [{job for job in jobs if side.leases.holds(job)} for side in others]

    wait_for(lambda: set.union(*held()) == jobs, "all of them are acquired")
    assert set.intersection(*held()) == set()
    assert all(held()), "each has some"


def test_a_lease_that_was_released_or_expired_long_ago_is_left(start: Start, store: Repository) -> None:
    side = start("a", MIDDLE)
    gone = start("gone", SHORT)
    for job in ("released", "old", "fresh"):
        gone.takes(job)
    gone.leases.release("released")
    stop(gone)
    with store.engine.begin() as connection:
        expired = update(schema.leases).where(schema.leases.c.job_id == "old")
        connection.execute(expired.values(ends_at=schema.leases.c.ends_at - (ORPHANED + 1) * MIDDLE))
    wait_for(lambda: side.leases.holds("fresh"), "the one that has just expired is acquired")
    rounds = side.rounds
    wait_for(lambda: side.rounds > rounds + 3, "it has looked again")
    assert [job for job, answer in side.answers if answer.acquired] == ["fresh"]


def test_jobs_that_reported_last_are_acquired_first(start: Start, store: Repository) -> None:
    gone = start("gone", SHORT)
    jobs = ("ended", "running", "never stored")
    for job in jobs:
        gone.takes(job)
    stop(gone)
    with store.engine.begin() as connection:
        for job, heard in (("ended", 1.0), ("running", 2.0)):
            row = {"id": job, "created_at": 0.0, "last_heard": heard, "policy": {}, "learned": {}, "body": {}}
            connection.execute(schema.jobs.insert().values(**row))
        late = connection.execute(select(schema.leases.c.ends_at)).scalars().all()
        connection.execute(update(schema.leases).values(ends_at=min(late)))  # they expire together
    side = start("a", MIDDLE)
    wait_for(lambda: len(side.answers) == len(jobs), "all of them are acquired")
    assert [job for job, _ in side.answers] == ["running", "ended", "never stored"]


def stop(side: Side) -> None:
    """End the thread and leave the leases as they are, as a monitor that is killed does."""
    side.leases._held.clear()
    side.leases.close()
