"""What a process has in its memory: real processes, and memory that is none of a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rankwatch_launcher.diagnose import memory

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
