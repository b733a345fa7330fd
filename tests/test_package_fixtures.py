"""``tests/conftest.py`` ends a fixture of package scope with its folder, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIXTURE = """
import pytest

@pytest.fixture(scope="package")
def shared():
    with open("events", "a") as events:
        print("begin", file=events)
    yield
    with open("events", "a") as events:
        print("end", file=events)
"""
USES = "def test_it(shared):\n    print('used', file=open('events', 'a'))\n"
OTHER = "def test_other():\n    print('other', file=open('events', 'a'))\n"


def test_it_lives_as_long_as_tests_of_its_folder_follow(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    for folder in ("a/within", "b"):
        (tests / folder).mkdir(parents=True)
    (tests / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tests / "a" / "conftest.py").write_text(FIXTURE)
    for name, text in (("a/test_1", USES), ("a/test_2", USES), ("a/within/test_3", USES), ("b/test_4", OTHER)):
        (tests / f"{name}.py").write_text(text)
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, "tests/a", "tests/b"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "events").read_text().split() == ["begin", "used", "used", "used", "end", "other"]
