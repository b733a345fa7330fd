"""Other people's packages as they are published: fetched for one test run, never installed, or a test skips."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SECONDS = 90.0


def unpacked(requirement: str, folder: Path) -> Path:
    """The folder with what is in the wheel; its dependencies are not fetched."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), requirement], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{requirement} could not be fetched within {SECONDS:g} s")
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"{requirement} cannot be fetched here: {done.stderr.strip()[-300:]}")
    content = folder / "content"
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(content)
    return content
