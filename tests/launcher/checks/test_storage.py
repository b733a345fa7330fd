"""The storage and host checks on real folders and files."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract.node_checks import CheckReason, CheckResult, CheckState, sentence
from rankwatch_launcher.checks import host, storage
from rankwatch_launcher.checks.check import CheckedNode, Failed, Found, Passed, Skipped
from rankwatch_launcher.checks.gate import paths_of


def reason(found: Found) -> CheckReason:
    assert isinstance(found, Failed), found
    return found.reason


def test_a_folder_is_written_read_and_left_as_it_was(tmp_path: Path) -> None:
    assert isinstance(storage.run(CheckedNode(paths=(str(tmp_path),))), Passed)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(storage.run(CheckedNode(proc=str(tmp_path))), Skipped)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, words in ((tmp_path / "missing", "No such file"), (file, "Not a directory"), (Path("/proc"), "")):
        found = storage.run(CheckedNode(paths=(str(tmp_path), str(path))))
        assert reason(found) == CheckReason.NOT_WRITABLE
        assert isinstance(found, Failed)
        assert found.evidence["path"] == str(path)
        assert words in found.evidence["error"]


def test_a_full_disk_and_a_disk_that_returns_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = CheckedNode(paths=(str(tmp_path),))
    monkeypatch.setattr(storage, "LITTLE_SPACE", 1 << 62)
    assert reason(storage.run(node)) == CheckReason.NO_SPACE
    monkeypatch.setattr(os, "pread", lambda *_: b"other")
    assert reason(storage.run(node)) == CheckReason.READ_BACK
    assert list(tmp_path.iterdir()) == []


def test_mounts_of_network_file_systems_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    mounts = (
        f"server:/a {tmp_path}/with\\040space nfs4 rw 0 0\n/dev/sda1 /no ext4 rw 0 0\nfs@tcp:/x {tmp_path} lustre\n"
    )
    (tmp_path / "self/mounts").write_text(mounts)
    (tmp_path / "with space").mkdir()
    node = CheckedNode(proc=str(tmp_path))
    found = storage.run(node)
    assert isinstance(found, Passed)
    assert found.figures["mounts"] == "2"
    real = os.statvfs

    def stale(path: Any) -> os.statvfs_result:
        if str(path).endswith("space"):
            raise OSError(116, "Stale file handle")
        return real(path)

    monkeypatch.setattr(os, "statvfs", stale)
    found = storage.run(node)
    assert reason(found) == CheckReason.MOUNT_STALE
    assert isinstance(found, Failed)
    assert found.evidence == {"path": f"{tmp_path}/with space", "kind": "nfs4", "error": "Stale file handle"}


def test_paths_are_those_given_else_the_ones_beside_the_checkpoints(tmp_path: Path) -> None:
    beside = str(tmp_path / "finished")
    assert paths_of(("/a",), (beside,)) == ("/a",)
    assert paths_of((), (beside, "", str(tmp_path / "not-there" / "ft_state.json"))) == (str(tmp_path),)


def test_a_healthy_host_passes_with_its_figures() -> None:
    found = host.run(CheckedNode())
    assert isinstance(found, Passed)
    assert {"available", "shared_memory", "open_files"} <= found.figures.keys()


def test_a_host_without_memory_shared_memory_or_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable: 1024 kB\n")
    assert reason(host.run(CheckedNode(proc=str(tmp_path)))) == CheckReason.LITTLE_MEMORY
    (tmp_path / "meminfo").unlink()
    assert isinstance(host.run(CheckedNode(proc=str(tmp_path))), Passed)
    with monkeypatch.context() as patched:
        patched.setattr(host, "LITTLE_SHARED_MEMORY", 1 << 62)
        assert reason(host.run(CheckedNode())) == CheckReason.LITTLE_SHARED_MEMORY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 1024))
    assert reason(host.run(CheckedNode())) == CheckReason.FEW_FILES


@pytest.mark.parametrize(("ahead", "direction"), [(90.0, "ahead of"), (-90.0, "behind")])
def test_a_clock_that_is_off(ahead: float, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = CheckedNode(monitor="http://127.0.0.1:1")
    assert isinstance(host.run(node), Passed), "a monitor that is away says nothing of the clock"
    monkeypatch.setattr(host, "clock_ahead", lambda _: ahead)
    found = host.run(node)
    assert reason(found) == CheckReason.CLOCK_OFF
    assert isinstance(found, Failed)
    assert found.evidence == {"seconds": "90", "direction": direction}
    monkeypatch.setattr(host, "clock_ahead", lambda _: ahead / 10)
    assert isinstance(host.run(replace(node)), Passed)


def test_every_reason_has_words() -> None:
    for each in CheckReason:
        words = sentence(CheckResult("gpu", CheckState.FAILED, each))
        assert words.startswith("gpu: "), each
        assert str(each) != words.removeprefix("gpu: "), each
    assert sentence(CheckResult("gpu", CheckState.FAILED, "of_a_newer_version")) == "gpu: of_a_newer_version"
