"""A function on every rank, launched from a program: what it returns, what is restarted, and what is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.launcher.api import LaunchConfig

from launcher.conftest import SOURCES, FakeMonitor
from rankwatch_launcher.api import elastic_launch
from support.forked import run
from support.processes import without

PROGRAM = """
import json, os, signal, sys
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from rankwatch_launcher.api import NotFinished, elastic_launch

def train(how, more):
    rank, attempt = int(os.environ["RANK"]), int(os.environ["RANKWATCH_ATTEMPT"])
    if how == "fails-once" and attempt == 1 and rank == 1 or how == "fails" and rank == 1:
        raise ValueError("as told")
    return {"rank": rank, "attempt": attempt, "more": more}

if __name__ == "__main__":
    mine = lambda *_: None
    signal.signal(signal.SIGTERM, mine)
    before = dict(os.environ)
    config = LaunchConfig(1, 1, nproc_per_node=2, max_restarts=1, **json.loads(sys.argv[2]))
    entrypoint = sys.executable if sys.argv[1] == "program" else train
    launch = elastic_launch(config, entrypoint, monitor_url=os.environ["URL"], job_id="j", max_no_progress=0)
    arguments = ("-c", "print('a program')") if sys.argv[1] == "program" else (sys.argv[1], (1, 2))
    try:
        said = {"returned": launch(*arguments)}
    except ChildFailedError as error:
        said = {"failed": sorted(error.failures)}
    except NotFinished as error:
        said = {"not finished": error.outcome.state}
    said |= {"restored": signal.getsignal(signal.SIGTERM) is mine and dict(os.environ) == before}
    print(json.dumps(said | {"restarts": launch.outcome.restarts}))
"""
ALONE = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}


def launch(folder: Path, monitor: FakeMonitor, how: str, **config: Any) -> dict[str, Any]:
    (folder / "program.py").write_text(PROGRAM)
    env = without(("RANKWATCH_", "PET_", "SLURM_", "TORCHELASTIC")) | {
        "PYTHONPATH": ":".join(map(str, SOURCES)),
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(folder),
        "URL": monitor.url,
    }
    command = [sys.executable, str(folder / "program.py"), how, json.dumps(config)]
    done = run(command, cwd=folder, env=env, stderr=subprocess.STDOUT, start_new_session=True)
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("config", [ALONE, {}, {"rdzv_backend": "c10d", "rdzv_configs": {"store_type": "file"}}])
def test_what_each_rank_returns_by_its_rank(tmp_path: Path, monitor: FakeMonitor, config: dict[str, Any]) -> None:
    found = launch(tmp_path, monitor, "works", **config)
    value = {"attempt": 1, "more": [1, 2]}
    assert found == {
        "returned": {"0": value | {"rank": 0}, "1": value | {"rank": 1}},
        "restored": True,
        "restarts": 0,
    }


def test_a_rank_that_raises_is_restarted_and_the_last_attempt_counts(tmp_path: Path, monitor: FakeMonitor) -> None:
    found = launch(tmp_path, monitor, "fails-once", **ALONE)
    assert [each["attempt"] for each in found["returned"].values()] == [2, 2]
    assert found["restarts"] == 1
    (crash,) = [e for e in monitor.events("exited") if e["exit_code"] == 1]
    assert "ValueError: as told" in crash["reason"]


def test_a_failure_without_a_restart_left_is_torchs_error(tmp_path: Path, monitor: FakeMonitor) -> None:
    found = launch(tmp_path, monitor, "fails", **ALONE)
    assert found == {"failed": [1], "restored": True, "restarts": 1}


def test_a_program_returns_nothing(tmp_path: Path, monitor: FakeMonitor) -> None:
    assert launch(tmp_path, monitor, "program", **ALONE)["returned"] == {}


def test_what_cannot_be_is_refused_before_anything_starts() -> None:
    config = LaunchConfig(1, 1, nproc_per_node=1)
    with pytest.raises(ValueError, match="no setting no_such"):
        elastic_launch(config, print, no_such=1)
    with pytest.raises(ValueError, match="heartbeat_timeout"):
        elastic_launch(config, print, heartbeat_timeout=-1)
    with pytest.raises(ValueError, match="rdzv_backend"):
        elastic_launch(LaunchConfig(2, 2, nproc_per_node=1, rdzv_endpoint="h:1"), print)
    with pytest.raises(ValueError, match="picklable"):
        elastic_launch(config, lambda: None)()
