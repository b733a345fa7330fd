from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rankwatch.profiling.profiler_lock import ProfilerGuard


@pytest.fixture
def module() -> Any:
    """The three names by which torch.profiler calls; the real ones are tried in test_kineto.py."""
    calls: list[str] = []

    def named(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> str:
            calls.append(name)
            if "fail" in args:
                raise RuntimeError(name)
            return name

        return call

    names = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
    return SimpleNamespace(calls=calls, **{name: named(name) for name in names})


def test_ours_is_ended_before_the_users_begins(module: Any) -> None:
    guard = ProfilerGuard(module, lambda: module.calls.append("ended"))
    guard.install()
    assert module._prepare_profiler(1, two=2) == "_prepare_profiler"
    assert guard.user_profiles
    assert module._enable_profiler() == "_enable_profiler"
    assert module._disable_profiler() == "_disable_profiler"
    assert not guard.user_profiles
    assert module.calls == ["ended", "_prepare_profiler", "ended", "_enable_profiler", "_disable_profiler"]


@pytest.mark.parametrize("name", ["_prepare_profiler", "_enable_profiler", "_disable_profiler"])
def test_a_users_profiler_that_fails_fails_as_it_did_and_is_over(module: Any, name: str) -> None:
    guard = ProfilerGuard(module, lambda: None)
    guard.install()
    with pytest.raises(RuntimeError, match=name):
        getattr(module, name)("fail")
    assert not guard.user_profiles


def test_what_was_there_is_put_back_unless_somebody_wrapped_it_again(module: Any) -> None:
    prepare, enable = module._prepare_profiler, module._enable_profiler
    guard = ProfilerGuard(module, lambda: None)
    guard.install()
    module._enable_profiler = somebodys = lambda: enable()
    guard.remove()
    assert module._prepare_profiler is prepare
    assert module._enable_profiler is somebodys


def test_other_names_are_an_error() -> None:
    with pytest.raises(AttributeError):
        ProfilerGuard(ModuleType("other"), lambda: None)
