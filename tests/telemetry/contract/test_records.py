from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from rankwatch.contract import records
from rankwatch.contract.records import MIB, file_name, found, holder, log_of, network_file_system, of_job, prune

DAY = 86_400.0
MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /export rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /export/ada/local\\040disk rw - xfs /dev/sdb rw
32 21 0:41 / /gone rw - nfs server:/old rw
33 21 8:3 / /gone rw - ext4 /dev/sdc rw
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "rankwatch" / "jobs"
    made.mkdir(parents=True)
    return made


def record(folder: Path, job_id: str, written: float, size: int = 10) -> Path:
    path = folder / file_name(job_id)
    for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + ".lock"), log_of(path)):
        file.write_bytes(b"x" * (size if file == path else 0))
        os.utime(file, (written, written))
    return path


def test_no_two_ids_share_a_file_and_none_leaves_the_folder() -> None:
    ids = ["a/b", "a_b", "a%2Fb", "..", ".", ".hidden", "a b", "A", "a", "größe", "x" * 256, "x" * 255, "/" * 256]
    names = [file_name(each) for each in ids]
    assert len(set(names)) == len(ids)
    assert not [name for name in names if "/" in name or name.startswith(".") or len(name) > 220]
    assert file_name("train-5f3a9c1e") == "train-5f3a9c1e.db"


def test_the_newest_record_comes_first_and_one_is_found_by_its_job(folder: Path, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    old, new = record(folder, "old", 1_000.0), record(folder, "team/new", 2_000.0)
    assert [each.path for each in found(env) if each.path.parent == folder] == [new, old]
    named = of_job("team/new", env)
    assert named is not None
    assert (named.path, named.written) == (new, 2_000.0)
    assert of_job("team_new", env) is None


def test_old_records_are_removed_with_all_that_belongs_to_them(folder: Path) -> None:
    record(folder, "old", 0.0)
    kept = record(folder, "new", 89 * DAY)
    prune(folder, days=90, mib=0, now=100 * DAY)
    assert {file.name for file in folder.iterdir() if file.name.startswith("old")} == set()
    assert kept.exists()
    prune(folder, days=0, mib=0, now=10_000 * DAY)
    assert kept.exists(), "0 is no limit"


def test_the_oldest_go_until_the_rest_fits(folder: Path) -> None:
    paths = [record(folder, f"job-{day}", day * DAY, MIB) for day in range(4)]
    assert prune(folder, days=0, mib=2, now=10 * DAY) == paths[:2]
    assert [path.exists() for path in paths] == [False, False, True, True]


def test_a_record_in_use_and_a_recent_one_stay(folder: Path) -> None:
    used, recent = record(folder, "used", 0.0, MIB), record(folder, "recent", 10 * DAY - 1, MIB)
    lock = os.open(used.with_name(used.name + ".lock"), os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, b"4711 alone\n")
        assert holder(used) == 4711
        assert prune(folder, days=1, mib=1, now=10 * DAY) == []
    finally:
        os.close(lock)
    assert holder(used) is None
    assert prune(folder, days=1, mib=1, now=10 * DAY) == [used]
    assert recent.exists()


def test_the_log_of_a_record_that_is_elsewhere_goes_by_age(folder: Path) -> None:
    log = folder / "elsewhere.log"
    log.touch()
    os.utime(log, (0.0, 0.0))
    prune(folder, days=90, mib=0, now=91 * DAY)
    assert not log.exists()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/export/ada/.local/state", "nfs4"),
        ("/homestead/ada", None),
        ("/export/ada/local disk/state", None),
        ("/gone/ada", None),
        ("/srv", None),
    ],
)
def test_a_network_file_system_is_recognized(path: str, kind: str | None) -> None:
    assert network_file_system(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["9p", "lustre", "nfs", "nfs4", "smb3", "fuse.sshfs", "wekafs"])
def test_file_systems_of_clusters_are_network_file_systems(kind: str) -> None:
    assert network_file_system(Path("/data/x"), f"30 21 0:40 / /data rw - {kind} server:/data rw") == kind


def test_records_move_off_a_network_file_system() -> None:
    env = {"XDG_STATE_HOME": "/export/ada/.local/state"}
    place = records.state_place(env, MOUNTS)
    assert place.folder == Path(f"/var/tmp/rankwatch.{os.geteuid()}")
    assert "nfs4" in place.moved
    local = records.state_place({"XDG_STATE_HOME": "/srv/state"}, MOUNTS)
    assert (local.folder, local.moved) == (Path("/srv/state/rankwatch"), "")
