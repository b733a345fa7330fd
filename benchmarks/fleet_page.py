"""What the list of jobs reads besides its event stream: bytes, and milliseconds of the monitor's loop and of a thread.

``sparklines`` and ``digest``: jobs that have run for four hours. ``nodes``: one large job in good health. Compressed as
the monitor does it. That an unchanged answer of ``nodes`` and ``sparklines`` is not sent again (304) is not counted.

Run: python benchmarks/fleet_page.py [--jobs 1000] [--ranks 16384] [--json FILE]     Goal: 50 KB/s for all of it
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable
from typing import Any, Final

from _table import arguments, percentile, report
from metrics_page import BEGAN, scene

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.regression.trends import Point
from rankwatch_monitor.core.views import digest, node_view
from rankwatch_monitor.http.jobs import encoded_sparklines
from rankwatch_monitor.service.trend import INTERVAL

HOURS: Final = 4
ROUNDS: Final = 20
EVERY: Final = {"sparklines": 60.0, "digest": 30.0, "nodes": 5.0}
"""Seconds between two reads (``live/fleet.ts``, ``view/digest.tsx``)."""


def trained(number: int) -> Job:
    """A job of four hours whose speed varies, and was zero for a while."""
    job = Job(f"team-{number % 7}-llama-{number:05d}", BEGAN)
    for i in range(int(HOURS * 3600 / INTERVAL)):
        hung = number % 2 == 0 and 400 < i < 480
        speed = 0.0 if hung else 2.0 + 0.4 * math.sin(i / 37 + number) + 0.1 * math.sin(i * number)
        job.trends.add(Point(BEGAN + INTERVAL * i, 1, i, {"speed": speed, "goodput": 0.9}))
    return job


def measured(on_loop: Callable[[], Any], on_thread: Callable[[Any], Any], every: float) -> dict[str, float]:
    """Medians of both parts and the size of the answer."""
    loop, thread, body = [], [], b""
    for _ in range(ROUNDS):
        began = time.perf_counter()
        taken = on_loop()
        between = time.perf_counter()
        body = json.dumps(on_thread(taken), separators=(",", ":")).encode()
        loop.append(between - began)
        thread.append(time.perf_counter() - between)
    packed = len(gzip.compress(body, 1)) / 1000
    return {
        "loop ms": 1000 * percentile(loop, 0.5),
        "thread ms": 1000 * percentile(thread, 0.5),
        "kB": len(body) / 1000,
        "gzip kB": packed,
        "KB/s": packed / every,
    }


def main() -> None:
    """Measure and print."""
    asked = arguments(__doc__ or "", jobs=(1000, "jobs"), ranks=(16_384, "ranks of the job on the map of nodes"))
    jobs, now = [trained(number) for number in range(asked.jobs)], BEGAN + HOURS * 3600
    large, later = scene("healthy", asked.ranks)
    rows = {
        "sparklines": measured(
            lambda: [(job.id, job.trends.sparkline.copy()) for job in jobs],
            lambda taken: encoded_sparklines(taken, now),
            EVERY["sparklines"],
        ),
        "digest": measured(
            lambda: digest.digest(jobs, now - 12 * 3600, now, BEGAN, stored=True), lambda taken: taken, EVERY["digest"]
        ),
        "nodes": measured(lambda: node_view.glance([large], later), node_view.rows, EVERY["nodes"]),
    }
    report(rows, f"{asked.jobs} jobs, {asked.ranks} ranks", asked.json)


if __name__ == "__main__":
    main()
