"""Rankwatch installed beside what five images have: it changes none of their packages, reports, and serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from frameworks.environments import VARIABLE
from frameworks.image_job import STEPS
from support.monitor_process import Api, RunningMonitor
from support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
IMAGES = sorted((HERE / "images").glob("*.txt"))
JOB = HERE / "image_job.py"


def call(*command: str | Path, check: bool = True) -> str:
    """Run a command away from this clone; return what it printed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RANKWATCH", "OTEL"))
    }
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment, cwd="/"
    )
    assert not check or done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if VARIABLE not in os.environ:
        pytest.skip(f"installs five environments: make test-frameworks, which sets {VARIABLE}")
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("rankwatch-*.whl")
    return made


@pytest.fixture(scope="module", params=IMAGES, ids=lambda image: image.stem)
def image(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the packages of an image, then Rankwatch and its monitor."""
    folder = tmp_path_factory.mktemp(request.param.stem)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    install = (*pip, "install", "--quiet", "--no-compile", "--prefer-binary")
    call(*install, "--no-deps", "--requirement", request.param)
    frozen, broken = call(*pip, "freeze").splitlines(), call(*pip, "check", check=False).splitlines()
    call(*install, "--constraint", request.param, f"{wheel}[monitor]")
    after = [line for line in call(*pip, "freeze").splitlines() if not line.startswith("rankwatch")]
    assert set(frozen) <= set(after), "it replaces no package of the image"
    # Requirements that our packages satisfy may vanish; what the image lacked before, it still lacks.
    assert set(call(*pip, "check", check=False).splitlines()) - {"No broken requirements found."} <= set(broken)
    return python


@pytest.fixture
def own_monitor(image: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a monitor that runs in the image's environment."""
    ready, log = tmp_path / "ready.json", tmp_path / "monitor.log"
    command = [
        image,
        "-W",
        "error::ImportWarning",
        "-m",
        "rankwatch",
        "monitor",
        "--no-token",
        "--port",
        "0",
        "--ready-file",
        ready,
    ]
    command += ["--database", tmp_path / "rankwatch.db", "--parent-pid", str(os.getpid())]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd="/") as process:
        try:
            wait_for(lambda: ready.exists() or process.poll() is not None, "the monitor listens", 60)
            assert process.poll() is None, log.read_text()
            yield json.loads(ready.read_text())["url"]
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def reported(api: Api, job: str) -> None:
    assert api.job(job)["iteration"] == STEPS - 1
    (rank,) = api.ranks(job)
    assert (rank["rank"], rank["state"]) == (0, "finished")


def test_a_rank_reports(image: Path, monitor: RunningMonitor, api: Api, job: str) -> None:
    printed = call(image, JOB, monitor.url, job)
    assert printed == "", "neither a warning nor a problem"
    reported(api, job)


def test_the_monitor_serves(image: Path, own_monitor: str, job: str) -> None:
    call(image, JOB, own_monitor, job)
    with Api(own_monitor) as api:
        reported(api, job)
        assert any(dict(labels).get("job") == job for _, labels in api.metrics())
        with api.stream("GET", f"/api/v1/jobs/{job}/events") as events:
            assert next(events.iter_lines()) == "event: job"
