"""A fleet on several monitors that share one PostgreSQL: one of them is killed, cut off or paused.

    python benchmarks/fleet_failover.py [--jobs N] [--ranks-a-job N] [--seconds S] [--json FILE]
    [--faults kill cut pause]

Ranks and launchers are *emulated* (``load.py``); monitors, PostgreSQL and nginx with the shipped configuration are
real. Each fault has a set-up of its own: the fleet runs until every job is evaluated, then one monitor

=======  ===============================================================================================================
kill     is killed by SIGKILL, and does not come back
cut      loses its network for ``--seconds`` (60), to the database and to the ranks (``_cable.py``)
pause    is stopped by SIGSTOP for ``--seconds``, and goes on
=======  ===============================================================================================================

Some jobs of that monitor have launchers and hang 2 s before the fault, with a limit of 10 s. Reported are: seconds from
the fault until each job that the monitor held is evaluated by another one, which has its lease, and until a step after
the fault stands in its summary (ranks report every ``--interval``); jobs that two monitors claimed at the same time;
incidents of jobs that did not hang; orders to restart for each job that hung, which must be one; CPU by process. The
hang's own figure includes the reading of incidents through nginx, which tries a silent monitor for 5 s first.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _service
import _table
from _load_client import Client
from _load_faults import Hang, Schedule
from _load_fleet import Fleet, Shape
from _load_launchers import Launchers
from _load_measure import Api, Repeated, usage
from _load_run import Generator

from support.nginx import running_nginx
from support.ports import free_port
from support.postgres import PostgreSQL, running_postgres

KINDS = ("kill", "cut", "pause")
NAMES = "abc"
HUNG = 6
"""Jobs that hang, of those that the monitor holds."""
LIMIT = 10.0
LOOK = 0.5
"""Seconds between two looks at leases and summaries."""
ANSWER = 2.0
"""Seconds that a look waits for a monitor: one that was struck meanwhile does not answer."""
PATIENCE = 120.0
AFTERWARDS = 30.0
"""Seconds for which the fleet is watched once everything is mended: what is done twice is done late."""


@dataclass
class Site:
    """One monitor with its cable."""

    name: str
    url: str
    pid: int
    cable: int
    """Process ID of the cable."""
    api: Api


@contextmanager
def site(folder: Path, name: str, postgres: PostgreSQL, database: str) -> Iterator[Site]:
    """A monitor of the fleet, which reaches the database and is reached through a cable."""
    folder.mkdir()
    with ExitStack() as stack:
        # The monitor's own port must be known to the cable, and the cable's port to the monitor.
        port = free_port()
        ports = folder / "ports.json"
        command = [sys.executable, str(Path(__file__).with_name("_cable.py")), str(ports)]
        command += [f"127.0.0.1:{port}", f"127.0.0.1:{postgres.port}"]
        cable = stack.enter_context(_service.process(command, folder / "cable.log"))
        _service.wait_for("the cable", lambda: ports.exists() or None)
        outside, inside = json.loads(ports.read_text())
        url = f"http://127.0.0.1:{outside}"
        command = [sys.executable, "-m", "rankwatch_monitor", "--no-token", "--port", str(port)]
        command += ["--parent-pid", str(os.getpid())]
        command += ["--shared-as", name, "--external-url", url, "--ready-file", str(folder / "ready.json")]
        command += ["--database", database.replace(f":{postgres.port}/", f":{inside}/")]
        monitor = stack.enter_context(_service.process(command, folder / "monitor.log"))
        _service.wait_for("the monitor", lambda: (folder / "ready.json").exists() or None)
        yield Site(name, url, monitor.pid, cable.pid, Api(url))


class Watch(Repeated):
    """Looks at leases and summaries, as PostgreSQL and the monitors show them."""

    def __init__(self, postgres: PostgreSQL, database: str, sites: list[Site]) -> None:
        super().__init__(LOOK)
        self.sites = sites
        self.connection = postgres.connect(database.rpartition("/")[2])
        self.blind: set[str] = set()
        """Monitors that are not asked: they cannot answer."""
        self.twice: set[str] = set()
        """Jobs that two monitors claimed at the same time."""
        self.owners: dict[str, str] = {}
        """Of each job the monitor whose lease is valid."""
        self.claims: dict[str, dict[str, int]] = {}
        """Of each monitor the jobs that it evaluates, with their last step."""

    def once(self) -> None:
        """Look."""
        rows = self.connection.execute(
            "select job_id, owner from leases where ends_at > extract(epoch from clock_timestamp())"
        )
        self.owners = dict(rows.fetchall())
        for each in self.sites:
            if each.name not in self.blind:
                self.look(each)

    def look(self, at: Site) -> None:
        """Ask a monitor for the jobs that it evaluates itself, and compare them with those of the others."""
        reported = at.api.get("/jobs", timeout=ANSWER)
        if at.name in self.blind:
            return  # it was struck meanwhile; what it answers once it is back is old
        if reported is None:
            self.claims.pop(at.name, None)
            return
        mine = {job["id"]: job["iteration"] or 0 for job in reported["jobs"] if "monitor" not in job}
        self.claims[at.name] = mine
        for name, theirs in self.claims.items():
            if name != at.name and name not in self.blind:
                # The other list is some tenths of a second old, in which a job may have moved: only its lease decides.
                self.twice |= {job for job in mine.keys() & theirs if self.owners.get(job) not in (at.name, None)}


def main() -> None:
    """Run each fault and print what came of it."""
    asked = _table.arguments(
        __doc__,
        faults=(list(KINDS), "which of them", {"choices": KINDS}),
        jobs=(1000, "jobs that do not hang"),
        ranks_a_job=(64, "emulated ranks of each"),
        interval=(5.0, "seconds between two reports of a rank"),
        seconds=(60.0, "length of a cut or pause"),
    )
    found = {kind: asyncio.run(fault(asked, kind)) for kind in asked.faults}
    _table.head()
    for kind, figures in found.items():
        print(kind)
        _table.show_list(figures)
    _table.write(asked.json, figures=found)


async def fault(asked: Namespace, kind: str) -> dict[str, Any]:
    """One fault in a set-up of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankwatch-fleet-")))
        postgres = stack.enter_context(running_postgres())
        database = postgres.new_database()
        sites = [stack.enter_context(site(folder / name, name, postgres, database)) for name in NAMES]
        folder.chmod(0o755)  # nginx's workers are another user
        proxy = stack.enter_context(running_nginx(folder / "nginx", [each.url for each in sites]))
        watch = Watch(postgres, database, sites)
        watch.start()
        stack.callback(watch.stop)
        return await _play(asked, kind, sites, proxy, watch)


async def _play(asked: Namespace, kind: str, sites: list[Site], proxy: str, watch: Watch) -> dict[str, Any]:
    ranks = asked.ranks_a_job
    quiet = Fleet(Shape(asked.jobs * ranks, asked.jobs, interval=asked.interval, name="quiet"))
    hanging = Fleet(Shape(3 * HUNG * ranks, 3 * HUNG, interval=asked.interval, name="hanging"))
    for fleet in (quiet, hanging):
        fleet.warm_up()
    generator = Generator([quiet, hanging], lambda done: Client(proxy, 256, done))
    launchers = Launchers(hanging, proxy, LIMIT)
    for fleet in (quiet, hanging):
        fleet.begin()
    launchers.start()
    began = time.monotonic()
    everyone = {job.id for fleet in (quiet, hanging) for job in fleet.jobs}

    def evaluated() -> set[str]:
        return {job for claims in dict(watch.claims).values() for job, step in dict(claims).items() if step}

    await _until(generator, lambda: everyone <= evaluated(), "every job to be evaluated")
    first = time.monotonic() - began
    taken, since = _cpu(sites), time.monotonic()
    await generator.run(2 * asked.interval)
    cores = {
        name: round((now - before) / (time.monotonic() - since), 2)
        for (name, now), before in zip(_cpu(sites).items(), taken.values(), strict=True)
    }
    # The monitor that loses most is the interesting one; the jobs that hang are its own.
    victim = max(sites, key=lambda each: len(watch.claims.get(each.name, ())))
    held = dict(watch.claims[victim.name])
    numbers = [i for i, job in enumerate(hanging.jobs) if job.id in held][:HUNG]
    hangs = [Hang(0.0, 3, number, wake=True) for number in numbers]
    schedule = Schedule(hanging, hangs, lambda: Api(proxy), LIMIT)
    await generator.run_beside(schedule.prepare)
    generator.forget()
    await generator.run(2.0, schedule.tick)
    struck = time.monotonic()
    moved: dict[str, float] = {}
    advanced: dict[str, float] = {}
    returned = struck + asked.seconds
    _strike(kind, victim, watch)

    def tick(_: float) -> None:
        nonlocal returned
        schedule.tick(1.0)
        now = time.monotonic()
        if kind != "kill" and now >= returned:
            _mend(kind, victim, watch)
            returned = float("inf")
        for name, claims in dict(watch.claims).items():
            if name == victim.name:
                continue
            for job, step in dict(claims).items():
                if job in held and watch.owners.get(job) == name:
                    moved.setdefault(job, now - struck)
                    if step > held[job]:
                        advanced.setdefault(job, now - struck)

    await _until(generator, lambda: held.keys() <= advanced.keys(), "every job to be evaluated again", tick, must=False)
    while kind != "kill" and returned < float("inf"):
        await generator.run(0.5, tick)
    await generator.run(AFTERWARDS, tick)
    counts = generator.client.counts
    figures = _figures(asked, watch, held, moved, advanced, {hanging.jobs[number].id for number in numbers})
    figures["at the start, every job evaluated after, s"] = round(first, 1)
    figures["cores before the fault"] = cores
    figures["reports accepted, lost"] = f"{counts.accepted}, {dict(generator.lost)}"
    figures["hang: seconds from limit to incident"] = sorted(
        round(each.seconds, 2) if each.seconds is not None else None for each in schedule.detections
    )
    await generator.drain(2.0)
    await generator.client.close()
    await launchers.close()
    return figures


def _figures(
    asked: Namespace,
    watch: Watch,
    held: dict[str, int],
    moved: dict[str, float],
    advanced: dict[str, float],
    hung: set[str],
) -> dict[str, Any]:
    found = watch.connection.execute("select job_id, body ->> 'kind' from incidents").fetchall()
    bodies = watch.connection.execute("select job_id, body from directives").fetchall()
    incidents = Counter(job for job, _ in found)
    alarms = Counter(kind for job, kind in found if job not in hung)
    restarts = Counter(job for job, body in bodies if body["kind"] == "restart")
    return {
        "jobs, ranks": f"{asked.jobs + 3 * HUNG}, {(asked.jobs + 3 * HUNG) * asked.ranks_a_job}",
        "jobs of the monitor": len(held),
        "evaluated again by another, s": _spread(moved),
        "with a new step, s": _spread(advanced),
        "jobs that two monitors claimed": len(watch.twice),
        "jobs that hung": len(hung),
        "their incidents": [incidents[job] for job in sorted(hung)],
        "their orders to restart": [restarts[job] for job in sorted(hung)],
        "incidents, orders of other jobs": f"{dict(alarms) or 0}, "
        f"{sum(n for job, n in restarts.items() if job not in hung)}",
    }


def _cpu(sites: list[Site]) -> dict[str, float]:
    """Seconds of CPU taken so far; the machine's include PostgreSQL, nginx and whatever else runs."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return {
        "monitors": sum(usage(each.pid).cpu for each in sites),
        "cables": sum(usage(each.cable).cpu for each in sites),
        "generator": usage(os.getpid()).cpu,
        "machine": (user + nice + system + irq + softirq) / ticks,
    }


def _spread(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in _table.spread(list(seconds.values())).items()}


def _strike(kind: str, victim: Site, watch: Watch) -> None:
    watch.blind.add(victim.name)
    watch.claims.pop(victim.name, None)
    if kind == "cut":
        os.kill(victim.cable, signal.SIGSTOP)
    else:
        os.kill(victim.pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)


def _mend(kind: str, victim: Site, watch: Watch) -> None:
    os.kill(victim.cable if kind == "cut" else victim.pid, signal.SIGCONT)
    watch.blind.discard(victim.name)


async def _until(generator: Generator, done: Any, what: str, tick: Any = None, *, must: bool = True) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            if must:
                counts = generator.client.counts
                raise TimeoutError(
                    f"waited {PATIENCE:g} s for {what}; {counts.sent} reports sent, {counts.accepted} accepted, "
                    f"answers by status {counts.statuses}, without an answer {counts.failures}"
                )
            return
        await generator.run(0.25, tick)


if __name__ == "__main__":
    main()
