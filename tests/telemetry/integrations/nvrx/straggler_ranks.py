"""What each rank runs in these tests: steps of matrix products, three times as many on rank 1, scored by the detector.

The detector is used as NVRx's example does it (``--manager none``), or by Bridge's own module, loaded from its file.
The ranks leave the loop after the same step, once the test has made ``finish`` in their folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from rankwatch.integrations.nvrx import straggler

RANK = int(os.environ["RANK"])


def train_step() -> None:
    matrix = torch.ones(160, 160)
    for _ in range(60 if RANK == 1 else 20):
        matrix = torch.mm(matrix, matrix) / 160


def over(folder: Path) -> bool:
    flag = torch.tensor([float((folder / "finish").exists())])
    dist.all_reduce(flag)
    return bool(flag[0] > 0)


def detector(folder: Path) -> None:
    straggler.Detector.initialize(profiling_interval=16, report_time_interval=2.0, node_name="the-host")
    while not over(folder):
        with straggler.Detector.detection_section("products"):
            train_step()
        if (report := straggler.Detector.generate_report_if_interval_elapsed()) is not None:
            keep(folder, report)
    if RANK == 0:
        keep(folder, straggler.Detector.generate_report())
    straggler.Detector.shutdown()


def keep(folder: Path, report: Any) -> None:
    """What the script sees of one report, for the test."""
    slow = report.identify_stragglers()["straggler_sections_relative"]
    line = {
        "rank": report.rank,
        "sections": {name: list(scores) for name, scores in report.section_relative_perf_scores.items()},
        "gpus": list(report.gpu_relative_perf_scores),
        "slow": sorted([each.rank, each.node] for each in slow.get("products", ())),
        "local": {name: str(each) for name, each in report.local_section_summaries.items()},
    }
    with (folder / f"reports-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def bridge(folder: Path, file: str) -> None:
    from support import bridge as bridges

    theirs = bridges.load(file)
    config = SimpleNamespace(
        enabled=True,
        report_time_interval=2.0,
        calc_relative_gpu_perf=True,
        calc_individual_gpu_perf=True,
        num_gpu_perf_scores_to_print=5,
        gpu_relative_perf_threshold=0.7,
        gpu_individual_perf_threshold=0.7,
        stop_if_detected=False,
        enable_logging=True,
        profiling_interval=16,
        logger_name="bridge",
    )
    manager = theirs.NVRxStragglerDetectionManager(config)
    manager.initialize()
    step = manager.wrap_train_step_function(train_step)
    while not over(folder):
        step()
        theirs.check_nvrx_straggler_detection(manager)
    theirs.safe_shutdown_nvrx_straggler_manager(manager)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--manager", default="none")
    options = parser.parse_args()
    try:
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        if options.manager == "none":
            detector(options.folder)
        else:
            bridge(options.folder, options.manager)
        os._exit(0)  # gloo's threads sometimes abort the interpreter's end
    except BaseException:  # noqa: BLE001 - whatever it was, it is shown and becomes the exit code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
