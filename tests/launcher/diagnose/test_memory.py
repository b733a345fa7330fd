"""What a process has in its memory: real processes, and memory that is none of a program."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwatch_launcher.diagnose import memory

BEGIN = 0x1000
"""Where the C library lies in the copy of a process's memory."""

CHANGES = """
import os, sys
os.environ["RANK"], os.environ["LONG"] = "3", "x" * 100_000
del os.environ["GONE"]
print("READY", flush=True)
sys.stdin.read()
"""


def test_the_environment_is_that_which_a_process_has_made_itself() -> None:
    before = os.environ | {"GONE": "1", "KEPT": "a=b"}
    command = [sys.executable, "-c", CHANGES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=before) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "READY\n"
        found = memory.environment(process.pid)
        process.stdin.close()
    assert {name: found.get(name) for name in ("RANK", "KEPT", "GONE", "LONG")} == {
        "RANK": "3", "KEPT": "a=b", "GONE": None, "LONG": None,
    }  # fmt: skip


def test_of_a_process_that_is_gone_or_has_no_program_nothing_is_read(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert memory.environment(gone.pid) == {}
    assert memory.group(gone.pid, 4096) == (-1, 0)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(
        "1000-2000 r-xp 00000000 00:00 0 /x/python\n3000-4000 r--p 0 0 0 /x/libc.so.6\n"
    )
    (tmp_path / "7" / "mem").write_bytes(b"\x7fELF\x02\x01" + b"\xff" * (1 << 16))
    assert memory.environment(7, tmp_path) == {}
    (tmp_path / "7" / "mem").write_bytes((b"\0" * 0x1000 + b"\x7fELF\x02\x01") + b"\xff" * (1 << 16))
    assert memory.environment(7, tmp_path) == {}
    assert memory.group(7, 1 << 63, tmp_path) == (-1, 0)


def copied(folder: Path) -> tuple[bytearray, list[int]]:
    """The C library as it is in the memory of this process, moved to :data:`BEGIN`, with an environment of two
    variables behind it; and where what is read stands.
    """
    [base] = list(memory._bases(os.getpid(), Path("/proc")))[1:]
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line]
    spans = [[int(each, 16) for each in line[0].split("-")] for line in maps if line[1].startswith("r")]
    image = bytearray(max(end for _, end in spans) - base + BEGIN + (1 << 16))  # and what begins as zeros
    with open("/proc/self/mem", "rb") as own:
        for begin, end in spans:
            own.seek(begin)
            image[begin - base + BEGIN : end - base + BEGIN] = own.read(end - begin)
    head = memory._HEADER.unpack_from(image, BEGIN)
    places = [BEGIN, BEGIN + head[5]]
    for i in range(head[10]):
        kind, _, _, address, _, _, size, _ = memory._SEGMENT.unpack_from(image, BEGIN + head[5] + i * 56)
        if kind == memory._DYNAMIC:
            for at in range(BEGIN + address, BEGIN + address + size, 16):
                tag, value = memory._ENTRY.unpack_from(image, at)
                if tag in (memory._STRINGS, memory._SYMBOLS, memory._HASHES):
                    struct.pack_into("<qQ", image, at, tag, value - base + BEGIN)
                    places += [at, BEGIN + value - base]
    end = len(image)
    image += struct.pack("<3Q", end + 24, end + 31, 0) + b"RANK=3\0WORLD_SIZE=8\0" + b"\0" * 600
    (folder / "7").mkdir()
    (folder / "7" / "maps").write_text(f"{BEGIN:x}-{len(image):x} r-xp 00000000 00:00 0 /lib/libc.so.6\n")
    (folder / "7" / "mem").write_bytes(image)
    read = memory._Memory(7, folder)
    symbol = memory._symbol(read, BEGIN)
    read.close()
    struct.pack_into("<Q", image, symbol, end)
    return image, [*places, symbol, end]


def test_whatever_is_in_the_memory_it_is_read_or_not(tmp_path: Path) -> None:
    image, places = copied(tmp_path)
    mem = tmp_path / "7" / "mem"
    mem.write_bytes(image)
    assert memory.environment(7, tmp_path) == {"RANK": "3", "WORLD_SIZE": "8"}
    numbers = st.one_of(
        st.integers(0, len(image)), st.sampled_from((0, 1 << 31, (1 << 64) - 1)), st.integers(0, 1 << 63)
    )
    words = st.lists(st.tuples(st.sampled_from(places), st.integers(0, 12), numbers), min_size=1, max_size=4)

    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(changes=words)
    def look(changes: list[tuple[int, int, int]]) -> None:
        with mem.open("r+b") as file:
            for place, word, number in changes:
                file.seek(place + 8 * word)
                file.write(struct.pack("<Q", number))
        found = memory.environment(7, tmp_path)
        assert all(isinstance(each, str) and len(each) < 2048 for pair in found.items() for each in pair)
        with mem.open("r+b") as file:
            for place, word, _ in changes:
                file.seek(place + 8 * word)
                file.write(image[place + 8 * word :][:8])
        assert memory.group(7, changes[0][2], tmp_path) is not None

    look()
