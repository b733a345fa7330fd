"""The end of a run that is to stop now: a checkpoint from which it resumes, and out of ``fit`` without an error.

How this works
--------------
1. The checkpoint goes where ``fit(ckpt_path="last")`` looks: beside those of the trainer's ``ModelCheckpoint``, under
   the name that it gives the last one.
2. What saves in the background is waited for.
3. ``trainer.should_stop`` is set, for whoever looks at it after ``fit``, and ``fit`` returns. Without the validation
   that Lightning would begin otherwise: a scheduler gives a minute, and the checkpoint stands already.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from rankwatch.integrations.lightning.framework import Trainer, graceful_exit, logger_named

LOGGER: Final = "rankwatch.lightning"
FINISHES_SAVING: Final = ("maybe_finalize_save_checkpoint", "teardown")
"""Methods of a CheckpointIO that wait for what is saved in the background: NeMo's, and Lightning's own."""


def save_and_leave(trainer: Trainer, line: str) -> None:
    """Save a checkpoint and leave ``fit``. To be called on all ranks after the same batch.

    Where Lightning has no way to leave at once, this returns and ``fit`` ends after the batch, and a validation.
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
    """Save where the next run looks, and wait until it is written; returns the path, None without a place for it."""
    keeper: Any = next((c for c in trainer.checkpoint_callbacks if getattr(c, "dirpath", None)), None)
    if keeper is None:
        return None
    path = _last_path(trainer, keeper)
    keeper.last_model_path = path  # before it is saved, since it belongs to the checkpoint
    trainer.save_checkpoint(path)
    finish_saving(trainer)
    return path


def finish_saving(trainer: Trainer) -> None:
    """Wait for checkpoints that are written in the background."""
    checkpoint_io: Any = getattr(trainer.strategy, "checkpoint_io", None)
    if hasattr(checkpoint_io, FINISHES_SAVING[0]):
        checkpoint_io.maybe_finalize_save_checkpoint(blocking=True)
    elif hasattr(checkpoint_io, FINISHES_SAVING[1]):
        checkpoint_io.teardown()  # it begins anew with the next save


def _last_path(trainer: Trainer, keeper: Any) -> str:
    """The name of the last checkpoint, as the ``ModelCheckpoint`` would choose it: none that is another run's."""
    name = getattr(keeper, "CHECKPOINT_NAME_LAST", "last")
    if not hasattr(keeper, "format_checkpoint_name"):  # a Checkpoint of somebody else's
        return os.path.join(keeper.dirpath, f"{name}.ckpt")
    figures: dict[str, Any] = {
        **trainer.callback_metrics,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
    }
    path: str = keeper.format_checkpoint_name(figures, name)
    version = getattr(keeper, "STARTING_VERSION", 1)
    while keeper.file_exists(path, trainer) and path != keeper.last_model_path:
        path = keeper.format_checkpoint_name(figures, name, ver=version)
        version += 1
    return path


def saves_in_background(trainer: Trainer) -> bool:
    """Whether checkpoints are written while training goes on."""
    checkpoint_io: Any = getattr(trainer.strategy, "checkpoint_io", None)
    names = [cls.__name__ for cls in type(checkpoint_io).__mro__]
    return hasattr(checkpoint_io, FINISHES_SAVING[0]) or "AsyncCheckpointIO" in names
