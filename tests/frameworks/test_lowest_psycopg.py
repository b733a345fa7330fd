"""The store on PostgreSQL with the lowest version of its driver that pyproject.toml admits."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

from frameworks.environments import ROOT, SOURCES, environment, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_the_store_works_with_the_lowest_version_of_the_driver(tmp_path: Path) -> None:
    packages = environment("psycopg", "psycopg/__init__.py").parent.parent
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (floor,) = (each.partition(">=")[2] for each in extras["postgresql"])
    paths = os.pathsep.join((str(packages), SOURCES))
    version = "import psycopg; print(psycopg.__version__)"
    assert run([sys.executable, "-c", version], seconds=60, folder=tmp_path, PYTHONPATH=paths) == (0, f"{floor}\n")
    chosen = [
        str(ROOT / "tests/monitor/store" / name) for name in ("test_repository.py", "test_writer.py", "test_leases.py")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "postgresql", *chosen]
    code, printed = run(command, seconds=500, folder=ROOT, PYTHONPATH=paths)
    assert code == 0, printed[-6000:]
    assert " passed" in printed
