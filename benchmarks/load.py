"""How much one monitor takes: emulated ranks that send the bytes of real ones, over real connections (P6, P7).

    python benchmarks/load.py [--ranks N] [--jobs N] [--interval S] [--preset p6|p7] [--fault SPEC] [--json FILE]

Ranks are *emulated*: their reports are made by the rank side's own encoder, then copied with other identities, times
and values (``_load_report.py``, ``_load_rows.py``); nothing trains. The monitor is a real one, started here on its
defaults, or the one at ``--url``. Beside the load its ``/metrics`` is scraped every 15 s. On a small machine the
generator takes CPU time from the monitor; how much stands in the table.

Presets: ``p6`` sends as fast as it is answered, from 8,192 ranks of one job, for 30 s, with the content that reports
have at 5 s; the figure is reports accepted for each second of the monitor's CPU time. ``p7`` is 100,000 ranks of one
job, each of which reports every 5 s.
``--launchers --late``: the launchers of all nodes join within 5 s, from a process of their own (``_load_joining.py``).
Hangs by schedule: ``--fault "rank=17,at=30,kind=hang"`` (``_load_faults.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _service
import _table
from _load_client import Client
from _load_faults import Hang, Schedule, parse
from _load_fleet import Fleet, Shape
from _load_joining import Joining
from _load_launchers import Launchers
from _load_measure import Api, Prober, Scraper, Usage, usage
from _load_run import Generator

DEFAULTS: dict[str, Any] = {"ranks": 1024, "hurried": False, "seconds": 30.0, "warm_up": 10.0, "connections": 64}
PRESETS: dict[str, dict[str, Any]] = {
    "": DEFAULTS,
    "p6": {"ranks": 8192, "hurried": True, "seconds": 30.0, "warm_up": 5.0, "connections": 8},
    "p7": {"ranks": 100_000, "hurried": False, "seconds": 60.0, "warm_up": 15.0, "connections": 64},
}
BUSY = "while True: pass"


def arguments() -> argparse.Namespace:
    """Read the command line; a preset fills what was not given."""
    asked = _table.arguments(
        __doc__,
        preset=("", "the figures of docs/benchmarks.md", {"choices": tuple(filter(None, PRESETS))}),
        ranks=(0, f"emulated ranks, 1 to 200000 (default {DEFAULTS['ranks']})"),
        jobs=(1, "jobs that share them (default 1)"),
        ranks_a_request=(8, "ranks in one request; 1: no Collector"),
        interval=(5.0, "seconds between a rank's reports (default 5)"),
        hurried=(False, "report as fast as it is answered; pretend the interval"),
        step_seconds=(2.5, "time of a training step"),
        seconds=(0.0, "how long is measured"),
        warm_up=(0.0, "seconds before that, and until all ranks have reported"),
        connections=(0, "connections to the monitor at most"),
        launchers=(False, "emulate the launcher of each node, too"),
        late=(False, "with --launchers: they join once it is measured"),
        fault=(list[str](), "hangs by schedule: rank=17,at=30,kind=hang"),
        limit=(10.0, "seconds: limit of the step in jobs that are to hang"),
        url=("", "a monitor that runs already, instead of one that is started here"),
        busy=(0, "busy loops that are started beside the monitor"),
        holds=(False, "measure how long anything holds the monitor's event loop"),
    )
    for name, value in PRESETS[asked.preset].items():
        setattr(asked, name, getattr(asked, name) or value)
    if asked.late and (asked.fault or not asked.launchers):
        raise ValueError("--late launchers join and hold their long polls: give --launchers, and no --fault")
    if asked.url and asked.holds:
        raise ValueError("--holds measures a monitor that is started here: leave --url out")
    return asked


def main() -> int:
    """Run the load and print what came of it."""
    try:
        asked = arguments()
        shape = Shape(
            asked.ranks, asked.jobs, asked.ranks_a_request, asked.interval, asked.step_seconds, hurried=asked.hurried
        )
        hangs = [parse(text) for text in asked.fault]
        with ExitStack() as stack:
            url, pid = asked.url, None
            if not url:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                for number in range(asked.busy):
                    stack.enter_context(_service.process([sys.executable, "-c", BUSY], folder / f"busy-{number}.log"))
                asked.holds = folder / "holds.json" if asked.holds else None
                url = stack.enter_context(_service.monitor(folder, asked.holds))
                pid = json.loads((folder / "ready.json").read_text())["pid"]
            result = asyncio.run(load(asked, shape, hangs, url, pid))
    except ValueError as error:
        print(f"load.py: {error}", file=sys.stderr)
        return 2
    _table.head()
    _table.show_list(result)
    _table.write(asked.json, **result)
    return 0


async def load(asked: argparse.Namespace, shape: Shape, hangs: list[Hang], url: str, pid: int | None) -> dict[str, Any]:
    """Warm up, measure, and gather the figures."""
    fleet = Fleet(shape)
    fleet.warm_up()
    joining = Joining(fleet, url) if asked.late else None
    generator = Generator([fleet], lambda done: Client(url, asked.connections, done))
    schedule = Schedule(fleet, hangs, lambda: Api(url), asked.limit)
    launchers = Launchers(fleet, url, asked.limit) if asked.launchers and not asked.late else None
    try:
        fleet.begin()
        if launchers is not None:
            launchers.start()
        await generator.run(asked.warm_up)
        patience = time.monotonic() + 8 * asked.warm_up
        while int(fleet.reports_S.min()) < 1 and time.monotonic() < patience:
            await generator.run(0.2)
        await generator.run_beside(schedule.prepare)
        generator.forget()
        if launchers is not None:
            launchers.forget()
        measured = await measure(asked, generator, schedule, joining, pid, url)
        return (launchers.figures() if launchers is not None else {}) | measured
    finally:
        if launchers is not None:
            await launchers.close()
        if joining is not None:
            joining.close()


async def measure(
    asked: argparse.Namespace,
    generator: Generator,
    schedule: Schedule,
    joining: Joining | None,
    pid: int | None,
    url: str,
) -> dict[str, Any]:
    """The measured part of the run, and its figures."""
    fleet = schedule.fleet
    scraper, prober = Scraper(Api(url)), Prober(url)
    if asked.holds:
        await asyncio.to_thread(_service.holds, pid, asked.holds)  # what starting held
    before, own, at = usage(pid) if pid else None, time.process_time(), time.monotonic()
    scraper.start()
    prober.start()
    if joining is not None:
        joining.start()
    rounds = int(fleet.reports_S.min())
    await generator.run(asked.seconds, schedule.tick)
    patience = at + 4 * asked.seconds
    while asked.hurried and not whole(int(fleet.reports_S.min()) - rounds) and time.monotonic() < patience:
        await generator.run(0.02, schedule.tick)
    seconds, own = time.monotonic() - at, time.process_time() - own
    taken = process_figures(before, usage(pid), seconds) if before and pid else {}
    held = await asyncio.to_thread(_service.holds, pid, asked.holds) if asked.holds else {}
    accepted, due = generator.client.counts.accepted, generator.due(time.monotonic())
    while any(thread.is_alive() for thread in schedule.threads):
        await generator.run(0.5)
    await generator.drain()
    await asyncio.to_thread(prober.stop)
    await asyncio.to_thread(scraper.stop)
    await generator.client.close()
    cpu = taken.get("monitor's CPU, cores", 0.0) * seconds
    return {
        **(joining.figures() if joining is not None else {}),
        **held,
        "/readyz, s": _table.spread(prober.seconds),
        "/readyz not ready": prober.failed,
        "measured, s": seconds,
        "reports accepted, 1/s": accepted / seconds,
        "reports accepted for a second of the monitor's CPU": accepted / cpu if cpu else None,
        "reports overdue at the end": due,
        **generator.figures(),
        "reports accepted by the monitor's own count": scraper.reports - generator.accepted_before,
        "/metrics, s": _table.spread(scraper.seconds),
        "/metrics, bytes": scraper.bytes,
        "tick, s": _table.spread(scraper.tick_seconds),
        "tick errors": scraper.tick_errors,
        "scrapes that failed": scraper.failed,
        **taken,
        "generator's CPU, cores": own / seconds,
        "incidents": [each["reason"] for job in fleet.jobs[:100] for each in scraper.api.incidents(job.id)][:20],
        "hangs found": [asdict(each) for each in schedule.detections],
    }


def whole(rounds: int) -> bool:
    """Whether as many of so many reports hold a window as do not: a window lasts two intervals by default."""
    return rounds >= 4 and rounds % 2 == 0


def process_figures(before: Usage, after: Usage, seconds: float) -> dict[str, float]:
    """What the monitor's process took."""
    return {
        "monitor's CPU, cores": (after.cpu - before.cpu) / seconds,
        "monitor waited for a processor, s": after.waited - before.waited,
        "monitor's RSS at the beginning, MiB": before.rss,
        "monitor's RSS, MiB": after.rss,
        "monitor's peak RSS, MiB": after.peak,
    }


if __name__ == "__main__":
    sys.exit(main())
