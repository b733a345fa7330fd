"""Receivers for what is published, and retries that come within milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankwatch_monitor.publish import http_post
from support.http_receiver import HttpReceiver, http_receiver


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    """An HTTP server; proxies of the machine are left aside."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http_receiver() as made:
        yield made


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "FIRST", 0.01)
    monkeypatch.setattr(http_post, "LONGEST", 0.05)
