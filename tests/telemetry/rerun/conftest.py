"""What a launcher would receive."""

from __future__ import annotations

import pytest

import rankwatch
from rankwatch.contract.enums import NoticeKind


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a launcher would receive; rankwatch believes that there is one."""
    received: list[str] = []

    def receive(kind: NoticeKind, reason: str, seconds: float = 0.0) -> bool:
        assert kind is NoticeKind.WRONG_RESULT
        received.append(reason)
        return True

    monkeypatch.setattr(rankwatch, "is_initialized", lambda: True)
    monkeypatch.setattr(rankwatch, "tell", receive)
    return received
