"""Membership of up to 12,500 launchers over one TCPStore.

    python benchmarks/membership.py [--nodes N...] [--calm S] [--attempts N] [--processes N] [--json FILE]

The store is torch's own ``TCPStore`` in a process of its own. The coordinator is a real launcher's membership with its
threads, in another one; the other launchers are *emulated* (``_membership_fleet.py``): their own code and intervals, no
ranks, no network but loopback. Of N launchers two are spares, so that a lost node is replaced. Reported are

==============  ========================================================================================================
connections     that the store has open: two for each launcher, or one if ``ulimit -Hn`` is too low for that
start           from the first registration until the roster was published, until every launcher had its place and the
                address of the ranks' store; most of it is the emulation's own registration of N launchers
calm            of ``--calm`` seconds: calls to the store, bytes it received and sent, CPU of store and coordinator; the
                coordinator's round, and within it the reading of all members
crash           from the decision to restart until every launcher had its new place; the store's memory after each
lost            from the last heartbeat of a node until the coordinator took it for lost, and until all had a new place
killed          the same for the coordinator, which another launcher replaces first
late            how late the emulated launchers ran (p99): what the two cores could not keep up with
==============  ========================================================================================================

torch looks up the name of each connection's peer, and the store serves no call meanwhile. So that this does not measure
the name server, the machine needs a line ``::ffff:127.0.0.1 localhost`` in ``/etc/hosts``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import _membership_fleet as fleets
import _service
import _table
from _load_measure import usage

from rankwatch_launcher.coordination.coordinator import Coordinator
from rankwatch_launcher.coordination.membership import MembershipRules, MembershipView
from rankwatch_launcher.coordination.service import MembershipService
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.torch_compat import TCPStore

PATIENCE = 300.0
SPARES = 2
RESERVED_FILES = 200
TIMED: dict[str, tuple[type, str]] = {
    "round": (MembershipService, "round"),
    "read all members": (Coordinator, "_read_members"),
    "make a roster": (MembershipView, "next_roster"),
    "settle the roster": (JobStore, "settle_roster"),
    "publish the roster": (JobStore, "publish_roster"),
}
CONTEXT = multiprocessing.get_context("fork")


class Child:
    """A process that answers commands."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process: BaseProcess = CONTEXT.Process(
            target=_run, args=(os.getpid(), target, theirs, *arguments), daemon=True
        )
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process ID."""
        assert self.process.pid is not None
        return self.process.pid

    def receive(self) -> Any:
        """Its next answer.

        Raises:
            TimeoutError: it does not answer.
        """
        if not self.pipe.poll(PATIENCE):
            raise TimeoutError(f"process {self.pid} did not answer within {PATIENCE:g} s")
        return self.pipe.recv()

    def ask(self, name: str, argument: int = 0) -> Any:
        """Send a command and wait for the answer."""
        self.pipe.send((name, argument))
        return self.receive()


def _run(parent: int, target: Callable[..., None], *arguments: Any) -> None:
    _service.end_with(parent)
    target(*arguments)


def serve_store(pipe: Connection) -> None:
    """Host the store."""
    fleets.raise_descriptor_limit()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    while True:
        pipe.recv()


def serve_coordinator(pipe: Connection, port: int, rules: MembershipRules) -> None:
    """Run one launcher's membership with its threads, and measure it."""
    taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
    times: dict[Any, float] = {}

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            wall, cpu = time.monotonic(), time.thread_time()
            result = method(*arguments, **named)
            taken[name].append((time.monotonic() - wall, time.thread_time() - cpu))
            return result

        return call

    for name, (owner, method) in TIMED.items():
        setattr(owner, method, timed(name, getattr(owner, method)))
    connection = fleets.connect(port)
    rendezvous = fleets.Connected(port, rules, connection, time.sleep)

    def on_lost(_loss: Any, attempt: int) -> None:
        times.setdefault(("lost", attempt), time.monotonic())
        times["losses", attempt] = times.get(("losses", attempt), 0) + 1

    def number_published(store: JobStore, *arguments: Any) -> None:
        publish(store, *arguments)
        times.setdefault(("published", arguments[0].attempt), time.monotonic())

    publish, JobStore.publish_roster = JobStore.publish_roster, number_published  # type: ignore[method-assign]

    service = fleets.make_service(MembershipService, connection, 0, rules, on_lost)

    def main() -> None:
        began = time.monotonic()
        rendezvous.join(lambda *_: service)
        times["registered", 0] = began
        fleets.watch(rendezvous, lambda attempt: times.update({("placed", attempt): time.monotonic()}))

    pipe.send("connected")
    while True:
        try:
            name, argument = pipe.recv()
        except EOFError:
            return
        if name == "start":
            threading.Thread(target=main, daemon=True).start()
            pipe.send(None)
        elif name == "measures":
            pipe.send({name: list(values) for name, values in taken.items()})
            taken.clear()
        else:
            pipe.send(times.get((name, argument)))


def io(pid: int) -> tuple[int, int]:
    """Bytes that a process has read and written, through sockets as well."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


class Job:
    """The processes of one job."""

    def __init__(self, nodes: int, processes: int) -> None:
        self.nodes, self.group = nodes, nodes - SPARES
        rules = MembershipRules(self.group, self.group, node_timeout=fleets.NODE_TIMEOUT)
        self.store = Child(serve_store)
        port = self.store.receive()
        self.coordinator = Child(serve_coordinator, port, rules)
        self.coordinator.receive()
        bounds = [1 + (nodes - 1) * i // processes for i in range(processes + 1)]
        two = 2 * nodes + RESERVED_FILES < fleets.raise_descriptor_limit()
        self.fleets = [Child(fleets.serve_fleet, port, range(*each), rules, two) for each in itertools.pairwise(bounds)]
        for each in self.fleets:
            each.receive()

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait for a condition.

        Raises:
            TimeoutError: it does not come.
        """
        until = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > until:
                raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
            time.sleep(0.2)

    def all_placed(self, attempt: int) -> float:
        """Wait until every launcher of the group is in an attempt; return when the last was."""
        found: list[tuple[int, float]] = []

        def done() -> bool:
            own = self.coordinator.ask("placed", attempt) if self.coordinator.process.is_alive() else None
            found[:] = [*(each.ask("placed", attempt) for each in self.fleets), (own is not None, own or 0.0)]
            return sum(count for count, _ in found) >= self.group

        self.wait(done, f"{self.group} places in attempt {attempt}")
        return max(at for _, at in found)

    def measures(self) -> tuple[Counter[str], list[float]]:
        """Calls of the fleet to the store, and how late it was, since the last call."""
        counts: Counter[str] = Counter()
        late: list[float] = []
        for each in self.fleets:
            mine, behind = each.ask("measures")
            counts.update(mine)
            late += behind
        return counts, late

    def close(self) -> None:
        """End all processes."""
        for each in (*self.fleets, self.coordinator, self.store):
            each.process.kill()
            each.process.join()


@contextmanager
def running(nodes: int, processes: int) -> Iterator[Job]:
    """A job whose processes end with the context."""
    job = Job(nodes, processes)
    try:
        yield job
    finally:
        job.close()


def measure(nodes: int, asked: argparse.Namespace) -> dict[str, Any]:
    """All figures of one size."""
    with running(nodes, asked.processes) as job:
        figures: dict[str, Any] = {"connections": usage(job.store.pid).files}
        figures |= _start(job)
        figures |= _calm(job, asked.calm)
        figures |= _crashes(job, asked.attempts)
        figures |= _loss(job)
        figures |= _takeover(job)
        return figures


def _start(job: Job) -> dict[str, Any]:
    before = usage(job.store.pid)
    job.coordinator.ask("start")
    job.wait(lambda: job.coordinator.ask("registered") is not None, "the first registration")
    for each in job.fleets:
        each.ask("start")
    placed = job.all_placed(1)
    registered, published = job.coordinator.ask("registered"), job.coordinator.ask("published", 1)
    counts, late = job.measures()
    taken = job.coordinator.ask("measures")
    assert registered is not None
    return {
        "start: roster published, s": round(published - registered, 2),
        "start: all in their places, s": round(placed - registered, 2),
        "start: calls to the store": counts.total(),
        "start: store's CPU, s": round(usage(job.store.pid).cpu - before.cpu, 2),
        "start: late p99, s": _p99(late),
        **_taken("start", taken),
    }


def _calm(job: Job, seconds: float) -> dict[str, Any]:
    # Two heartbeats of the largest job: what the start left to do is done.
    time.sleep(2 * max(1.0, job.nodes / 2000))
    job.measures()
    job.coordinator.ask("measures")
    store, coordinator = usage(job.store.pid), usage(job.coordinator.pid)
    began, (received, sent) = time.monotonic(), io(job.store.pid)
    time.sleep(seconds)
    passed = time.monotonic() - began
    read, wrote = io(job.store.pid)
    after = usage(job.store.pid)
    counts, late = job.measures()
    return {
        "calm: calls a second": round(counts.total() / passed),
        "calm: by kind": {name: round(count / passed) for name, count in sorted(counts.items())},
        "calm: store receives, sends, kB/s": [round(n / passed / 1000) for n in (read - received, wrote - sent)],
        "calm: store's CPU, cores": round((after.cpu - store.cpu) / passed, 3),
        "calm: store's memory, MiB": round(after.rss),
        "calm: coordinator's CPU, cores": round((usage(job.coordinator.pid).cpu - coordinator.cpu) / passed, 3),
        "calm: late p99, s": _p99(late),
        **_taken("calm", job.coordinator.ask("measures")),
    }


def _crashes(job: Job, attempts: int) -> dict[str, Any]:
    seconds, memory, taken = [], [], {}
    cpu = usage(job.store.pid).cpu
    for _ in range(attempts):
        attempt = job.fleets[0].ask("attempt")
        ended = job.fleets[0].ask("crash")
        seconds.append(round(job.all_placed(attempt + 1) - ended, 2))
        memory.append(round(usage(job.store.pid).rss, 1))
        time.sleep(2 * max(1.0, job.nodes / 2000))
        taken = job.coordinator.ask("measures")
    return {
        "crash: all in their new places, s": seconds,
        "crash: store's MiB after each": memory,
        "crash: store's CPU for each, s": round((usage(job.store.pid).cpu - cpu) / attempts, 2),
        "crash: attempts": job.fleets[0].ask("attempt"),
        "crash: late p99, s": _p99(job.measures()[1]),
        **_taken("crash", taken),
    }


def _loss(job: Job) -> dict[str, Any]:
    attempt = job.fleets[0].ask("attempt")
    silent = job.fleets[0].ask("silence", 5)
    job.wait(lambda: job.coordinator.ask("lost", attempt) is not None, "the loss of a node")
    noticed = job.coordinator.ask("lost", attempt)
    placed = job.all_placed(attempt + 1)
    return {
        "lost: noticed, s": round(noticed - silent, 2),
        "lost: all in their new places, s": round(placed - silent, 2),
        "lost: nodes taken for lost": job.coordinator.ask("losses", attempt),
    }


def _takeover(job: Job) -> dict[str, Any]:
    attempt = job.fleets[0].ask("attempt")
    killed = time.monotonic()
    job.coordinator.process.kill()
    job.coordinator.process.join()
    placed = job.all_placed(attempt + 1)
    return {
        "coordinator killed: all in their new places, s": round(placed - killed, 2),
        "coordinator killed: nodes taken for lost": sum(each.ask("losses") for each in job.fleets),
    }


def _taken(when: str, taken: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    rows = {}
    for name in TIMED:
        if values := taken.get(name):
            wall, cpu = zip(*values, strict=True)
            figures = (_table.percentile(wall, 0.5), max(wall), _table.percentile(cpu, 0.5), max(cpu))
            rows[f"{when}: {name}, s (p50, max; CPU p50, max)"] = [len(values), *(round(f, 3) for f in figures)]
    return rows


def _p99(values: list[float]) -> float:
    return round(_table.percentile(values or [0.0], 0.99), 3)


def main() -> None:
    """Measure each size and print."""
    asked = _table.arguments(
        __doc__,
        nodes=([100, 1000, 5000, 12_500], "launchers of the job"),
        calm=(30.0, "seconds that are measured while nothing happens"),
        attempts=(4, "crashes, one after the other"),
        processes=(4, "over which the emulated launchers are spread"),
    )
    _table.head()
    found = {}
    for nodes in asked.nodes:
        load = os.getloadavg()[0]
        found[nodes] = measure(nodes, asked) | {"load average before, after": [load, os.getloadavg()[0]]}
        print(f"{nodes} launchers")
        _table.show_list(found[nodes])
    _table.write(asked.json, figures=found)


if __name__ == "__main__":
    main()
