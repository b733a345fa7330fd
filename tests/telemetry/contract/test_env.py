"""Booleans of variables, flags and configuration files."""

from __future__ import annotations

import pytest

from rankwatch.contract.env import parse_bool


@pytest.mark.parametrize("text", ["1", "true", "YES", " On "])
def test_true(text: str) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_false(text: str) -> None:
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", "2", "maybe", "none"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="true or false"):
        parse_bool(text)
