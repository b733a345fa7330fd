"""Rankwatch beside the pinned packages of images that people train with: it installs, runs, restarts and reports.

``tests/images/*.txt`` are the pins, each with its source. Of torch, the one of this environment is used. The two sets
with the oldest packages are part of the long suite; ``make images`` runs all.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from support.waiting import wait_for

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ALL = sorted(path.stem for path in HERE.glob("*.txt"))
CHOSEN = ALL if os.environ.get("RANKWATCH_IMAGES") == "all" else ["ray-2", "vllm-0.8"]
FOREIGN = ("PYTHON", "RANKWATCH", "OTEL_", "PET_", "SLURM_", "TORCHELASTIC")
VERSIONS = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Image:
    """An environment with the pins of one image and Rankwatch."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.bin, self.pins = folder, folder / "env" / "bin", HERE / f"{name}.txt"
        venv.create(folder / "env", with_pip=True)
        needed = [_requirement(line) for line in importlib.metadata.requires("torch") or () if "extra ==" not in line]
        self.pip("-r", str(self.pins), *needed)
        _link_torch(folder / "env")
        self.pip(f"{ROOT}[monitor]")

    def pip(self, *what: str) -> None:
        """Install; whatever the image has pinned must stay."""
        self.run("python", "-m", "pip", "install", "--quiet", "--constraint", str(self.pins), *what)

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program of this environment, which must succeed."""
        done = subprocess.run(
            [self.bin / program, *arguments], capture_output=True, text=True, env=self.environment(), cwd=self.folder
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return clean | {"XDG_STATE_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}


def _requirement(line: str) -> str:
    return line.split(";")[0].strip()


def _link_torch(environment: Path) -> None:
    """Put the torch of this environment into another one, without the time and space of a second one."""
    files = importlib.metadata.files("torch")
    assert files is not None
    (target,) = environment.glob("lib/python*/site-packages")
    for name in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        found = Path(str(importlib.metadata.distribution("torch").locate_file(name)))
        if not (target / name).exists():
            (target / name).symlink_to(found)


@pytest.fixture(scope="module", params=CHOSEN)
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"), request.param)


@pytest.fixture
def url(image: Image, tmp_path: Path) -> Iterator[str]:
    """The address of a monitor that runs in the image."""
    ready = tmp_path / "ready.json"
    command = [image.bin / "rankwatch", "monitor", "--port", "0", "--database", str(tmp_path / "monitor.db")]
    command += ["--ready-file", ready, "--parent-pid", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=image.environment(), cwd=tmp_path) as monitor:
        try:
            wait_for(lambda: ready.exists() or monitor.poll() is not None, "the monitor listens", 60)
            yield str(json.loads(ready.read_text())["url"]).rstrip("/")
        finally:
            monitor.terminate()


def test_the_pins_stay(image: Image) -> None:
    versions = {
        name.lower().replace("_", "-"): version
        for name, version in json.loads(image.run("python", "-c", VERSIONS)).items()
    }
    lines = [line for line in image.pins.read_text().splitlines() if line and not line.startswith("#")]
    assert {line: versions[line.partition("==")[0]] for line in lines} == {
        line: line.partition("==")[2] for line in lines
    }


def test_a_job_of_two_ranks_is_restarted_and_reported(image: Image, url: str) -> None:
    command = ("run", "--monitor", url, "--job-id", "j", "--nproc-per-node", "2", "--max-restarts", "1")
    image.run("rankwatch", *command, str(HERE / "train.py"))
    with urlopen(f"{url}/api/v1/jobs/j") as answer:
        job = json.load(answer)
    assert (job["state"], job["restarts"], job["iteration"], job["instrumented"]) == ("finished", 1, 19, True)
    with urlopen(f"{url}/metrics") as metrics:
        assert metrics.headers["content-type"].startswith("text/plain")
        assert b'rankwatch_job_restarts_total{job="j"' in metrics.read()
    assert "exited with code 7" in image.run("rankwatch", "report", "--monitor", url, "j")
