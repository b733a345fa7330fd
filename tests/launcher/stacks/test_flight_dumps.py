"""The flight recorder's own dumps: plain data is read, code is not."""

from __future__ import annotations

import os
import pickle
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch_launcher.stacks import flight_dumps

ENTRY: dict[str, Any] = {
    "record_id": 4, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 5, "is_p2p": False,
    "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"], "state": "scheduled",
    "retired": False,
}  # fmt: skip


def dump(folder: Path, data: object) -> str:
    (folder / "trace_3").write_bytes(pickle.dumps(data))
    return str(folder / "trace_")


def test_a_dump_shows_the_progress_of_groups(tmp_path: Path) -> None:
    prefix = dump(tmp_path, {"entries": [ENTRY], "pg_config": {"0": {"name": "0", "ranks": "[0, 3]"}}})
    (found,) = flight_dumps.of_rank(prefix, "", 3, os.geteuid(), 100.0)
    assert (found.group, found.operation, found.enqueued, found.completed) == ("default_pg", "all_reduce", 5, 4)
    assert found.ranks == (0, 3)


def test_a_dump_of_an_earlier_process_or_another_user_does_not_count(tmp_path: Path) -> None:
    prefix = dump(tmp_path, {"entries": [ENTRY], "pg_config": {}})
    os.utime(prefix + "3", (time.time() - 200, time.time() - 200))
    assert flight_dumps.of_rank(prefix, "", 3, os.geteuid(), 100.0) == ()
    assert flight_dumps.of_rank(prefix, "", 3, os.geteuid() + 1, 300.0) == ()
    assert flight_dumps.of_rank(prefix, "", 3, os.geteuid(), 300.0)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize("data", [pickle.dumps(Evil()), b"no pickle", b"", pickle.dumps([1])[:-1]])
def test_what_is_no_plain_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="plain data"):
        flight_dumps.plain(data)
    assert not (tmp_path / "made-by-a-pickle").exists()
    (tmp_path / "trace_3").write_bytes(data)
    assert flight_dumps.of_rank(str(tmp_path / "trace_"), "", 3, os.geteuid(), 100.0) == ()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_dump_that_is_no_file_is_not_waited_for(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "trace_3")
    assert flight_dumps.of_rank(str(tmp_path / "trace_"), "", 3, os.geteuid(), 100.0) == ()


NESTED = {
    "a key whose hash takes hours": b"\x80\x02})" + b"2\x86" * 64 + b"Ns.",
    "the same from the memo": b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(64)) + b"Ns.",
    "a list of lists whose text takes all memory": b"\x80\x02]"
    + b"".join(b"q%c0]h%cah%ca" % (n, n, n) for n in range(64))
    + b".",
    "by long numbers": b"\x80\x02)"
    + b"".join(b"r%b0j%bj%b\x86" % ((n.to_bytes(4, "little"),) * 3) for n in range(64))
    + b".",
    "by text": b")" + b"".join(b"p%d\n0g%d\ng%d\n\x86" % (n, n, n) for n in range(64)) + b".",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("data", NESTED.values(), ids=list(NESTED))
def test_a_container_that_is_within_another_one_twice_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="there twice"):
        flight_dumps.plain(data)


def test_names_may_be_there_twice() -> None:
    name = "all_reduce"
    assert flight_dumps.plain(pickle.dumps([{name: name, "of": (name, 1.5, b"x")}] * 1)) == [
        {name: name, "of": (name, 1.5, b"x")}
    ]


def test_a_pickle_that_asks_for_all_memory_is_refused() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    largest = b"]" * (4 << 20)  # an empty list takes 56 times its byte
    with flight_dumps.bounded_memory(64 << 20), pytest.raises(ValueError, match="plain data"):
        flight_dumps.plain(largest)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
