"""The limit of open files of a store's host, and of what it starts."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator

import pytest

from rankwatch_launcher import open_files


@pytest.fixture
def soft_limit() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_host_of_a_store_may_open_as_many_files_as_there_are_connections(
    soft_limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files.allow_connections(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft_limit, hard), "enough as it is"
    open_files.allow_connections(500)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 500 + 100, "some files are something else"
    assert caplog.text == ""
    if hard == resource.RLIM_INFINITY:
        pytest.skip("no limit of open files here")
    open_files.allow_connections(hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert f"may have {hard} connections" in caplog.text


def test_a_child_gets_the_limit_that_the_launcher_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(open_files, "_inherited", (512, hard))
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    try:
        assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (soft, hard)
        open_files.restore_limit(child.pid)
        assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (512, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        child.communicate()
    open_files.restore_limit(child.pid)  # one that has ended is left alone
