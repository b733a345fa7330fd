"""The GPU kit: without a device as far as that goes; with one, each of its parts as a test (``make test-gpu``)."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import pytest

from gpu import kit
from gpu.part import PARTS

ROOT = Path(__file__).resolve().parents[2]
GPU = Path("/dev/nvidiactl").exists()


def test_every_part_runs_as_far_as_it_can_without_a_device(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "gpu.sh"), "--dry-run", "--report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert report["parts"].keys() == PARTS.keys()
    assert {found["status"] for found in report["parts"].values()} == {"checked"}, "nothing is called proven"
    text = (tmp_path / "gpu-report.md").read_text()
    assert all(part.proves in text for part in PARTS.values())


@pytest.mark.skipif(GPU, reason="it fails for lack of a GPU")
def test_a_part_that_fails_or_finds_no_time_states_what_it_would_have_proved(tmp_path: Path) -> None:
    asked = argparse.Namespace(dry_run=False, jobs=False)
    failed = kit.run(["health"], asked, tmp_path, 60.0)["health"]
    assert failed["status"] == "failed"
    late = kit.run(["rerun"], asked, tmp_path, 1.0)["rerun"]
    assert (late["status"], late["reason"]) == ("cannot run", "the kit's time was used up")
    report = {
        "date": "",
        "dry run": False,
        "device": "none",
        "versions": {},
        "parts": {"health": failed, "rerun": late},
    }
    assert all(f"it would have proved: {PARTS[name].proves}" in kit.markdown(report) for name in ("health", "rerun"))


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.skipif(not GPU, reason="this machine shows no NVIDIA GPU")
@pytest.mark.parametrize("name", PARTS)
def test_on_a_gpu(name: str, tmp_path: Path) -> None:
    found = kit.run([name], argparse.Namespace(dry_run=False, jobs=False), tmp_path, 140.0)[name]
    if found["status"] == "cannot run":
        pytest.skip(found["reason"])
    assert found["status"] == "passed", found
