from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankwatch.export.resource import process_start


def test_the_start_of_the_process_is_known_however_late_it_is_asked_for() -> None:
    before = time.time()
    program = "import time, rankwatch.export.resource as r; time.sleep(0.2); print(r.process_start().timestamp())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    after = time.time()
    assert before - 0.05 <= float(printed) <= after - 0.15  # a clock tick is 10 ms
    first, second = process_start(), process_start()
    assert abs((first - second).total_seconds()) < 0.05


def test_a_slow_read_of_proc_does_not_move_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started, read = process_start(), Path.read_text

    def slowly(path: Path) -> str:
        time.sleep(0.5)
        return read(path)

    monkeypatch.setattr(Path, "read_text", slowly)
    assert abs((process_start() - started).total_seconds()) < 0.25
