"""Jobs as a monitor sees them: windows that fit their speed, kernels, devices, spans; most have a slow rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np

from rankwatch.contract.enums import NodeRole
from rankwatch.contract.messages import NodeObservation
from rankwatch.contract.semconv import CHECKPOINTING_SECTION
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import DeviceReading, RankReport, SectionStatistics
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.lateness import OWN
from rankwatch_monitor.core.views import verdict
from rankwatch_monitor.ingest.traces_decoder import SpanRecord
from rankwatch_monitor.service import trend
from support.windows import COMPUTE, DATA, EVERY, TRANSFER, Fault, Ranks, slower

LOADS: Final = 5
HOT: Final = 21
"""The rank whose input is slow, and the one whose GPU is throttled."""
WORK: Final = (0.002, 0.012, 0.13)
"""Seconds of data, host and computation."""
CALM: Final = (0.01, 0.06, 0.87)
"""The same of the job in which all is well."""
LATE: Final = 0.06
KERNELS_EVERY: Final = 6
SAVES_EVERY: Final = 5
"""Windows."""
TIMED: Final = {
    "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execu~4ed1d424"
    "<<<8,8,1 64,1,1>>>": 1.24e-3,
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, bfloat16_t>, true>"
    "<<<16,2,32 128,1,1>>>": 0.86e-3,
    "Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1><<<4,1,4 128,1,1>>>": 0.41e-3,
    "multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>, plus<floa~2017490a"
    "<<<2,1,1 512,1,1>>>": 0.12e-3,
    "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>><<<320,1,1 512,1,1>>>": 61e-6,
    "reduce_kernel<512, 1, ReduceOp<float, MeanOps<float, float, float, float>, unsigned int, float, 4, 4>>"
    "<<<1,1,1 512,1,1>>>": 14e-6,
    "vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16>, array<char*, 3>><<<8192,1,1 128,1,1>>>": 9e-6,
}
"""Seconds of one call, by the names that CUPTI gives on a GPU."""
STRIDE: Final = 10
SAMPLED: Final = 12
"""Steps of which there are spans."""


def account(job: Job, now: float) -> None:
    """What the service does for a job every second, apart from judging it."""
    goodput_accounting.account(job, now)
    trend.sample(job, verdict.job_state(job, now)[0], now)


def slow_input(job: str, seconds: int) -> Job:
    """A job of 32 ranks in two pipeline stages of which one waits for its data since the middle of its life."""
    return _slow(job, seconds, LOADS, DATA, {}, stages=2)


def throttled(job: str, seconds: int) -> Job:
    """A job of 32 ranks of which one has a GPU with a low clock since the middle of its life."""
    return _slow(job, seconds, HOT, COMPUTE, {HOT: WORK[COMPUTE] / (WORK[COMPUTE] + LATE)})


def healthy(job: str, seconds: int) -> Job:
    """A job of 16 ranks in which all is well, and whose script logs its loss and saves checkpoints."""
    ranks = Ranks(16, per_host=8, work=CALM, launchers=True, paced=True)
    ranks.job.id, ranks.job.name = job, "gpt"
    for window in range(int(seconds / EVERY)):
        _window(ranks)
        loss = 2.1 + 1.6 * 0.97**window + 0.01 * float(ranks.random.standard_normal())
        logged = {"loss": loss, "tokens_per_second": 131_000 + 400 * float(ranks.random.standard_normal())}
        saved = {CHECKPOINTING_SECTION: SectionStatistics(1, 0.1, 0.1, 0.1)} if window % SAVES_EVERY == 0 else {}
        report = RankReport(ranks.identity(0), logged=logged, logged_step=ranks.iteration, finished=saved)
        apply(ranks.job, report, ranks.now)
    return ranks.job


def _slow(job: str, seconds: int, rank: int, part: int, kernels: dict[int, float], stages: int = 1) -> Job:
    ranks = Ranks(32, per_host=8, work=WORK, stages=stages, launchers=True, paced=True)
    ranks.job.id = ranks.job.name = job
    windows = int(seconds / EVERY)
    for window in range(windows):
        slow = window >= windows // 2
        hot = set(kernels) if window >= windows // 2 - 1 else set()
        _window(ranks, slower(rank, part, LATE) if slow else None, hot, kernels if slow else {})
    return ranks.job


def _window(
    ranks: Ranks, fault: Fault | None = None, hot: Collection[int] = (), speed: Mapping[int, float] | None = None
) -> None:
    # The time between two windows: launchers report every second, and steps go on.
    for _ in range(int(EVERY) - 1):
        account(ranks.job, ranks.now)
    ranks.run(1, fault)
    for node in ranks.job.nodes:
        apply(ranks.job, NodeObservation(node, 1, role=NodeRole.ACTIVE), ranks.now)
    _read_devices(ranks, hot)
    if ranks.window % KERNELS_EVERY == 0:
        ranks.kernels(speed or {}, usual=TIMED)
    account(ranks.job, ranks.now)


def _read_devices(ranks: Ranks, hot: Collection[int]) -> None:
    for rank in range(ranks.ranks):
        reading = DeviceReading(
            utilization=0.93,
            memory_used=(61.0 + rank % 5) * 1e9,
            memory_total=80e9,
            temperature=88.0 if rank in hot else 61.0 + rank % 5,
            clock=1.2e9 if rank in hot else 1.98e9,
            clock_limit=1.98e9,
            power=410.0 if rank in hot else 640.0,
            power_limit=700.0,
            throttled=("hw_thermal_slowdown",) if rank in hot else (),
        )
        report = RankReport(ranks.identity(rank), device=reading, kernel_source="cupti")
        apply(ranks.job, report, ranks.now)


def spans(job: Job, rank: int, part: int) -> Iterator[SpanRecord]:
    """The sampled steps of all ranks, as of the last windows: what they do, and in two steps where they wait."""
    assert job.furthest_iteration is not None
    random = np.random.default_rng(1)
    latest = job.furthest_iteration // STRIDE * STRIDE
    own = sum(WORK)
    step = own + LATE + TRANSFER
    now = job.performance.scores.at if job.performance.scores is not None else 0.0
    for back in range(SAMPLED):
        iteration = latest - STRIDE * (SAMPLED - 1 - back)
        began = now - (latest - iteration) * step - step
        for each in range(job.world_size):
            work = np.array(WORK) * (1 + 0.02 * random.standard_normal(3))
            work[part] += LATE if each == rank else 0.0
            profiled = back in (5, SAMPLED - 1)
            if profiled:  # spans and parts are of one measurement
                work = job.performance.parts_RP[each, OWN]
            yield from _step(job, each, iteration, began, work.tolist(), step, profiled=profiled)


def _step(
    job: Job, rank: int, iteration: int, began: float, work: list[float], step: float, *, profiled: bool
) -> Iterator[SpanRecord]:
    data, host, compute = work
    waits = max(TRANSFER, step - sum(work))
    forward, backward = compute / 3, compute * 2 / 3 + waits
    optimizer = host

    def span(section: str, start: float, seconds: float, *, waiting: bool = False) -> SpanRecord:
        begin, end = (int(1e6 * (began + at)) * 1000 for at in (start, start + seconds))
        return SpanRecord(job.id, rank, job.attempt, section, begin, end, iteration, waiting)

    yield span("step", 0.0, data + forward + backward + optimizer)
    yield span("data", 0.0, data)
    yield span("forward", data, forward)
    yield span("backward", data + forward, backward)
    yield span("optimizer", data + forward + backward, optimizer)
    if profiled:
        yield span("", data + forward + backward - waits, waits, waiting=True)
