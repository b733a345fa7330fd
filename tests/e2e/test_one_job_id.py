"""Two launches with one job id at one shared monitor: both consoles state it, and the jobs are kept apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.training import HOST, Training
from support.monitor_process import RunningMonitor

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def second(tmp_path: Path, training: Training, monitor: RunningMonitor) -> Iterator[Training]:
    """Another run, in a folder of its own, with the id of the first."""
    folder = tmp_path / "second"
    folder.mkdir()
    job = Training(folder, training.job)
    job.follow(monitor.url)
    try:
        yield job
    finally:
        job.close()


def test_a_second_run_with_the_id_of_a_running_job_is_a_job_of_its_own(watched: Training, second: Training) -> None:
    first_launcher = watched.run()
    watched.until_running(2)
    second_launcher = second.run()

    taken = second.until(
        "the second console states its id",
        lambda: re.search(r"watched as job (\S+)\. Give each run its own --job-id", second_launcher.printed()),
    )
    own = taken[1]
    assert own.startswith(f"{watched.job}-")
    by = f"job {watched.job!r} is run already, by the launcher on {HOST} (process {first_launcher.process.pid})"
    assert f"{by}; waiting up to 20 s for that run to end" in second_launcher.printed()
    assert f"{by}; this run is watched as job {own}" in second_launcher.printed()
    other = f"{HOST} (process {second_launcher.process.pid})"
    stated = f"another run with the id {watched.job!r} of this job was started on {other}"
    watched.until("the first console states it, too", lambda: stated in first_launcher.printed())

    second.job = own
    second.until_running(2)
    for job in (watched.summary(), second.summary()):
        assert (job["ranks_reporting"], len(job["nodes"])) == (2, 1)
    pids = [{line["pid"] for lines in job.reported().values() for line in lines} for job in (watched, second)]
    assert watched.api is not None
    shown = [{rank["pid"] for rank in watched.api.ranks(job.job)} for job in (watched, second)]
    assert shown == pids

    # An order reaches the ranks of its own job only.
    second.order("restart", "which job is it?")
    second.until_running(2, attempt=2)
    assert watched.summary()["attempt"] == 1
    assert second.finish() == [0]
    assert second.summary()["state"] == "finished"
    assert watched.summary()["state"] == "running"
    assert watched.finish() == [0]
    assert (watched.summary()["state"], watched.summary()["attempt"], watched.incidents()) == ("finished", 1, [])
