from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract import ft_state
from rankwatch.contract.ft_state import LearnedTimeouts


class CSVLogger:
    log_dir, save_dir = "logs/version_3", "logs"


class OtherLogger:
    save_dir = "elsewhere"


class BrokenLogger:
    @property
    def save_dir(self) -> str:
        raise RuntimeError("it is not connected")


@pytest.mark.parametrize(
    ("loggers", "folder"),
    [
        ([CSVLogger()], "logs/version_3/ft_state"),
        ([OtherLogger(), CSVLogger()], "elsewhere/ft_state"),
        ([SimpleNamespace(save_dir=None)], "root/ft_state"),
        ([BrokenLogger()], "root/ft_state"),
        ([], "root/ft_state"),
    ],
)
def test_the_folder_lies_beside_the_runs_logs(loggers: list[Any], folder: str) -> None:
    from rankwatch.integrations.lightning import saved_timeouts  # the package imports Lightning, which takes seconds

    trainer: Any = SimpleNamespace(loggers=loggers, default_root_dir="root")
    assert saved_timeouts.folder_of(trainer, None) == Path(folder)
    assert saved_timeouts.folder_of(trainer, "given") == Path("given")


def test_what_was_calculated_before_counts_half() -> None:
    from rankwatch.integrations.lightning import saved_timeouts  # the package imports Lightning, which takes seconds

    old = LearnedTimeouts({"step": 10.0, "setup": 100.0, "checkpointing": 40.0}, 30.0)
    new = LearnedTimeouts({"step": 20.0, "checkpointing": 60.0, "evaluation": 5.0}, heartbeat=8.0)
    kept = saved_timeouts.merge(new, old, background=False)
    assert kept.sections == {"step": 15.0, "setup": 100.0, "checkpointing": 50.0, "evaluation": 5.0}
    assert (kept.out_of_section, kept.heartbeat) == (30.0, 8.0)
    assert saved_timeouts.merge(new, None, background=True).sections == {"step": 20.0, "evaluation": 5.0}


@pytest.mark.parametrize("name", ["_ft_state.json", "_ft_state_.json"])
def test_what_nvrx_has_left_counts_until_there_is_a_file_of_ours(tmp_path: Path, name: str) -> None:
    from rankwatch.integrations.lightning import saved_timeouts  # the package imports Lightning, which takes seconds

    log = logging.getLogger("test_kept_timeouts")
    assert saved_timeouts.load(tmp_path, log) is None
    # As RankMonitorClient.state_dict() of nvidia-resiliency-ext 0.4.1 gives it to the callback.
    beats = {"initial": 95.5, "subsequent": 40.25, "were_calculated": True}
    (tmp_path / name).write_text(json.dumps({"current_timeouts": {"heartbeat": beats}}))
    assert saved_timeouts.load(tmp_path, log) == LearnedTimeouts(heartbeat=40.25)
    ours = LearnedTimeouts({"step": 20.0}, initial_heartbeat=100.0, heartbeat=30.0)
    (tmp_path / ft_state.FILE_NAME).write_text(json.dumps(ft_state.write(ours, {}, None)))
    assert saved_timeouts.load(tmp_path, log) == ours
