"""What a run of ``Trainer.fit`` shows of itself: sections, steps, heartbeats. Shared by all our callbacks of a trainer.

How this works
--------------
===============  =====================================================================================================
setup            from the ``setup`` hook until the first training batch; a checkpoint to resume from is loaded in it
step             from a training batch to the optimizer's step: one batch, or all whose gradients are accumulated; its
                 number is Lightning's global step. Each batch makes progress, and a heartbeat follows it
evaluation       each validation batch while training, with a heartbeat; those of the sanity check belong to setup
checkpointing    what saves or removes a checkpoint, and what waits for one that is saved in the background
no section       fetching batches, other callbacks, loggers
===============  =====================================================================================================

Of several callbacks the first to be called opens and closes; the last to be torn down ends the watch. Validation, tests
and predictions that are no part of ``fit`` are not watched. An evaluation in the middle of a step interrupts it: what
comes after is the same step, whose section is opened again. With manual optimization each batch is a step, since only
the script knows when its optimizers have done one.
"""

# ruff: noqa: ARG002 - the signatures of hooks are Lightning's
from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import rankwatch
from rankwatch.contract.semconv import CHECKPOINTING_SECTION, EVALUATION_SECTIONS, SETUP_SECTION
from rankwatch.integrations.lightning import stopping
from rankwatch.integrations.lightning.framework import Callback, LightningModule, Trainer
from rankwatch.integrations.shared.shared_session import OwnSession
from rankwatch.recording import sections
from rankwatch.recording.sections import Section
from rankwatch.recording.shared_slots import STOP_PREEMPTS
from rankwatch.recording.wrapping import Wrapped

FIT: Final = "fit"
STOP_LINE: Final = "Asked to stop, saving checkpoint and exiting"
PREEMPTION_LINE: Final = "Preemption detected, saving checkpoint and exiting"


class Watch:
    """One run of ``fit`` on this rank."""

    def __init__(self) -> None:
        self.running = False
        self.stopped = False
        """A stop was agreed on: training is not complete."""
        self.loaded = self.saved = False
        """A checkpoint was resumed from; one was saved."""
        self._users: set[int] = set()
        self._session = OwnSession()
        self._setup: Section | None = None
        self._step: Section | None = None
        self._evaluation: Section | None = None
        self._began_at = 0
        """The global step when the step that is open was begun."""
        self._number = 0
        """Of the next step: never less than of the one before, also where the script's optimizers are not seen."""
        self._wrapped: list[Wrapped] = []

    @property
    def between_steps(self) -> bool:
        """Whether no step is under way: the optimizer has done all that the batches so far were for."""
        return self._step is None

    def join(self, trainer: Trainer, user: Callback) -> None:
        """A callback takes part; the first one begins."""
        self._users.add(id(user))
        if self.running:
            return
        self.running, self.stopped = True, False
        self.loaded = self.saved = False
        self._number = 0
        self._session.begin(rank=trainer.global_rank, local_rank=trainer.local_rank, world_size=trainer.world_size)
        self._setup = rankwatch.section(SETUP_SECTION).__enter__()
        self._wrap(trainer)

    def leave(self, user: Callback) -> None:
        """A callback is torn down; the last one ends the watch, and what :meth:`join` has begun."""
        self._users.discard(id(user))
        if self._users or not self.running:
            return
        self.close()
        self._session.end()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing is open any more; after an error the rank stays under watch, for it may hang on its way out."""
        self._users.clear()
        self.running = False
        self._interrupt_step()
        kind = type(error) if error is not None else None
        for opened in (self._evaluation, self._setup):
            if opened is not None:
                opened.__exit__(kind, error, None)
        self._evaluation = self._setup = None
        for wrapped in self._wrapped:
            wrapped.undo()
        self._wrapped.clear()

    def begin_batch(self, trainer: Trainer) -> None:
        """Open the step that a training batch is of, unless it is open; with it, what comes before training is over."""
        if self._step is not None or not self.running:
            return
        self._end_setup()
        self._began_at = trainer.global_step
        self._number = max(self._number, self._began_at)
        self._step = rankwatch.step(self._number).__enter__()

    def end_batch(self, trainer: Trainer) -> None:
        """Count the batch, and close the step if it was the last one of it."""
        if not self.running or self._step is None:
            return
        rankwatch.heartbeat()
        accumulates = trainer.lightning_module.automatic_optimization and trainer.accumulate_grad_batches > 1
        if accumulates and trainer.global_step == self._began_at:
            rankwatch.progress()
            return
        self._step.__exit__(None, None, None)
        self._step = None
        self._number += 1

    def begin_evaluation(self, trainer: Trainer) -> None:
        """Open the section of a validation batch. Those of the sanity check have none."""
        if self._evaluation is not None or not self.running or trainer.sanity_checking:
            return
        self._interrupt_step()
        self._end_setup()
        self._evaluation = rankwatch.section(EVALUATION_SECTIONS[0]).__enter__()

    def end_evaluation(self) -> None:
        """Close it. A beat is due in any case."""
        if not self.running:
            return
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None
        rankwatch.heartbeat()

    def _end_setup(self) -> None:
        if self._setup is not None:
            self._setup.__exit__(None, None, None)
            self._setup = None

    def _interrupt_step(self) -> None:
        """Close a step that has not been completed."""
        if self._step is not None:
            self._step.__exit__(InterruptedError, None, None)
            self._step = None

    def stop(self, trainer: Trainer, *, preempted: bool) -> None:
        """Save and leave ``fit``; on every rank after the same step. ``preempted``: for a signal, not for an order."""
        self.stopped = True
        stopping.save_and_leave(trainer, PREEMPTION_LINE if preempted else STOP_LINE)

    def _wrap(self, trainer: Trainer) -> None:
        strategy = trainer.strategy
        targets: list[tuple[Any, str]] = [(trainer, "save_checkpoint"), (strategy, "remove_checkpoint")]
        checkpoint_io = getattr(strategy, "checkpoint_io", None)
        targets += [(checkpoint_io, name) for name in stopping.FINISHES_SAVING if hasattr(type(checkpoint_io), name)]
        made = (rankwatch.wrap(target, name, CHECKPOINTING_SECTION) for target, name in targets)
        self._wrapped = [wrapped for wrapped in made if wrapped is not None]


_watches: WeakKeyDictionary[Trainer, Watch] = WeakKeyDictionary()


def watch_of(trainer: Trainer) -> Watch:
    """The one watch of this trainer."""
    return _watches.setdefault(trainer, Watch())


class WatchedCallback(Callback):
    """A callback that shows the run, and stops it when the ranks have agreed to. The others are made from it."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch a run of ``fit``."""
        if stage == FIT:
            watch_of(trainer).join(trainer, self)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the watch."""
        if stage == FIT:
            watch_of(trainer).leave(self)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close what is open, as failed."""
        watch_of(trainer).close(exception)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A batch of a step begins."""
        watch_of(trainer).begin_batch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is over; with it a step may be, perhaps the last one."""
        watch = watch_of(trainer)
        watch.end_batch(trainer)
        if not (watch.running and watch.between_steps):
            return
        self.after_step(trainer, watch)
        if not watch.stopped and rankwatch.should_stop():
            recorder = sections.attached()
            watch.stop(trainer, preempted=recorder is not None and recorder.words[STOP_PREEMPTS] != 0)

    def after_step(self, trainer: Trainer, watch: Watch) -> None:
        """What a callback does after each step, before anybody asks whether to stop."""

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A batch of an evaluation begins."""
        watch_of(trainer).begin_evaluation(trainer)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """It is over."""
        watch_of(trainer).end_evaluation()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is made up, before it is written."""
        watch = watch_of(trainer)
        if watch.running:
            watch.saved = True
            rankwatch.heartbeat()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Training is resumed from a checkpoint."""
        watch_of(trainer).loaded = True
