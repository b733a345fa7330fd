"""All ranks of a large job are rendered a part at a time: a reader stops the loop for no longer than one of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.testclient import TestClient

from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.http import jobs
from rankwatch_monitor.service.monitor import Monitor

WORLD = 10


def monitor_of_a_job() -> Monitor:
    monitor = Monitor()
    reports = [RankReport(RankIdentity("j", rank, world_size=WORLD, instance=f"j/{rank}")) for rank in range(WORLD)]
    assert not monitor.ingest(reports)
    return monitor


@pytest.mark.parametrize("at_once", [3, 5, 9, WORLD])
def test_they_are_those_of_the_view(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(jobs, "RANKS_AT_ONCE", at_once)
    client = TestClient(create_app(monitor_of_a_job()), base_url="http://127.0.0.1")
    answer = client.get("/api/v1/jobs/j/ranks")
    assert answer.headers["content-type"] == "application/json"
    assert [row["rank"] for row in answer.json()["ranks"]] == list(range(WORLD))


def test_readers_take_turns_of_one_part_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "RANKS_AT_ONCE", 4)
    job, whole = monitor_of_a_job().jobs["j"], job_view.ranks
    turn, rendered = 0, list[tuple[int, int]]()

    def part(*arguments: Any) -> list[dict[str, Any]]:
        chosen: Iterable[int] = arguments[2]
        rendered.append((turn, len(list(chosen))))
        return whole(*arguments)

    monkeypatch.setattr(job_view, "ranks", part)

    async def scene() -> list[bytes]:
        nonlocal turn
        lock = asyncio.Lock()

        async def read() -> bytes:
            return b"".join([each async for each in jobs._ranks_of_large(job, 1.0, lock)])

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        while not all(each.done() for each in readers):
            turn += 1
            await asyncio.sleep(0)
        return [each.result() for each in readers]

    for body in asyncio.run(scene()):
        assert len(json.loads(body)["ranks"]) == WORLD
    assert sorted(size for _, size in rendered) == sorted([4, 4, 2] * 3)
    assert len({turn for turn, _ in rendered}) == len(rendered), "two were rendered in one turn of the loop"


def test_a_part_has_as_many_ranks_as_their_sections_leave_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FIRST_AT_ONCE", 2)
    monkeypatch.setattr(jobs, "BYTES_AT_ONCE", 1)
    job = monitor_of_a_job().jobs["j"]

    async def parts() -> list[bytes]:
        return [each async for each in jobs._ranks_of_large(job, 1.0, asyncio.Lock())]

    begin, *rendered, end = asyncio.run(parts())
    assert len(json.loads(begin + b"".join(rendered) + end)["ranks"]) == WORLD
    assert [part.count(b'"rank"') for part in rendered] == [2, *[1] * (WORLD - 2)]
