"""Sampled steps as a Trace Event file, which ui.perfetto.dev and chrome://tracing open.

The Trace Event Format in its JSON form (https://perfetto.dev/docs/getting-started/other-formats): complete events ("X")
with times in microseconds, and metadata ("M") that names processes. A rank is a process of the trace; its sections, and
its exposed communication where the step was profiled, are two threads, as they overlap without being nested. The clocks
of hosts differ by more than a step, so steps are aligned by iteration: all ranks begin a step at the same time, and
each sampled step begins when the longest one before it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankwatch_monitor.service.span_store import RankStep


def trace_events(steps_by_rank: Mapping[int, Sequence[RankStep]], hosts: Mapping[int, str]) -> dict[str, Any]:
    """The trace of some ranks.

    Args:
        steps_by_rank: their sampled steps, in any order.
        hosts: the host of each rank; may lack some.
    """
    longest: dict[int, float] = {}
    for steps in steps_by_rank.values():
        for step in steps:
            longest[step.iteration] = max(longest.get(step.iteration, 0.0), step.seconds)
    begins, at = {}, 0.0
    for iteration in sorted(longest):
        begins[iteration] = at
        at += longest[iteration]
    events: list[dict[str, Any]] = []
    for rank, steps in sorted(steps_by_rank.items()):
        host = f" on {hosts[rank]}" if hosts.get(rank) else ""
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}{host}"}})
        events.append({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
        for step in steps:
            events += [
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": 0,
                    "name": span.section,
                    "cat": "section",
                    "ts": _microseconds(begins[step.iteration] + span.start),
                    "dur": _microseconds(span.duration),
                    "args": {"iteration": step.iteration},
                }
                for span in step.spans
            ]
        if not any(step.waits for step in steps):
            continue
        events.append({"ph": "M", "pid": rank, "tid": 1, "name": "thread_name", "args": {"name": "in collectives"}})
        events += [
            {
                "ph": "X",
                "pid": rank,
                "tid": 1,
                "name": "in collectives, nothing computed",
                "cat": "wait",
                "ts": _microseconds(begins[step.iteration] + start),
                "dur": _microseconds(seconds),
                "args": {"iteration": step.iteration},
            }
            for step in steps
            for start, seconds in step.waits or ()
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
