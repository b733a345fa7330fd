"""Windows: what is read of them, what falls back, what is turned away, and that none is taken twice."""

from __future__ import annotations

from math import inf, nan

import pytest

from monitor.ingest.decoding import Ingest
from monitor.ingest.otlp_requests import (
    NOW_NS,
    RANK_3,
    SECOND,
    WINDOW,
    Fill,
    collective,
    counter,
    gauge,
    operation,
    request_of,
    section,
)
from rankwatch.contract.statistics import CollectiveWindow, OperationWindow, SectionWindow
from rankwatch_monitor.core.events import RankReport, WindowReport


def closed_by(step: int, time_ns: int = NOW_NS) -> list[Fill]:
    return [gauge(f"{WINDOW}.iteration", step, time_ns), *section("step", 8, median=1.0, time_ns=time_ns)]


def parts(**seconds: float) -> list[Fill]:
    return [gauge("rankwatch.step.part", value, part=part) for part, value in seconds.items()]


def rejected(ingest: Ingest, *fills: Fill) -> tuple[RankReport, str]:
    decoded = ingest(request_of(RANK_3, *fills))
    return decoded.reports[0], decoded.rejections.message()


def test_a_whole_window(ingest: Ingest) -> None:
    report = ingest.one(
        gauge(f"{WINDOW}.iteration", 64),
        gauge(f"{WINDOW}.steps", 16),
        *section("step", 16, median=0.5, tail=0.75, max=1.0, mean=0.625),
        *section("backward", 32, median=0.25, tail=0.25, max=0.25, mean=0.25),
        *parts(data=0.125, host=0.0625, compute=0.25, communication=0.0625),
        *collective("dp", 12, busy=0.125, exposed=0.0625, shortest=0.001),
        *collective("tp", 3, busy=0.0, exposed=0.0, shortest=0.0),
        gauge("rankwatch.cpu.time", 0.4, statistic="used"),
        gauge("rankwatch.cpu.time", 0.0, statistic="waited"),
    )
    assert report.window == WindowReport(
        64,
        16,
        {"step": SectionWindow(16, 0.5, 0.75, 1.0, 0.625), "backward": SectionWindow(32, 0.25, 0.25, 0.25, 0.25)},
        {"data": 0.125, "host": 0.0625, "compute": 0.25, "communication": 0.0625},
        {"dp": CollectiveWindow(12, 0.125, 0.0625, 0.001), "tp": CollectiveWindow(3, 0.0, 0.0, 0.0)},
        0.0,
    )


def test_a_report_without_a_window_has_none(ingest: Ingest) -> None:
    assert ingest.one(gauge("rankwatch.iteration", 64)).window is None
    assert ingest.one(gauge(f"{WINDOW}.steps", None)).window is None, "a series that has ended"


def test_a_job_that_counts_no_steps_has_windows_too(ingest: Ingest) -> None:
    window = ingest.one(*section("load", 3, median=0.5)).window
    assert window == WindowReport(None, 0, {"load": SectionWindow(3, 0.5, 0.5, 0.5, 0.5)})


@pytest.mark.parametrize(
    ("reported", "read"),
    [
        ({"median": 2.0}, (2.0, 2.0, 2.0, 2.0)),
        ({"median": 2.0, "mean": 3.0}, (2.0, 3.0, 3.0, 3.0)),
        ({"median": 2.0, "mean": 1.0}, (2.0, 2.0, 2.0, 1.0)),
        ({"median": 2.0, "tail": 4.0}, (2.0, 4.0, 4.0, 2.0)),
        ({"median": 2.0, "max": 5.0}, (2.0, 2.0, 5.0, 2.0)),
    ],
)
def test_what_is_missing_falls_back_to_what_is_known(
    ingest: Ingest, reported: dict[str, float], read: tuple[float, ...]
) -> None:
    window = ingest.one(*section("step", 7, **reported)).window
    assert window is not None
    assert window.sections == {"step": SectionWindow(7, *read)}


def test_where_nothing_is_reported_no_computation_covers_a_collective(ingest: Ingest) -> None:
    window = ingest.one(*collective("dp", 2, busy=0.5), *collective("tp", 2, busy=0.25, exposed=0.2500001)).window
    assert window is not None
    assert window.collectives == {"dp": CollectiveWindow(2, 0.5, 0.5, 0.0), "tp": CollectiveWindow(2, 0.25, 0.25, 0.0)}


def test_the_collectives_of_an_operation_have_seconds_and_bytes(ingest: Ingest) -> None:
    sizes = {"bytes": 3000, "largest": 2000, "bus": 1500}
    window = ingest.one(
        *operation("all_reduce dp (3)", 2, total=0.5, shortest=0.1, sizes=sizes),
        *operation("barrier dp (3)", 1, total=0.25, sizes={}),
    ).window
    assert window is not None
    assert window.operations == {
        "all_reduce dp (3)": OperationWindow(2, 0.5, 0.1, 3000, 2000, 1500),
        "barrier dp (3)": OperationWindow(1, 0.25, 0.0, 0, 0, 0),
    }


@pytest.mark.parametrize("size", [-1.0, 0.5, 2.0**53, nan])
def test_a_size_that_is_no_number_of_bytes_is_rejected(ingest: Ingest, size: float) -> None:
    report, _ = rejected(ingest, *operation("all_reduce dp", 2, total=0.5, sizes={"largest": size}))
    assert report.window is not None
    assert report.window.operations["all_reduce dp"].largest == 0
    assert ingest.counters.rejected == {"bad_value": 1}


@pytest.mark.parametrize("fills", [section("odd", 0, median=0.0), collective("odd", 0, busy=0.0)])
def test_what_was_not_called_is_not_spoken_of(ingest: Ingest, fills: list[Fill]) -> None:
    assert ingest.one(*fills).window is None


@pytest.mark.parametrize(
    ("fills", "lacks"),
    [
        (section("odd", None, median=1.0, max=1.0), "section 'odd' has no calls"),
        (section("odd", 2, mean=1.0), "section 'odd' has no median"),
        (collective("odd", None, busy=1.0), "process group 'odd' has no calls"),
        (collective("odd", 5), "process group 'odd' has no busy"),
        (section("odd", 2, median=2.0, max=1.0), "has a median of 2.0 s above its max of 1.0 s"),
    ],
)
def test_what_cannot_be_compared_is_rejected_alone(ingest: Ingest, fills: list[Fill], lacks: str) -> None:
    report, message = rejected(ingest, *closed_by(8), *fills)
    assert lacks in message
    assert ingest.counters.rejected == {"bad_value": len(fills)}
    assert report.window == WindowReport(8, 0, {"step": SectionWindow(8, 1.0, 1.0, 1.0, 1.0)})


@pytest.mark.parametrize("value", [-0.5, nan, inf])
@pytest.mark.parametrize("word", ["tail", "max", "mean"])
def test_a_statistic_that_makes_no_sense_counts_as_missing(ingest: Ingest, word: str, value: float) -> None:
    report, message = rejected(ingest, *section("step", 7, **{"median": 2.0, word: value}))
    assert f"{word} of {value} s" in message
    assert ingest.counters.rejected == {"bad_value": 1}
    assert report.window == WindowReport(sections={"step": SectionWindow(7, 2.0, 2.0, 2.0, 2.0)})


@pytest.mark.parametrize("calls", [-1, nan, inf, 1.5, 2**60])
def test_calls_that_are_no_count(ingest: Ingest, calls: float) -> None:
    report, message = rejected(ingest, *section("step", calls, median=2.0))
    assert "called" in message
    assert "has no calls" in message
    assert report.window is None


@pytest.mark.parametrize("bad", [{"compute": -1.0}, {"compute": nan}, {"waiting": 1.0}])
def test_parts_add_up_so_one_that_cannot_be_read_takes_the_others_with_it(
    ingest: Ingest, bad: dict[str, float]
) -> None:
    report, message = rejected(ingest, *closed_by(8), *parts(data=0.5), *parts(**bad), *parts(host=0.5))
    assert report.window is not None
    assert report.window.parts == {}
    assert report.window.sections, "the rest of the window stays"
    assert sum(ingest.counters.rejected.values()) == 1
    if "waiting" in bad:
        assert "'waiting' is unknown; known are communication, compute, data, host" in message
        assert ingest.counters.rejected == {"bad_name": 1}


def test_an_unknown_statistic_or_none_at_all(ingest: Ingest) -> None:
    unknown, none = {"section": "step", "statistic": "p99"}, {"section": "step"}
    fills = [gauge(f"{WINDOW}.section.duration", 1.0, **attributes) for attributes in (unknown, none)]
    _, message = rejected(ingest, *closed_by(8), *fills)
    assert "rankwatch.statistic 'p99' is unknown; known are max, mean, median, tail" in message
    assert "a point without rankwatch.statistic" in message
    assert ingest.counters.rejected == {"bad_name": 2}


@pytest.mark.parametrize(
    ("name", "reason"), [("", "bad_name"), ("a\nb", "bad_name"), ("n" * 257, "name_too_long"), ("n" * 256, None)]
)
def test_names(ingest: Ingest, name: str, reason: str | None) -> None:
    report, _ = rejected(ingest, *section(name, 3, median=1.0), *collective(name, 3, busy=1.0))
    assert ingest.counters.rejected == ({} if reason is None else {reason: 4})
    assert (report.window is None) is (reason is not None)


def test_sections_and_groups_are_bounded() -> None:
    ingest = Ingest(sections_per_job=2, groups_per_report=1)
    fills = [fill for i in range(4) for fill in (*section(f"s{i}", median=1.0), *collective(f"g{i}", busy=1.0))]
    report, message = rejected(ingest, *fills)
    assert report.window is not None
    assert (list(report.window.sections), list(report.window.collectives)) == (["s0", "s1"], ["g0"])
    assert ingest.counters.rejected == {"too_many_sections": 4, "too_many_groups": 6}
    assert "more than 2 different sections" in message
    assert "more than 1 different process groups" in message


@pytest.mark.parametrize("step", [-1, nan, inf, 2**63, 0.5])
def test_a_window_whose_step_cannot_be_read_is_left_out(ingest: Ingest, step: float) -> None:
    fills = [gauge(f"{WINDOW}.iteration", float(step)), *section("step", 4, median=1.0)]
    assert rejected(ingest, *fills)[0].window is None
    assert ingest.counters.rejected == {"bad_value": 1}


def test_a_window_may_come_as_sums_but_not_as_a_histogram(ingest: Ingest) -> None:
    assert ingest.one(counter(f"{WINDOW}.iteration", 8)).window == WindowReport(8)


class TestRepeats:
    def test_a_request_sent_twice(self, ingest: Ingest) -> None:
        assert ingest.one(*closed_by(8)).window is not None
        again = ingest.one(*closed_by(8), gauge("rankwatch.iteration", 9))
        assert (again.window, again.iteration, ingest.counters.repeats) == (None, 9, 1)
        assert ingest.one(*closed_by(16, NOW_NS + SECOND)).window is not None

    def test_a_late_repeat_of_an_earlier_one(self, ingest: Ingest) -> None:
        for step in (8, 16):
            assert ingest.one(*closed_by(step, NOW_NS + step)).window is not None
        assert ingest.one(*closed_by(8, NOW_NS + 8)).window is None

    def test_a_sender_that_repeats_its_gauges_with_new_times(self, ingest: Ingest) -> None:
        assert ingest.one(*closed_by(8)).window is not None
        assert ingest.one(*closed_by(8, NOW_NS + SECOND)).window is None

    def test_without_steps_the_time_decides(self, ingest: Ingest) -> None:
        taken = [ingest.one(*section("s", median=1.0, time_ns=NOW_NS + i)).window is not None for i in (0, 0, 1)]
        assert taken == [True, False, True]

    def test_a_clock_that_is_set_back_and_steps_that_begin_again(self, ingest: Ingest) -> None:
        for step, time_ns in ((64, NOW_NS), (72, NOW_NS - 3600 * SECOND), (8, NOW_NS)):
            assert ingest.one(*closed_by(step, time_ns)).window is not None

    def test_another_process_of_the_same_rank(self, ingest: Ingest) -> None:
        for pid in (1, 2):
            assert ingest.one(*closed_by(8), attributes=RANK_3 | {"process.pid": pid}).window is not None
