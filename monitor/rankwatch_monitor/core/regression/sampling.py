"""What a judged window leaves in the job's history: one sample, bounded whatever the number of ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.regression.history import policy_changes, sample_of
from rankwatch_monitor.core.straggler.lateness import COMPUTE
from rankwatch_monitor.core.straggler.signals import Window

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job
    from rankwatch_monitor.core.straggler.state import Performance


def remember(job: Job, window: Window) -> None:
    """Add this window to the job's history, the changes of its policy since the one before included."""
    performance, ranks = job.performance, len(window.fresh_R)
    sections, kernels = performance.sections, performance.kernels
    step_R = window.step_R
    kernel_RK = None
    if performance.kernels_changed:
        with np.errstate(invalid="ignore"):
            share_RK = kernels["spent"][:ranks] / np.nansum(kernels["spent"][:ranks], axis=1)[:, None]
            kernel_RK = share_RK * performance.parts_RP[:ranks, COMPUTE][:, None]
    changes = policy_changes(performance.policy_seen, job.policy) if performance.policy_seen is not None else ()
    performance.policy_seen = job.policy
    clock_R, temperature_R = _device(performance, ranks)
    told_R = window.fresh_R[:, None]
    performance.history.add(
        sample_of(
            at=window.now,
            seconds=performance.interval,
            attempt=job.attempt,
            iteration=window.iteration,
            hosts_R=job.columns.hosts,
            step_R=step_R,
            parts_RP=np.where(told_R, performance.parts_RP[:ranks], np.nan),
            sections=sections.names,
            section_RS=np.where(told_R, sections["median"][:ranks], np.nan),
            calls_RS=sections["calls"][:ranks] / performance.steps_R[:ranks, None],
            kernels=kernels.names if kernel_RK is not None else (),
            kernel_RK=kernel_RK,
            collectives={
                group: (told.exposed, told.shortest)
                for group, told in list(performance.gathering.transfers.items())[:16]
                if told.shortest < np.inf
            },
            clock_R=clock_R,
            temperature_R=temperature_R,
            throttled=Counter(reason for reading in performance.readings.values() for reason in reading.throttled),
            waited_R=performance.cpu_waited_R[:ranks],
            changes=changes,
        )
    )


def _device(performance: Performance, ranks: int) -> tuple[Floats | None, Floats | None]:
    """Clock and temperature of each rank's device; None where no rank tells of one."""
    if not performance.readings:
        return None, None
    clock_R, temperature_R = np.full(ranks, np.nan), np.full(ranks, np.nan)
    for rank, reading in performance.readings.items():
        if rank < ranks:
            clock_R[rank] = np.nan if reading.clock is None else reading.clock
            temperature_R[rank] = np.nan if reading.temperature is None else reading.temperature
    return clock_R, temperature_R
