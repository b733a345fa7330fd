"""A real job whose ranks report through a real Collector and a stock proxy to two monitors, as in a fleet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.story import assert_blamed
from e2e.training import STEP_LIMIT, Training
from support.collector import binary, running_collector
from support.monitor_process import Api, running_monitor
from support.nginx import running_nginx

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize("returns", [True, False])
def test_a_collector_that_goes_away_raises_no_alarm_and_hides_no_hang(
    training: Training, tmp_path: Path, returns: bool
) -> None:
    binary()
    with ExitStack() as stack:
        shared = tmp_path / "shared.db"
        monitors = [
            stack.enter_context(running_monitor(tmp_path / name, "--shared-as", name, database=shared)) for name in "ab"
        ]
        proxy = stack.enter_context(running_nginx(tmp_path / "nginx", [monitor.url for monitor in monitors]))
        training.follow(proxy)
        fleet = stack.enter_context(Api(proxy))

        with running_collector(tmp_path / "first", "node.yml", proxy) as collector:
            training.run("--section-timeout", f"step={STEP_LIMIT}", RANKWATCH_COLLECTOR=collector.url)
            training.until("a monitor takes the job", lambda: training.job in {job["id"] for job in fleet.jobs()})
            training.until_running(2)
            reported = training.until("ranks report through the Collector", lambda: requests(tmp_path, "/v1/metrics"))
            assert [agent for agent in reported if "Collector" not in agent] == [], "ranks send to nothing else"
        trained = training.checkpoint()
        training.until("the launcher reports for its ranks", lambda: training.summary()["iteration"] > trained + 100)
        received = len(requests(tmp_path, "/v1/metrics"))

        if returns:
            stack.enter_context(running_collector(tmp_path / "second", "node.yml", proxy, port=collector.port))
            training.until("their own reports arrive again", lambda: len(requests(tmp_path, "/v1/metrics")) > received)
        assert training.incidents() == []
        assert training.steps("start") == {0: [(1, 0)], 1: [(1, 0)]}, "the ranks were left alone"

        training.strike("rank=1,kind=hang")
        training.until_running(2, attempt=2)
        assert training.finish() == [0]
        assert_blamed(training.incident(), 1, "behind")
        assert training.summary()["state"] == "finished"


def requests(folder: Path, path: str) -> list[str]:
    """The user agents of the requests for a path that the proxy has answered with success."""
    lines = (folder / "nginx" / "access.log").read_text().splitlines()
    return [line.split('"')[5] for line in lines if f"POST {path} " in line and '" 200 ' in line]
