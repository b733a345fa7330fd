"""What the scripted monitor reports the past: spans, samples, points over time; and of where ranks stand."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rankwatch.contract.policy import parse_ranks
from rankwatch_monitor.service.span_store import RankStep, Span, to_json
from rankwatch_monitor.service.timeline_finding import figures, sentences
from web.scripted_rows import host_of

SECTIONS = ["data", "step", "forward", "backward", "all_reduce", "optimizer"]
SAMPLED = list(range(1100, 1201, 10))
PROFILED = [1120, 1160, 1200]
"""Steps in which waiting is measured."""
AT_MOST = 100
"""Ranks that are tried when ranks are asked for; tests ask for low ones."""


def _words(values: Sequence[int]) -> str:
    return base64.b64encode(b"".join(value.to_bytes(2, "little") for value in values)).decode()


def layout(ranks: int, stages: int) -> dict[str, Any]:
    """Contiguous pipeline stages; ranks take turns in data parallelism."""
    coordinates = {}
    if stages:
        coordinates = {
            "data": _words([rank % 8 for rank in range(ranks)]),
            "pipeline": _words([rank * stages // ranks for rank in range(ranks)]),
        }
    return {"unknown": 0xFFFF, "coordinates": coordinates, "looks": ["heartbeat_age", "temperature"] if stages else []}


def look(states: Sequence[str], name: str) -> dict[str, Any]:
    """Every ninth rank is warm; those in trouble have an old heartbeat."""
    if name == "temperature":
        values = [88 if rank % 9 == 8 else 62 + rank % 7 for rank in range(len(states))]
    else:
        values = [round(16 * math.log2(1 + (140 if state == "hung" else 2))) for state in states]
    return {"look": name, "unknown": 255, "bytes": base64.b64encode(bytes(values)).decode()}


def _step(rank: int, iteration: int, slow: bool) -> RankStep:
    data = 0.16 if slow else 0.02 + 0.002 * (rank % 3)
    jitter = 0.004 * ((rank * 7 + iteration // 10) % 5)
    forward, backward, optimizer = 0.11 + jitter, 0.2, 0.03
    wait = 0.04 if slow else 0.18 - jitter
    parts = (forward, backward, wait, optimizer)
    spans = [Span("data", 0, 0.0, data), Span("step", 0, data, sum(parts))]
    start = data
    for section, seconds in zip(SECTIONS[2:], parts, strict=True):
        spans.append(Span(section, 1, start, seconds))
        start += seconds
    waits = ((spans[4].start, wait),) if iteration in PROFILED else None
    return RankStep(iteration, time.time() + iteration - SAMPLED[-1], start, tuple(spans), waits)


def timeline(
    ranks: str, last: int, steps: str, slow: Mapping[int, float | None], hung: Sequence[int], size: int
) -> dict[str, Any]:
    """Slow ranks, of which the lateness is given, take long for their data; a hung one has nothing of the last step."""
    try:
        chosen = [rank for rank in range(AT_MOST) if rank in parse_ranks(ranks)]
    except ValueError:
        chosen = []
    shown = [int(step) for step in steps.split(",")] if steps else SAMPLED[-last:]
    lanes = {
        rank: [_step(rank, step, rank in slow) for step in shown if not (rank in hung and step == SAMPLED[-1])]
        for rank in chosen
    }
    steps_of = {rank: [to_json(step, SECTIONS) for step in every] for rank, every in lanes.items()}
    return {
        "attempt": 1, "sampled": SAMPLED, "profiled": PROFILED, "sections": SECTIONS, "ranks_known": 8,
        "no_waits": "it is measured in the step that is profiled, about every 10 s", "no_sections": [],
        "ranks": [
            {"rank": rank, "host": f"node-{rank // 8}", "steps": steps_of[rank], **each}
            for rank, each in figures(lanes, SECTIONS).items()
        ],
        **sentences(lanes, [*slow, *hung], 8, slow, size),
    }  # fmt: skip


def no_spans(ranks: str) -> dict[str, Any]:
    """None has been sent."""
    lanes = [{"rank": rank, "host": "", "steps": []} for rank in range(8) if rank in parse_ranks(ranks)]
    return {
        "no_sections": ["Ranks report steps, but the sections of none.", "Launch again after `unset IT`."],
        "ranks": lanes,
    }


KERNELS = {
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn<<<96,16,1 256,1,1>>>": 1.24e-3,
    "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, true><<<16,2,32 128,1,1>>>": 0.86e-3,
    "vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16>, array<char*, 3>><<<8192,1,1 128,1,1>>>": 95e-6,
    "multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor><<<320,1,1 512,1,1>>>": 61e-6,
}
"""Seconds of one call."""


def kernels(slow_since: float | None, run: float) -> dict[str, Any]:
    """Kernels of rank 5 take a little longer; the second became slower so many seconds ago."""
    now = time.time()
    points = [now - run + run / 100 * i for i in range(101)]
    share = [0.52, 0.31, 0.09, 0.02]

    late = 1.01 if slow_since is None else 1.12

    def row(place: int, name: str, usual: float) -> dict[str, Any]:
        slower = slow_since is not None and place == 1
        trend = [
            usual * (1.6 if slower and slow_since is not None and at > now - slow_since else 1.0)
            * (1 + 0.02 * math.sin(at * (place + 1) / 90))
            for at in points
        ]  # fmt: skip
        return {
            "name": name, "share": share[place], "ranks": 16, "median": trend[-1], "tail": 1.08 * trend[-1],
            "fastest": 0.97 * trend[-1], "slowest_rank": 5, "slowest_host": host_of(5), "slowest": late * trend[-1],
            "relative": round(0.97 / late, 2), "change": 1.61 if slower else 1.01,
            "slower_since": now - slow_since if slower and slow_since else None,
            "trend": trend, "slowest_trend": [late * each for each in trend],
            "slowest_ranks": [5 if at > now - run / 2 else 3 for at in points],
            "uneven_since": None if slow_since is None else next(at for at in points if at > now - run / 2),
        }  # fmt: skip

    return {
        "at": now - 40, "since": points[0], "spacing": 30.0, "reason": "", "omitted": 28, "points": points,
        "compute": 0.18, "step": 0.24,
        "sources": [{"source": "cupti", "reason": "", "ranks": 16}],
        "kernels": [row(place, *each) for place, each in enumerate(KERNELS.items())],
    }  # fmt: skip


def no_kernels() -> dict[str, Any]:
    """They are switched off."""
    return {
        "spacing": 15.0,
        "reason": "Kernel timings are switched off: set kernel_timings to auto in the policy.",
        "sources": [{"source": "none", "reason": "kernel_timings is off", "ranks": 16}],
    }  # fmt: skip


def history(
    slow_since: float | None, since: float, until: float, run: float = 3600.0, restarts: Sequence[float] = ()
) -> dict[str, Any]:
    """The samples of a run that began so many seconds ago; slower data since some moment, and a gap in longer ones."""
    now = time.time()
    each = max(10.0, run / 360)
    samples = []
    for i in range(int(run / each)):
        at = now - run + each * i
        if not since <= at <= until or (run > 3600 and 0 < at - (now - run / 2) < run / 20):
            continue
        data = 0.41 if slow_since is not None and at > now - slow_since else 0.04
        parts = {"data": data, "compute": 0.3 + 0.01 * math.sin(i / 5), "communication": 0.06, "host": 0.02}
        step = sum(parts.values())
        samples.append({
            "at": at, "seconds": each, "step": step, "step_max": step * 1.05, "parts": parts,
            "iteration": round(5000 * (at - now + run) / run),
            "attempt": 1 + sum(at >= now - restart for restart in restarts),
        })  # fmt: skip
    return {"samples": samples}


def why(slow_since: float | None) -> dict[str, Any]:
    """What ``GET /why`` states of it."""
    if slow_since is None:
        sentence, since = "Nothing changed in the last hour.", time.time() - 3 * 3600
        return {"kind": "steady", "sentence": sentence, "since": since}
    return {
        "kind": "change", "since": time.time() - slow_since, "before": 0.42, "after": 0.79,
        "sentence": "Steps take 1.9 times as long since 14:03:20 (0.42 s -> 0.79 s): all of it is data "
                    "(40 ms -> 0.41 s), most of all section 'load_batch' (40 ms -> 0.41 s).",
        "contributors": [
            {"words": "section 'load_batch'", "sentence": "section 'load_batch' (40 ms -> 0.41 s)",
             "share": 0.98, "stated": True}
        ],
    }  # fmt: skip


def trends(
    slow_since: float | None, since: float, until: float, run: float = 3600.0, restarts: Sequence[float] = (),
    logged: Sequence[str] = (), broken: tuple[float, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Points of a run: the worst rank falls behind when steps became slower; attempts began so many seconds ago."""
    now = time.time()
    each = max(15.0, run / 1400)
    at = [moment for i in range(int(run / each)) if since <= (moment := now - run + each * i) <= until]
    slow = [slow_since is not None and moment > now - slow_since for moment in at]
    progress = [(moment - now + run) / run for moment in at]
    bad = [broken is not None and broken[0] >= now - moment >= broken[1] for moment in at]
    return {
        "at": at,
        "attempt": [1 + sum(moment >= now - restart for restart in restarts) for moment in at],
        "iteration": [round(5000 * done) for done in progress],
        "speed": [1.27 if each else 2.38 for each in slow],
        "goodput": [0.97] * len(at),
        "goodput_window": [0.9 if each else 0.98 for each in slow],
        "scores": {
            "gpu_robust": {"min": [0.62 if each else 0.97 for each in slow], "median": [1.0] * len(at),
                           "max": [1.02] * len(at), "rank": [5 if each else 3 for each in slow]},
        },
        "logged": {
            name: [None if nan and name == logged[0] else 2.0 + 6 / (1 + 12 * done) + 0.05 * math.sin(700 * done)
                   for done, nan in zip(progress, bad, strict=True)] for name in logged
        },
        "non_finite": {logged[0]: [3.0 if nan else None for nan in bad]} if any(bad) else {},
    }  # fmt: skip


def of_attempt(trends: dict[str, Any], attempt: int | None) -> dict[str, Any]:
    """The points of one attempt only, if there is one to choose, and the names of all."""
    known = trends["attempt"]
    rows = [i for i, each in enumerate(known) if attempt in (None, each)]

    def chosen(value: Any) -> Any:
        return (
            {key: chosen(each) for key, each in value.items()} if isinstance(value, dict) else [value[i] for i in rows]
        )

    return {**chosen(trends), "attempts": list(dict.fromkeys(known))}
