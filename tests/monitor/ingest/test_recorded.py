"""What a real monitor was sent of windows, kernels and devices stands in its recording as it was, and is replayed."""

from __future__ import annotations

from pathlib import Path

from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, SectionWindow
from rankwatch_monitor.core.events import DeviceReading, RankReport, WindowReport
from rankwatch_monitor.replay.cli import replay
from rankwatch_monitor.replay.recording import Recording
from support.monitor_process import Api, running_monitor
from support.otlp import add_kernels, add_window, body, gauge, rank_report

STEP = {"median": 0.5, "tail": 0.75, "max": 1.0, "mean": 0.625}
GEMM = {"min": 0.001, "median": 0.002, "tail": 0.003, "max": 0.004, "mean": 0.0025, "stddev": 0.0005}
PARTS = {"data": 0.1, "host": 0.1, "compute": 0.2, "communication": 0.1}


def sent(rank: int) -> bytes:
    layout = {"dl.data_parallel.rank": rank, "dl.tensor_parallel.rank": 0, "hw.id": f"GPU-{rank}"}
    report = rank_report("job", rank, 2, iteration=64, open_sections={"step": 0.1}, resource=layout)
    add_window(report, 64, sections={"step": STEP}, parts=PARTS, collectives={"dp": {"busy": 0.1, "exposed": 0.05}})
    add_kernels(report, {"gemm": GEMM})
    gauge(report, "rankwatch.cpu.time", 0.25, rankwatch__statistic="waited")
    gauge(report, "hw.gpu.power", 480.0)
    gauge(report, "hw.gpu.throttled", 1, rankwatch__reason="sw_power_cap")
    return body(report)


def test_windows_kernels_and_devices_survive(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.zst"
    with running_monitor(tmp_path, "--record", str(path)) as monitor, Api(monitor.url) as api:
        for rank in (0, 1, 1):  # the last one twice, as after an answer that was lost
            answer = api.export(sent(rank))
            assert (answer.status_code, answer.content) == (200, b""), "all was taken"
        monitor.process.terminate()
        assert monitor.process.wait(20) == 0
    events = [entry.event for entry in Recording(path) if isinstance(entry.event, RankReport)]
    assert [event.identity.data_parallel for event in events] == [0, 1, 1]
    assert [event.window is None for event in events] == [False, False, True]
    assert events[0].window == WindowReport(
        64,
        8,
        {"step": SectionWindow(8, 0.5, 0.75, 1.0, 0.625)},
        PARTS,
        {"dp": CollectiveWindow(8, 0.1, 0.05, 0.0)},
        0.25,
    )
    assert events[1].kernels == {"gemm": KernelStatistics(100, 0.002, 0.003, 0.0025, 0.001, 0.004, 0.0005)}
    assert events[1].kernel_source == "cupti"
    assert events[1].device == DeviceReading(power=480.0, throttled=("sw_power_cap",))
    assert replay([str(path), "--json"]) == 0
