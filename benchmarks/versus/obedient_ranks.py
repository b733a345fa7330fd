"""What every rank of the side by side runs: it times what is configured, on either side and in either environment.

It imports nothing of Rankwatch unless configured. Orders are files in the shared folder:

=============  ======================================================================================================
``calls N``    N batches each of empty calls, of sections (entered and left) and of heartbeats; answers with the
               nanoseconds of a call in each batch, and with the CPU time of the whole process for a call
``steps S``    S seconds of steps of a millisecond, each with a section and a heartbeat; answers with the longest time
               that the calls of one step took, in seconds, how many steps there were, and what the calls raised
=============  ======================================================================================================

The file ``finish`` ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RANK = int(os.environ["RANK"])
BATCH = 10
"""Calls timed together: the clock itself costs as much as a heartbeat of Rankwatch."""
WORK = 0.001
LOOK = 0.01
"""Seconds between two looks for an order."""


class Calls(NamedTuple):
    """How a section is reported to a side and of a heartbeat."""

    section: Callable[[], object]
    """Enters one and leaves it."""
    beat: Callable[[], object]


def calls_of(side: str) -> Calls:
    """The calls of one side, ready to be made."""
    if side == "rankwatch":
        import rankwatch

        rankwatch.init()

        def section() -> None:
            with rankwatch.section("step"):
                pass

        return Calls(section, rankwatch.heartbeat)
    if side == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        client = RankMonitorClient()
        client.init_workload_monitoring()

        def opened_and_closed() -> None:
            client.start_section("step")
            client.end_section("step")

        return Calls(opened_and_closed, client.send_heartbeat)
    return Calls(_nothing, _nothing)


def time_calls(calls: Calls, batches: int) -> dict[str, Any]:
    """Nanoseconds of a call, batch by batch, the kinds in turn."""
    kinds: dict[str, Callable[[], object]] = {"empty": _nothing, "section": calls.section, "heartbeat": calls.beat}
    wall: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu = dict.fromkeys(kinds, 0.0)
    for _ in range(batches):
        for kind, call in kinds.items():
            call()  # the kind before has filled the caches with what is its own
            used, began = time.process_time_ns(), time.perf_counter_ns()
            for _ in range(BATCH):
                call()
            wall[kind].append((time.perf_counter_ns() - began) / BATCH)
            cpu[kind] += time.process_time_ns() - used
    return {"wall": wall, "cpu": {kind: spent / BATCH / batches for kind, spent in cpu.items()}}


def take_steps(calls: Calls, seconds: float) -> dict[str, Any]:
    """Train for a while; what the calls raise is counted, as a script that wants to survive would have it."""
    longest, steps, errors, printed = 0.0, 0, 0, ""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            calls.section()
            calls.beat()
        except Exception as error:  # noqa: BLE001 - whatever a side raises into training is what is measured
            errors, printed = errors + 1, f"{type(error).__name__}: {error}"[:200]
        longest = max(longest, time.monotonic() - began)
        steps += 1
        time.sleep(WORK)
    return {"longest": longest, "steps": steps, "errors": errors, "said": printed}


def _nothing() -> None:
    pass


def obey(folder: Path, calls: Calls) -> None:
    """Carry orders out, one after the other, until the end."""
    number = 1
    while not (folder / "finish").exists():
        order = folder / f"order-{number}"
        if not order.exists():
            time.sleep(LOOK)
            continue
        what, amount = order.read_text().split()
        answer = time_calls(calls, int(amount)) if what == "calls" else take_steps(calls, float(amount))
        unfinished = folder / f"answer-{number}-{RANK}.new"
        unfinished.write_text(json.dumps(answer))
        unfinished.replace(folder / f"answer-{number}-{RANK}.json")
        number += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--instrument", choices=("nothing", "rankwatch", "nvrx"), default="nothing")
    options = parser.parse_args()
    known = {name: os.environ.get(name, "") for name in ("RANKWATCH_MONITOR", "RANKWATCH_JOB_ID")}
    (options.folder / f"told-{RANK}.json").write_text(json.dumps(known))
    obey(options.folder, calls_of(options.instrument))
