"""What a person may set: every value is checked, and every mistake is answered with words."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.contract.enums import Action
from rankwatch.contract.policy import ACTION_MEANINGS, Policy, parse_value
from rankwatch.contract.schema import MAX_TIMEOUT, parse_section_timeouts

LIMITS = (
    "initial_heartbeat_timeout",
    "heartbeat_timeout",
    "out_of_section_timeout",
    "silence_timeout",
    "first_time_timeout",
)
COUNTED = {
    "profiling_interval": "{steps}",
    "learned_factor": "{times}",
    "max_restarts": "{restarts}",
    "max_no_progress": "{attempts}",
    "straggler_windows": "{windows}",
    "straggler_windows_needed": "{windows}",
    "straggler_alarms_per_day": "{a day}",
    "num_gpu_perf_scores_to_print": "{ranks}",
}
DEADLINES = ("capture_deadline", "stop_deadline", "learned_minimum", "confirmation_window", "longest_patience")


def test_every_setting_has_a_meaning_and_a_unit() -> None:
    for field in fields(Policy):
        assert field.metadata["meaning"], field.name
        seconds = field.name in (*LIMITS, *DEADLINES, "section_timeouts", "report_interval")
        assert field.metadata["unit"] == ("s" if seconds else COUNTED.get(field.name, "")), field.name


def test_the_defaults_come_back_through_json() -> None:
    assert Policy().changed(json.loads(json.dumps(Policy().to_json()))) == Policy()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("none", None),
        ("NULL", None),
        ("30", 30),
        ("1.5", 1.5),
        ("save_and_stop", "save_and_stop"),
        ("", ""),
    ],
)
def test_a_value_of_a_command_line_has_its_type(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("value", ["5%", "5 %", "5.0%", 0.05, "0.05"])
def test_a_share_is_given_in_percent_or_as_a_part(value: object) -> None:
    assert Policy().changed({"straggler_slowdown": value}).straggler_slowdown == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "value"), [("straggler_slowdown", "101%"), ("straggler_slowdown", "5%%"), ("relative_threshold", "70%")]
)
def test_a_share_is_at_most_all_of_it_and_other_numbers_are_not_in_percent(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Policy().changed({name: value})


def test_each_action_has_a_meaning() -> None:
    assert set(ACTION_MEANINGS) == set(Action)


def test_a_policy_is_not_changed_in_place() -> None:
    policy = Policy()
    changed = policy.changed({"section_timeouts": {"step": 10}, "heartbeat_timeout": 5})
    assert policy == Policy()
    assert changed.heartbeat_timeout == 5.0
    again = changed.changed({"section_timeouts": {"save": 3}})
    assert dict(changed.section_timeouts) == {"step": 10.0}
    assert dict(again.section_timeouts) == {"step": 10.0, "save": 3.0}


def test_what_to_json_hands_out_is_a_copy() -> None:
    policy = Policy().changed({"section_timeouts": {"step": 10}})
    policy.to_json()["section_timeouts"]["step"] = 1.0
    assert policy.section_timeouts["step"] == 10.0


def test_none_switches_a_limit_off_and_removes_a_section() -> None:
    policy = Policy().changed({"section_timeouts": {"step": 10, "save": 3}})
    policy = policy.changed({"heartbeat_timeout": None, "section_timeouts": {"step": None, "unknown": None}})
    assert policy.heartbeat_timeout is None
    assert dict(policy.section_timeouts) == {"save": 3.0}


@pytest.mark.parametrize("name", [*LIMITS, *DEADLINES])
@pytest.mark.parametrize(
    "value",
    [0, -1, float("nan"), float("inf"), "soon", "", True, False, [], {}, MAX_TIMEOUT + 1, 10**400, "1e999"],
    ids=lambda v: repr(v)[:9],
)
def test_a_wrong_time_is_answered_with_its_name_and_itself(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number of seconds above 0 and up to 2592000, not "):
        Policy().changed({name: value})


@pytest.mark.parametrize("name", [*LIMITS, *DEADLINES])
@pytest.mark.parametrize("value", [1, 0.5, "30", MAX_TIMEOUT])
def test_a_right_time_is_seconds(name: str, value: object) -> None:
    got = getattr(Policy().changed({name: value}), name)
    assert got == float(value)  # type: ignore[arg-type]
    assert type(got) is float


@pytest.mark.parametrize("name", DEADLINES)
def test_a_deadline_cannot_be_switched_off(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be switched off; give seconds"):
        Policy().changed({name: None})


@pytest.mark.parametrize("name", ["detection", "observe_only", "learn_timeouts"])
@pytest.mark.parametrize("value", [0, 1, "true", None, []])
def test_a_switch_is_true_or_false(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be true or false"):
        Policy().changed({name: value})


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, "3", True, None, 10_001, [], 10**400], ids=lambda v: str(v)[:8])
def test_restarts_are_counted_in_whole_numbers(value: object) -> None:
    with pytest.raises(ValueError, match="max_restarts must be a whole number from 0 to 10000"):
        Policy().changed({"max_restarts": value})


@pytest.mark.parametrize("value", ["explode", "", None, 3, [], {}])
def test_an_unknown_action_is_answered_with_those_that_are_known(value: object) -> None:
    known = "log, capture, restart, restart_excluding_node, save_and_stop, stop"
    with pytest.raises(ValueError, match=f"on_hang must be one of {known}"):
        Policy().changed({"on_hang": value})


@pytest.mark.parametrize("action", list(Action))
def test_every_action_may_be_the_policy(action: Action) -> None:
    assert Policy().changed({"on_hang": str(action)}).on_hang is action


@pytest.mark.parametrize("value", [1, 0, -5, 1001, float("nan"), "much", True, None, []], ids=repr)
def test_a_factor_is_above_one(value: object) -> None:
    with pytest.raises(ValueError, match="learned_factor must be a number above 1 and up to 1000"):
        Policy().changed({"learned_factor": value})
    assert Policy().changed({"learned_factor": "2.5"}).learned_factor == 2.5


@pytest.mark.parametrize("value", [None, [], "step=10", 5, [["step", 10]]])
def test_section_timeouts_are_a_mapping(value: object) -> None:
    with pytest.raises(ValueError, match="section_timeouts must map section names to seconds"):
        Policy().changed({"section_timeouts": value})


@pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, 3, None, "\ud800"], ids=repr)
def test_a_sections_name_fits_its_slot(name: object) -> None:
    with pytest.raises(ValueError, match="a section's name must be 1 to 63 bytes of text"):
        Policy().changed({"section_timeouts": {name: 10}})


def test_a_wrong_time_of_a_section_names_the_section() -> None:
    with pytest.raises(ValueError, match="the timeout of section 'save' must be a number of seconds"):
        Policy().changed({"section_timeouts": {"step": 1, "save": "x"}})


def test_an_unknown_setting_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(
        ValueError, match=r"unknown policy setting 'hartbeat'; (known are: .*heartbeat_timeout|did you mean)"
    ):
        Policy().changed({"hartbeat": 1})


@given(st.dictionaries(st.sampled_from([f.name for f in fields(Policy)]), st.from_type(object), max_size=3))
def test_whatever_is_set_is_taken_or_refused_with_words(changes: dict[str, object]) -> None:
    try:
        policy = Policy().changed(changes)
    except ValueError as error:
        assert str(error)  # noqa: PT017
    else:
        assert Policy().changed(policy.to_json()) == policy


# NAME=SECONDS ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        (" , ", {}),
        ("step=10", {"step": 10.0}),
        ("setup:600,step:180,checkpointing:420", {"setup": 600.0, "step": 180.0, "checkpointing": 420.0}),
        (" step = 10 , save = 1.5 ,", {"step": 10.0, "save": 1.5}),
        ("data loading=3", {"data loading": 3.0}),
    ],
)
def test_section_timeouts_are_read(text: str, limits: dict[str, float]) -> None:
    assert parse_section_timeouts(text) == limits


@pytest.mark.parametrize("text", ["step", "=10", ":10", " =3", "10", "step=1,save"])
def test_what_is_not_name_and_seconds_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"written NAME=SECONDS, for example step=180; .* is not"):
        parse_section_timeouts(text)


@pytest.mark.parametrize("seconds", ["", "x", "0", "-1", "nan", "inf", "1=2", "1:2", "10s"])
def test_a_wrong_number_of_seconds_names_the_section(seconds: str) -> None:
    with pytest.raises(ValueError, match="the timeout of section 'step' must be a number of seconds"):
        parse_section_timeouts(f"step={seconds}")
