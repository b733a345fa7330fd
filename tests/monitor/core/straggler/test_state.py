"""The columns of windows and kernels: who is in them, what outlives an attempt, and that nothing grows for ever."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch_monitor.core.events import KernelStatistics, RankIdentity, RankReport, SectionWindow, WindowReport
from rankwatch_monitor.core.straggler.state import LEAST_DEVICES, MAX_KERNELS, Performance
from support.windows import Ranks


def identity(rank: int, device: str = "", attempt: int = 1) -> RankIdentity:
    return RankIdentity("job", rank, host="host", local_rank=rank, attempt=attempt, device=device or f"GPU-{rank}")


def kernels(**medians: float) -> dict[str, KernelStatistics]:
    return {name: KernelStatistics(10, each, each, each, each, each, 0.0) for name, each in medians.items()}


def window(steps: int = 64, **sections: float) -> WindowReport:
    told = {name: SectionWindow(steps, each, each, each, each) for name, each in sections.items()}
    return WindowReport(64, steps, told)


def test_the_best_is_the_devices_whichever_rank_runs_on_it() -> None:
    known = Performance()
    known.take(RankReport(identity(0, "GPU-a"), kernels=kernels(gemm=1.0)), 0.0)
    known.take(RankReport(identity(1, "GPU-b"), kernels=kernels(gemm=2.0)), 0.0)
    known.keep_best_kernels()
    known.begin_attempt()
    known.take(RankReport(identity(0, "GPU-b", 2), kernels=kernels(gemm=4.0)), 1.0)
    known.take(RankReport(identity(1, "GPU-a", 2), kernels=kernels(gemm=4.0)), 1.0)
    best_RK = known.best_kernels_of_ranks()
    assert best_RK[:2, 0] == pytest.approx([2.0, 1.0])


def test_collectives_are_no_kernels_of_a_device() -> None:
    known = Performance()
    known.take(RankReport(identity(0), kernels=kernels(gemm=1.0, ncclDevKernel_AllReduce=9.0)), 0.0)
    assert known.kernels.names == ["gemm"]


def test_a_new_report_replaces_the_one_before() -> None:
    known = Performance()
    known.take(RankReport(identity(0), kernels=kernels(gemm=1.0, relu=1.0)), 0.0)
    known.take(RankReport(identity(0), kernels=kernels(gemm=2.0)), 1.0)
    assert known.kernels["median"][0] == pytest.approx([2.0, np.nan], nan_ok=True)


def test_names_and_devices_are_bounded() -> None:
    known = Performance()
    for number in range(MAX_KERNELS + 10):
        known.take(RankReport(identity(0), kernels=kernels(**{f"kernel{number}": 1.0})), 0.0)
    assert len(known.kernels.names) == MAX_KERNELS
    assert known.kernels.refused == 10
    for number in range(4 * LEAST_DEVICES):
        known.take(RankReport(identity(number % 4, f"GPU-{number}"), window=window(step=1.0 + number)), 0.0)
    assert len(known.devices) <= LEAST_DEVICES
    best_RS = known.best_sections_of_ranks()
    last = 4 * LEAST_DEVICES - 4
    assert best_RS[:4, 0] == pytest.approx([1.0 + last + rank for rank in range(4)])


def test_ranks_that_agree_on_the_stride_are_left_alone_and_others_are_told() -> None:
    agreed = Ranks(4).run(5)
    assert agreed.job.performance.stride is None
    known = Performance()
    known.judged = 3
    for rank, steps in enumerate((256, 512, 256)):
        known.take(RankReport(identity(rank), window=window(steps, step=1.0)), 0.0)
    fresh_R = np.ones(3, dtype=np.bool_)
    known.settle_stride(0, fresh_R)
    assert known.stride == 512
    known.settle_stride(100, fresh_R)  # a person has set it
    assert known.stride is None


def test_one_that_rests_lets_kernels_go_and_takes_them_again_as_before() -> None:
    performance = Performance()
    for rank in range(3):
        performance.take(RankReport(identity(rank), window=window(step=1.0), kernels=kernels(gemm=0.1, add=0.2)), 1.0)
    history, sections = performance.history, performance.sections["median"].copy()
    performance.rest()
    assert performance.history is history
    assert performance.kernels["median"].shape == (len(performance.steps_R), 0)
    assert np.array_equal(performance.sections["median"], sections, equal_nan=True)
    assert not performance.kernels_changed
    performance.take(RankReport(identity(1), kernels=kernels(add=0.3)), 2.0)
    assert performance.kernels.names == ["add"]
    assert performance.kernels["median"][1].tolist() == pytest.approx([0.3])
    assert np.isnan(performance.kernels["median"][0]).all()
