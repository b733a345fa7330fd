"""What a user gets from ``pip install 'rankwatch[monitor]'``: an environment with nothing of this repository in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from urllib.request import urlopen

import pytest

from support.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RANKWATCH"))}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of a fresh environment with the wheel and its monitor, but no torch."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("rankwatch-*.whl")
    venv.create(folder / "env", with_pip=True)
    bin_ = folder / "env" / "bin"
    done = run(bin_ / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[monitor]")
    assert done.returncode == 0, done.stderr
    return bin_


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_wheel_serves_the_page_without_torch(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "python", "-c", "import torch").returncode != 0
    ready = tmp_path / "ready.json"
    command = [installed / "rankwatch", "monitor", "--port", "0", "--database", "none"]
    command += ["--ready-file", ready, "--parent-pid", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/") as monitor:
        try:
            wait_for(ready.exists, "the monitor listens", 30)
            with urlopen(json.loads(ready.read_text())["url"]) as page:
                assert b"<!doctype html>" in page.read()[:100].lower()
        finally:
            monitor.terminate()
    assert monitor.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_command_states_what_is_missing(installed: Path) -> None:
    printed = run(installed / "rankwatch", "run", "train.py")
    assert printed.returncode == 2
    assert "pip install 'rankwatch[torch]'" in printed.stderr
    assert "monitor" in run(installed / "rankwatch", "--help").stdout
