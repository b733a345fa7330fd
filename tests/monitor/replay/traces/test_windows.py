"""Each step of a table of operations becomes a window, and the core finds in it what the table was made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwatch.contract.enums import Cause, Part, StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.events import RankReport, WindowReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import NO_HANG_DETECTION, play_windows
from rankwatch_monitor.replay.summary import Summary, summarize
from rankwatch_monitor.replay.traces import windows as optable
from rankwatch_monitor.replay.traces.parts import Kind
from rankwatch_monitor.replay.traces.read import TableError
from rankwatch_monitor.replay.traces.table import OperationTable
from rankwatch_monitor.replay.traces.windows import kind_of
from support.pipeline_trace import Slow, Trace, write

HEAD = ("rank", "step", "optype", "start_ts", "duration")
UNIDENTIFIED: tuple[int, ...] = ()


def read(
    tmp_path: Path, *rows: tuple[Any, ...], heads: tuple[str, ...] = HEAD, unit: str | None = "s"
) -> OperationTable:
    return optable.read(write(tmp_path / "t.csv", [dict(zip(heads, row, strict=True)) for row in rows]), unit)


def windows(table: OperationTable) -> dict[tuple[int, int], WindowReport]:
    """By step and rank."""
    return {(r.iteration or 0, r.identity.rank): w for r in reports(table) if (w := r.window) is not None}


def reports(table: OperationTable) -> list[RankReport]:
    return [report for _, some in optable.windows(table) for report in some]


def judged(tmp_path: Path, trace: Trace) -> Summary:
    table = optable.read(write(tmp_path / "t.csv", trace.rows()))
    job = Job("t", optable.START, policy=Policy().changed(NO_HANG_DETECTION))
    for _ in play_windows(optable.windows(table), job):
        pass
    return summarize(job.performance)


# Windows --------------------------------------------------------------------------------------------------------------


def test_parts_add_up_to_the_step(tmp_path: Path) -> None:
    reported = windows(
        read(
            tmp_path,
            (0, 7, "data-load", 0.0, 1.0),
            (0, 7, "forward-compute", 1.5, 2.0),  # half a second of nothing before it
            (0, 7, "grads-all_reduce", 3.0, 3.0),  # half a second of it under the computation
            (0, 7, "optimizer", 6.0, 1.0),
        )
    )
    assert reported[7, 0].parts == pytest.approx(
        {Part.DATA: 1.0, Part.HOST: 0.5, Part.COMPUTE: 3.0, Part.COMMUNICATION: 2.5}
    )
    assert reported[7, 0].sections["step"].median == pytest.approx(7.0)
    group = reported[7, 0].collectives["grads-all_reduce"]
    assert (group.calls, group.busy, group.exposed) == pytest.approx((1, 3.0, 2.5))


def test_operations_that_overlap_count_once(tmp_path: Path) -> None:
    reported = windows(
        read(
            tmp_path,
            (0, 0, "a-compute", 0.0, 4.0),
            (0, 0, "b-compute", 1.0, 1.0),
            (0, 0, "c-compute", 3.0, 2.0),
            (0, 0, "nccl_all_gather", 1.0, 3.0),
        )
    )
    assert reported[0, 0].parts == pytest.approx(
        {Part.DATA: 0, Part.HOST: 0, Part.COMPUTE: 5.0, Part.COMMUNICATION: 0}, abs=1e-9
    )


def test_time_between_steps_that_follow_each_other_is_the_host_s(tmp_path: Path) -> None:
    rows = [(r, s, "forward-compute", 2.0 * s + 0.1 * r, 1.0) for r in (0, 1) for s in (0, 1, 5)]
    rows += [(r, s, "grads-sync", 2.0 * s + 1.0 + 0.1 * r, 0.5 - 0.1 * r) for r in (0, 1) for s in (0, 1, 5)]
    reported = windows(read(tmp_path, *rows))
    assert reported[0, 1].parts[Part.HOST] == pytest.approx(0)
    assert reported[1, 1].parts[Part.HOST] == pytest.approx(0.6)
    assert reported[5, 1].parts[Part.HOST] == pytest.approx(0), "steps 2 to 4 are not in the table"


@pytest.mark.parametrize("waits", ["inside", "gaps"])
def test_waiting_is_found_wherever_a_table_has_it(tmp_path: Path, waits: Any) -> None:
    """The rank that is waited for communicates least; nothing of it is taken for the host's."""
    trace = Trace("worker", 0.5, steps=3, noise=0.0, waits=waits)
    reported = windows(optable.read(write(tmp_path / "t.csv", trace.rows())))
    for step in range(3):
        of_rank = {rank: reported[step, rank].parts for rank in range(16)}
        least = min(of_rank, key=lambda rank: of_rank[rank][Part.COMMUNICATION])
        assert least == trace.victim_rank
        assert all(parts[Part.HOST] < 1e-6 for parts in of_rank.values())


def test_without_communication_on_record_gaps_are_waiting(tmp_path: Path) -> None:
    reported = windows(read(tmp_path, (0, 0, "forward", 0.0, 1.0), (0, 0, "backward", 3.0, 1.0)))
    assert reported[0, 0].parts[Part.COMMUNICATION] == pytest.approx(2.0)


def test_kernels_are_reported_by_kind_and_stage(tmp_path: Path) -> None:
    heads = (*HEAD, "stage", "dp_rank", "host")
    rows = [(3, 0, "forward-compute", float(i), 0.1 * (i + 1), 2, 1, "node-a") for i in range(4)]
    (report,) = reports(read(tmp_path, *rows, heads=heads))
    assert report.kernels is not None
    kernel = report.kernels["forward-compute/stage2"]
    assert (kernel.calls, kernel.median, kernel.tail, kernel.mean) == pytest.approx((4, 0.25, 0.35, 0.25))
    assert (kernel.min, kernel.max) == pytest.approx((0.1, 0.4))
    identity = report.identity
    assert (identity.rank, identity.pipeline_parallel, identity.data_parallel, identity.host) == (3, 2, 1, "node-a")


def test_groups_are_those_that_end_together(tmp_path: Path) -> None:
    table = optable.read(write(tmp_path / "t.csv", Trace(steps=4).rows()))
    assert reports(table)
    for report in reports(table):
        stage, replica = report.identity.pipeline_parallel, report.identity.data_parallel
        assert report.window is not None
        neighbours = {f"send-recv/stage{s}-{s + 1}/dp{replica}" for s in (stage - 1, stage) if 0 <= s < 3}
        alone, all_ranks = f"grads-reduce-scatter/stage{stage}", "optimizer-clip-main-grad"
        assert set(report.window.collectives) == {*neighbours, alone, all_ranks}


def test_a_transfer_is_reported_without_its_waiting(tmp_path: Path) -> None:
    trace = Trace("worker", 1.0, steps=4, noise=0.0)
    table = optable.read(write(tmp_path / "t.csv", trace.rows()))
    for report in reports(table):
        assert report.window is not None
        for group, reported in report.window.collectives.items():
            if group.startswith("send-recv"):
                assert reported.shortest <= trace.transfer * 1.11


def test_ranks_may_be_missing_from_steps(tmp_path: Path) -> None:
    rows = [row for row in Trace(steps=6).rows() if (row["step"], row["rank"]) not in {(2, 5), (3, 5), (4, 0)}]
    table = optable.read(write(tmp_path / "t.csv", rows))
    assert len(windows(table)) == 6 * 16 - 3
    job = Job("t", optable.START, policy=Policy().changed(NO_HANG_DETECTION))
    times = list(play_windows(optable.windows(table), job))
    assert times == sorted(times)
    assert summarize(job.performance).verdict is StragglerVerdict.HEALTHY


# Units and names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
@pytest.mark.parametrize("epoch", [0.0, 1.7e9])
def test_units_are_distinguished(tmp_path: Path, unit: str, scale: float, epoch: float) -> None:
    rows = [{**row, "start_ts": row["start_ts"] + epoch} for row in Trace(steps=3).rows()]
    table = optable.read(write(tmp_path / "t.csv", rows, scale))
    assert table.notes[0].startswith(f"times are taken as {unit}:")
    seconds = [w.sections["step"].median for w in windows(table).values()]
    assert 0.4 < sum(seconds) / len(seconds) < 1.2


def test_whole_numbers_are_no_seconds(tmp_path: Path) -> None:
    table = read(tmp_path, (0, 0, "forward", 0, 30), (0, 0, "backward", 30, 60), unit=None)
    assert table.notes[0].startswith("times are taken as ms:")


def test_an_operator_s_unit_counts(tmp_path: Path) -> None:
    table = read(tmp_path, (0, 0, "forward", 0, 30), unit="s")
    assert float(table.duration_N[0]) == 30
    with pytest.raises(TableError, match="--time-unit is one of s, ms, us, ns"):
        read(tmp_path, (0, 0, "forward", 0, 30), unit="minutes")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Kind.COMPUTE, "forward-compute backward-compute optimizer void_gemm_kernel reduce_kernel"),
        (
            Kind.COMMUNICATION,
            "forward-send backward-recv params-sync grads-sync all_reduce reduce_scatter params-all-gather "
            "ncclDevKernel_AllReduce_Sum all_to_all broadcast barrier optimizer-clip-main-grad",
        ),
        (Kind.DATA, "data dataloader data-load input fetch batch-generator"),
        (Kind.HOST, "gc"),
    ],
)
def test_names_identify_the_operation(kind: Kind, names: str) -> None:
    assert {name: kind_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_what_a_name_leaves_open_is_reported(tmp_path: Path) -> None:
    table = read(tmp_path, (0, 0, "frobnicate", 0.0, 1.0), (0, 0, "forward", 1.0, 1.0))
    assert table.notes[1] == "taken for computation, as their names are unknown: frobnicate"
    assert windows(table)[0, 0].parts[Part.COMPUTE] == pytest.approx(2.0)


# Verdicts -------------------------------------------------------------------------------------------------------------

SHAPES = {
    "16 ranks": Trace(),
    "waiting in gaps": Trace(waits="gaps"),
    "single steps of a long run": Trace(every=20, restart_clock=True, tensor=4),
    "two replicas": Trace(replicas=2),
    "10 steps": Trace(steps=10),
    "64 ranks": Trace(replicas=32, stages=2, microbatches=4, steps=20, victim=(7, 1)),
}


CLASSES: list[tuple[Slow, float, StragglerVerdict, Cause]] = [
    ("none", 0.0, StragglerVerdict.HEALTHY, Cause.UNEXPLAINED),
    ("worker", 0.12, StragglerVerdict.WORKER, Cause.COMPUTE),
    ("stage", 0.12, StragglerVerdict.STAGE, Cause.COMPUTE),
    ("worker", 1.0, StragglerVerdict.WORKER, Cause.COMPUTE),
    ("host", 0.12, StragglerVerdict.WORKER, Cause.HOST),
    ("input", 0.12, StragglerVerdict.WORKER, Cause.DATA),
    ("stage", 0.6, StragglerVerdict.STAGE, Cause.COMPUTE),
]
EVERY_CLASS = ("16 ranks", "waiting in gaps")
"""The shapes in which time is accounted for in different ways; in the others three classes are enough."""


@pytest.mark.parametrize(
    ("shape", "slow", "dose", "verdict", "cause"),
    [(shape, *each) for shape in SHAPES for each in (CLASSES if shape in EVERY_CLASS else CLASSES[:3])],
)
def test_each_class_is_distinguished_from_the_others(
    tmp_path: Path, shape: str, slow: Slow, dose: float, verdict: StragglerVerdict, cause: Cause
) -> None:
    trace = replace(SHAPES[shape], slow=slow, dose=dose)
    reported = judged(tmp_path, trace)
    assert (reported.verdict, reported.cause) == (verdict, cause), reported.reason
    blamed = (trace.victim_rank,) if verdict is StragglerVerdict.WORKER else UNIDENTIFIED
    assert tuple(s.rank for s in reported.stragglers) == blamed


@pytest.mark.parametrize(("replicas", "stages", "microbatches"), [(4, 4, 8), (2, 2, 8), (4, 1, 8), (32, 1, 1)])
def test_long_sequences_are_the_workload_s(tmp_path: Path, replicas: int, stages: int, microbatches: int) -> None:
    trace = Trace("workload", 0.8, replicas, stages, microbatches)
    reported = judged(tmp_path, trace)
    assert (reported.verdict, reported.stragglers) == (StragglerVerdict.WORKLOAD, ()), reported.reason


@pytest.mark.parametrize("waits", ["inside", "gaps"])
@pytest.mark.parametrize("slow", ["link", "pair"])
@pytest.mark.parametrize("dose", [0.12, 0.6])
def test_a_slow_link_blames_no_rank(tmp_path: Path, slow: Slow, dose: float, waits: Any) -> None:
    reported = judged(tmp_path, Trace(slow, dose, waits=waits))
    assert (reported.verdict, reported.stragglers) == (StragglerVerdict.LINK, ()), reported.reason
    assert ("stage2-3/dp1" if slow == "pair" else "reduce-scatter/stage2") in reported.reason


@pytest.mark.parametrize("during", [(0.0, 0.6), (0.2, 0.8), (0.6, 1.0)])
def test_a_straggler_counts_that_was_there_for_long(tmp_path: Path, during: tuple[float, float]) -> None:
    trace = Trace("worker", 0.3, during=during)
    assert [s.rank for s in judged(tmp_path, trace).stragglers] == [trace.victim_rank]


def test_a_straggler_that_was_there_briefly_does_not(tmp_path: Path) -> None:
    reported = judged(tmp_path, Trace("worker", 0.3, during=(0.1, 0.35)))
    assert (reported.verdict, reported.stragglers) == (StragglerVerdict.HEALTHY, ())
    assert "worker" in reported.reason


def test_a_whole_table_is_certain(tmp_path: Path) -> None:
    assert optable.read(write(tmp_path / "t.csv", Trace(steps=3).rows())).certainty == 1.0


def test_columns_beyond_the_needed_ones_may_be_absent(tmp_path: Path) -> None:
    trace = Trace("worker", 0.3, stages=1, victim=(2, 0))
    rows = [{name: row[name] for name in HEAD} for row in trace.rows()]
    table = optable.read(write(tmp_path / "t.csv", rows))
    job = Job("t", optable.START, policy=Policy().changed(NO_HANG_DETECTION))
    for _ in play_windows(optable.windows(table), job):
        pass
    assert [s.rank for s in summarize(job.performance).stragglers] == [2]


def test_missing_rows_are_stated_and_blame_neither_a_link_nor_a_host(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [row for row in Trace(replicas=2).rows() if random.random() > 0.1]
    table = optable.read(write(tmp_path / "t.csv", rows))
    assert any("missing" in note for note in table.notes)
    assert 0.0 < table.certainty < 0.6, "a tenth of its rows is missing, so in most steps something is"
    job = Job("t", optable.START, policy=Policy().changed(NO_HANG_DETECTION))
    for _ in play_windows(optable.windows(table), job):
        pass
    assert summarize(job.performance).verdict is StragglerVerdict.HEALTHY
