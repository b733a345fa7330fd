"""Code for NVIDIA's resiliency extension and Megatron-Bridge, with both installed, under ``--stand-in nvrx``."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.environments import environment, run
from support.monitor_process import Api, RunningMonitor

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
CONFIG = """
fault_tolerance:
  rank_section_timeouts: {init: 120, setup: 120, step: 5, checkpoint: 60, checkpointing: 60}
  rank_out_of_section_timeout: 60
  log_level: INFO
"""


def launch(name: str, script: str, monitor: RunningMonitor, job: str, folder: Path) -> str:
    """Train two ranks, of which rank 1 stops itself in the first attempt; return what was written."""
    python = environment(name)
    (folder / "ft.yaml").write_text(CONFIG)
    flags = ["--standalone", "--nproc-per-node", "2", "--monitor", monitor.url, "--job-id", job]
    command = [python, "-W", "ignore", "-m", "rankwatch", "run", *flags, "--stand-in", "nvrx"]
    code, printed = run(
        [*command, "--ft-cfg-path", folder / "ft.yaml", HERE / script, folder], seconds=500, folder=folder
    )
    assert code == 0, printed[-6000:]
    return printed


def found_and_restarted(api: Api, job: str) -> None:
    summary = api.read(f"/jobs/{job}")
    assert (summary["state"], summary["restarts"]) == ("finished", 1)
    incidents = api.read(f"/jobs/{job}/incidents")["incidents"]
    (confirmed,) = [each for each in incidents if each["confirmed"]]  # type: ignore[attr-defined]
    assert [culprit["rank"] for culprit in confirmed["culprits"]] == [1]


def test_its_scripts_run_beside_the_installed_package(
    monitor: RunningMonitor, api: Api, job: str, tmp_path: Path
) -> None:
    printed = launch("nvrx", "nvrx_job.py", monitor, job, tmp_path)
    installed = str(environment("nvrx").parents[1])
    assert "<nvidia_resiliency_ext.fault_tolerance of None>" in printed, "Rankwatch's"
    assert "<nvidia_resiliency_ext.inprocess of None>" in printed, "Rankwatch's, too"
    assert f"<nvidia_resiliency_ext.shared_utils.health_check of {installed}" in printed
    assert '"step": 5.0' in printed
    assert "<attempt 1: from step 30>" in printed
    found_and_restarted(api, job)


def test_bridge_trains_a_model_of_megatron_core(monitor: RunningMonitor, api: Api, job: str, tmp_path: Path) -> None:
    printed = launch("bridge", "bridge_job.py", monitor, job, tmp_path)
    installed = str(environment("bridge").parents[1])
    assert f"<pretrain of {installed}" in printed
    assert "<in process of None>" in printed, "Rankwatch's"
    assert "FT: initialized. Timeouts=SectionTimeouts(" in printed
    assert "<attempt 1: from step 20, last loss " in printed
    assert (tmp_path / "ft_state.json").exists()
    found_and_restarted(api, job)
