"""Replacing a file in one step, and folders that are private."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract.files import private_folder, replace_file, temporary_folder


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


def test_a_link_planted_under_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: "guessed")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / ".state.guessed").symlink_to(victim)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "state", "new")
    assert victim.read_text() == "kept"


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "state").symlink_to(victim)
    replace_file(tmp_path / "state", "new")
    assert (victim.read_text(), (tmp_path / "state").read_text()) == ("kept", "new")


def test_a_private_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "parent" / "mine")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder(folder) == folder


def test_a_folder_that_another_user_may_have_planted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "link")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o750)
    with pytest.raises(PermissionError, match="open to other users"):
        private_folder(tmp_path / "open")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(tmp_path / "real")


def test_temporary_folders_are_apart_by_user_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = temporary_folder("traces")
    assert folder == tmp_path / f"rankwatch.{os.geteuid()}" / "traces"
    assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)} == {0o700}
