"""``ft_state.json`` of a Lightning run: read at the start, and written at the end of a run that loaded and saved.

The launcher keeps such a file too (``rankwatch run --ft-state``), and better: also when the run is killed. This one is
for those who give the callback a folder instead, as with nvidia-resiliency-ext.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from rankwatch.integrations.lightning.framework import Trainer
from rankwatch.wire import ft_state
from rankwatch.wire.ft_state import LearnedTimeouts
from rankwatch.wire.names import CHECKPOINTING_SECTION

FOLDER = "ft_state"


def folder_of(trainer: Trainer, given: str | os.PathLike[str] | None) -> Path:
    """Where the file lies: the folder that was given, else ``ft_state`` within ``trainer.log_dir``.

    For rank 0. ``trainer.log_dir`` itself is a collective; this is what it would broadcast.
    """
    if given is not None:
        return Path(given)
    if not trainer.loggers:
        return Path(trainer.default_root_dir) / FOLDER
    logger = trainer.loggers[0]
    told = type(logger).__name__ in ("TensorBoardLogger", "CSVLogger")
    return Path((logger.log_dir if told else logger.save_dir) or trainer.default_root_dir) / FOLDER


def read(folder: Path) -> LearnedTimeouts | None:
    """What earlier runs have left; None: nothing.

    Raises:
        OSError: it cannot be read.
        ValueError: it is something else.
    """
    try:
        return ft_state.read(json.loads((folder / ft_state.FILE_NAME).read_text())) or None
    except FileNotFoundError:
        return None


def as_policy(learned: LearnedTimeouts) -> dict[str, Any]:
    """The changes of the policy that put these limits in force."""
    limits = {
        "section_timeouts": dict(learned.sections) or None,
        "out_of_section_timeout": learned.out_of_section,
        "initial_heartbeat_timeout": learned.initial_heartbeat,
        "heartbeat_timeout": learned.heartbeat,
    }
    return {name: value for name, value in limits.items() if value is not None}


def merged(new: LearnedTimeouts, old: LearnedTimeouts | None, *, background: bool) -> LearnedTimeouts:
    """What is to be kept: half of the new limit and half of one that was calculated before.

    ``background``: checkpoints are written in the background, so what a rank saw of saving says nothing.
    """
    before = old or LearnedTimeouts()
    sections = {
        name: _half(seconds, before.sections.get(name))
        for name, seconds in new.sections.items()
        if not (background and name == CHECKPOINTING_SECTION)
    }
    return LearnedTimeouts(
        sections={**before.sections, **sections},
        out_of_section=_either(new.out_of_section, before.out_of_section),
        initial_heartbeat=_either(new.initial_heartbeat, before.initial_heartbeat),
        heartbeat=_either(new.heartbeat, before.heartbeat),
    )


def write(folder: Path, learned: LearnedTimeouts) -> Path:
    """Write the file, in one piece; returns its path.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / ft_state.FILE_NAME
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(ft_state.write(learned, {}, None), indent=2, sort_keys=True) + "\n")
        unfinished.replace(target)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return target


def _half(new: float, old: float | None) -> float:
    return new if old is None else (new + old) / 2


def _either(new: float | None, old: float | None) -> float | None:
    return old if new is None else _half(new, old)
