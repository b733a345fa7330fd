"""P4: what a sampled step costs with each source of kernel timings, on a GPU; and a rank with less of its GPU.

    python benchmarks/gpu_sources.py [--rounds N] [--block N] [--json FILE]

Needs a GPU; without one it exits with a message. One process trains a transformer encoder in bf16, in blocks of
steps: with no source, with CUPTI and with Kineto, in turn, each round in another order. In the middle of a block one
step is sampled, as the sampler does it: start and stop on the training thread, read on another. The device is
synchronised around the blocks only, so a source that makes the host wait shows.

First table, milliseconds: step (a block's time by its steps, median over the rounds), window (what one sampled step
adds to a block), start, stop, read (what those calls take) and, in percent, a window every 10 s, the default.

Then the kernels that take most of the time, by CUPTI, or by Kineto where CUPTI cannot be had. Last, a second process
loads the same GPU and nothing else changes: the scores that the rank gets against itself without the neighbour
(reference / median, weighed by time, as nvidia-resiliency-ext defines it; 1 is best, below 0.7 a straggler).
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import _table

from rankwatch.profiling.source import MAX_EVENTS, Source, SourceUnavailable, Trace

PERIOD = 10.0
"""Seconds between two sampled steps, by default."""
Step = Callable[[], None]


def training(torch: Any) -> Step:
    """A step of a transformer encoder of 100 million parameters, in bf16."""
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda")
    model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(16, 512, 1024, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sources(torch: Any) -> dict[str, Source | None]:
    """Every source that can be had here, under its name."""
    from rankwatch.profiling.cupti import CuptiSource
    from rankwatch.profiling.kineto import KinetoSource

    made: dict[str, Source | None] = {"none": None}
    for name, make in (
        ("cupti", CuptiSource),
        ("kineto-cuda", lambda: KinetoSource(torch, on_device=True, end_window=lambda: None)),
    ):
        try:
            made[name] = make()
        except SourceUnavailable as error:
            print(f"{name} is left out: {error}")
    return made


class Block:
    """Times of a block of steps; ``sampled`` is what its one sampled step gave."""

    def __init__(self, torch: Any, step: Step, steps: int, source: Source | None, reader: ThreadPoolExecutor) -> None:
        self.calls = {"start": 0.0, "stop": 0.0, "read": 0.0}
        self.sampled: Trace | None = None
        reading = None
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(steps):
            if source is not None and number == steps // 2:
                self._timed("start", source.start)
            step()
            if source is not None and number == steps // 2:
                raw = self._timed("stop", source.stop)
                reading = reader.submit(self._timed, "read", partial(source.read, raw, MAX_EVENTS))
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - began
        if reading is not None:
            self.sampled = reading.result()

    def _timed(self, call: str, function: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return function()
        finally:
            self.calls[call] = time.perf_counter() - began


def overhead(torch: Any, step: Step, made: dict[str, Source | None], asked: Any) -> tuple[dict[str, Any], str]:
    """Measure all sources in interleaved blocks; returns the rows, and the source that the rest is measured with."""
    blocks: dict[str, list[Block]] = {name: [] for name in made}
    with ThreadPoolExecutor(1) as reader:
        for number in range(asked.rounds):
            order = list(made)
            for name in order[number % len(order) :] + order[: number % len(order)]:
                blocks[name].append(Block(torch, step, asked.block, made[name], reader))
    rows = {}
    for name, measured in blocks.items():
        window = statistics.median(
            with_it.seconds - without.seconds for with_it, without in zip(measured, blocks["none"], strict=True)
        )
        calls = {call: statistics.median(block.calls[call] for block in measured) for call in measured[0].calls}
        rows[name] = {
            "step": statistics.median(block.seconds for block in measured) / asked.block * 1e3,
            "window": window * 1e3,
            **{call: seconds * 1e3 for call, seconds in calls.items()},
            "percent": window / PERIOD * 100,
            "kernels": statistics.median(len(b.sampled.kernels) if b.sampled is not None else 0 for b in measured),
            "truncated": sum(b.sampled is not None and b.sampled.truncated > 0 for b in measured),
        }
    usable = [name for name, row in rows.items() if row["kernels"]]
    return rows, usable[0] if usable else ""


def durations(torch: Any, step: Step, source: Source, asked: Any) -> dict[str, list[int]]:
    """Nanoseconds of every call of every kernel, over as many sampled steps as there are rounds."""
    found: dict[str, list[int]] = {}
    for _ in range(asked.rounds):
        step()
        source.start()
        step()
        raw = source.stop()
        torch.cuda.synchronize()
        for kernel in source.read(raw, MAX_EVENTS).kernels:
            found.setdefault(kernel.key, []).append(kernel.self_ns)
    return found


def neighbour(ready: Any) -> None:
    """Load the GPU with large products until it is ended: the second process."""
    import torch

    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while True:
        for _ in range(20):
            left @ left
        torch.cuda.synchronize()
        ready.set()


def straggler(torch: Any, step: Step, source: Source, asked: Any) -> tuple[dict[str, list[int]], float, float]:
    """Kernels without a neighbour, the score without one (twice the same), and with one."""
    alone, again = durations(torch, step, source, asked), durations(torch, step, source, asked)
    context = multiprocessing.get_context("spawn")  # a fork cannot use the GPU
    ready = context.Event()
    process = context.Process(target=neighbour, args=(ready,), daemon=True)
    process.start()
    try:
        if not ready.wait(120):
            raise SystemExit("The second process did not begin to load the GPU within 120 s.")
        shared = durations(torch, step, source, asked)
    finally:
        process.kill()
        process.join(10)
    return alone, score(alone, again), score(alone, shared)


def score(reference: dict[str, list[int]], measured: dict[str, list[int]]) -> float:
    """sum w (reference median / median) / sum w over the kernels that both have; w is a kernel's whole time."""
    common = [key for key in measured if key in reference]
    if not common:
        return float("nan")
    weights = {key: sum(measured[key]) for key in common}
    ratios = {key: statistics.median(reference[key]) / statistics.median(measured[key]) for key in common}
    return sum(weights[key] * ratios[key] for key in common) / sum(weights.values())


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, rounds=(30, "rounds of blocks"), block=(40, "steps in a block"))
    import torch

    if not torch.cuda.is_available():
        print(f"No GPU is usable here (torch {torch.__version__}): nothing was measured.")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    torch.manual_seed(0)
    step = training(torch)
    for _ in range(20):
        step()
    made = sources(torch)
    rows, best = overhead(torch, step, made, asked)
    _table.report(rows, "ms", None)
    figures: dict[str, Any] = {"machine": _table.machine(), "device": torch.cuda.get_device_name(), "sources": rows}
    source = made.get(best)
    if source is None:
        print("No source gave kernels: neither the top kernels nor a straggler were measured.")
    else:
        alone, same, loaded = straggler(torch, step, source, asked)
        total = sum(map(sum, alone.values()))
        top = {key: sum(calls) / total for key, calls in sorted(alone.items(), key=lambda item: -sum(item[1]))[:10]}
        print(f"\nby {best}, part of all kernel time:")
        for key, part in top.items():
            print(f"{part:>7.1%}  {statistics.median(alone[key]) / 1e3:>9.1f} us  {key}")
        print(f"\nscore alone, measured twice: {same:.3f}; with a second process on the GPU: {loaded:.3f}")
        figures |= {"top_kernels": top, "score_alone": same, "score_with_neighbour": loaded}
    for each in made.values():
        if each is not None:
            each.close()
    if asked.json is not None:
        Path(asked.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
