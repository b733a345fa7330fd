"""What a monitor's memory comes back to after hangs: reports and stacks as bytes, without sockets and without waiting.

A child process emulates the ranks of one job, eight on a node (``_load_fleet.py``), on a clock of its own; this one
decodes and applies what they send, ticks four times a second of that clock, and plays the launchers: they start the
ranks, send the stacks of all once a rank hangs, and start them again. So the figures do not depend on the machine's
load. Connections, of which a monitor has three a launcher, are not part of it; ``load.py`` measures the whole.

``RSS`` is the process in MiB, ``trimmed`` the same once free memory was returned, which the monitor does each minute,
and ``blocks`` how many objects there are, in thousands: what grows in the first and not in the last is memory that the
next hang uses again.

Run: python benchmarks/hang_memory.py [--ranks 16384] [--hangs 2] [--json FILE]
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, Final

import _table
from _load_fleet import Fleet, Shape
from _load_measure import usage
from _load_stacks import STUCK as READING
from _load_stacks import WAITING, collectives
from pydantic import TypeAdapter

from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.messages import Evidence, NodeRegistration, ProcessEvent, RankStack
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.ingest.routes import OtlpEndpoints
from rankwatch_monitor.service import garbage
from rankwatch_monitor.service.monitor import Clock, Monitor

RANKS_A_NODE: Final = 8
STUCK: Final = 17
WARM: Final = 70.0
"""Seconds until the first hang."""
CAPTURED, RESTARTED, LATER, NEXT = 14.0, 18.0, 78.0, 90.0
"""Seconds from a hang to the stacks, the restart, a minute after it, and the next hang."""
LIMIT: Final = 10.0
_HEAD: Final = struct.Struct("<cdI")
_PATTERN: Final = TypeAdapter(Evidence)


class Played(Clock):
    """The time that the child has come to."""

    def __init__(self) -> None:
        self.began = self.at = time.time()

    def now(self) -> float:
        return self.at


def plan(hangs: int) -> list[tuple[float, bytes]]:
    """What happens when."""
    begins = [WARM + NEXT * number for number in range(hangs)]
    moments = [(0.0, b"hang"), (CAPTURED, b"stacks"), (RESTARTED, b"restart"), (LATER, b"later")]
    return [(begin + after, what) for begin in begins for after, what in moments]


def send(out: BinaryIO, ranks: int, hangs: int) -> None:
    """Emulate the ranks: write each request, each tick and each moment of the plan."""
    fleet = Fleet(Shape(ranks))
    fleet.warm_up()
    fleet.begin()
    began, job, left, at = time.monotonic(), fleet.jobs[0], plan(hangs), 0.0
    out.write(_HEAD.pack(b"J", 0.0, len(job.id)) + job.id.encode())
    while left:
        at += 0.25
        while left and left[0][0] <= at:
            what = left.pop(0)[1]
            if what == b"hang":
                job.hung_at, job.hung_ranks = began + at, {STUCK}
            elif what == b"restart":
                fleet.restart(0)
                job.began = began + at
            out.write(_HEAD.pack(b"P", at, len(what)) + what)
        for due in fleet.take_due(began + at, len(fleet.members), set()):
            out.write(_HEAD.pack(b"B", at, len(due.body)) + due.body)
        out.write(_HEAD.pack(b"T", at, 0))
    out.flush()


def received(source: BinaryIO) -> Iterator[tuple[bytes, float, bytes]]:
    """What the child writes."""
    while len(head := source.read(_HEAD.size)) == _HEAD.size:
        kind, at, length = _HEAD.unpack(head)
        yield kind, at, source.read(length)


def evidence(node: int, attempt: int, incident: str) -> Evidence:
    """The stacks of one node; ``STUCK`` is the one that is stuck."""
    ranks = range(node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE)
    stacks = tuple(
        RankStack(
            rank,
            4000 + rank,
            "py-spy",
            READING if rank == STUCK else WAITING,
            collectives=tuple(collectives(rank, behind=rank == STUCK)),
        )
        for rank in ranks
    )
    return Evidence(f"node-{node}", attempt, incident, stacks)


class Launchers:
    """The launchers of the job."""

    def __init__(self, monitor: Monitor, job: str, ranks: int) -> None:
        self.monitor, self.job, self.ranks, self.attempt = monitor, monitor.register(job, job), ranks, 0
        for node in range(ranks // RANKS_A_NODE):
            monitor.submit(job, NodeRegistration(f"node-{node}", f"host-{node}", 1, RANKS_A_NODE))
        limits = {"section_timeouts": {STEP_SECTION: LIMIT}, "first_time_timeout": None}
        self.job.policy = self.job.policy.changed(limits)
        self.start()

    def start(self) -> None:
        """Start all ranks."""
        self.attempt += 1
        for rank in range(self.ranks):
            node, started = f"node-{rank // RANKS_A_NODE}", ProcessEventKind.STARTED
            event = ProcessEvent(node, started, self.attempt, rank=rank, pid=4000 + rank, world_size=self.ranks)
            self.monitor.submit(self.job.id, event)

    def capture(self) -> None:
        """Send the stacks of all ranks, as bytes of JSON that are read as the monitor does."""
        incident = self.job.open_incident
        assert incident is not None, "the hang was not found"
        for node in range(self.ranks // RANKS_A_NODE):
            sent = evidence(node, self.attempt, incident.id)
            message = _PATTERN.validate_json(json.dumps(dataclasses.asdict(sent)))
            self.monitor.submit(self.job.id, message)


def memory() -> dict[str, float]:
    """What this process takes now."""
    before, blocks = usage(os.getpid()).rss, sys.getallocatedblocks()
    garbage.trim()
    return {"RSS": before, "trimmed": usage(os.getpid()).rss, "blocks": blocks / 1000}


def measure(source: BinaryIO, ranks: int) -> dict[str, dict[str, float]]:
    """Apply what arrives; the figures of each moment."""
    clock = Played()
    monitor, rows = Monitor(clock=clock), dict[str, dict[str, float]]()
    endpoints = OtlpEndpoints(monitor.ingest, replaced=monitor.replaced)
    launchers: Launchers | None = None
    for kind, at, content in received(source):
        clock.at = clock.began + at
        if kind == b"J":
            launchers = Launchers(monitor, content.decode(), ranks)
        elif kind == b"B":
            endpoints.take_protobuf(content)
        elif kind == b"T":
            monitor.tick()
        elif launchers is not None:
            if content == b"stacks":
                launchers.capture()
            if content in (b"hang", b"later"):
                when = "before the first hang" if not rows else f"a minute after restart {launchers.attempt - 1}"
                rows.setdefault(when, memory())
            if content == b"restart":
                launchers.start()
    return rows


def main() -> None:
    """Measure and print."""
    asked = _table.arguments(__doc__ or "", ranks=(16_384, "ranks of the job"), hangs=(2, "hangs"))
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        with suppress(BrokenPipeError), os.fdopen(writing, "wb", 1 << 20) as out:
            send(out, asked.ranks, asked.hangs)
        os._exit(0)
    os.close(writing)
    gc.set_threshold(garbage.YOUNG, garbage.MIDDLE, garbage.NEVER)
    with os.fdopen(reading, "rb") as source:
        rows = measure(source, asked.ranks)
    os.wait()
    _table.report(rows, "MiB, thousands", asked.json)


if __name__ == "__main__":
    main()
