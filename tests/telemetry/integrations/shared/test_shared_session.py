from __future__ import annotations

import pytest

import rankwatch
from rankwatch.integrations.shared.shared_session import SharedSession


def test_it_ends_with_the_last_of_its_users() -> None:
    first, second = SharedSession(), SharedSession()
    first.begin(rank=0)
    second.begin(rank=7)
    first.end()
    first.end()
    assert rankwatch.is_initialized(), "the second one still needs it"
    second.end()
    assert not rankwatch.is_initialized()


def test_the_scripts_own_is_left_alone() -> None:
    rankwatch.init()
    user = SharedSession()
    user.begin()
    user.end()
    assert rankwatch.is_initialized()


def test_a_user_that_is_forgotten_keeps_nothing_open() -> None:
    SharedSession().begin()
    other = SharedSession()
    other.begin()
    other.end()
    assert not rankwatch.is_initialized()


def test_switched_off_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_DISABLED", "1")
    user = SharedSession()
    user.begin()
    assert not rankwatch.is_initialized()
    user.end()
