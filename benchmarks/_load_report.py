"""The bytes of one report, made by the real encoder of the rank side: what an emulated rank sends.

How this works
--------------
A real :class:`~rankwatch.recording.recorder.Recorder` records the steps of one export interval, real
:class:`~rankwatch.export.instruments.Instruments` observe it, and the real :class:`~rankwatch.export.pipeline.Reader`
encodes that into a queue, from which the bytes are taken. So a change of what ranks send changes what is emulated.
What cannot be had
without a GPU (parts of a step, collectives, kernels, devices) is handed to the same instruments as a finished
:class:`~rankwatch.profiling.profiler.Speed`.

=========  ======  =======================================================================================
kind       flag    what is in it beside ages, iteration and open sections
=========  ======  =======================================================================================
steps      s       histograms of the sections that were finished since the last report
window     w       a window of steps: sections, parts of a step, collectives, CPU time, and a look at the device
news       n       the longest runs of each section: the first report of a process, and again each minute
kernels    k       64 kernels, each 300 s, with a window
ended      e       the last report of a process that shut down by itself
=========  ======  =======================================================================================
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import Resource

from rankwatch.contract import semconv
from rankwatch.contract.collectives import series
from rankwatch.contract.enums import Part
from rankwatch.contract.semconv import Metric
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, OperationWindow
from rankwatch.export.instruments import Instruments
from rankwatch.export.parallel_layout import ParallelLayout
from rankwatch.export.pipeline import SCOPE, EncodingReader
from rankwatch.export.resource import AttributeValue
from rankwatch.profiling.profiler import Points, Profiling, Speed
from rankwatch.profiling.source import CUPTI
from rankwatch.profiling.statistics import KERNELS_REPORTED
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.section_statistics import SectionDurations, Window
from rankwatch.recording.shared_slots import Slots

SECTIONS: Final = {"data": 0.04, "forward": 0.28, "backward": 0.52, "optimizer": 0.12, semconv.STEP_SECTION: 1.0}
"""Sections of a step, in the order in which they end, and their part of it."""
OPEN_SECTION: Final = "backward"
"""What is open inside ``step`` whenever an emulated rank reports."""
GROUPS: Final = ("data_parallel", "tensor_parallel", "default")
NOISE: Final = 0.02


class Kind(NamedTuple):
    """What a report holds; see the table above."""

    steps: bool = False
    window: bool = False
    news: bool = False
    kernels: bool = False
    ended: bool = False

    def __str__(self) -> str:
        return "+".join(word for word, there in zip(self._fields, self, strict=True) if there) or "plain"


class Pace(NamedTuple):
    """How fast an emulated job trains."""

    step_seconds: float
    steps_a_report: int
    stride: int
    """Steps in a window."""


class _Reported:
    """Stands where :class:`Profiling` does and hands out what it was given, once."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed

    def mark(self) -> object:
        """Nothing is to be remembered, but there is something to take in."""
        return self

    def take(self, *_: object, **__: object) -> None:
        """Nothing is learned."""

    def next(self, _now: float) -> Speed:
        return self.speed

    def more(self) -> bool:
        return False


def encoded(attributes: Mapping[str, AttributeValue], pace: Pace, kind: Kind) -> bytes:
    """One export request of one rank that holds what ``kind`` states; ``attributes`` are those of its resource."""
    chance = random.Random(0)
    recorder = Recorder(Slots.private())
    recorder.slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    queue: deque[bytes] = deque()
    reader = EncodingReader(queue, recorder, ParallelLayout(attributes, rank=0))
    provider = MeterProvider(
        [reader], Resource(attributes), exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False
    )
    reported = _Reported(Speed())
    instruments = Instruments(provider.get_meter(SCOPE), recorder, cast(Profiling, reported))
    for name in SECTIONS:
        recorder.section_id(name)
    if not kind.news:
        # The first report of a process holds the longest run of each section; what comes after it does not exceed them.
        _train(recorder, pace, 1.5 * pace.step_seconds, 0.0, steps=2, chance=chance)
        instruments.refresh()
        reader.collect()
        queue.clear()
    reported.speed = _speed(pace, kind, chance)
    _train(recorder, pace, pace.step_seconds, NOISE, steps=pace.steps_a_report if kind.steps else 0, chance=chance)
    if kind.ended:
        recorder.words[layout.PHASE] = layout.PHASE_SHUT_DOWN
    instruments.refresh()
    reader.collect()
    body = b"".join(queue)
    provider.shutdown()
    return body


def _train(recorder: Recorder, pace: Pace, seconds: float, noise: float, *, steps: int, chance: random.Random) -> None:
    """Write what the hot path would have written in ``steps`` steps of ``seconds``, and within the one that follows."""
    now, words = time.monotonic_ns(), recorder.words
    entered = now - int(0.5e9 * pace.step_seconds)
    for back in range(steps, 0, -1):
        for name, part in SECTIONS.items():
            duration = int(1e9 * seconds * part * chance.gauss(1.0, noise))
            section_id = recorder.ids[name] & ~layout.FIRST_TIME
            start = entered - int(1e9 * back * pace.step_seconds)
            recorder.finished.append((section_id, start, start + duration, recorder.iteration))
            words[layout.FINISHED] += 1
        recorder.iteration += 1
    if not words[layout.FIRST_ITERATION]:
        words[layout.FIRST_ITERATION], words[layout.FIRST_STEP_AT] = 1, entered
    words[layout.ITERATION] = max(1, recorder.iteration)
    words[layout.PROGRESS] = 2
    words[layout.BEATS] += steps
    words[layout.LAST_BEAT] = words[layout.LAST_PROGRESS] = words[layout.LAST_CLOSED] = entered
    for place, name in enumerate((semconv.STEP_SECTION, OPEN_SECTION)):
        words[layout.OPEN + 2 * place + 1] = entered + place
        words[layout.OPEN + 2 * place] = recorder.ids[name] & ~layout.FIRST_TIME


def _speed(pace: Pace, kind: Kind, chance: random.Random) -> Speed:
    if not kind.window:
        return Speed()
    step = pace.step_seconds
    runs = {name: SectionDurations() for name in SECTIONS}
    for name, part in SECTIONS.items():
        for _ in range(pace.stride):
            runs[name].add(int(1e9 * step * part * chance.gauss(1.0, NOISE)))
    window = Window(pace.stride, pace.stride, {name: each.statistics() for name, each in runs.items()})
    parts = {Part.DATA: 0.04 * step, Part.HOST: 0.06 * step, Part.COMPUTE: 0.6 * step, Part.COMMUNICATION: 0.3 * step}
    collectives = {group: CollectiveWindow(48, 0.1 * step, 0.06 * step, 1e-4) for group in GROUPS}
    kernels = {}
    if kind.kernels:
        called = [
            f"sm90_xmma_gemm_bf16bf16_bf16f32_tn_n_tile128x128x64_{i:02d} 132x1x1" for i in range(KERNELS_REPORTED)
        ]
        kernels = {name: KernelStatistics(64, 1e-3, 1.1e-3, 1e-3, 9e-4, 1.2e-3, 5e-5) for name in called}
    operation = OperationWindow(48, 0.1 * step, 1e-4, 48 << 20, 1 << 20, 7 << 18)
    operations = {series("all_reduce", group): operation for group in GROUPS}
    return Speed(window, parts, collectives, operations, (0.3 * step, 1e-3), kernels, (CUPTI, ""), _devices())


def _devices() -> Mapping[Metric, Points]:
    return {
        semconv.GPU_UTILIZATION: [(0.97, {})],
        semconv.GPU_MEMORY_USAGE: [(6.8e10, {})],
        semconv.GPU_MEMORY_LIMIT: [(8.5e10, {})],
        semconv.GPU_TEMPERATURE: [(61.0, {})],
        semconv.GPU_POWER: [(640.0, {})],
        semconv.GPU_POWER_LIMIT: [(700.0, {})],
        semconv.GPU_CLOCK: [(1.7e9, {})],
        semconv.GPU_CLOCK_LIMIT: [(1.98e9, {})],
        semconv.GPU_ERRORS: [
            (0.0, {semconv.ATTR_REASON: reason}) for reason in ("ecc_uncorrected", "ecc_corrected", "xid")
        ],
    }
