"""Kept dumps are written as torch's own reader takes them; the reader is torch's."""

from __future__ import annotations

import io
import json
import os
import pickle
import pwd
import stat
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rankwatch.cli.flight_dumps import as_torch_reads, write
from rankwatch.contract.flight import MAX_JSON
from rankwatch_launcher.stacks import collectives
from support.gloo_ranks import gloo_ranks
from support.waiting import wait_for


def archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return made.getvalue()


def read_by_torch(folder: Path) -> str:
    """What torch's analysis prints of the dumps in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "--prefix", "trace_"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def nccl_dump(calls: int) -> dict[str, Any]:
    """A recorder's JSON as NCCL's ranks have it, of so many collectives of two ranks, the last not completed."""
    entries = [
        {
            "record_id": n, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": n + 1,
            "p2p_seq_id": 0, "op_id": n + 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1_000 + n,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"], "is_p2p": False,
            "state": "completed" if n < 3 else "scheduled", "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": 0, "retired": n < 3, "timeout_ms": 600_000, "thread_id": "1",
        }
        for n in range(calls)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "comm_lib_version": "2.28.9", "pg_config": config, "pg_status": {}, "entries": entries}


def test_torch_finds_the_rank_that_misses_in_dumps_of_nccl(tmp_path: Path) -> None:
    files = {f"trace_{rank}.json": json.dumps(nccl_dump(4 - rank)).encode() for rank in range(2)}
    assert write(archive(files), tmp_path / "dumps", 2) == [0, 1]
    found = read_by_torch(tmp_path / "dumps")
    assert "all_reduce" in found
    assert "{1}" in found, found


def test_torch_reads_dumps_of_real_ranks(tmp_path: Path) -> None:
    with gloo_ranks(tmp_path) as ranks:
        sockets = [tmp_path / f"{rank}.sock" for rank in range(len(ranks.pids))]

        def dumped(rank: int) -> bytes:
            return collectives.dump(sockets[rank], time.monotonic() + 10)

        wait_for(lambda: collectives.from_flight_recorder(json.loads(dumped(0)))[0].enqueued == 4, "rank 0 waits")
        files = {f"trace_{rank}.json": dumped(rank) for rank in range(len(sockets))}
    assert write(archive(files), tmp_path / "dumps", len(sockets)) == [0, 1]
    assert "all_reduce" in read_by_torch(tmp_path / "dumps")


def test_a_dump_gets_what_its_json_lacks() -> None:
    plain = as_torch_reads(nccl_dump(1), 2)
    (entry,) = plain["entries"]
    assert (entry["process_group"], entry["frames"]) == (("0", "default_pg"), [])
    assert entry["time_discovered_started_ns"] is None
    of_gloo = nccl_dump(1) | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}}
    of_gloo["entries"].append({**of_gloo["entries"][0], "process_group": ["5", "pair"]})
    repaired = as_torch_reads(of_gloo, 2)
    assert repaired["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    assert len(repaired["entries"]) == 1, "the ranks of the other group are not known"


@pytest.mark.parametrize(
    "data", [None, [], {}, {"entries": 3}, {"entries": [1, {}, {"process_group": []}], "pg_config": 1}]
)
def test_other_data_does_no_harm(data: Any) -> None:
    assert pickle.loads(pickle.dumps(as_torch_reads(data, 2))) == as_torch_reads(data, 2)


def test_only_files_of_ranks_are_written(tmp_path: Path) -> None:
    files = {
        "trace_1.json": b"{}", "../trace_2.json": b"{}", "trace_3": b"{}", "/etc/trace_4.json": b"{}",
        "trace_5.json": b" " * (MAX_JSON + 1),
    }  # fmt: skip
    assert write(archive(files), tmp_path / "dumps", 2) == [1]
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["trace_1"]


@pytest.mark.parametrize("content", [b"", b"PK", archive({"trace_0.json": b"{"})])
def test_an_answer_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError):
        write(content, tmp_path, 2)


def test_a_dump_that_names_a_default_group_in_each_entry_takes_no_memory_for_each() -> None:
    entries = [{"process_group": [str(n), "default_pg"]} for n in range(1_000)]
    tracemalloc.start()
    try:
        found = as_torch_reads({"entries": entries}, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        as_torch_reads({"entries": entries[:1]}, 1 << 40)
    finally:
        tracemalloc.stop()
    assert len(found["pg_config"]) == 1_000
    assert found["pg_config"]["7"]["ranks"].endswith(", 99999]")


EMPTY = archive({"trace_0.json": b"{}"})


def test_a_dump_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "dumps").mkdir(mode=0o700)
    (tmp_path / "dumps" / "trace_0").symlink_to(tmp_path / "precious")
    assert write(EMPTY, tmp_path / "dumps", 1) == [0]
    assert (tmp_path / "precious").read_text() == "keep"
    assert pickle.loads((tmp_path / "dumps" / "trace_0").read_bytes()) == {}


def test_dumps_are_written_into_a_folder_that_only_their_reader_can_change(tmp_path: Path) -> None:
    """The reader unpickles each file of such a name that it finds there."""
    before = os.umask(0)
    try:
        write(EMPTY, tmp_path / "dumps", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "dumps").stat().st_mode) == 0o700
    assert write(EMPTY, tmp_path / "dumps", 1) == [0], "again"
    (tmp_path / "dumps" / "trace_evil").write_bytes(b"")
    with pytest.raises(FileExistsError, match="holds trace_evil, which is not of this incident"):
        write(EMPTY, tmp_path / "dumps", 1)
    (tmp_path / "dumps" / "trace_evil").unlink()
    for mode in (0o777, 0o1777):
        (tmp_path / "dumps").chmod(mode)
        with pytest.raises(PermissionError, match="can be written to by"):
            write(EMPTY, tmp_path / "dumps", 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of the user nobody")
@pytest.mark.parametrize("below", ["", "dumps"])
def test_dumps_are_not_written_into_a_folder_of_another_user(tmp_path: Path, below: str) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        write(EMPTY, tmp_path / "theirs" / below, 1)
