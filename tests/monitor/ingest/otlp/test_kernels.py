"""Kernel reports: read, bounded, not taken twice; and the source of the timings."""

from __future__ import annotations

from math import inf, nan

import pytest

from monitor.ingest.decoding import Ingest
from monitor.ingest.otlp_requests import NOW_NS, RANK_3, Fill, gauge, kernel, request_of
from rankwatch.contract.statistics import KernelStatistics

GEMM = "ampere_bf16_s16816gemm<128, 256>(grid 64x8x1, block 256x1x1)"
WHOLE = {"min": 1.0, "median": 2.0, "tail": 3.0, "max": 4.0, "mean": 2.5, "stddev": 0.5}


def source(name: str, value: float = 1, time_ns: int = NOW_NS, **more: str) -> Fill:
    return gauge("rankwatch.kernel.source", value, time_ns, source=name, **more)


def test_a_whole_report(ingest: Ingest) -> None:
    report = ingest.one(*kernel(GEMM, 40, **WHOLE), *kernel("relu", 8, median=0.5))
    assert report.kernels == {
        GEMM: KernelStatistics(calls=40, median=2.0, tail=3.0, mean=2.5, min=1.0, max=4.0, stddev=0.5),
        "relu": KernelStatistics(calls=8, median=0.5, tail=0.5, mean=0.5, min=0.5, max=0.5, stddev=0.0),
    }
    assert (report.kernel_source, report.window) == (None, None)


def test_a_report_of_other_things_has_none(ingest: Ingest) -> None:
    assert ingest.one(gauge("rankwatch.iteration", 1)).kernels is None
    assert ingest.one(*kernel("never", 0, median=0.0)).kernels is None


@pytest.mark.parametrize(
    ("fills", "words"),
    [
        (kernel("odd", 4, mean=1.0), "kernel 'odd' has no median"),
        (kernel("odd", None, median=1.0), "kernel 'odd' has no calls"),
        (kernel("odd", 4, median=1.0, max=0.5), "a median of 1.0 s, but a min of 1.0 s and a max of 0.5 s"),
        (kernel("odd", 4, median=1.0, min=2.0), "a median of 1.0 s, but a min of 2.0 s"),
    ],
)
def test_what_cannot_be_scored_is_rejected_alone(ingest: Ingest, fills: list[Fill], words: str) -> None:
    decoded = ingest(request_of(RANK_3, *kernel("good", median=1.0), *fills))
    assert words in decoded.rejections.message()
    assert ingest.counters.rejected == {"bad_value": len(fills)}
    assert decoded.reports[0].kernels is not None
    assert list(decoded.reports[0].kernels) == ["good"]


@pytest.mark.parametrize("value", [-1.0, nan, inf])
@pytest.mark.parametrize("word", sorted(WHOLE))
def test_values_that_make_no_sense(ingest: Ingest, word: str, value: float) -> None:
    decoded = ingest(request_of(RANK_3, *kernel("k", 4, **{**WHOLE, word: value})))
    assert f"{word} of {value} s" in decoded.rejections.message()
    assert set(ingest.counters.rejected) == {"bad_value"}
    assert bool(decoded.reports[0].kernels) is (word != "median")


def test_too_many_kernels_and_too_long_names() -> None:
    ingest = Ingest(kernels_per_report=2, name_length=40)
    fills = [fill for i in range(5) for fill in kernel(f"k{i}", median=1.0)]
    decoded = ingest(request_of(RANK_3, *kernel("k" * 41, median=1.0), *fills))
    assert decoded.reports[0].kernels is not None
    assert list(decoded.reports[0].kernels) == ["k0", "k1"]
    assert ingest.counters.rejected == {"name_too_long": 2, "too_many_kernels": 6}
    assert "more than 2 different kernels" in decoded.rejections.message()


def test_the_same_report_sent_twice(ingest: Ingest) -> None:
    reported = [ingest.one(*kernel("k", median=1.0, time_ns=NOW_NS + i)).kernels is not None for i in (0, 0, 1, 0)]
    assert reported == [True, False, True, True], "of kernels only the last time is known"
    assert ingest.counters.repeats == 1


class TestSource:
    def test_the_one_in_use_and_why_it_is_no_other(self, ingest: Ingest) -> None:
        report = ingest.one(source("kineto-cpu", reason="there is no GPU"))
        assert (report.kernel_source, report.kernel_source_reason) == ("kineto-cpu", "there is no GPU")

    def test_the_newest_that_is_one_counts(self, ingest: Ingest) -> None:
        fills = source("cupti", time_ns=NOW_NS), source("none", time_ns=NOW_NS + 1), source("kineto-cuda", 0)
        report = ingest.one(*fills)
        assert (report.kernel_source, report.kernel_source_reason) == ("none", "")

    def test_a_reason_is_shown_on_one_line_and_not_without_end(self, ingest: Ingest) -> None:
        decoded = ingest(request_of(RANK_3, source("none", reason="first\n  second\x1b[31m" + "." * 500)))
        reason = decoded.reports[0].kernel_source_reason
        assert reason.startswith("first second?[31m...")
        assert len(reason) == 256
        assert ingest.counters.rejected == {"name_too_long": 1}
        assert decoded.rejections.items == 0

    @pytest.mark.parametrize("value", [2, -1, nan])
    def test_neither_yes_nor_no(self, ingest: Ingest, value: float) -> None:
        decoded = ingest(request_of(RANK_3, source("cupti", value)))
        assert decoded.reports[0].kernel_source is None
        assert "wanted 1 for yes" in decoded.rejections.message()
