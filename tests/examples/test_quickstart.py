"""The quick starts of the manual: each file, run as its page shows, hangs, is named and resumes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from e2e.training import Training
from support.forked_ranks import run_command
from support.monitor_process import RunningMonitor, running_monitor
from support.slurm import Cluster, slurm_cluster

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart"
SECONDS = 270
"""What a job may take: two starts of the frameworks, and a hang of ten seconds."""
PAGES = {
    "quick-ddp.md": ["train_ddp.py"],
    "quick-hugging-face.md": ["train_hugging_face.py"],
    "quick-lightning.md": ["train_lightning.py"],
    "quick-nvrx-slurm.md": ["train_nvrx.py", "nvrx.sbatch"],
}


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, names in PAGES.items() for name in names])
def test_pages_show_the_files_as_they_are(page: str, name: str) -> None:
    shown = re.findall(r"^```(?:python|bash)\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert (QUICKSTART / name).read_text() in shown


def test_every_file_has_a_page() -> None:
    shown = [name for names in PAGES.values() for name in names]
    assert sorted(path.name for path in QUICKSTART.iterdir() if path.is_file()) == sorted(shown)


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[RunningMonitor]:
    (tmp_path / "monitor").mkdir()
    with running_monitor(tmp_path / "monitor") as running:
        yield running


@pytest.fixture
def training(tmp_path: Path, monitor: RunningMonitor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    """A job in a folder of its own; whatever it starts is ended."""
    monkeypatch.chdir(tmp_path)
    job = Training(tmp_path, "quickstart")
    job.follow(monitor.url)
    try:
        yield job
    finally:
        job.close()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("train_ddp.py", ["torch"]),
        ("train_hugging_face.py", ["transformers", "transformers.trainer"]),
        ("train_lightning.py", ["lightning", "lightning.pytorch"]),
    ],
)
def test_a_hang_is_named_and_the_training_resumes_and_completes(
    training: Training, tmp_path: Path, name: str, needs: list[str]
) -> None:
    if find_spec(needs[0]) is None:
        pytest.skip(f"{needs[0]} is not installed")
    shutil.copy(QUICKSTART / name, tmp_path)
    assert training.api is not None
    command = [*run_command(*needs), "--nproc-per-node", "2", "--inject", "rank=1,step=120,kind=hang"]
    ours = ["--monitor", str(training.api.base_url), "--job-id", training.job, "--outcome", "outcome.json"]
    launcher = training.start([*command, *ours, "--finished-flag", "finished", name], HF_HUB_OFFLINE="1")
    assert launcher.process.wait(SECONDS) == 0, launcher.printed()[-6000:]
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert (outcome["state"], outcome["restarts"]) == ("finished", 1)
    assert (tmp_path / "finished").exists(), "the last step has been made"
    (incident,) = [each for each in training.api.incidents(training.job) if each["action"] == "restart"]
    assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
    assert [rank["iteration"] for rank in training.api.ranks(training.job)] == [outcome["iteration"]] * 2


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(2) as running:
        yield running


@pytest.mark.long
@pytest.mark.timeout(600)
def test_code_for_nvrx_trains_on_slurm_unchanged_and_resumes_after_a_crash(cluster: Cluster, tmp_path: Path) -> None:
    for name in PAGES["quick-nvrx-slurm.md"]:
        shutil.copy(QUICKSTART / name, tmp_path)
    (tmp_path / "tmp").mkdir()
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        "RANKS_PER_NODE": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path / "tmp"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "RANKWATCH_INJECT": "rank=1,step=120,kind=exception",
    }
    job = cluster.submit(tmp_path / "nvrx.sbatch", folder=tmp_path, **variables)
    assert job.ended()["JobState"] == "COMPLETED", job.printed()[-6000:]
    (launch,) = [
        json.loads(line) for line in next(tmp_path.glob("*.rankwatch/launches.jsonl")).read_text().splitlines()
    ]
    assert launch["outcome"]["state"] == "finished", launch
    assert launch["outcome"]["restarts"] == 1
