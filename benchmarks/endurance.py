"""Does memory stay flat? A monitor under emulated ranks with faults now and then, and two real ranks, for hours.

    python benchmarks/endurance.py [--hours 1] [--ranks 2000] [--json FILE]

The emulated ranks (``load.py`` states what that is) are in four jobs that go on all the time. Once a minute something
happens, in turn: a job hangs, is found and starts again; one rank is replaced by another process; a job of 64 ranks
appears (one of five names in turn), trains for a minute and ends in order. Two real processes call
``rankwatch.init()`` and run steps of 50 ms.

Every 10 s memory, open files, threads, rows in the database and the time of a tick are written down. The verdict is
about the last two thirds, after everything has been made that is made once: the slope of a straight line through the
samples, with its 95 % interval, and the difference between the medians of the last and the middle third. Memory is
called flat when neither grows by more than ``--allowed`` MiB an hour (the interval's lower end, and the difference as a
rate). A run of minutes states little: what is allocated now and then looks like growth.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import _service
import _table
from _load_client import Client
from _load_faults import Hang, Schedule
from _load_fleet import Fleet, Shape
from _load_measure import Api, rows, usage
from _load_run import Generator
from requests import RequestException

from rankwatch_monitor.publish.prometheus.names import TICK_SECONDS

JOBS = 4
VISITOR_RANKS = 64
VISITORS = 5
"""Names under which they come in turn: a job that has ended stays to be looked at, until there are 1,000."""
VISIT = 60.0
EVENTS = 60.0
SAMPLES = 10.0
HANG_LIMIT = 10.0
REAL_RANKS = 2


class Sample(NamedTuple):
    """One look."""

    at: float
    """Seconds since the beginning."""
    rss: float
    files: int
    threads: int
    rows: int
    tick: float
    rank_rss: float
    """The larger of the real ranks', MiB."""


class Trend(NamedTuple):
    """How a figure goes, an hour."""

    slope: float
    margin: float
    """Half of the slope's 95 % interval."""
    step: float
    """Median of the last third less that of the middle third, as a rate."""

    def flat(self, allowed: float) -> bool:
        """Whether it grows by no more than ``allowed``, as far as the samples show."""
        return self.slope - self.margin <= allowed and self.step <= allowed


def trend(at: Sequence[float], values: Sequence[float]) -> Trend:
    """The trend of the last two thirds of the samples; ``at`` in seconds.

    Raises:
        ValueError: there are fewer than nine samples.
    """
    if len(at) < 9:
        raise ValueError(f"{len(at)} samples are too few to tell a trend: run for longer")
    third = len(at) // 3
    x, y = [t / 3600 for t in at[third:]], list(values[third:])
    mean = statistics.fmean(x)
    spread = sum((each - mean) ** 2 for each in x)
    line = statistics.linear_regression(x, y)
    rest = sum((v - line.slope * t - line.intercept) ** 2 for t, v in zip(x, y, strict=True))
    margin = 1.96 * (rest / (len(x) - 2) / spread) ** 0.5
    half = len(y) // 2
    apart = statistics.median(x[half:]) - statistics.median(x[:half])
    return Trend(line.slope, margin, (statistics.median(y[half:]) - statistics.median(y[:half])) / apart)


class Life:
    """What happens in the run: every minute something else."""

    def __init__(self, generator: Generator, fleet: Fleet, url: str) -> None:
        self.generator, self.fleet = generator, fleet
        self.schedule = Schedule(fleet, [], lambda: Api(url), HANG_LIMIT, patience=60.0)
        self.happened = dict.fromkeys(("hangs", "found", "replaced", "visitors"), 0)
        self._turns: Iterator[tuple[int, str]] = (
            (turn, kind) for turn in itertools.count() for kind in ("hang", "replaced", "visitor")
        )
        self._next = EVENTS / 2
        self._hung: int | None = None
        self._visitor: tuple[int, Fleet, float] | None = None
        self._api = Api(url)

    def tick(self, elapsed: float) -> None:
        """Look whether something is due."""
        self._end_hang()
        self._end_visit(elapsed)
        if elapsed < self._next:
            return
        self._next += EVENTS
        turn, kind = next(self._turns)
        job = turn % JOBS
        rank = turn % self.fleet.shape.ranks_a_job
        if kind == "hang":
            self.schedule.set_limit(self._api, job)
            self.schedule.apply(Hang(elapsed, rank, job))
            self._hung = job
            self.happened["hangs"] += 1
        elif kind == "replaced":
            self.fleet.restart(job, rank)
            self.happened["replaced"] += 1
        else:
            visitor = Fleet(Shape(VISITOR_RANKS, interval=self.fleet.shape.interval, name=f"visitor-{turn % VISITORS}"))
            visitor.begin()
            self._visitor = self.generator.add(visitor), visitor, elapsed + VISIT
            self.happened["visitors"] += 1

    def _end_hang(self) -> None:
        if self._hung is None or any(thread.is_alive() for thread in self.schedule.threads):
            return
        self.happened["found"] += self.schedule.detections[-1].seconds is not None
        self.schedule.threads.clear()
        self.fleet.restart(self._hung)
        self._hung = None

    def _end_visit(self, elapsed: float) -> None:
        if self._visitor is None or elapsed < self._visitor[2]:
            return
        number, visitor, _ = self._visitor
        now = time.monotonic()
        for due in visitor.requests(range(len(visitor.members)), now, ended=True):
            self.generator.submit(number, due, now)
        self.generator.remove(number)
        self._visitor = None


def rank() -> None:
    """What each real rank runs, until it is killed."""
    import rankwatch

    rankwatch.init()
    while True:
        with rankwatch.step():
            with rankwatch.section("forward"):
                time.sleep(0.02)
            with rankwatch.section("backward"):
                time.sleep(0.03)
        rankwatch.heartbeat()


async def watch(
    seconds: float, samples: list[Sample], api: Api, pid: int, database: Path, ranks: Sequence[int]
) -> None:
    """Take a sample every ten seconds and print it now and then."""
    began = time.monotonic()
    for number in itertools.count():
        await asyncio.sleep(max(0.0, began + number * SAMPLES - time.monotonic()))
        at = time.monotonic() - began
        if at >= seconds:
            return
        used, rank_rss = usage(pid), max(usage(each).rss for each in ranks)
        count = await asyncio.to_thread(rows, database)
        tick = float("nan")
        with suppress(RequestException):
            reported, _ = await asyncio.to_thread(api.metrics)
            tick = reported[TICK_SECONDS.name]
        samples.append(Sample(at, used.rss, used.files, used.threads, count, tick, rank_rss))
        if number % 6 == 0:
            words = f"{at / 60:6.1f} min: {used.rss:7.1f} MiB, {used.files} files, {used.threads} threads"
            print(f"{words}, {count} rows, tick {tick * 1e3:.1f} ms, a real rank {rank_rss:.1f} MiB", flush=True)


async def endure(seconds: float, shape: Shape, url: str, pid: int, database: Path, ranks: Sequence[int]) -> Any:
    """Run all of it; return the samples, the generator and what happened."""
    fleet = Fleet(shape)
    fleet.warm_up()
    generator = Generator([fleet], lambda done: Client(url, 16, done))
    life = Life(generator, fleet, url)
    samples: list[Sample] = []
    fleet.begin()
    watching = asyncio.create_task(watch(seconds, samples, Api(url), pid, database, ranks))
    await generator.run(seconds, life.tick)
    await watching
    await generator.drain()
    await generator.client.close()
    return samples, generator, life


def main() -> int:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__,
        hours=(0.05, "how long (default: three minutes)"),
        ranks=(2000, "emulated ranks in four jobs"),
        allowed=(2.0, "MiB an hour that still count as flat"),
        check=(False, "exit with 1 when memory is not flat"),
    )
    shape = Shape(asked.ranks, JOBS, name="endurance")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(_service.monitor(folder))
        pid = json.loads((folder / "ready.json").read_text())["pid"]
        ranks = [
            stack.enter_context(
                _service.process(
                    [sys.executable, __file__, "--as-rank"],
                    folder / f"rank-{number}.log",
                    RANK=str(number),
                    LOCAL_RANK=str(number),
                    WORLD_SIZE=str(REAL_RANKS),
                    RANKWATCH_MONITOR_URL=url,
                    RANKWATCH_JOB_ID="real",
                )
            ).pid
            for number in range(REAL_RANKS)
        ]
        database = folder / "monitor.db"
        samples, generator, life = asyncio.run(endure(asked.hours * 3600, shape, url, pid, database, ranks))
        size = sum(os.path.getsize(each) for each in folder.glob("monitor.db*"))
    return show(asked, samples, generator, life, size)


def show(asked: argparse.Namespace, samples: list[Sample], generator: Generator, life: Life, size: int) -> int:
    """Print the verdict; the exit code is 1 when memory is not flat and that was asked for."""
    at = [sample.at for sample in samples]
    try:
        trends = {
            "monitor, MiB": trend(at, [sample.rss for sample in samples]),
            "real rank, MiB": trend(at, [sample.rank_rss for sample in samples]),
            "rows": trend(at, [float(sample.rows) for sample in samples]),
            "open files": trend(at, [float(sample.files) for sample in samples]),
        }
    except ValueError as error:
        print(f"endurance.py: {error}", file=sys.stderr)
        return 2
    last = (samples[-1].rss, samples[-1].rank_rss, samples[-1].rows, samples[-1].files)
    table = {
        name: {"an hour": each.slope, "+-": each.margin, "thirds": each.step, "last": value}
        for (name, each), value in zip(trends.items(), last, strict=True)
    }
    _table.head()
    _table.show(table, "emulated ranks")
    ticks = _table.spread([sample.tick for sample in samples])
    counts = generator.client.counts
    lost = sum(generator.lost.values()) + generator.waiting_reports
    print(f"tick, s: p50 {ticks['p50']:.4f}, max {ticks['max']:.4f}; database {size / 2**20:.1f} MiB")
    print(f"reports: {counts.sent} sent, {counts.accepted} accepted, {lost} lost or kept; happened: {life.happened}")
    flat = {name: trends[name].flat(asked.allowed) for name in ("monitor, MiB", "real rank, MiB")}
    print("; ".join(f"{name.split(',')[0]}: memory is {'flat' if ok else 'NOT flat'}" for name, ok in flat.items()))
    kept = [sample._asdict() for sample in samples]
    _table.write(asked.json, trends=table, flat=flat, happened=life.happened, samples=kept)
    return 1 if asked.check and not all(flat.values()) else 0


if __name__ == "__main__":
    if "--as-rank" in sys.argv:
        rank()
    sys.exit(main())
