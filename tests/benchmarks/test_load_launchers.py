"""Emulated launchers against a real monitor: a hang from its limit to ranks that run again, few and many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import _load_launchers
import pytest
from _load_client import Client
from _load_faults import Hang, Schedule
from _load_fleet import Fleet, Shape
from _load_launchers import Launchers
from _load_measure import Api
from _load_run import Generator

from rankwatch.contract.intervals import FEW_LAUNCHERS
from support.monitor_process import RunningMonitor, running_monitor

SECONDS = 40.0


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("launchers")) as running:
        yield running


async def through_a_hang(url: str, fleet: Fleet, launchers: Launchers) -> None:
    """Until all launchers have reported the ranks of a second attempt."""
    generator = Generator([fleet], lambda done: Client(url, 4, done))
    schedule = Schedule(fleet, [Hang(0.0, rank=5, wake=True)], lambda: Api(url), limit=1.0, patience=SECONDS)
    fleet.begin()
    launchers.start()
    try:
        while launchers.tally.statuses["process-events 204"] < len(launchers.nodes):
            await generator.run(0.1)
        await asyncio.to_thread(schedule.prepare)
        for _ in range(int(SECONDS / 0.1)):
            await generator.run(0.1, schedule.tick)
            if len(launchers.tally.moments.get("reported started ranks", ())) == len(launchers.nodes):
                break
        await asyncio.to_thread(schedule.finish)
    finally:
        await launchers.close()
        await generator.client.close()


@pytest.mark.parametrize("count", [8, FEW_LAUNCHERS + 1])
def test_the_culprit_is_named_by_all_stacks_and_the_ranks_run_again(
    monitor: RunningMonitor, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(_load_launchers, "JOIN_SECONDS", 0.5)
    monkeypatch.setattr(_load_launchers, "RESTART_SECONDS", 0.5)
    fleet = Fleet(Shape(2 * count, ranks_a_request=2, interval=0.4, step_seconds=0.2, name=f"crowd-{count}"))
    fleet.warm_up()

    async def drive() -> Launchers:
        launchers = Launchers(fleet, monitor.url, 1.0)
        await through_a_hang(monitor.url, fleet, launchers)
        return launchers

    launchers = asyncio.run(drive())
    came = {what: len(at) for what, at in launchers.tally.moments.items()}
    assert came["delivered evidence"] == came["received restart"] == came["reported started ranks"] == count
    reported = Api(monitor.url).get(f"/jobs/crowd-{count}-00000/incidents")["incidents"]
    assert [culprit["rank"] for culprit in reported[0]["culprits"]] == [5]
    assert "has not entered 'all_reduce' number 8192 of group 'dp (5)'" in reported[0]["reason"]
    answers = launchers.figures()["launchers' answers"]
    assert ("acks 204" in answers) is (count <= FEW_LAUNCHERS), "many leave out what is seen anyhow"
    assert not [status for status in answers if status[-3:] not in ("200", "204")]
