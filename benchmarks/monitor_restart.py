"""How long a job is unwatched when its monitor is killed and started again on its database (P18).

A real monitor with one job of 8 ranks is killed with SIGKILL and started again at once, on the same port and database.
Counted is the time from the kill until it takes reports of the job, states that it is ready, and shows the job running,
with no incident. Starting the interpreter and importing are part of it.

Run: python benchmarks/monitor_restart.py [--rounds 8] [--json FILE]     Goal (P18): 5 s
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import requests
from _load_fleet import Fleet, Shape
from _service import get, process, wait_for
from _table import arguments, report, spread

HEADERS = {"content-type": "application/x-protobuf"}
FLEET = Fleet(Shape(8))
JOB = FLEET.jobs[0].id


def reports() -> bytes:
    """What eight ranks of one job send."""
    (due,) = FLEET.requests([0], time.monotonic())
    return due.body


def watched(url: str) -> bool | None:
    """True once the monitor takes reports, is ready and shows the job in good health; None before."""
    try:
        if requests.post(f"{url}/v1/metrics", reports(), headers=HEADERS, timeout=5).status_code != 200:
            return None
    except requests.ConnectionError:
        return None
    job = get(f"{url}/api/v1/jobs/{JOB}")
    if get(f"{url}/readyz") is None or job is None or job["state"] != "running":
        return None
    assert job["incidents"] == 0, "its own absence was taken for a fault"
    assert job["world_size"] == 8
    return True


def main() -> None:
    """Measure and print."""
    given = arguments(__doc__ or "", rounds=(8, "kills"))
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        place, port = Path(folder), 20_000 + os.getpid() % 20_000
        command = [sys.executable, "-m", "rankwatch_monitor", "--no-token", "--port", str(port)]
        command += ["--database", str(place / "m.db")]
        url = f"http://127.0.0.1:{port}"
        killed = 0.0
        for round_ in range(given.rounds + 1):
            with process(command, place / f"{round_}.log") as monitor:
                wait_for("the job is watched", lambda: watched(url))
                if round_:
                    taken.append(time.monotonic() - killed)
                killed = time.monotonic()
                monitor.kill()
                monitor.wait()
    report({"kill → watched again": spread(taken)}, "seconds, from the kill to a job that is watched again", given.json)


if __name__ == "__main__":
    main()
