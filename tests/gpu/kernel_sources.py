"""What the kit measures sources of kernel timings with: blocks of steps on a GPU, and a rank with less of its GPU.

In the middle of a block one step is sampled, as the sampler does it: start and stop on the training thread, read on
another. The device is synchronised around the blocks only, so a source that makes the host wait shows.

The score of a rank is against itself alone (reference / median, weighed by time, as nvidia-resiliency-ext defines it; 1
is best, below 0.7 a straggler): alone again, with a second process that loads the same GPU, which the driver gives to
one process at a time, and with a second stream of the same process, which takes part of the multiprocessors.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

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
    """Load the GPU until this process is ended, or its parent is gone."""
    import torch

    load(torch, lambda: os.getppid() != parent, ready)


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
