"""Graceful stop of a run: saves a checkpoint to resume from, and leaves ``fit`` without an error.

1. The checkpoint is saved where ``fit(ckpt_path="last")`` finds it: in the folder of the trainer's ``ModelCheckpoint``,
   under its name of the last one.
2. Background saves are waited for.
3. ``trainer.should_stop`` is set, and ``fit`` returns without a further validation, for which the scheduler's grace
   period may be too short.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from rankwatch.integrations.lightning.framework import Trainer, graceful_exit, logger_named

LOGGER: Final = "rankwatch.lightning"
FINISH_METHODS: Final = ("maybe_finalize_save_checkpoint", "teardown")
"""Methods of a CheckpointIO that wait for background saves: NeMo's, and Lightning's own."""


def save_and_leave(trainer: Trainer, line: str) -> None:
    """Save a checkpoint and leave ``fit``. Call it on all ranks after the same batch.

    If Lightning cannot leave at once, this returns, and ``fit`` ends after the batch and possibly a validation.
    """
    log = logger_named(LOGGER)
    log.log(logging.INFO if trainer.global_rank == 0 else logging.DEBUG, "%s", line)
    path = save(trainer)
    if trainer.global_rank == 0:
        if path is None:
            log.warning("nothing was saved: the trainer has no ModelCheckpoint")
        else:
            log.info("Checkpoint of step %d saved: %s", trainer.global_step, path)
    trainer.should_stop = True
    leave = graceful_exit(trainer)
    if leave is not None:
        raise leave
    trainer.fit_loop.min_epochs = None
    trainer.fit_loop.epoch_loop.min_steps = None


def save(trainer: Trainer) -> str | None:
    """Save a checkpoint and wait until it is written; return its path, None without a ``ModelCheckpoint``."""
    checkpointer: Any = next((c for c in trainer.checkpoint_callbacks if getattr(c, "dirpath", None)), None)
    if checkpointer is None:
        return None
    path = _last_path(trainer, checkpointer)
    checkpointer.last_model_path = path  # set before saving, since it is part of the checkpoint
    trainer.save_checkpoint(path)
    finish_saving(trainer)
    return path


def finish_saving(trainer: Trainer) -> None:
    """Wait for background saves."""
    checkpoint_io: Any = getattr(trainer.strategy, "checkpoint_io", None)
    if hasattr(checkpoint_io, FINISH_METHODS[0]):
        checkpoint_io.maybe_finalize_save_checkpoint(blocking=True)
    elif hasattr(checkpoint_io, FINISH_METHODS[1]):
        checkpoint_io.teardown()  # restarts with the next save


def _last_path(trainer: Trainer, checkpointer: Any) -> str:
    """Return the path of the last checkpoint as ``ModelCheckpoint`` would choose it, unused by other runs."""
    name = getattr(checkpointer, "CHECKPOINT_NAME_LAST", "last")
    if not hasattr(checkpointer, "format_checkpoint_name"):  # another implementation of Checkpoint
        return os.path.join(checkpointer.dirpath, f"{name}.ckpt")
    figures: dict[str, Any] = {
        **trainer.callback_metrics,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
    }
    path: str = checkpointer.format_checkpoint_name(figures, name)
    version = getattr(checkpointer, "STARTING_VERSION", 1)
    while checkpointer.file_exists(path, trainer) and path != checkpointer.last_model_path:
        path = checkpointer.format_checkpoint_name(figures, name, ver=version)
        version += 1
    return path


def saves_in_background(trainer: Trainer) -> bool:
    """Whether checkpoints are written in the background."""
    checkpoint_io: Any = getattr(trainer.strategy, "checkpoint_io", None)
    names = [cls.__name__ for cls in type(checkpoint_io).__mro__]
    return hasattr(checkpoint_io, FINISH_METHODS[0]) or "AsyncCheckpointIO" in names
