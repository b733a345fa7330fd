"""The callbacks as nvidia-resiliency-ext's own documents construct them, imported by its names, in a real Trainer."""

from __future__ import annotations

import pytest

from telemetry.integrations.lightning.conftest import Fit

TRAINING = """
import os, sys, time
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel
from nvidia_resiliency_ext.ptl_resiliency import FaultToleranceCallback, StragglerDetectionCallback

fault_tolerance = FaultToleranceCallback(
    autoresume=True, calculate_timeouts=True, logger_name="test_logger", exp_dir=sys.argv[1]
)
stragglers = StragglerDetectionCallback(
    report_time_interval=300.0,
    calc_relative_gpu_perf=True,
    calc_individual_gpu_perf=True,
    num_gpu_perf_scores_to_log=3,
    gpu_relative_perf_threshold=0.7,
    gpu_individual_perf_threshold=0.7,
    stop_if_detected=False,
    logger_name="test_logger",
)


class Model(BoringModel):
    def training_step(self, batch, index):
        time.sleep(0.05)
        return super().training_step(batch, index)


pl.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, logger=False, enable_progress_bar=False,
    default_root_dir=sys.argv[1], callbacks=[fault_tolerance, stragglers],
).fit(Model())
print(f"rank {os.environ['RANK']} used {type(fault_tolerance).__module__}")
"""


@pytest.mark.long
def test_the_documented_callbacks_run_unchanged(watched: Fit) -> None:
    assert watched.api is not None
    script, flag = watched.folder / "train.py", watched.folder / "finished"
    script.write_text(TRAINING)
    flags = ["--stand-in", "nvrx", "--nproc-per-node", "2", "--monitor", str(watched.api.base_url)]
    command = ["-m", "rankwatch", "run", *flags, "--job-id", watched.job, str(script), str(watched.folder)]
    launcher = watched.start(command, FAULT_TOL_FINISHED_FLAG_FILE=str(flag))
    assert launcher.wait() == 0, launcher.printed()
    for rank in range(2):
        assert f"rank {rank} used rankwatch.integrations.lightning" in launcher.printed()
    assert flag.exists(), "training is complete"
    assert watched.incidents() == []
    assert {"setup", "step"} <= {row["section"] for row in watched.summary()["timeouts"]}
