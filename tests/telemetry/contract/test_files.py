"""Replacing a file in one step, and folders that are private."""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract.files import (
    append,
    check_unshared,
    opened,
    private_folder,
    read_file,
    read_private,
    replace_file,
    temporary_folder,
)
from support.opens import never_opened


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


@pytest.fixture(params=["a pipe", "a terminal", "a link to a terminal", "a folder"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """What is no regular file, in the place of one."""
    ends = os.openpty()
    path = tmp_path / "special"
    {
        "a pipe": lambda: os.mkfifo(path),
        "a terminal": lambda: None,
        "a link to a terminal": lambda: path.symlink_to(os.ttyname(ends[1])),
        "a folder": path.mkdir,
    }[request.param]()
    yield Path(os.ttyname(ends[1])) if request.param == "a terminal" else path
    for each in ends:
        os.close(each)


@pytest.mark.parametrize("read", [opened, read_file, read_private, lambda path: opened(path, os.geteuid() + 1)])
def test_what_is_no_regular_file_is_refused_without_being_opened(special: Path, read: Callable[[Path], Any]) -> None:
    with never_opened(special.resolve()), pytest.raises(OSError):
        read(special)


def test_a_file_of_another_user_than_the_one_who_named_it_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    assert read_file(path, owner=os.geteuid()) == read_file(path) == "content"
    with never_opened(path), pytest.raises(OSError, match="another user's"):
        read_file(path, owner=os.geteuid() + 1)


def test_a_link_is_followed_where_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_file(tmp_path / "link") == "content"
    with never_opened(tmp_path / "file"), pytest.raises(OSError, match="no regular file"):
        opened(tmp_path / "link", follow=False)


def test_without_proc_a_file_is_read_too_unless_another_one_has_taken_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, replaced = tmp_path / "file", os.open, []

    def without_proc(name: Any, *flags: int) -> int:
        if str(name).startswith("/proc"):
            for other in replaced:
                other.replace(path)
            raise FileNotFoundError(name)
        return real(name, *flags)

    path.write_text("content")
    monkeypatch.setattr(os, "open", without_proc)
    assert read_file(path) == "content"
    (tmp_path / "other").touch()
    replaced.append(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        read_file(path)


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


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"\xff\n")
    assert (tmp_path / "file").read_bytes() == b"\xff\n"


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is of another user than the one who made the files."""
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)


def test_a_file_is_appended_to_and_read_as_ones_own(tmp_path: Path) -> None:
    for text in ("", "one\n", "two\n"):
        append(tmp_path / "file", text)
    assert read_file(tmp_path / "file", own=True) == "one\ntwo\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: os.symlink("victim", path)])
def test_what_is_planted_in_place_of_a_file_is_neither_appended_to_nor_read(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    plant(tmp_path / "file")
    for use in (lambda path: append(path, "text"), lambda path: read_file(path, own=True)):
        with pytest.raises(OSError):
            use(tmp_path / "file")
    assert [each.name for each in tmp_path.iterdir()] == ["file"], "no link was followed"


@pytest.mark.usefixtures("another_user")
def test_a_file_of_another_user_is_neither_appended_to_nor_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("theirs")
    for use in (lambda path: append(path, "text"), lambda path: read_file(path, own=True)):
        with pytest.raises(PermissionError, match="belongs to another user"):
            use(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "theirs"


OWN_NAME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize(
    ("mode", "group", "members", "shared"),
    [
        (0o700, "staff", [], False),
        (0o755, "staff", [], False),
        (0o775, "staff", [], True),
        (0o1777, "staff", [], True),
        (0o775, OWN_NAME, [OWN_NAME], False),
        (0o775, OWN_NAME, ["mallory"], True),
        (0o757, OWN_NAME, [], True),
        (0o775, None, [], True),
    ],
)
def test_a_folder_that_others_may_write_to_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, group: str | None, members: list[str], shared: bool
) -> None:
    def described(number: int) -> grp.struct_group:
        if group is None:
            raise KeyError(number)
        return grp.struct_group((group, "x", number, members))

    monkeypatch.setattr(grp, "getgrgid", described)
    tmp_path.chmod(mode)
    if shared:
        with pytest.raises(PermissionError, match=r"written to by other users \(chmod go-w\)"):
            check_unshared(tmp_path)
    else:
        check_unshared(tmp_path)


@pytest.mark.usefixtures("another_user")
def test_a_folder_of_another_user_is_shared(tmp_path: Path) -> None:
    if os.stat(tmp_path).st_uid == 0:
        os.chown(tmp_path, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        check_unshared(tmp_path)
