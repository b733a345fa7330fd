"""Columns of windows and kernels: what they hold, what outlives an attempt, and that all of it is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.contract.policy import Policy
from rankwatch.contract.statistics import KernelStatistics, SectionWindow
from rankwatch_monitor.core.events import (
    DeviceReading,
    RankIdentity,
    RankReport,
    WindowReport,
)
from rankwatch_monitor.core.straggler.best_medians import MAX_KERNELS, MAX_SECTIONS
from rankwatch_monitor.core.straggler.state import MIN_DEVICES, MIN_HOSTS, Performance
from support.windows import Ranks


def identity(rank: int, device: str = "", attempt: int = 1) -> RankIdentity:
    return RankIdentity("job", rank, host="host", local_rank=rank, attempt=attempt, device=device or f"GPU-{rank}")


def kernels(**medians: float) -> dict[str, KernelStatistics]:
    return {name: KernelStatistics(10, each, each, each, each, each, 0.0) for name, each in medians.items()}


def window(steps: int = 64, **sections: float) -> WindowReport:
    rows = {name: SectionWindow(steps, each, each, each, each) for name, each in sections.items()}
    return WindowReport(64, steps, rows)


def keep_best_kernels(known: Performance) -> None:
    """Kernel medians count for the devices' best once their scores are requested."""
    request = known.score(known.close_window(2, 1.0, 0.05), Policy())
    assert request is not None


def test_the_best_medians_follow_the_device_not_the_rank() -> None:
    known = Performance()
    known.take(RankReport(identity(0, "GPU-a"), kernels=kernels(gemm=1.0)), 0.0)
    known.take(RankReport(identity(1, "GPU-b"), kernels=kernels(gemm=2.0), window=window(step=1.0)), 0.0)
    keep_best_kernels(known)
    known.begin_attempt()
    known.take(RankReport(identity(0, "GPU-b", 2), kernels=kernels(gemm=4.0)), 1.0)
    known.take(RankReport(identity(1, "GPU-a", 2), kernels=kernels(gemm=4.0)), 1.0)
    best_RK = known.best.of_ranks(known.best.kernels, known.kernels.names, known.device_R)
    assert best_RK[:2, 0] == pytest.approx([2.0, 1.0])


def test_a_sample_has_the_devices_as_they_are_now() -> None:
    known = Performance()
    for at, clock, reasons in ((0.0, 1.2e9, ("hw_slowdown", "sw_power_cap")), (1.0, 1.8e9, ("sw_power_cap",))):
        for rank in range(2):
            reading = DeviceReading(clock=clock, throttled=() if rank else reasons)
            known.take(RankReport(identity(rank), window=window(step=1.0), device=reading), at)
        known.add_sample(known.close_window(2, at, 0.05), Policy(), 1, ["host"] * 2)
    sample = known.history.latest
    assert sample is not None
    assert sample.device is not None
    assert (sample.device.clock, sample.device.temperature) == (1.8e9, None)
    assert sample.device.throttled == {"sw_power_cap": 1}


def test_peers_follow_the_layout_of_the_ranks() -> None:
    known = Performance()
    for stages, groups in ((2, 2), (1, 1)):
        for rank in range(8):
            placed = identity(rank)._replace(pipeline_parallel=rank % stages)
            known.take(RankReport(placed, window=window(step=1.0)), 0.0)
        assert len(set(known.close_window(8, 1.0, 0.05).group_R.tolist())) == groups


def test_collectives_do_not_count_as_kernels() -> None:
    known = Performance()
    known.take(RankReport(identity(0), kernels=kernels(gemm=1.0, ncclDevKernel_AllReduce=9.0)), 0.0)
    assert known.kernels.names == ["gemm"]


def test_a_new_report_replaces_the_one_before() -> None:
    known = Performance()
    known.take(RankReport(identity(0), kernels=kernels(gemm=1.0, relu=1.0)), 0.0)
    known.take(RankReport(identity(0), kernels=kernels(gemm=2.0)), 1.0)
    assert known.kernels["median"][0] == pytest.approx([2.0, np.nan], nan_ok=True)


def test_statistics_stay_with_their_names_whatever_order_they_come_in() -> None:
    known = Performance()
    for rank, reported in enumerate(({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, {"b": 2.0}, {"c": 3.0, "a": 1.0})):
        known.take(RankReport(identity(rank), window=window(**reported)), 0.0)
    expected = [[1.0, 2.0, np.nan], [1.0, 2.0, np.nan], [np.nan, 2.0, np.nan], [1.0, np.nan, 3.0]]
    best_RS = known.best.of_ranks(known.best.sections, known.sections.names, known.device_R)
    for found in (known.sections["median"], known.sections["tail"], best_RS):
        assert found[:4].tolist() == [pytest.approx(row, nan_ok=True) for row in expected]


def test_a_name_that_finds_no_room_leaves_the_others_alone() -> None:
    known = Performance()
    full = {f"section{number}": 1.0 for number in range(MAX_SECTIONS)}
    known.take(RankReport(identity(0), window=window(**full)), 0.0)
    known.take(RankReport(identity(0), window=window(more=9.0, section1=2.0)), 1.0)
    assert np.nansum(known.sections["median"][0]) == pytest.approx(2.0)
    assert known.sections["median"][0, 1] == pytest.approx(2.0)


def test_a_rank_of_another_process_is_placed_anew() -> None:
    known = Performance()
    for device, coordinate in (("GPU-a", 1), ("GPU-b", 2), ("GPU-a", 1)):
        process = identity(0, device)._replace(tensor_parallel=coordinate)
        known.take(RankReport(process, window=window(step=1.0)), 0.0)
        assert known.device_of(0) == device
        assert known.layout.tensor_R[0] == coordinate


def test_names_and_devices_are_bounded() -> None:
    known = Performance()
    for number in range(MAX_KERNELS + 10):
        known.take(RankReport(identity(0), kernels=kernels(**{f"kernel{number}": 1.0})), 0.0)
    assert len(known.kernels.names) == MAX_KERNELS
    for number in range(4 * MIN_DEVICES):
        known.take(RankReport(identity(number % 4, f"GPU-{number}"), window=window(step=1.0 + number)), 0.0)
    assert len(known.best.rows) <= MIN_DEVICES
    best_RS = known.best.of_ranks(known.best.sections, known.sections.names, known.device_R)
    last = 4 * MIN_DEVICES - 4
    assert best_RS[:4, 0] == pytest.approx([1.0 + last + rank for rank in range(4)])


def test_hosts_that_a_rank_only_names_are_forgotten() -> None:
    known = Performance()
    for number in range(4 * MIN_HOSTS):
        for rank in range(3):  # the last of them changes its host with each report
            host = f"host-{number}" if rank == 2 else f"kept-{rank}"
            known.take(RankReport(identity(rank)._replace(host=host), window=window(step=1.0)), 0.0)
        known.add_signal(known.close_window(3, float(number), 0.05), 0.05)
        names = list(known.hosts)
        assert [names[node] for node in known.node_R[:3]] == ["kept-0", "kept-1", host]
        assert len(known.hosts) <= MIN_HOSTS
        assert known.node_TH.shape[1] == len(known.hosts)


def test_the_stride_is_set_only_where_ranks_do_not_agree() -> None:
    agreed = Ranks(4).run(5)
    assert agreed.job.performance.stride is None
    known = Performance()
    for rank, steps in enumerate((256, 512, 256)):
        known.take(RankReport(identity(rank), window=window(steps, step=1.0)), 0.0)
    window_of_all = known.close_window(3, 1.0, 0.05)
    for _ in range(2):
        known.finish_window(window_of_all, profiling_interval=0)
    assert known.stride == 512
    known.finish_window(window_of_all, profiling_interval=100)  # set by the policy
    assert known.stride is None


def test_a_compacted_job_drops_kernels_and_accepts_them_again() -> None:
    performance = Performance()
    for rank in range(3):
        performance.take(RankReport(identity(rank), window=window(step=1.0), kernels=kernels(gemm=0.1, add=0.2)), 1.0)
    history, sections = performance.history, performance.sections["median"].copy()
    performance.compact()
    assert performance.history is history
    assert performance.kernels["median"].shape == (len(performance.steps_R), 0)
    assert np.array_equal(performance.sections["median"], sections, equal_nan=True)
    assert performance.score(performance.close_window(3, 1.5, 0.05), Policy()) is None, "no kernels were reported since"
    performance.take(RankReport(identity(1), kernels=kernels(add=0.3)), 2.0)
    assert performance.kernels.names == ["add"]
    assert performance.kernels["median"][1].tolist() == pytest.approx([0.3])
    assert np.isnan(performance.kernels["median"][0]).all()
