"""P4: what a sampled step costs with each source of kernel timings, on a GPU; and a rank with less of its GPU.

    python benchmarks/gpu_sources.py [--rounds N] [--block N] [--json FILE]

Needs a GPU; without one it exits with a message. One process trains a transformer encoder in bf16, in blocks of
steps: with no source, with CUPTI and with Kineto, in turn, each round in another order. In the middle of a block one
step is sampled, as the sampler does it: start and stop on the training thread, read on another. The device is
synchronised around the blocks only, so a source that makes the host wait shows.

First table, milliseconds: step (a block's time by its steps, median over the rounds), window (what one sampled step
adds to a block), start, stop, read (what those calls take) and, in percent, a window every 10 s, the default.

Then the kernels that take most of the time, by CUPTI, or by Kineto where CUPTI cannot be had. Last, the score of the
rank against itself alone (reference / median, weighed by time, as nvidia-resiliency-ext defines it; 1 is best, below
0.7 a straggler), and how long its step takes: alone again, with a second process that loads the same GPU, which the
driver gives to one process at a time, and with a second stream of the same process, which takes part of the
multiprocessors while the rank's kernels run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import _service
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


class Durations:
    """Nanoseconds of every call of every kernel, and seconds of every step, over as many sampled steps as rounds."""

    def __init__(self, torch: Any, step: Step, source: Source, rounds: int) -> None:
        self.kernels: dict[str, list[int]] = {}
        self.steps = []
        for _ in range(rounds):
            step()
            torch.cuda.current_stream().synchronize()
            began = time.perf_counter()
            source.start()
            step()
            raw = source.stop()
            torch.cuda.current_stream().synchronize()
            self.steps.append(time.perf_counter() - began)
            for kernel in source.read(raw, MAX_EVENTS).kernels:
                self.kernels.setdefault(kernel.key, []).append(kernel.self_ns)


def load(torch: Any, ended: Callable[[], bool], ready: Any) -> None:
    """Keep the GPU busy with large products until the end."""
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while not ended():
        for _ in range(20):
            left @ left
        torch.cuda.current_stream().synchronize()
        ready.set()


def neighbour(ready: Any, parent: int) -> None:
    """Load the GPU until this process is ended."""
    import torch

    _service.end_with(parent)

    load(torch, lambda: False, ready)


@contextmanager
def loading_process() -> Iterator[None]:
    """A process that loads the GPU."""
    context = multiprocessing.get_context("spawn")  # a fork cannot use the GPU
    ready = context.Event()
    process = context.Process(target=neighbour, args=(ready, os.getpid()), daemon=True)
    process.start()
    try:
        if not ready.wait(120):
            raise SystemExit("The second process did not begin to load the GPU within 120 s.")
        yield
    finally:
        process.kill()
        process.join(10)


@contextmanager
def loading_stream(torch: Any) -> Iterator[None]:
    """A thread that loads the GPU on a stream of its own."""
    ready, ended = threading.Event(), threading.Event()

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            load(torch, ended.is_set, ready)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        if not ready.wait(60):
            raise SystemExit("The second stream did not begin to load the GPU within 60 s.")
        yield
    finally:
        ended.set()
        thread.join(10)


def straggler(torch: Any, step: Step, source: Source, rounds: int) -> tuple[Durations, dict[str, dict[str, float]]]:
    """Kernels of the rank alone; by situation its score against them, and its step's time by that of the rank alone."""
    alone = Durations(torch, step, source, rounds)
    situations = {"alone": Durations(torch, step, source, rounds)}
    with loading_process():
        situations["another process"] = Durations(torch, step, source, rounds)
    with loading_stream(torch):
        situations["another stream"] = Durations(torch, step, source, rounds)
    usual = statistics.median(alone.steps)
    return alone, {
        name: {"score": score(alone.kernels, each.kernels), "step ratio": statistics.median(each.steps) / usual}
        for name, each in situations.items()
    }


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
        durations, situations = straggler(torch, step, source, asked.rounds)
        alone = durations.kernels
        total = sum(map(sum, alone.values()))
        top = {key: sum(calls) / total for key, calls in sorted(alone.items(), key=lambda item: -sum(item[1]))[:10]}
        print(f"\nby {best}, part of all kernel time:")
        for key, part in top.items():
            print(f"{part:>7.1%}  {statistics.median(alone[key]) / 1e3:>9.1f} us  {key}")
        print("\nscore of the rank, and its step's time by that of the rank alone:")
        for name, found in situations.items():
            print(f"{name:<16} {found['score']:>6.3f} {found['step ratio']:>6.2f}")
        figures |= {"top_kernels": top, "straggler": situations}
    for each in made.values():
        if each is not None:
            each.close()
    if asked.json is not None:
        Path(asked.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
