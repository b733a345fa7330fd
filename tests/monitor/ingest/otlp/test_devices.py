"""What NVML reports of a device, and coordinates in the parallel layout."""

from __future__ import annotations

from math import inf, nan

import pytest

from monitor.ingest.decoding import Ingest
from monitor.ingest.otlp_requests import NOW_NS, RANK_3, gauge, request_of
from rankwatch_monitor.core.events import DeviceReading

NUMBERS = {
    "hw.gpu.utilization": 0.75,
    "hw.gpu.memory.usage": 2**36,
    "hw.gpu.memory.limit": 2**37,
    "hw.gpu.temperature": 61.0,
    "hw.gpu.power": 480.5,
    "hw.gpu.power.limit": 700.0,
    "hw.gpu.clock.frequency": 1.98e9,
    "hw.gpu.clock.limit": 1_980_000_000,
}


def test_a_whole_reading(ingest: Ingest) -> None:
    report = ingest.one(
        *(gauge(name, value) for name, value in NUMBERS.items()),
        gauge("hw.gpu.throttled", 1, reason="sw_power_cap"),
        gauge("hw.gpu.throttled", 0, reason="hw_thermal_slowdown"),
        gauge("hw.errors", 3, reason="ecc_corrected"),
        gauge("hw.errors", 79.0, reason="xid"),
        gauge("hw.gpu.io", 5),
    )
    assert report.device == DeviceReading(
        0.75,
        float(2**36),
        float(2**37),
        61.0,
        480.5,
        700.0,
        1.98e9,
        1.98e9,
        ("sw_power_cap",),
        {"ecc_corrected": 3, "xid": 79},
    )


def test_what_is_not_reported_stays_unset(ingest: Ingest) -> None:
    assert ingest.one(gauge("rankwatch.iteration", 1)).device is None
    assert ingest.one(gauge("hw.gpu.power", 300)).device == DeviceReading(power=300.0)
    assert ingest.one(gauge("hw.gpu.power", None)).device is None
    assert ingest.one(gauge("hw.gpu.throttled", 0, reason="idle")).device == DeviceReading(), "nothing holds it down"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-300.0, nan, inf])
def test_numbers_that_make_no_sense(ingest: Ingest, name: str, value: float) -> None:
    decoded = ingest(request_of(RANK_3, gauge(name, value)))
    assert decoded.reports[0].device is None
    assert ingest.counters.rejected == {"bad_value": 1}
    assert name in decoded.rejections.message()


def test_a_utilization_in_percent_is_no_part_of_one_and_frost_is_no_fault(ingest: Ingest) -> None:
    decoded = ingest(request_of(RANK_3, gauge("hw.gpu.utilization", 75), gauge("hw.gpu.temperature", -8)))
    assert decoded.reports[0].device == DeviceReading(temperature=-8.0)
    assert ingest.counters.rejected == {"bad_value": 1}


def test_of_several_points_the_newest_counts(ingest: Ingest) -> None:
    report = ingest.one(
        gauge("hw.gpu.power", 2, NOW_NS + 1),
        gauge("hw.gpu.power", 1, NOW_NS),
        gauge("hw.gpu.throttled", 0, NOW_NS + 1, reason="power"),
        gauge("hw.gpu.throttled", 1, NOW_NS, reason="power"),
    )
    assert report.device == DeviceReading(power=2.0)


def test_a_sender_that_speaks_of_several_devices(ingest: Ingest) -> None:
    report = ingest.one(
        *(gauge("hw.gpu.power", i, **{"hw.id": f"GPU-{i}"}) for i in range(8)),
        *(gauge("hw.errors", i, reason="xid", **{"hw.id": f"GPU-{i}"}) for i in range(8)),
        gauge("hw.gpu.temperature", 50.0, **{"hw.id": "0000:3b:00.0"}),
    )
    assert report.device == DeviceReading(power=3.0, temperature=50.0, errors={"xid": 3}), "the resource names GPU-3"


def test_errors_of_other_hardware_and_in_opentelemetrys_own_spelling(ingest: Ingest) -> None:
    report = ingest.one(
        gauge("hw.errors", 1),
        gauge("hw.errors", 2, **{"error.type": "ecc_uncorrected"}),
        gauge("hw.errors", 5, **{"error.type": "xid"}),
        gauge("hw.errors", 6, reason="xid"),
    )
    assert report.device == DeviceReading(errors={"ecc_uncorrected": 2, "xid": 6})


def test_odd_reasons_and_counts() -> None:
    ingest = Ingest(attributes=20)
    decoded = ingest(
        request_of(
            RANK_3,
            gauge("hw.errors", -1, reason="xid"),
            gauge("hw.errors", nan, reason="xid"),
            gauge("hw.gpu.throttled", 0.5, reason="power"),
            gauge("hw.gpu.throttled", 1),
            *(gauge("hw.gpu.throttled", 1, reason=f"r{i}") for i in range(22)),
            *(gauge("hw.errors", 1, reason=f"r{i}") for i in range(21)),
        )
    )
    assert ingest.counters.rejected == {"bad_value": 3, "bad_name": 1, "too_many_attributes": 3}
    device = decoded.reports[0].device
    assert device is not None
    assert (len(device.throttled), len(device.errors)) == (20, 20)
