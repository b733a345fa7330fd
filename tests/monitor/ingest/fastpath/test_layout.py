"""The fast way to read a request gives what the full decoder gives, on any bytes: reports, words, counts, memory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monitor.ingest.otlp_requests import (
    DELTA,
    NOW_NS,
    RANK_3,
    Fill,
    add_resource,
    collective,
    counter,
    gauge,
    histogram,
    kernel,
    operation,
    request_of,
    section,
)
from rankwatch.contract import semconv
from rankwatch.contract.statistics import OperationWindow
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.fastpath import layout as layouts
from rankwatch_monitor.ingest.fastpath.columns import FULL_DECODER, READ
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.metrics_decoder import READERS, MetricsDecoder
from rankwatch_monitor.ingest.rejection import Refusal

SECONDS = {"median": 0.5, "tail": 0.7, "max": 0.9, "mean": 0.6}
KERNEL = {**SECONDS, "min": 0.4, "stddev": 0.1}


def fills(value: float = 0.5, whole: int = 7, time_ns: int = NOW_NS) -> list[Fill]:
    """Everything that a rank can tell in one report but the histogram."""
    made: list[Fill] = [
        gauge(metric.name, whole if metric.unit.startswith("{") else value, time_ns)
        for metric in (
            semconv.HEARTBEATS,
            semconv.ITERATION,
            semconv.PROGRESS,
            semconv.HEARTBEAT_AGE,
            semconv.PROGRESS_AGE,
        )
    ]
    for metric in (semconv.SECTION_OPEN_DURATION, semconv.SECTION_LONGEST, semconv.SECTION_FIRST_DURATION):
        made += [gauge(metric.name, value, time_ns, section=name) for name in ("step", "forward")]
    made += [gauge(semconv.SECTION_FIRST.name, 1, time_ns, section="forward"), counter("rankwatch.heartbeats", whole)][
        :1
    ]
    made += [counter(semconv.TELEMETRY_DROPPED.name, whole, time_ns=time_ns, reason="ring_full")]
    made += [gauge(semconv.WINDOW_ITERATION.name, whole, time_ns), gauge(semconv.WINDOW_STEPS.name, 8, time_ns)]
    made += [*section("step", 8, time_ns=time_ns, **SECONDS), *section("forward", 8, time_ns=time_ns, **SECONDS)]
    made += collective("dp", 4, time_ns=time_ns, busy=value, exposed=0.25, shortest=0.1)
    sizes = {"bytes": whole, "largest": whole, "bus": whole}
    made += operation("all_reduce dp", 4, time_ns=time_ns, total=value, shortest=0.1, sizes=sizes)
    made += [gauge(semconv.STEP_PART.name, value, time_ns, part=part) for part in ("data", "host")]
    made += [gauge(semconv.CPU_TIME.name, value, time_ns, statistic=word) for word in ("used", "waited")]
    made += [*kernel("gemm", 64, time_ns=time_ns, **KERNEL), *kernel("copy", 2, time_ns=time_ns, **KERNEL)]
    made += [gauge(semconv.KERNEL_SOURCE.name, 1, time_ns, source="cupti", reason="")]
    made += [gauge(metric.name, value, time_ns) for metric in semconv.DEVICE_METRICS[:-2]]
    made += [gauge(semconv.GPU_THROTTLED.name, 1, time_ns, reason="thermal")]
    made += [gauge(semconv.GPU_ERRORS.name, whole, time_ns, reason=reason) for reason in ("xid", "ecc_corrected")]
    return made


def body(value: float = 0.5, whole: int = 7, time_ns: int = NOW_NS, *more: Fill) -> bytes:
    return request_of(RANK_3, *fills(value, whole, time_ns), *more).SerializeToString()


class Both:
    """The full decoder and the fast way side by side; they must agree after each request, also in what they keep."""

    def __init__(self, **limits: int) -> None:
        self.counters = Counters(), Counters()
        self.full, self.fast = (MetricsDecoder(Limits(**limits), each) for each in self.counters)

    def __call__(self, sent: bytes) -> list[RankReport] | str:
        printed = [self._printed(read, sent) for read in (self._fully, self.fast.decode_bytes)]
        assert printed[0] == printed[1]
        assert self.counters[0] == self.counters[1]
        reports: list[RankReport] | str = printed[1][0] if isinstance(printed[1], tuple) else printed[1]
        return reports

    def _fully(self, sent: bytes) -> object:
        try:
            return self.full.decode(ExportMetricsServiceRequest.FromString(sent))
        except DecodeError as error:
            raise Refusal(400, "bad_body", str(error)) from None

    @staticmethod
    def _printed(read: Callable[[bytes], object], sent: bytes) -> object:
        try:
            decoded = read(sent)
        except Refusal as refusal:
            return refusal.reason
        return decoded.reports, decoded.points, decoded.rejections.message()  # type: ignore[attr-defined]


@pytest.fixture
def both() -> Both:
    return Both()


def test_all_of_the_contract_is_read_both_ways() -> None:
    assert READERS.keys() - {semconv.SECTION_DURATION.name} - FULL_DECODER == READ


def test_a_layout_is_learned_once_and_read_by_afterwards(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    both(body())
    assert len(both.fast.layouts) == 1
    monkeypatch.setattr(
        "rankwatch_monitor.ingest.metrics_decoder._read", lambda *_: pytest.fail("parsed although it is known")
    )
    (report,) = both.fast.decode_bytes(body(0.25, 9, NOW_NS + 1)).reports
    assert (report.iteration, report.heartbeat_age, report.open_sections) == (9, 0.25, {"step": 0.25, "forward": 0.25})
    assert report.window is not None
    assert report.window.iteration == 9
    assert report.window.operations == {"all_reduce dp": OperationWindow(4, 0.25, 0.1, 9, 9, 9)}
    assert report.kernels is not None
    assert report.kernels.keys() == {"gemm", "copy"}
    assert report.device is not None
    assert report.device.errors == {"xid": 9, "ecc_corrected": 9}
    assert len(both.fast.layouts) == 1


def test_counts_that_are_doubles_have_a_layout_too(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(count: float, time_ns: int = NOW_NS) -> bytes:
        fills = [gauge(metric.name, count, time_ns) for metric in (semconv.ITERATION, semconv.WINDOW_ITERATION)]
        fills += [gauge(semconv.GPU_ERRORS.name, count, time_ns, reason="xid")]
        fills += section("step", count, time_ns=time_ns, **SECONDS)
        return request_of(RANK_3, *fills).SerializeToString()

    both(sent(8.0))
    both(sent(2.5))
    assert len(both.fast.layouts) == 1
    monkeypatch.setattr(
        "rankwatch_monitor.ingest.metrics_decoder._read", lambda *_: pytest.fail("parsed although it is known")
    )
    (report,) = both.fast.decode_bytes(sent(9.0, NOW_NS + 1)).reports
    assert report.window is not None
    assert report.device is not None
    found = report.iteration, report.window.iteration, report.window.sections["step"].calls, report.device.errors["xid"]
    assert found == (9, 9, 9, 9)
    assert all(type(count) is int for count in found)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(), st.floats(0, 1), st.sampled_from([0.0, -0.0, 1e9, 1e308])),
            st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9)),
            st.sampled_from([0, NOW_NS, NOW_NS + 1, NOW_NS + 2]),
            st.sampled_from([1, 4, 9]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_numbers_in_a_known_layout(reported: list[tuple[float, int, int, int]]) -> None:
    both = Both()
    both(body())
    for value, whole, time_ns, count in reported:
        some = histogram("step", count, 1.0, 0.1, 0.5, time_ns=time_ns)
        both(body(value, whole, time_ns, some))


@settings(max_examples=60)
@given(st.data())
def test_any_bytes_changed_removed_or_added(data: st.DataObject) -> None:
    both = Both()
    sent = body(0.5, 7, NOW_NS, histogram("step", 3, 1.0, 0.1, 0.5), histogram("forward", 3, 1.0, 0.1, 0.5))
    both(sent)
    for turn in range(1, 4):
        changed = bytearray(body(0.5, 7 + turn, NOW_NS + turn, histogram("step", 3, 1.0, 0.1, 0.5)))
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(changed) - 1))
            kind = data.draw(st.sampled_from(["change", "remove", "add", "number"]))
            if kind == "change":
                changed[at] = data.draw(st.integers(0, 255))
            elif kind == "remove":
                del changed[at : at + data.draw(st.integers(1, 9))]
            elif kind == "add":
                changed[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            else:
                changed[at : at + 8] = struct.pack("<d", data.draw(st.floats()))
        both(bytes(changed))


@settings(max_examples=50)
@given(st.binary(max_size=60))
@example(b"\n\x02\x12\x00")
@example(b"\n\x00")
def test_any_bytes_at_all(sent: bytes) -> None:
    both = Both()
    both(sent)
    both(body() + sent)


def delimited(tag: int, content: bytes) -> bytes:
    """A field of protobuf that holds bytes."""
    length, size = bytearray(), len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((tag, *length, size)) + content


def test_a_histogram_is_cut_out_between_two_metrics_only(both: Both) -> None:
    """Anywhere else the bytes mean something else, also if those around it are of a known layout."""
    request = request_of(RANK_3, *fills(), histogram("step", 3, 1.0, 0.1, 0.5))
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    inserted = delimited(layouts.SCOPE_METRIC, scope.metrics.pop().SerializeToString())
    both(request.SerializeToString())
    sender, known = resource.resource.SerializeToString(), scope.SerializeToString()
    places = [at for at, byte in enumerate(known) if byte == layouts.SCOPE_METRIC]
    assert len(places) > len(scope.metrics)
    for at in places:
        sent = known[:at] + inserted + known[at:]
        both(delimited(0x0A, delimited(0x0A, sender) + delimited(0x12, sent)))


ODD: Sequence[list[Fill]] = [
    [gauge(semconv.ITERATION.name, 3), gauge(semconv.ITERATION.name, 4)],
    [counter(semconv.HEARTBEATS.name, 3, DELTA)],
    [gauge(semconv.ITERATION.name, None)],
    [gauge("somebody.elses", 1.0), gauge(semconv.PROGRESS.name, 2)],
    [gauge(semconv.GPU_ERRORS.name, 2, **{"error.type": "xid"})],
    [gauge(semconv.GPU_THROTTLED.name, 1, reason="a", **{semconv.HW_ID: "GPU-3"})],
    [gauge(semconv.SECTION_OPEN_DURATION.name, 1.0, section="")],
    [gauge(semconv.SECTION_OPEN_DURATION.name, 1.0, section="a\n")],
    [gauge(semconv.SECTION_OPEN_DURATION.name, float(i), section=f"s{i}") for i in range(4)],
    section("step", None, **SECONDS),
    section("step", 0, **SECONDS),
    section("step", 2.5, **SECONDS),
    section("step", 2, median=0.5),
    section("step", 2, **{**SECONDS, "max": 0.1}),
    kernel("gemm", 2, median=0.5, mean=0.5),
    [gauge(semconv.KERNEL_SOURCE.name, 0, source="cupti", reason="no GPU")],
    [gauge(semconv.STEP_PART.name, 1.0, part="idle")],
    [histogram("step", 3, 1.0, 0.1, 0.5, exponential=False)],
    [histogram("step", 3, 1.0)],
    [histogram("step", 0, 0.0)],
    [histogram("step", 3, -1.0, 0.1, 0.5)],
    [histogram("step", 3, 1.0, 0.1, 0.5, temporality=2)],
    [histogram(f"s{i}", 3, 1.0, 0.1, 0.5) for i in range(4)],
    [histogram("step", 3, 1.0, 0.1, 0.5), histogram("step", 3, 1.0, 0.1, 0.5)],
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_what_is_odd_is_read_in_full(odd: list[Fill]) -> None:
    both = Both(sections_per_job=3, ranks_per_job=8)
    for _ in range(3):
        both(request_of(RANK_3, *odd).SerializeToString())
    assert len(both.fast.layouts) <= 1


def test_a_request_is_taken_or_refused_as_a_whole(both: Both) -> None:
    both(body())
    later = body(0.5, 8, NOW_NS + 1, histogram("step", 3, 1.0, 0.1, 0.5))
    assert both(later + later[:-3]) == "bad_body"
    reports = both(later)
    assert isinstance(reports, list)
    assert reports[0].window is not None, "the refused request left nothing behind"


def test_many_resources_of_which_one_has_no_identity(both: Both) -> None:
    request = ExportMetricsServiceRequest()
    for rank in (0, 1, 9):
        add_resource(request, {**RANK_3, "dl.rank": rank}, *fills())
    for _ in range(2):
        reports = both(request.SerializeToString())
        assert isinstance(reports, list)
        assert [report.identity.rank for report in reports] == [0, 1]


def test_limits_hold_for_known_layouts() -> None:
    both = Both(points_per_request=100)
    both(body())
    assert len(both.fast.layouts) == 1
    assert both(body() + body()) == "too_many_points"


def test_layouts_are_bounded(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_MOST_LAYOUTS", 5)
    for number in range(12):
        both(
            request_of(
                RANK_3, gauge(semconv.SECTION_OPEN_DURATION.name, 1.0, section="s" * (1 + number))
            ).SerializeToString()
        )
    assert len(both.fast.layouts) == 5


def test_layouts_of_one_length_are_bounded_and_distinguished(both: Both) -> None:
    for number in [*range(20), *range(20)]:
        printed = f"s{number:03}"
        reports = both(
            request_of(RANK_3, gauge(semconv.SECTION_OPEN_DURATION.name, 1.0, section=printed)).SerializeToString()
        )
        assert isinstance(reports, list)
        assert reports[0].open_sections == {printed: 1.0}
    assert len(both.fast.layouts) == layouts._MOST_ALIKE


def test_a_sender_that_never_repeats_a_layout_is_learned_from_less_and_less(both: Both) -> None:
    tries = 0

    def learn(_: layouts.Cut) -> None:
        nonlocal tries
        tries += 1

    known = layouts.Layouts(learn)
    for number in range(1000):
        known.missed(layouts.Cut(b"x" * number, layouts.NO_CUT, b""))
    assert layouts._TRIES_AT_ONCE < tries < layouts._TRIES_AT_ONCE + 2 + 1000 / layouts._MISSES_FOR_ONE
