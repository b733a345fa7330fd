"""Hugging Face Trainer: ``Trainer(..., callbacks=[RankwatchCallback()])``.

The Trainer has begin events for steps only; for the rest, its control flags show what it does next:

==================  ================================================  =================================================
section             opened at                                         closed at
==================  ================================================  =================================================
``setup``           ``on_init_end`` or ``on_train_begin``             the first step or prediction step
``step``            ``on_step_begin``, numbered ``state.global_step`` ``on_step_end``
``optimizer``       ``on_pre_optimizer_step``                         ``on_optimizer_step``
``evaluation``      end of a step or an epoch that asks for one, or   ``on_evaluate``, ``on_predict``
                    the first ``on_prediction_step``
``checkpointing``   the same, or ``on_evaluate`` if one comes before  ``on_save``
==================  ================================================  =================================================

Each substep of gradient accumulation and each batch of an evaluation counts as progress.
"""

# ruff: noqa: ARG002 - the Trainer passes all arguments to every event

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rankwatch
from rankwatch.contract.semconv import (
    CHECKPOINTING_SECTION,
    EVALUATION_SECTION,
    OPTIMIZER_SECTION,
    SETUP_SECTION,
    STEP_SECTION,
)
from rankwatch.recording.sections import Section

try:
    from transformers.trainer_callback import TrainerCallback
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "rankwatch.integrations.transformers needs Hugging Face's Trainer: pip install transformers accelerate",
        name=missing.name,
    ) from None

if TYPE_CHECKING:
    from transformers.trainer_callback import TrainerControl, TrainerState
    from transformers.training_args import TrainingArguments


class RankwatchCallback(TrainerCallback):
    """Records the sections and steps of a Trainer, and ends its training with a checkpoint when the job is to stop.

    Args:
        follow_stops: when the job is preempted or to be stopped, save a checkpoint and end the training after the
            agreed step. Otherwise the ranks are stopped by signals.
        mark_complete: mark the job as complete after the last step (``state.max_steps``).
        log: pass what the Trainer logs (loss, learning rate, gradient norm) to :func:`rankwatch.log`.
        init: arguments of :func:`rankwatch.init`, which is called here unless the script has called it.
    """

    def __init__(self, *, follow_stops: bool = True, mark_complete: bool = True, log: bool = True, **init: Any) -> None:
        rankwatch.init(**init)
        self._follow_stops, self._mark_complete, self._log = follow_stops, mark_complete, log
        self._open: dict[str, Section] = {}
        """Open sections by name, in the order of opening."""
        self._stopping = False

    # Setup and the end ------------------------------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Open ``setup``: training usually begins soon."""
        self._enter(SETUP_SECTION)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Training begins, or restarts with smaller batches (``auto_find_batch_size``)."""
        self._leave_all(but=SETUP_SECTION)
        self._stopping = False
        if SETUP_SECTION not in self._open:
            self._enter(SETUP_SECTION)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Training has ended, completed or stopped."""
        self._leave_all()
        if self._mark_complete and state.max_steps and state.global_step >= state.max_steps:
            rankwatch.mark_complete()

    # Steps ------------------------------------------------------------------------------------------------------------

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """An optimizer step begins."""
        self._leave_all()
        self._open[STEP_SECTION] = rankwatch.step(state.global_step).__enter__()

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A batch of a gradient accumulation has ended."""
        rankwatch.progress()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Open ``optimizer``."""
        self._enter(OPTIMIZER_SECTION)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Close ``optimizer``."""
        self._leave(OPTIMIZER_SECTION)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Close the step; stop here if it is the agreed one."""
        self._leave(STEP_SECTION)
        if self._follow_stops and not self._stopping and rankwatch.should_stop():
            self._stopping = True
            control.should_save, control.should_training_stop = True, True
            control.should_evaluate = False  # the time until the deadline may be short
        self._enter_next(control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """An epoch has ended, possibly early."""
        self._leave_all()
        if self._stopping:
            control.should_evaluate, control.should_save = False, False  # saved after the last step already
        self._enter_next(control)

    # Evaluation and checkpoints ---------------------------------------------------------------------------------------

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """A batch was evaluated."""
        self._leave(SETUP_SECTION)
        if EVALUATION_SECTION not in self._open:
            self._enter(EVALUATION_SECTION)
        rankwatch.progress()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """An evaluation has ended; a checkpoint may follow."""
        self._leave(EVALUATION_SECTION)
        if control.should_save:
            self._enter(CHECKPOINTING_SECTION)

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **_: Any
    ) -> None:
        """A prediction has ended."""
        self._leave(EVALUATION_SECTION)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A checkpoint was saved."""
        self._leave(CHECKPOINTING_SECTION)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """The Trainer has logged: numbers of the training, or statistics of its end."""
        if self._log and logs:
            rankwatch.log(
                {name: value for name, value in logs.items() if isinstance(value, int | float)}, state.global_step
            )

    # Sections ---------------------------------------------------------------------------------------------------------

    def _enter_next(self, control: TrainerControl) -> None:
        if control.should_evaluate:
            self._enter(EVALUATION_SECTION)
        elif control.should_save:
            self._enter(CHECKPOINTING_SECTION)

    def _enter(self, name: str) -> None:
        if name not in self._open:
            self._open[name] = rankwatch.section(name).__enter__()

    def _leave(self, name: str, *, completed: bool = True) -> None:
        section = self._open.pop(name, None)
        if section is not None:
            section.__exit__(None if completed else RuntimeError, None, None)

    def _leave_all(self, *, but: str = "") -> None:
        """Close all open sections; a step that is still open was not completed."""
        for name in [each for each in reversed(self._open) if each != but]:
            self._leave(name, completed=name != STEP_SECTION)
