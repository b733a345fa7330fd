"""Every limit is described, and none can be switched off by accident."""

from __future__ import annotations

import pytest

from rankwatch_monitor.ingest.limits import REASONS, Counters, Limits, describe


def test_every_limit_states_what_it_bounds() -> None:
    described = {limit.name: limit for limit in describe(Limits(jobs=7))}
    assert described["jobs"].value == 7
    assert all(limit.unit and limit.meaning for limit in described.values())
    assert {
        "body_bytes",
        "decompressed_bytes",
        "jobs",
        "ranks_per_job",
        "sections_per_job",
        "kernels_per_report",
        "groups_per_report",
        "name_length",
        "points_per_request",
        "resources_per_request",
        "spans_per_request",
    } <= set(described)


def test_a_limit_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="limit jobs is 0; it must be at least 1"):
        Limits(jobs=0)


def test_rejections_are_counted_by_reason() -> None:
    counters = Counters()
    counters.reject("bad_body")
    counters.reject("bad_value", 4)
    assert counters.rejected == {"bad_body": 1, "bad_value": 4}
    assert set(counters.rejected) <= set(REASONS)
