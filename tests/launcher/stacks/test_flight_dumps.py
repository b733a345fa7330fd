"""The flight recorder's own dumps: plain data is read, code is not."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch_launcher.stacks import flight_dumps
from support.opens import never_opened

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
    with never_opened(tmp_path / "trace_3"):
        assert flight_dumps.of_rank(str(tmp_path / "trace_"), "", 3, os.geteuid(), 100.0) == ()


TWICE = b"".join(b"q%ch%c\x86" % (n, n) for n in range(64))
NESTED = {
    "a key whose hash takes hours": (b"\x80\x02})" + b"2\x86" * 64 + b"Ns.", "a key is"),
    "the same from the memo": (b"\x80\x02})" + TWICE + b"Ns.", "a key is"),
    "several keys": (b"\x80\x02}(I1\nN)" + TWICE + b"Nu.", "a key is"),
    "a dict of a list": (b"\x80\x02()" + TWICE + b"Nd.", "a key is"),
    "a set": (b"\x80\x04\x8f()" + TWICE + b"\x90.", "a set"),
    "a frozen set": (b"\x80\x04()" + TWICE + b"\x91.", "a set"),
    "a list of lists whose text takes all memory": (
        b"\x80\x02]" + b"".join(b"q%c0]h%cah%ca" % (n, n, n) for n in range(64)) + b".",
        "more than",
    ),
    "a list within itself": (b"\x80\x02]q\x00h\x00a.", "more than"),
    "a number whose products take hours": (pickle.dumps([[1 << 64]]), "64 bits"),
    "keys of one hash": (pickle.dumps({n * ((1 << 61) - 1): None for n in range(100)}), "64 bits"),
    "a key of one hash": (pickle.dumps({1 << 64: None}), "64 bits"),
    "places in the memo of one hash": (b"(lp%d\n." % ((1 << 61) - 1), "a memo"),
    "a text that is there a million times": (pickle.dumps([["x" * (1 << 20)] * 1000]), "more than"),
    "lists within each other": (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "within each other"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("data", "why"), NESTED.values(), ids=list(NESTED))
def test_a_tree_that_is_endless_or_takes_hours_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        flight_dumps.plain(data)


REAL = """
import os
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(20):
    dist.all_reduce(torch.ones(3))
os.write(1, _dump_fr_trace())
"""


def test_a_dump_of_torch_is_read() -> None:
    """It has the frames of equal stacks once, in all calls that were made there."""
    command = [sys.executable, "-W", "ignore", "-c", REAL]
    dumped = subprocess.run(command, env=os.environ | {"TORCH_FR_BUFFER_SIZE": "100"}, stdout=-1, check=True).stdout
    recorded = pickle.loads(dumped)
    assert len(recorded["entries"]) == 20
    assert recorded["entries"][3]["frames"][0] is recorded["entries"][4]["frames"][0]
    assert flight_dumps.plain(dumped) == recorded


def test_a_pickle_that_asks_for_all_memory_is_refused() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    largest = b"]" * (4 << 20)  # an empty list takes 56 times its byte
    with flight_dumps.bounded_memory(64 << 20), pytest.raises(ValueError, match="plain data"):
        flight_dumps.plain(largest)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
