"""Where a Lightning run keeps its learned timeouts from one job to the next, and what is kept of them."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankwatch.contract import ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.contract.semconv import CHECKPOINTING_SECTION
from rankwatch.integrations.lightning.framework import Trainer
from rankwatch.integrations.shared.state_file import FILE_SECONDS, StateFile, mean
from rankwatch.integrations.shared.with_timeout import aside

FOLDER: Final = "ft_state"
NVRX_NAMES: Final = ("_ft_state.json", "_ft_state_.json")
"""What nvidia-resiliency-ext's callbacks call the file: the one of heartbeats, the one of sections."""


def folder_of(trainer: Trainer, given: str | os.PathLike[str] | None) -> Path:
    """Where the file lies: the folder that was given, else ``ft_state`` within ``trainer.log_dir``.

    For rank 0. ``trainer.log_dir`` itself is a collective; this is what it would broadcast.
    """
    if given is not None:
        return Path(given)
    try:
        return Path(_log_dir(trainer) or trainer.default_root_dir) / FOLDER
    except Exception:  # noqa: BLE001 - a logger is somebody else's code, and training goes on
        return Path(trainer.default_root_dir) / FOLDER


def earlier(folder: Path, log: logging.Logger) -> LearnedTimeouts | None:
    """What earlier jobs have calculated; while there is no file of ours, what NVRx's callbacks have left in its place.

    Of the latter the limit for the first heartbeat is not taken: theirs comes before the first batch, ours after it.
    """
    names = (ft_state.FILE_NAME, *NVRX_NAMES)
    try:
        there = aside(lambda: [name for name in names if (folder / name).exists()], FILE_SECONDS, "looking for it")
    except OSError:
        there = []
    name = (there or names)[0]
    found = StateFile(folder / name, log).learned()
    return found if found is None or name == ft_state.FILE_NAME else replace(found, initial_heartbeat=None)


def merged(new: LearnedTimeouts, old: LearnedTimeouts | None, *, background: bool) -> LearnedTimeouts:
    """What is to be kept: the new limits, each the mean of itself and one that was calculated before.

    ``background``: checkpoints are written in the background, so what a rank saw of saving says nothing.
    """
    before = old or LearnedTimeouts()
    sections = {
        name: mean(seconds, before.sections.get(name))
        for name, seconds in new.sections.items()
        if not (background and name == CHECKPOINTING_SECTION)
    }
    return LearnedTimeouts(
        sections={**before.sections, **sections},
        out_of_section=_either(new.out_of_section, before.out_of_section),
        initial_heartbeat=_either(new.initial_heartbeat, before.initial_heartbeat),
        heartbeat=_either(new.heartbeat, before.heartbeat),
    )


def _log_dir(trainer: Trainer) -> str | None:
    if not trainer.loggers:
        return None
    logger = trainer.loggers[0]
    told = type(logger).__name__ in ("TensorBoardLogger", "CSVLogger")
    return logger.log_dir if told else logger.save_dir


def _either(new: float | None, old: float | None) -> float | None:
    return old if new is None else mean(new, old)
