"""Limits in force, and what ranks and people are told of them."""

from __future__ import annotations

import json

from rankwatch.wire.policy import Policy
from rankwatch_monitor.core.timeouts import in_force, table


def test_what_a_person_configured_is_in_force() -> None:
    limits = in_force(Policy().changed({"section_timeouts": {"step": 10}, "heartbeat_timeout": None}))
    assert dict(limits.sections) == {"step": 10.0}
    assert limits.heartbeat is None
    assert limits.initial_heartbeat == 1800.0
    assert limits.silence == 60.0


def test_ranks_are_told_the_limits_that_they_can_pass_by_themselves() -> None:
    settings = in_force(Policy().changed({"section_timeouts": {"step": 10}, "out_of_section_timeout": 5}))
    settings = settings.of_a_rank().to_settings()
    assert json.loads(json.dumps(settings)) == {
        "limits": {"sections": {"step": 10.0}, "heartbeat": 300.0, "out_of_section": 5.0}
    }


def test_the_table_names_every_limit_once_with_its_value() -> None:
    rows = table(Policy().changed({"section_timeouts": {"step": 10, "load": 3}}))
    assert [(r["what"], r["section"]) for r in rows] == [
        ("section", "load"),
        ("section", "step"),
        ("out_of_section", None),
        ("heartbeat", None),
        ("initial_heartbeat", None),
        ("silence", None),
    ]
    assert all(r["in_force"] == r["configured"] for r in rows)
