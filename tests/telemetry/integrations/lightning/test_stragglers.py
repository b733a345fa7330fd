"""StragglerDetectionCallback: a slow rank is in the training log and in the run's loggers, and may end the run."""

from __future__ import annotations

import csv
import math
from typing import Any

import pytest

from e2e.training import HOST
from telemetry.integrations.lightning.conftest import Fit, stopped_together

pytestmark = pytest.mark.timeout(240)

SLOW = ("--slow-rank", "1", "--save-every", "100000", "--validate-every", "100000")
"""No checkpoints meanwhile: rank 0 writes them, which makes it the slow one in their section."""
NAME = "StragglerDetectionCallback"
QUICK = {"report_time_interval": 1.0, "profiling_interval": 16}
FIGURES = [f"gpu_{kind}_perf/{which}" for kind in ("relative", "individual") for which in ("min", "median", "max")]


def logged(fit: Fit) -> dict[str, list[float]]:
    """What the CSV logger got, by column."""
    with (fit.folder / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row.get(name)] for name in FIGURES}


@pytest.mark.long
def test_a_slow_rank_is_reported_logged_and_ends_the_run_with_a_checkpoint(watched: Fit) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed: pip install wandb")
    from support.wandb_files import written_runs

    launcher = watched.launch({NAME: {**QUICK, "stop_if_detected": True}}, *SLOW, "--wandb")
    assert launcher.wait() == 0, launcher.printed()
    printed = launcher.printed()
    assert f"STRAGGLER DETECTION WARNING: Rank 1 on {HOST}" in printed
    assert "Detected stragglers. Terminating training..." in printed
    for line in ("GPU relative performance:", "GPU individual performance:", " Worst performing ", "  Rank=1 Node="):
        assert f"\n{line}" in printed
    assert "Straggler report processing time: " in printed
    stopped_together(watched)
    (incident,) = watched.incidents()
    assert incident["kind"] == "straggler"
    assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
    columns = logged(watched)
    assert all(len(values) >= 1 for values in columns.values()), columns
    low, high = columns["gpu_relative_perf/min"], columns["gpu_relative_perf/max"]
    assert all(0 < a <= b <= 1 for a, b in zip(low, high, strict=True))
    assert min(low) < 0.7
    (run,) = written_runs(watched.folder)
    plotted = [row for row in run.rows if set(FIGURES) <= row.keys()]
    assert min(row["gpu_relative_perf/min"] for row in plotted) == pytest.approx(min(low))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False}, "no score is enabled"),
        ({"report_time_interval": 0}, "report_time_interval must be a number of seconds"),
        ({"report_time_interval": math.nan}, "report_time_interval must be a number of seconds"),
        ({"gpu_relative_perf_threshold": 1.5}, "gpu_relative_perf_threshold must be a score"),
        ({"gpu_individual_perf_threshold": -0.1}, "gpu_individual_perf_threshold must be a score"),
        ({"num_gpu_perf_scores_to_log": -1}, "num_gpu_perf_scores_to_log must be a whole number"),
        ({"num_gpu_perf_scores_to_log": 1, "num_gpu_perf_scores_to_print": 2}, "are aliases"),
        ({"profiling_interval": -1}, "profiling_interval must be a whole number"),
        ({"calc_relative_gpu_perf": "yes"}, "calc_relative_gpu_perf must be true or false"),
    ],
)
def test_a_senseless_configuration_is_refused(given: dict[str, Any], words: str) -> None:
    from rankwatch.integrations.lightning import StragglerDetectionCallback

    with pytest.raises(ValueError, match=words):
        StragglerDetectionCallback(**given)


def test_nemos_recipe_in_one_word() -> None:
    from rankwatch.integrations.lightning import straggler_det_callback

    made = straggler_det_callback()
    wanted = {"report_interval": 300.0, "on_straggler": "save_and_stop", "straggler_reference": "fastest"}
    wanted |= {"relative_threshold": 0.7, "individual_threshold": 0.7, "num_gpu_perf_scores_to_print": 5}
    wanted |= {"calc_relative": True, "calc_individual": True}
    assert {name: made.policy[name] for name in wanted} == wanted
    assert made.enable_ptl_logging
    other = straggler_det_callback(60, stop_if_detected_straggler=False, gpu_relative_perf_threshold=0.5)
    assert (other.policy["report_interval"], other.policy["on_straggler"]) == (60.0, "log")
    assert other.policy["relative_threshold"] == 0.5
