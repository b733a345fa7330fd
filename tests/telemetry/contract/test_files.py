"""Replacing a file in one step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract.files import replace_file


def test_the_content_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    replace_file(path, "new", sync=True)
    replace_file(tmp_path / "parts", (part for part in ("a", "b")))
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"state.json": "new", "parts": "ab"}


def test_a_write_that_fails_halfway_leaves_the_old_content(tmp_path: Path) -> None:
    def parts() -> Iterator[str]:
        yield "half"
        raise OSError("no space left")

    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(OSError, match="no space left"):
        replace_file(path, parts())
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"state.json": "old"}


def test_with_sync_the_content_is_on_disk_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd: int) -> None:
        calls.append("fsync")
        fsync(fd)

    def spy_replace(*paths: Any) -> None:
        calls.append("replace")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    replace_file(tmp_path / "a", "content", sync=True)
    replace_file(tmp_path / "b", "content")
    assert calls == ["fsync", "replace", "replace"]
