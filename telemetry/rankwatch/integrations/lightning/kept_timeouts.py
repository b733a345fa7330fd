"""Where a Lightning run keeps its learned timeouts from one job to the next, and what is kept of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rankwatch.integrations.lightning.framework import Trainer
from rankwatch.integrations.state_file import mean
from rankwatch.wire.ft_state import LearnedTimeouts
from rankwatch.wire.names import CHECKPOINTING_SECTION

FOLDER: Final = "ft_state"


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
