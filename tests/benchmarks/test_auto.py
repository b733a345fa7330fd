"""The benchmark of ``--auto`` measures what a launcher attaches: its child begins by the name that the package has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "auto.py"


@pytest.mark.long
def test_both_rows_are_measured() -> None:
    command = [sys.executable, str(SCRIPT), "--turns", "1", "--steps", "5", "--width", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["plain", "auto"]
