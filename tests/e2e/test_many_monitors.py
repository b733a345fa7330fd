"""A real job behind a stock proxy, watched by two monitors on one PostgreSQL; the one that holds it is killed."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.story import assert_blamed
from e2e.training import STEP_LIMIT, Training
from support.monitor_process import Api, running_monitor
from support.nginx import running_nginx
from support.postgres import running_postgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_goes_on_being_watched_when_its_monitor_is_killed_or_paused(
    training: Training, tmp_path: Path, fault: signal.Signals
) -> None:
    with running_postgres() as postgres, ExitStack() as stack:
        database = postgres.new_database()
        flags = ("--database", database, "--lease", "4")
        monitors = {
            name: stack.enter_context(running_monitor(tmp_path / name, "--shared-as", name, *flags)) for name in "ab"
        }
        apis = {name: stack.enter_context(Api(monitor.url)) for name, monitor in monitors.items()}
        proxy = stack.enter_context(running_nginx(tmp_path / "nginx", [m.url for m in monitors.values()]))

        silent: set[str] = set()

        def holder() -> str:
            """Which monitors claim the job."""
            here = [
                name
                for name, monitor in monitors.items()
                if name not in silent
                and any(job["id"] == training.job and "monitor" not in job for job in apis[name].jobs())
            ]
            assert len(here) <= 1, "two monitors claim the job"
            return here[0] if here else ""

        training.follow(proxy)
        training.run("--section-timeout", f"step={STEP_LIMIT}")
        first = training.until("a monitor takes the job", holder)
        before = training.until_running(2)
        training.order("capture", "to have some history")
        reported = training.incident()

        def stored() -> list[str]:
            with postgres.connect(database.rpartition("/")[2]) as connection:
                rows = connection.execute("select body ->> 'outcome' from incidents").fetchall()
            return [outcome for (outcome,) in rows]

        training.until("the incident is stored", lambda: stored() == [reported["outcome"]])
        silent.add(first)
        monitors[first].process.send_signal(fault)

        (second,) = set(monitors) - {first}
        training.until("the other takes it up", lambda: holder() == second)
        there = training.until_running(2)
        training.until("it receives new steps", lambda: training.summary()["iteration"] > there["iteration"] + 20)
        assert training.incident() == reported, "its history has come along, and nothing was added to it"
        assert training.summary()["started_at"] == before["started_at"]
        assert training.steps("start") == {0: [(1, 0)], 1: [(1, 0)]}, "the ranks were left alone"

        if fault == signal.SIGSTOP:
            monitors[first].process.send_signal(signal.SIGCONT)
            silent.clear()
            training.until("the one that the proxy asks first has it back", lambda: holder() == first)
        training.strike("rank=1,kind=hang")
        training.until_running(2, attempt=2)
        assert training.finish() == [0]
        incident = training.incident(2)
        assert_blamed(incident, 1, "behind")
        assert incident["kind"] == "section_overrun"
        assert training.summary()["state"] == "finished"

        last = holder()
        (other,) = set(monitors) - {last}
        monitors[other].kill()
        back = stack.enter_context(running_monitor(tmp_path / "again", "--shared-as", other, *flags))
        with Api(back.url) as api:
            seen = [each for each in api.jobs() if each["id"] == training.job]
            assert seen == [] or seen[0]["monitor"] == last, "it takes nothing from the holder"
