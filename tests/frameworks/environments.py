"""Others' software in environments of its own, none of which the development environment has.

``scripts/frameworks.sh`` makes them below the folder that ``RANKWATCH_FRAMEWORKS`` names; without it the tests skip.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "RANKWATCH_FRAMEWORKS"
ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = os.pathsep.join(str(ROOT / each) for each in ("telemetry", "launcher", "monitor"))


def environment(name: str, file: str = "bin/python") -> Path:
    """A file of an environment, or the test skips."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"needs others' software in environments of its own: make test-frameworks, which sets {VARIABLE}")
    path = Path(folder) / name / file
    if not path.exists():
        pytest.skip(f"{path} is missing: scripts/frameworks.sh {folder} {name}")
    return path


def run(command: Sequence[str | Path], *, seconds: float, folder: Path, **variables: str) -> tuple[int, str]:
    """Run a command with this clone's Rankwatch on its path; return its exit code and what it wrote."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RANKWATCH_", "OTEL_"))}
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**inherited, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", **variables},
        process_group=0,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except BaseException:
        os.killpg(process.pid, 15)  # a launcher ends its ranks
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
        raise
    return process.returncode, said
