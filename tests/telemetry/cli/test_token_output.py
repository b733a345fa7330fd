"""What a monitor answers is no more trusted by ``rankwatch token`` than by the other commands."""

from __future__ import annotations

from typing import Any

import pytest

from rankwatch.cli import access
from rankwatch.monitor_client import MonitorClient


@pytest.mark.parametrize("made", ["rw_x\x1b[2J", "rw_x\nforged line", "\u202erw_x", "", "x" * 300, 7, None])
def test_a_token_that_is_none_is_not_printed(
    made: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MonitorClient, "send", lambda *_, **__: {"token": made})
    assert access.token(["create", "x", "--scope", "read", "--monitor", "http://127.0.0.1:9"]) != 0
    assert capsys.readouterr().out == ""


def test_a_token_is_printed_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(MonitorClient, "send", lambda *_, **__: {"token": "rw_Ab-9_"})
    assert access.token(["create", "x", "--scope", "read", "--monitor", "http://127.0.0.1:9"]) == 0
    assert capsys.readouterr().out == "rw_Ab-9_\n"
