"""Validates results of a training step, and runs the step again if one is rejected, to find the cause.

::

    machine = RerunStateMachine(mode="validate_results")
    while machine.should_run_forward_backward(data_iterator):   # the first run, and re-runs
        loss = forward_backward(next(data_iterator))            # calls machine.validate_result(...)
    should_checkpoint, should_exit, exit_code = machine.should_checkpoint_and_exit()

The transitions are a table in :mod:`rankwatch.rerun.verdicts`; ``validation.py`` compares the results of one rank.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from rankwatch.rerun import checkpoint, collectives, comparison, rng
from rankwatch.rerun.checkpoint import SavedRankState
from rankwatch.rerun.comparison import SPIKY_LOSS_FACTOR, WARM_UP_SAMPLES, SpikeDetector
from rankwatch.rerun.data import RerunDataIterator, rerun_iterators
from rankwatch.rerun.injection import RerunErrorInjector
from rankwatch.rerun.tracker import RejectionTracker, steps_to_skip
from rankwatch.rerun.validation import ResultValidator
from rankwatch.rerun.verdicts import PENDING, RerunMode, RerunState, Vote, step_end, transition

_log = logging.getLogger("rankwatch")


class RerunStateMachine:
    """The state machine of one rank; every rank must make the same calls.

    Args:
        state_save_func: returns further state that a step changes before the optimizer's step, besides random numbers
            and data iterators. It must be serializable in a checkpoint.
        state_restore_func: restores what ``state_save_func`` returned.
        mode: ``disabled`` or ``validate_results``. In mode ``disabled`` a fatal rejection raises
            ``ResultRejectedError``, any other is logged.
        error_injector: rejects correct results, for tests.
        result_rejected_tracker_filename: file to which a line per rejected result is appended.
        group: the process group of all ranks; None: the default group.
        device: name of this rank's device; None: the GPU's UUID, or the local rank if there is no GPU.
        validate_first_step: also validate the first step of a process, after which some frameworks cannot save the
            optimizer yet.

    Raises:
        ValueError: the mode is unknown, or the file cannot be appended to.
    """

    def __init__(
        self,
        state_save_func: Callable[[], Any] | None = None,
        state_restore_func: Callable[[Any], None] | None = None,
        mode: RerunMode | str = RerunMode.DISABLED,
        error_injector: RerunErrorInjector | None = None,
        result_rejected_tracker_filename: str | None = None,
        *,
        group: Any = None,
        device: str | None = None,
        validate_first_step: bool = False,
    ) -> None:
        self.mode = _mode(mode)
        self.state = RerunState.NOT_RUNNING_YET
        self.current_iteration = -1
        """The current or last step, from 0; set it if training starts at another one."""
        self.error_injector = error_injector or RerunErrorInjector()
        self._save_more, self._restore_more = state_save_func, state_restore_func
        tracker = RejectionTracker(result_rejected_tracker_filename) if result_rejected_tracker_filename else None
        self._validator = ResultValidator(self.error_injector, tracker, device)
        self._largest = SpikeDetector()
        self._group = group
        self._validates = validate_first_step
        # Of the current step:
        self._beginning: dict[str, Any] = {}
        self._calls: Counter[str] = Counter()
        self._given: list[Any] = []
        """The data iterators that the step began with."""
        self._data: list[dict[str, Any]] | None = None
        """States of the data iterators from a checkpoint, until the step is re-run."""

    # The loop ---------------------------------------------------------------------------------------------------------

    def set_mode(self, mode: RerunMode | str) -> None:
        """Change the mode between two steps, for example to ``disabled`` around an evaluation.

        Raises:
            ValueError: the mode is unknown.
        """
        self.mode = _mode(mode)

    def get_mode(self) -> RerunMode:
        """Return the mode."""
        return self.mode

    def should_run_forward_backward(
        self,
        data_iterator: RerunDataIterator | list[RerunDataIterator | None] | None = None,
        step: int | None = None,
    ) -> bool:
        """Return whether to run forward and backward: the condition of a ``while`` loop around them.

        Each run must begin with zero gradients. ``step`` is the step number shown in messages; None: counted from 0. In
        mode ``validate_results`` the ranks vote in a collective after each run.

        Raises:
            TypeError: a data iterator is not a :class:`RerunDataIterator`.
            ValueError: the checkpoint has a different number of data iterators.
        """
        self._calls.clear()
        given = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        if self._is_abandoned(given, step):
            self.state = RerunState.NOT_RUNNING_YET
        if self.mode is RerunMode.DISABLED:
            return self._run_once(given, step)
        iterators = rerun_iterators(data_iterator)
        if self.state is RerunState.NOT_RUNNING_YET:
            self._given = given
            self._begin(iterators, step)
            return True
        if self.state in PENDING:
            self._given = given
            self._begin_from_checkpoint(iterators, step)
            return True
        return self._follow(collectives.max_vote(self._validator.vote(self.state), self._group), iterators)

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Return ``(should_checkpoint, should_exit, exit_code)`` for the step, the same on every rank.

        The checkpoint is of the beginning of the step. If ``should_exit``, the process must end with ``exit_code`` (16
        or 17) without the optimizer's step; else the code is 0.
        """
        self._validates = True
        if self.mode is not RerunMode.VALIDATE_RESULTS:
            return False, False, 0
        what = step_end(self.state)
        if what.code is not None and collectives.rank() == 0:
            also = (
                "after a checkpoint of the beginning of the step"
                if what.checkpoint
                else "the checkpoint stays as it is"
            )
            _log.warning("step %d is not completed: exit code %d, %s", self.current_iteration, what.code, also)
        return what.checkpoint, what.code is not None, what.code or 0

    def _is_abandoned(self, given: list[Any], step: int | None) -> bool:
        """Whether an exception, for example the end of the epoch's data, has ended the current step early.

        Detected by a different step number or different iterators; otherwise this call would count as the step's end.
        """
        if self.state in (RerunState.NOT_RUNNING_YET, *PENDING):
            return False
        changed = len(given) != len(self._given) or any(a is not b for a, b in zip(given, self._given, strict=True))
        return changed or (step is not None and step != self.current_iteration)

    def _run_once(self, given: list[Any], step: int | None) -> bool:
        """Run each step once, in mode ``disabled``."""
        if self.state not in (RerunState.NOT_RUNNING_YET, *PENDING):
            self.state = RerunState.NOT_RUNNING_YET
            return False
        self._given = given
        self.current_iteration = self.current_iteration + 1 if step is None else step
        self.state = RerunState.INITIAL_RUN
        return True

    def _begin(self, iterators: list[RerunDataIterator], step: int | None) -> None:
        self.current_iteration = self.current_iteration + 1 if step is None else step
        more = self._save_more() if self._save_more is not None else None
        self._beginning = {"rng": rng.capture(), "other": more}
        for each in iterators:
            each.advance()
        self._validator.begin()
        self.state = RerunState.INITIAL_RUN

    def _begin_from_checkpoint(self, iterators: list[RerunDataIterator], step: int | None) -> None:
        self.current_iteration = self.current_iteration if step is None else step
        states, self._data = self._data, None
        if states is not None and len(states) != len(iterators):
            raise ValueError(
                f"the step to be re-run had {len(states)} data iterators, but now there are {len(iterators)}: resume "
                "with the same code, or continue without the re-run (mode='disabled' until the next checkpoint)"
            )
        for each, state in zip(iterators, states or [], strict=False):
            each.load_state_dict(state)
        if not self._beginning:  # this rank did not exist when the checkpoint was written
            self._beginning = {"rng": rng.capture(), "other": None}
        self._rewind(iterators)
        self._validator.verdict = None
        self.state = RerunState.RERUNNING_FROM_CHECKPOINT
        if collectives.rank() == 0:
            _log.warning("step %d is run again from its checkpoint", self.current_iteration)

    def _follow(self, vote: Vote, iterators: list[RerunDataIterator]) -> bool:
        """Apply the largest vote; return whether forward and backward are run again."""
        following = transition(self.state, vote)
        if following.rewind:
            self._rewind(iterators)
        self.state = following.state
        if self.state is RerunState.NOT_RUNNING_YET:
            for each in iterators:
                each.finish()
        return following.run

    def _rewind(self, iterators: list[RerunDataIterator]) -> None:
        rng.restore(self._beginning["rng"])
        if self._restore_more is not None and self._beginning["other"] is not None:
            self._restore_more(self._beginning["other"])
        for each in iterators:
            each.rewind()

    # Validation -------------------------------------------------------------------------------------------------------

    def validate_result(
        self,
        result: Any,
        rejection_func: Callable[[Any], Any],
        message: str,
        comparison_func: Callable[[Any, Any], float] | None = None,
        tolerance: float = 0.0,
        fatal: bool = True,
    ) -> None:
        """Validate a result; call it anywhere within the loop, in the same order in each run.

        Args:
            result: a number, a tensor, or anything the two functions accept.
            rejection_func: returns whether the result is wrong, for example ``torch.isnan``.
            message: short description of what is validated; identifies the check within the step.
            comparison_func: returns the relative difference of the first result and that of the re-run; default:
                2 |a - b| / (|a| + |b|), the maximum over all elements.
            tolerance: the largest relative difference that counts as the same result.
            fatal: whether a rejection ends the job; otherwise it is reported and training continues.

        Raises:
            ResultRejectedError: mode ``disabled``, and a fatal result was rejected.
            RuntimeError: called outside the loop.
            ValueError: ``rejection_func`` did not return one truth value.
        """
        step = max(self.current_iteration, 0)
        if self.mode is RerunMode.DISABLED:
            self._validator.check_without_rerun(step, result, rejection_func, message, fatal)
            return
        if self.state is RerunState.NOT_RUNNING_YET:
            raise RuntimeError(
                "call validate_result() inside the loop `while machine.should_run_forward_backward(...)`; around an "
                "evaluation, call machine.set_mode('disabled') before and restore the mode after it"
            )
        self._calls[message] += 1
        call, first_run = (message, self._calls[message]), self.state is RerunState.INITIAL_RUN
        if not first_run:
            self._validator.compare(self.state, call, result, comparison_func, tolerance, fatal)
        elif self._validates:
            self._validator.check(call, step, result, rejection_func, fatal)

    def validate_loss(
        self,
        loss: Any,
        *,
        check_for_nan: bool = True,
        check_for_spiky_loss: bool = False,
        spiky_loss_factor: float = SPIKY_LOSS_FACTOR,
        tolerance: float = 0.0,
    ) -> None:
        """Validate a scalar loss: NaN and infinity end the job, a spike (off by default) does not.

        Args:
            loss: the scalar.
            check_for_nan: reject NaN and infinity; fatal.
            check_for_spiky_loss: report a loss above the normal ones; not fatal.
            spiky_loss_factor: how many times the largest of the first 100 losses a spike is.
            tolerance: the largest relative difference that counts as the same result.
        """
        if check_for_nan:
            self.validate_result(loss, comparison.is_nan, "the loss is NaN", None, tolerance, fatal=True)
            self.validate_result(loss, comparison.is_inf, "the loss is infinite", None, tolerance, fatal=True)
        if check_for_spiky_loss:

            def spiky(value: Any) -> bool:
                return self.is_unexpectedly_large(value, spiky_loss_factor, "loss")

            self.validate_result(loss, spiky, "spiky loss", None, tolerance, fatal=False)

    def is_unexpectedly_large(
        self,
        result: Any,
        threshold: float,
        context: str,
        num_samples: int = WARM_UP_SAMPLES,
        resample: bool = False,
    ) -> bool:
        """Whether a value is at least ``threshold`` times the largest of the first ``num_samples`` of its ``context``.

        Never during this warm-up, nor for NaN and infinity. ``resample`` restarts the warm-up.
        """
        return self._largest.exceeds(result, threshold, context, num_samples, resample=resample)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(
        self, data_iterator: Any = None, ckpt_format: str | None = None, force: bool = False
    ) -> dict[str, Any] | None:
        """Return this rank's state for a checkpoint; None unless a step is to be re-run from it, or with ``force``.

        It differs between ranks: save it per rank, or use :meth:`gather_state_dict` if one rank writes the checkpoint.
        ``ckpt_format`` is Megatron's: ``"torch_dist"`` returns a sharded object, other formats, which cannot hold a
        state per rank, None.
        """
        if self.state not in PENDING and not force:
            return None
        if ckpt_format not in (None, checkpoint.MEGATRON_FORMAT) and not force:
            _log.warning("no step can be re-run from a checkpoint of format %s, only of torch_dist", ckpt_format)
            return None
        return checkpoint.to_state_dict(self._to_save(data_iterator), ckpt_format)

    def gather_state_dict(self, data_iterator: Any = None, force: bool = False) -> dict[str, Any] | None:
        """Return the states of all ranks on the first rank, which writes the checkpoint, else None: a collective."""
        if self.state not in PENDING and not force:
            return None  # the state is the same on every rank
        mine = checkpoint.to_state_dict(self._to_save(data_iterator))
        gathered = collectives.gather(mine, self._group)
        return None if gathered is None else {"ranks": gathered}

    def validate_state_dict(self, state_dict: dict[str, Any] | None) -> bool:
        """Whether a step is to be re-run from a checkpoint's state."""
        return checkpoint.is_pending(state_dict)

    def load_state_dict(self, state_dict: dict[str, Any] | None) -> None:
        """Load a checkpoint's state, of one rank or of all; the next step is then a re-run if one is pending.

        Raises:
            ValueError: this is not the state of a re-run state machine, or it holds objects of classes that were not
                allowed by ``torch.serialization.add_safe_globals``.
        """
        if state_dict is None:
            return
        if self.mode is not RerunMode.VALIDATE_RESULTS:
            if collectives.rank() == 0:
                _log.warning("mode %s: a pending re-run in the checkpoint is ignored", self.mode.value)
            return
        saved = checkpoint.from_state_dict(state_dict, collectives.rank(self._group))
        self._largest.counts, self._largest.largest = saved.counts, saved.largest
        if not saved.pending:
            return
        self.state, self.current_iteration = RerunState.WILL_RERUN_FROM_CHECKPOINT, saved.step
        self._beginning, self._data = saved.beginning, saved.data
        self._validator.rejection = saved.rejection
        if saved.injector:
            self.error_injector.load_state_dict(saved.injector)

    def _to_save(self, data_iterator: Any) -> SavedRankState:
        pending = self.state in PENDING
        # Ordinary checkpoints hold none, so that their data iterators need not be rewindable.
        iterators = rerun_iterators(data_iterator) if pending and self._data is None else []
        return SavedRankState(
            collectives.rank(self._group),
            self.current_iteration,
            self.mode.value,
            pending,
            rejection=self._validator.open_rejection if pending else None,
            injector=self.error_injector.state_dict(),
            beginning=self._beginning,
            data=self._data if self._data is not None else [each.state_dict() for each in iterators],
            counts=self._largest.counts,
            largest=self._largest.largest,
        )

    @classmethod
    def get_skipped_iterations_from_tracker_file(cls, tracker_file_name: str) -> list[int]:
        """See :func:`rankwatch.rerun.tracker.steps_to_skip`."""
        return steps_to_skip(tracker_file_name)


def _mode(mode: RerunMode | str) -> RerunMode:
    try:
        return RerunMode(mode)
    except ValueError:
        raise ValueError(
            f"unknown mode {mode!r}; the modes are {', '.join(each.value for each in RerunMode)}"
        ) from None
