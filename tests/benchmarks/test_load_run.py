"""The generator against a real monitor, and against one that refuses: every report is accounted for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest
from _load_client import Client
from _load_faults import Hang, Schedule, parse
from _load_fleet import Fleet, Shape
from _load_measure import Api, Scraper, rows, usage
from _load_run import Generator

from support.monitor_process import RunningMonitor, running_monitor

SECONDS = 30.0
"""A run ends as soon as what it waits for is there."""


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("load")) as running:
        yield running


async def until(generator: Generator, done: Callable[[], bool]) -> None:
    """Let the generator run until something is so."""
    for _ in range(int(SECONDS / 0.05)):
        await generator.run(0.05)
        if done():
            return
    raise AssertionError(f"not within {SECONDS:g} s: {generator.client.counts}, lost {generator.lost}")


def driven(url: str, shape: Shape, act: Callable[[Generator, Fleet], Awaitable[None]]) -> Generator:
    """Let ``act`` drive a generator, then wait for all answers."""

    async def drive() -> Generator:
        fleet = Fleet(shape)
        generator = Generator([fleet], lambda done: Client(url, 4, done))
        fleet.begin()
        try:
            await act(generator, fleet)
            await generator.drain()
        finally:
            await generator.client.close()
        return generator

    return asyncio.run(drive())


def test_what_is_accepted_is_what_the_monitor_counts(monitor: RunningMonitor) -> None:
    scraper = Scraper(Api(monitor.url))
    scraper.once()
    before = scraper.reports

    async def act(generator: Generator, _: Fleet) -> None:
        await until(generator, lambda: generator.client.counts.accepted >= 300)

    shape = Shape(64, jobs=2, hurried=True, name="counted")
    generator = driven(monitor.url, shape, act)
    scraper.once()
    counts = generator.client.counts
    assert counts.sent == counts.accepted == scraper.reports - before
    assert set(counts.statuses) == {200}
    assert counts.rejected_points == []
    assert not generator.lost
    api = Api(monitor.url)
    for job in ("counted-00000", "counted-00001"):
        assert api.get(f"/jobs/{job}")["ranks_reporting"] == 32


def test_a_hang_is_found_and_the_rank_behind_is_named(monitor: RunningMonitor) -> None:
    def make_api() -> Api:
        return Api(monitor.url)

    async def act(generator: Generator, fleet: Fleet) -> None:
        await until(generator, lambda: generator.client.counts.accepted >= 64)
        schedule = Schedule(fleet, [Hang(0.0, rank=5)], make_api, limit=1.0, patience=SECONDS)
        await asyncio.to_thread(schedule.prepare)
        schedule.tick(0.0)
        found = schedule.detections[0]
        await until(generator, lambda: found.seconds is not None)
        assert "Rank 5" in found.printed
        schedule.finish()

    driven(monitor.url, Shape(16, interval=0.4, step_seconds=0.2, name="hangs"), act)


def test_what_the_process_takes_and_holds_can_be_read(monitor: RunningMonitor) -> None:
    used = usage(monitor.pid)
    assert used.cpu > 0
    assert used.peak >= used.rss > 10
    assert used.threads >= 1
    assert used.files > 3
    assert rows(monitor.database) >= 0
    assert rows(monitor.database.with_name("none.db")) == 0


class Refuses:
    """A server that answers each request with the next of some answers, then with 200."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                answer = self.answers.pop(0) if self.answers else b"200 OK"
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def against(server: Refuses, act: Callable[[Generator, Fleet], Awaitable[None]], shape: Shape) -> Generator:
    async def drive() -> Generator:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        fleet = Fleet(shape)
        generator = Generator([fleet], lambda done: Client(f"http://127.0.0.1:{port}", 2, done))
        fleet.begin()
        try:
            await act(generator, fleet)
            await generator.drain()
        finally:
            await generator.client.close()
            listening.close()
            await listening.wait_closed()
        return generator

    return asyncio.run(drive())


def test_what_is_to_come_later_comes_later_together_with_what_was_kept() -> None:
    server = Refuses(b"503 Service Unavailable\r\nretry-after: 1", b"429 Too Many Requests\r\nretry-after: 0")

    async def act(generator: Generator, _: Fleet) -> None:
        await until(generator, lambda: generator.client.counts.accepted >= 8 and generator.waiting_reports == 0)

    generator = against(server, act, Shape(1, interval=0.2))
    counts = generator.client.counts
    assert counts.statuses[503] == counts.statuses[429] == 1
    assert not generator.lost
    first, later = server.bodies[0], server.bodies[1]
    assert later.startswith(first), "the oldest goes first"
    assert len(later) > 2 * len(first), "with what was taken while the monitor wanted to be left alone"


def test_what_the_monitor_asked_for_again_comes_before_the_next_report_is_due() -> None:
    server = Refuses(b"429 Too Many Requests\r\nretry-after: 1")

    async def act(generator: Generator, fleet: Fleet) -> None:
        fleet.due_S[:] = 0.0
        await until(generator, lambda: generator.client.counts.accepted >= 8)

    generator = against(server, act, Shape(8, interval=3600.0))
    assert server.bodies[1] == server.bodies[0]
    assert generator.client.counts.accepted == 8


def test_what_is_refused_for_good_is_lost_and_counted() -> None:
    async def act(generator: Generator, _: Fleet) -> None:
        await until(generator, lambda: generator.client.counts.accepted >= 8)

    generator = against(Refuses(b"400 Bad Request"), act, Shape(8, interval=0.2))
    assert sum(generator.lost.values()) == 8
    assert "400" in next(iter(generator.lost))


def test_without_a_listener_nothing_is_accepted_and_reports_are_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def act(generator: Generator, _: Fleet) -> None:
        await until(generator, lambda: generator.waiting_reports >= 16)

    generator = driven(f"http://127.0.0.1:{port}", Shape(8, interval=0.1), act)
    assert generator.client.counts.accepted == 0
    assert sum(generator.client.counts.failures.values()) >= 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank=1,kind=melt", "not the hang of a rank"),
        ("kind=hang,at=3", "not the hang of a rank"),
        ("rank=one,kind=hang", "no number"),
        ("rank=1,kind=hang,color=red", "has color"),
    ],
)
def test_a_fault_that_makes_no_sense_is_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_a_fault_is_read_and_must_be_within_the_fleet() -> None:
    assert parse("rank=17, at=30, kind=hang") == Hang(30.0, 17)
    with pytest.raises(ValueError, match="ranks 0 to 7"):
        Schedule(Fleet(Shape(8)), [parse("rank=17,at=30,kind=hang")], lambda: Api("http://127.0.0.1:9"))
