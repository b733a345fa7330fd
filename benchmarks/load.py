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
Faults by schedule: ``--fault "rank=17,at=30,kind=hang"`` (``_load_faults.py`` describes each kind).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _service
import _table
from _load_client import Client
from _load_faults import Fault, Schedule, parse
from _load_fleet import Fleet, Shape
from _load_joining import Joining
from _load_launchers import Launchers
from _load_measure import Api, Prober, Scraper, Usage, usage
from _load_run import Generator

PRESETS: dict[str, dict[str, Any]] = {
    "p6": {"ranks": 8192, "hurried": True, "interval": 5.0, "seconds": 30.0, "warm_up": 5.0, "connections": 8},
    "p7": {"ranks": 100_000, "hurried": False, "interval": 5.0, "seconds": 60.0, "warm_up": 15.0, "connections": 64},
}
DEFAULTS: dict[str, Any] = {
    "ranks": 1024,
    "hurried": False,
    "interval": 5.0,
    "seconds": 30.0,
    "warm_up": 10.0,
    "connections": 64,
}
BUSY = "while True: pass"


def arguments() -> argparse.Namespace:
    """Read the command line; a preset fills what was not given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--preset", choices=tuple(PRESETS), help="the figures of docs/benchmarks.md")
    parser.add_argument("--ranks", type=int, help=f"emulated ranks, 1 to 200000 (default {DEFAULTS['ranks']})")
    parser.add_argument("--jobs", type=int, default=1, help="jobs that share them (default 1)")
    parser.add_argument("--ranks-a-request", type=int, default=8, help="ranks in one request; 1: no Collector")
    parser.add_argument("--interval", type=float, help="seconds between a rank's reports (default 5)")
    parser.add_argument(
        "--hurried", action="store_true", default=None, help="report as fast as it is answered; pretend the interval"
    )
    parser.add_argument("--step-seconds", type=float, default=2.5, help="time of a training step")
    parser.add_argument("--seconds", type=float, help="how long is measured")
    parser.add_argument("--warm-up", type=float, help="seconds before that, and until all ranks have reported")
    parser.add_argument("--connections", type=int, help="connections to the monitor at most")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds after which an answer is given up")
    parser.add_argument("--gzip", action="store_true", help="compress the requests (costs the generator most)")
    parser.add_argument("--kernels", action="store_true", help="64 kernels of each rank every 300 s, the first at once")
    parser.add_argument("--launchers", action="store_true", help="emulate the launcher of each node, too")
    parser.add_argument("--late", action="store_true", help="with --launchers: they join once it is measured")
    parser.add_argument("--fault", action="append", default=[], metavar="SPEC", help="rank=17,at=30,kind=hang")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds: limit of the step in jobs that are to hang")
    parser.add_argument("--url", help="a monitor that runs already, instead of one that is started here")
    parser.add_argument("--pid", type=int, help="its process, to read its CPU time and memory")
    parser.add_argument("--token", default=os.environ.get("RANKWATCH_TOKEN", ""), help="its token, if it asks for one")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="start N busy loops beside the monitor")
    parser.add_argument("--holds", action="store_true", help="measure how long anything holds the monitor's event loop")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="record the monitor with py-spy (raw) meanwhile")
    asked = parser.parse_args()
    for name, value in (DEFAULTS | PRESETS.get(asked.preset or "", {})).items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    if not 1 <= asked.ranks <= 200_000:
        parser.error(f"--ranks {asked.ranks} is out of range: give 1 to 200000")
    if not 1 <= asked.ranks_a_request <= 1000:
        parser.error(f"--ranks-a-request {asked.ranks_a_request} is out of range: give 1 to 1000")
    if asked.interval <= 0 or asked.step_seconds <= 0:
        parser.error("--interval and --step-seconds are seconds above 0; --hurried sends as fast as it goes")
    if asked.late and (asked.fault or not asked.launchers):
        parser.error("--late launchers join and hold their long polls: give --launchers, and no --fault")
    if asked.url is not None and asked.holds:
        parser.error("--holds measures a monitor that is started here: leave --url out")
    if asked.url is None and asked.pid is not None:
        parser.error("--pid belongs to the monitor at --url: give both")
    return asked


def main() -> int:
    """Run the load and print what came of it."""
    asked = arguments()
    try:
        shape = Shape(
            asked.ranks,
            asked.jobs,
            asked.ranks_a_request,
            asked.interval,
            asked.step_seconds,
            asked.kernels,
            hurried=asked.hurried,
        )
        faults = [parse(text) for text in asked.fault]
        with ExitStack() as stack:
            url, pid = asked.url, asked.pid
            if url is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                for number in range(asked.busy):
                    stack.enter_context(_service.process([sys.executable, "-c", BUSY], folder / f"busy-{number}.log"))
                asked.holds = folder / "holds.json" if asked.holds else None
                url = stack.enter_context(_service.monitor(folder, asked.holds))
                pid = json.loads((folder / "ready.json").read_text())["pid"]
            result = asyncio.run(load(asked, shape, faults, url, pid, stack))
    except ValueError as error:
        print(f"load.py: {error}", file=sys.stderr)
        return 2
    show(result, asked.json)
    return 0


async def load(
    asked: argparse.Namespace, shape: Shape, faults: list[Fault], url: str, pid: int | None, stack: ExitStack
) -> dict[str, Any]:
    """Warm up, measure, and gather the figures."""
    headers = {"authorization": f"Bearer {asked.token}"} if asked.token else {}
    began = time.monotonic()
    fleet = Fleet(shape)
    fleet.warm_up()
    made = time.monotonic() - began
    joining = Joining(fleet, url, asked.token) if asked.late else None
    if joining is not None:
        stack.callback(joining.close)

    def make_client(done: Any) -> Client:
        return Client(url, asked.connections, done, headers=headers, gzip=asked.gzip, timeout=asked.timeout)

    def make_api() -> Api:
        return Api(url, asked.token)

    generator = Generator([fleet], make_client)
    schedule = Schedule(fleet, faults, make_api, asked.limit)
    launchers = Launchers(fleet, url, asked.limit, asked.token) if asked.launchers and not asked.late else None
    fleet.begin()
    if launchers is not None:
        launchers.start()
    await generator.run(asked.warm_up)
    patience = time.monotonic() + 8 * asked.warm_up
    while int(fleet.reports_S.min()) < 1 and time.monotonic() < patience:
        await generator.run(0.2)
    if faults:
        preparing = asyncio.get_running_loop().run_in_executor(None, schedule.prepare)
        while not preparing.done():
            await generator.run(0.2)
        preparing.result()
    generator.forget()
    if launchers is not None:
        launchers.forget()
    scraper, prober = Scraper(make_api()), Prober(url)
    if asked.profile is not None and pid is not None:
        spy = [str(Path(sys.executable).with_name("py-spy")), "record", "--nonblocking", "-f", "raw", "-r", "100"]
        spy += ["-d", str(int(asked.seconds)), "-o", str(asked.profile), "-p", str(pid)]
        stack.enter_context(_service.process(spy, asked.profile.with_suffix(".log")))
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
    while shape.hurried and not whole(int(fleet.reports_S.min()) - rounds) and time.monotonic() < patience:
        await generator.run(0.02, schedule.tick)
    seconds, own = time.monotonic() - at, time.process_time() - own
    after = usage(pid) if pid else None
    held = await asyncio.to_thread(_service.holds, pid, asked.holds) if asked.holds else {}
    counts = generator.client.counts
    accepted, due = counts.accepted, generator.due(time.monotonic())
    while any(thread.is_alive() for thread in schedule.threads):
        await generator.run(0.5, None)
    await generator.drain()
    await asyncio.to_thread(prober.stop)
    await asyncio.to_thread(scraper.stop)
    await generator.client.close()
    if launchers is not None:
        await launchers.close()
    reported = launchers.figures() if launchers is not None else joining.figures() if joining is not None else {}
    probed = {"/readyz, s": _table.spread(prober.seconds or [float("nan")]), "/readyz not ready": prober.failed}
    measured = figures(fleet, generator, scraper, schedule, before, after, seconds, own, made, accepted, due)
    return reported | held | probed | measured


def whole(rounds: int) -> bool:
    """Whether as many of so many reports hold a window as do not: a window lasts two intervals by default."""
    return rounds >= 4 and rounds % 2 == 0


def figures(
    fleet: Fleet,
    generator: Generator,
    scraper: Scraper,
    schedule: Schedule,
    before: Usage | None,
    after: Usage | None,
    seconds: float,
    own: float,
    made: float,
    accepted: int,
    due: int,
) -> dict[str, Any]:
    """Everything measured, by name."""
    counts, shape = generator.client.counts, fleet.shape
    cpu = after.cpu - before.cpu if before and after else None
    return {
        "emulated ranks": shape.ranks,
        "jobs": shape.jobs,
        "ranks a request": shape.ranks_a_request,
        "interval, s": shape.interval,
        "measured, s": seconds,
        "reports asked of the generator, 1/s": None if shape.hurried else shape.ranks / shape.interval,
        "reports accepted, 1/s": accepted / seconds,
        "reports accepted for a second of the monitor's CPU": accepted / cpu if cpu else None,
        "reports sent": counts.sent,
        "reports accepted": counts.accepted,
        "reports accepted by the monitor's own count": scraper.reports - generator.accepted_before,
        "reports lost": sum(generator.lost.values()),
        "lost by reason": dict(generator.lost),
        "reports overdue at the end": due,
        "reports deferred behind an answer": generator.deferred,
        "reports kept for later": generator.waiting_reports,
        "answers by status": {str(status): count for status, count in sorted(counts.statuses.items())},
        "requests without an answer": dict(counts.failures),
        "partly refused": counts.rejected_points[:3],
        "bytes a report": counts.bytes / counts.sent if counts.sent else None,
        "reports by content": dict(generator.kinds),
        "answer, s": _table.spread(counts.answer_seconds or [float("nan")]),
        "answer from when it was due, s": _table.spread(counts.due_seconds or [float("nan")]),
        "/metrics, s": _table.spread(scraper.seconds or [float("nan")]),
        "/metrics, bytes": scraper.bytes,
        "tick, s": _table.spread(scraper.tick_seconds or [float("nan")]),
        "tick errors": scraper.tick_errors,
        "scrapes that failed": scraper.failed,
        "monitor's CPU, cores": cpu / seconds if cpu is not None else None,
        "monitor waited for a processor, s": after.waited - before.waited if before and after else None,
        "monitor's RSS at the beginning, MiB": before.rss if before else None,
        "monitor's RSS, MiB": after.rss if after else None,
        "monitor's peak RSS, MiB": after.peak if after else None,
        "generator's CPU, cores": own / seconds,
        "ranks were made in, s": made,
        "incidents": [
            f"{job.id}: {each['reason']}"
            for job in fleet.jobs[:100]
            for each in (scraper.api.get(f"/jobs/{job.id}/incidents") or {"incidents": []})["incidents"]
        ][:20],
        "faults": [
            {
                "kind": each.fault.kind,
                "rank": each.fault.rank,
                "job": each.fault.job,
                "detected after its limit, s": each.seconds,
                "said": each.printed,
            }
            for each in schedule.detections
        ],
        "command": " ".join(sys.argv),
        "machine": _table.machine(),
    }


def show(result: dict[str, Any], target: Path | None) -> None:
    """Print the figures as a table and write them as JSON."""
    spreads = {name: value for name, value in result.items() if isinstance(value, dict) and "p99" in value}
    _table.report(spreads, "", None)
    for name, value in result.items():
        if name in spreads or name in ("machine", "command", "faults", "incidents") or value in (None, {}, []):
            continue
        print(f"{name:<52} {f'{value:,.6g}' if isinstance(value, int | float) else value}")
    for incident in result["incidents"]:
        print(f"incident: {incident}")
    for fault in result["faults"]:
        print(f"fault: {fault}")
    if target is not None:
        target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
