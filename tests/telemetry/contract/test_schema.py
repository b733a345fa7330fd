"""Kinds of settings: one wording for text and JSON, and a mistake that names what is valid."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from rankwatch.contract import schema
from rankwatch.contract.enums import Action
from rankwatch.contract.policy import Policy
from rankwatch.settings import Settings as RankSettings
from rankwatch_launcher.options import Options
from rankwatch_monitor.settings import Settings as MonitorSettings

WHOLE, PART = schema.whole(1, 9), schema.number(0.0, 1.0, "a part")
CHOICE, WORDS = schema.choice(Action), schema.choice(("one", "two"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (schema.SWITCH, "Yes", True),
        (WHOLE, "9", 9),
        (PART, "0.5", 0.5),
        (CHOICE, "Stop", Action.STOP),
        (WORDS, "two", "two"),
        (schema.URL, "http://h:1/", "http://h:1"),
        (schema.PAIRS, "a=1%20, b=", {"a": "1 ", "b": ""}),
        (schema.LIMIT, "off", None),
        (schema.SECONDS, "1e3", 1000.0),
        (schema.SECTIONS, "step=10,save:2", {"step": 10.0, "save": 2.0}),
    ],
)
def test_a_text_becomes_a_value_that_is_valid_as_json_too(kind: schema.Kind, text: str, value: Any) -> None:
    assert kind.read_text(text) == value
    if kind not in (schema.PAIRS,):
        assert kind.read(value) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (schema.SWITCH, "perhaps"),
        (WHOLE, "0"),
        (WHOLE, "\u0661"),
        (PART, "nan"),
        (PART, "many"),
        (CHOICE, "stopp"),
        (WORDS, ""),
        (schema.URL, "h:1"),
        (schema.URL, "http://["),
        (schema.LIMIT, "-1"),
    ],
)
def test_a_mistake_is_answered_with_what_is_valid_and_with_itself(kind: schema.Kind, value: str) -> None:
    with pytest.raises(ValueError) as refused:
        kind.read_text(value)
    words = str(refused.value)
    assert words.startswith(f"must be {kind.words}, not ")
    assert words.removeprefix(f"must be {kind.words}, not ").split(";")[0].strip("'") == value


def test_secrets_are_not_shown() -> None:
    with pytest.raises(ValueError) as refused:
        schema.PAIRS.read_text("hunter2")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("of", [Policy, RankSettings, Options, MonitorSettings])
def test_every_table_of_settings_is_made_of_kinds_that_take_their_defaults(of: Any) -> None:
    kinds = schema.kinds(of)
    assert kinds
    for each in fields(of):
        if each.name in kinds and each.default not in (None, "", ()) and isinstance(each.default, str | int | float):
            assert kinds[each.name].read_text(str(each.default)) == each.default, each.name


def test_a_setting_is_one_row() -> None:
    @dataclass(frozen=True)
    class Own:
        depth: int = schema.setting(3, WHOLE, "how deep", "{levels}", env=("OWN_DEPTH",))

    (field,) = fields(Own)
    assert Own().depth == 3
    assert (field.metadata["unit"], field.metadata["environment"]) == ("{levels}", ("OWN_DEPTH",))
    assert schema.kinds(Own) == {"depth": WHOLE}
