"""Records sections, steps and heartbeats of a run of ``Trainer.fit``. Shared by all Rankwatch callbacks of a trainer.

===============  =====================================================================================================
setup            from the ``setup`` hook to the first training batch, including the load of a checkpoint
step             from a training batch to the optimizer's step: one batch, or several with gradient accumulation; its
                 number is Lightning's global step. Each batch is progress, and sends a heartbeat
evaluation       each validation batch during training, with a heartbeat; the sanity check belongs to setup
checkpointing    saving or removing a checkpoint, and waiting for a background save
no section       fetching batches, other callbacks, loggers
===============  =====================================================================================================

The first callback to be called opens and closes sections; the last one to be torn down ends the monitoring.
Validation, tests and predictions outside of ``fit`` are not monitored. An evaluation within a step interrupts
it, and its section is opened again afterwards. With manual optimization each batch is a step, since optimizer steps are
not observed.
"""

# ruff: noqa: ARG002 - the signatures of hooks are Lightning's
from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import rankwatch
from rankwatch.contract.semconv import CHECKPOINTING_SECTION, EVALUATION_SECTIONS, SETUP_SECTION
from rankwatch.integrations.lightning import graceful_stop
from rankwatch.integrations.lightning.framework import Callback, LightningModule, Trainer
from rankwatch.integrations.shared.shared_session import SharedSession
from rankwatch.recording.sections import Section
from rankwatch.recording.wrapping import Wrapped

FIT: Final = "fit"
STOP_LINE: Final = "Asked to stop, saving checkpoint and exiting"
PREEMPTION_LINE: Final = "Preemption detected, saving checkpoint and exiting"


class FitMonitor:
    """Monitors one run of ``fit`` on this rank."""

    def __init__(self) -> None:
        self.running = False
        self.stopped = False
        """The run was stopped before its end."""
        self.loaded = self.saved = False
        """Whether a checkpoint was loaded, and one saved."""
        self._users: set[int] = set()
        self._session = SharedSession()
        self._setup: Section | None = None
        self._step: Section | None = None
        self._evaluation: Section | None = None
        self._step_began_at = 0
        """The global step at the beginning of the open step."""
        self._number = 0
        """Number of the next step: non-decreasing, also if optimizer steps are not observed."""
        self._wrapped: list[Wrapped] = []

    @property
    def between_steps(self) -> bool:
        """Whether no step is open: the optimizer has applied all gradients so far."""
        return self._step is None

    def join(self, trainer: Trainer, user: Callback) -> None:
        """Add a callback; the first one begins the monitoring."""
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
        """Remove a callback; the last one ends the monitoring and the session."""
        self._users.discard(id(user))
        if self._users or not self.running:
            return
        self.close()
        self._session.end()

    def close(self, error: BaseException | None = None) -> None:
        """Close all sections. After an error the session continues, since the rank may hang while it exits."""
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
        """Open the step of a training batch, unless it is open, and close ``setup``."""
        if self._step is not None or not self.running:
            return
        self._end_setup()
        self._step_began_at = trainer.global_step
        self._number = max(self._number, self._step_began_at)
        self._step = rankwatch.step(self._number).__enter__()

    def end_batch(self, trainer: Trainer) -> None:
        """Count the batch, and close the step if the optimizer has stepped."""
        if not self.running or self._step is None:
            return
        rankwatch.heartbeat()
        accumulates = trainer.lightning_module.automatic_optimization and trainer.accumulate_grad_batches > 1
        if accumulates and trainer.global_step == self._step_began_at:
            rankwatch.progress()
            return
        self._step.__exit__(None, None, None)
        self._step = None
        self._number += 1

    def begin_evaluation(self, trainer: Trainer) -> None:
        """Open the section of a validation batch, except during the sanity check."""
        if self._evaluation is not None or not self.running or trainer.sanity_checking:
            return
        self._interrupt_step()
        self._end_setup()
        self._evaluation = rankwatch.section(EVALUATION_SECTIONS[0]).__enter__()

    def end_evaluation(self) -> None:
        """Close the section of a validation batch, and send a heartbeat."""
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
        """Close the open step as not completed."""
        if self._step is not None:
            self._step.__exit__(InterruptedError, None, None)
            self._step = None

    def stop(self, trainer: Trainer, *, preempted: bool) -> None:
        """Save and leave ``fit``, on every rank after the same step. ``preempted``: by a signal, not a directive."""
        self.stopped = True
        graceful_stop.save_and_leave(trainer, PREEMPTION_LINE if preempted else STOP_LINE)

    def _wrap(self, trainer: Trainer) -> None:
        strategy = trainer.strategy
        targets: list[tuple[Any, str]] = [(trainer, "save_checkpoint"), (strategy, "remove_checkpoint")]
        checkpoint_io = getattr(strategy, "checkpoint_io", None)
        targets += [
            (checkpoint_io, name) for name in graceful_stop.FINISH_METHODS if hasattr(type(checkpoint_io), name)
        ]
        wrapped = (rankwatch.wrap(target, name, CHECKPOINTING_SECTION) for target, name in targets)
        self._wrapped = [each for each in wrapped if each is not None]


_monitors: WeakKeyDictionary[Trainer, FitMonitor] = WeakKeyDictionary()


def monitor_of(trainer: Trainer) -> FitMonitor:
    """Return the monitor of this trainer."""
    return _monitors.setdefault(trainer, FitMonitor())


class MonitoredCallback(Callback):
    """Base class of the callbacks: monitors the run, and stops it after the agreed step."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to monitor a run of ``fit``."""
        if stage == FIT:
            monitor_of(trainer).join(trainer, self)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the monitoring."""
        if stage == FIT:
            monitor_of(trainer).leave(self)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close all sections as failed."""
        monitor_of(trainer).close(exception)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A training batch begins."""
        monitor_of(trainer).begin_batch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A training batch has ended; stop if its step is the agreed one."""
        monitor = monitor_of(trainer)
        monitor.end_batch(trainer)
        if not (monitor.running and monitor.between_steps):
            return
        self.after_step(trainer, monitor)
        if not monitor.stopped and rankwatch.should_stop():
            monitor.stop(trainer, preempted=rankwatch.preempted())

    def after_step(self, trainer: Trainer, monitor: FitMonitor) -> None:
        """Hook of subclasses, called after each step and before the check for a stop."""

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch begins."""
        monitor_of(trainer).begin_evaluation(trainer)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A validation batch has ended."""
        monitor_of(trainer).end_evaluation()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is assembled, before it is written."""
        monitor = monitor_of(trainer)
        if monitor.running:
            monitor.saved = True
            rankwatch.heartbeat()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Training resumes from a checkpoint."""
        monitor_of(trainer).loaded = True
