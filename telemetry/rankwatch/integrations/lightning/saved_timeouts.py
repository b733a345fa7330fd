"""The learned timeouts of a Lightning run, saved from one job to the next."""

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
from rankwatch.integrations.shared.state_file import FILE_SECONDS, StateFile, mean_with_earlier
from rankwatch.integrations.shared.with_timeout import with_timeout

FOLDER: Final = "ft_state"
NVRX_NAMES: Final = ("_ft_state.json", "_ft_state_.json")
"""The file names of nvidia-resiliency-ext's callbacks, for heartbeats and for sections."""


def folder_of(trainer: Trainer, given: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the file: ``given``, else ``ft_state`` in ``trainer.log_dir``.

    For rank 0 only. ``trainer.log_dir`` itself is a collective; this is the value that it would broadcast.
    """
    if given is not None:
        return Path(given)
    try:
        return Path(_log_dir(trainer) or trainer.default_root_dir) / FOLDER
    except Exception:  # noqa: BLE001 - loggers are user code; training continues
        return Path(trainer.default_root_dir) / FOLDER


def load(folder: Path, log: logging.Logger) -> LearnedTimeouts | None:
    """Return the limits of earlier jobs, from this callback's file or else from one of NVRx's callbacks.

    NVRx's limit for the first heartbeat is dropped: there it is sent before the first batch, here after it.
    """
    names = (ft_state.FILE_NAME, *NVRX_NAMES)
    try:
        there = with_timeout(
            lambda: [name for name in names if (folder / name).exists()], FILE_SECONDS, "looking for it"
        )
    except OSError:
        there = []
    name = (there or names)[0]
    found = StateFile(folder / name, log).learned()
    return found if found is None or name == ft_state.FILE_NAME else replace(found, initial_heartbeat=None)


def merge(new: LearnedTimeouts, old: LearnedTimeouts | None, *, background: bool) -> LearnedTimeouts:
    """Return the limits to save: each the mean of the new one and that of earlier jobs, if there is one.

    ``background``: checkpoints are written in the background, so the measured time of saving is meaningless.
    """
    before = old or LearnedTimeouts()
    sections = {
        name: mean_with_earlier(seconds, before.sections.get(name))
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
    has_log_dir = type(logger).__name__ in ("TensorBoardLogger", "CSVLogger")
    return logger.log_dir if has_log_dir else logger.save_dir


def _either(new: float | None, old: float | None) -> float | None:
    return old if new is None else mean_with_earlier(new, old)
