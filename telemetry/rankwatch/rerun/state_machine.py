"""Validates results of a training step, and runs the step again when one is rejected, to say whose fault it was.

How this works
--------------
::

    machine = RerunStateMachine(mode="validate_results")
    while machine.should_run_forward_backward(data_iterator):   # the first run, and re-runs
        loss = forward_backward(next(data_iterator))            # calls machine.validate_result(...)
    should_checkpoint, should_exit, exit_code = machine.should_checkpoint_and_exit()

What follows on what is a table in :mod:`rankwatch.rerun.verdicts`; what a rank finds is judged in ``validation.py``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rankwatch.rerun import agreement, comparison, rng, saving
from rankwatch.rerun.comparison import SPIKY_LOSS_FACTOR, WARM_UP_SAMPLES, LargestSoFar
from rankwatch.rerun.data import RerunDataIterator, checked
from rankwatch.rerun.determinism import Determinism
from rankwatch.rerun.injection import RerunErrorInjector
from rankwatch.rerun.saving import Saved
from rankwatch.rerun.statistics import DeterminismStatistics
from rankwatch.rerun.tracker import Tracker, steps_to_skip
from rankwatch.rerun.validation import Validation
from rankwatch.rerun.verdicts import PENDING, RerunMode, RerunState, Wish, after, ending

REPORT_EVERY: Final = 100
"""Steps between two reports of determinism statistics."""

_log = logging.getLogger("rankwatch")


class RerunStateMachine:
    """One for each rank; every rank makes the same calls.

    Args:
        state_save_func: returns further state that a step changes before the optimizer's step; random numbers and the
            data iterator are taken care of. It must be fit for a checkpoint.
        state_restore_func: takes what ``state_save_func`` returned and puts it back.
        mode: ``disabled``, ``validate_results`` or ``report_determinism_stats``.
        error_injector: rejects results on purpose.
        result_rejected_tracker_filename: a file to which a line is appended for each rejected result.
        group: the process group of all ranks that train together; the default group unless given.
        device: a name for this rank's device; the GPU's UUID unless given, the local rank where there is no GPU.
        validate_first_step: also validate the first step of a process, in which optimizers of some frameworks cannot be
            saved yet.
        report_every: steps between two reports of determinism statistics.

    Raises:
        ValueError: there is no such mode, or the file cannot be appended to.
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
        report_every: int = REPORT_EVERY,
    ) -> None:
        self.mode = _mode(mode)
        self.state = RerunState.NOT_RUNNING_YET
        self.current_iteration = -1
        """The step that runs, or ran last, from 0; set it when training starts with another one."""
        self.error_injector = error_injector or RerunErrorInjector()
        self._save_more, self._restore_more = state_save_func, state_restore_func
        tracker = Tracker(result_rejected_tracker_filename) if result_rejected_tracker_filename else None
        self._validation = Validation(self.error_injector, tracker, device)
        self._determinism = Determinism(group, report_every)
        self._largest = LargestSoFar()
        self._group = group
        self._validates = validate_first_step
        # Of the step that runs:
        self._beginning: dict[str, Any] = {}
        self._calls: Counter[str] = Counter()
        self._given: list[Any] = []
        """The data iterators that it began with."""
        self._data: list[dict[str, Any]] | None = None
        """The data iterators' states of a checkpoint, until the step is re-run."""

    # The loop ---------------------------------------------------------------------------------------------------------

    def set_mode(self, mode: RerunMode | str) -> None:
        """Change the mode, between two steps; ``disabled`` around an evaluation whose losses are not to be validated.

        Raises:
            ValueError: there is no such mode.
        """
        self.mode = _mode(mode)

    def get_mode(self) -> RerunMode:
        """The mode."""
        return self.mode

    def should_run_forward_backward(
        self,
        data_iterator: RerunDataIterator | list[RerunDataIterator | None] | None = None,
        step: int | None = None,
    ) -> bool:
        """Whether forward and backward are to be run now: the condition of a ``while`` loop around them.

        Each run must begin with gradients of zero. ``step`` is the number of the step that the words will name; it is
        counted from 0 unless given. In mode ``validate_results`` the ranks agree by a collective after each run.

        Raises:
            TypeError: a data iterator is not a :class:`RerunDataIterator`.
            ValueError: the checkpoint was written with another number of data iterators.
        """
        self._calls.clear()
        given = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        if self._abandoned(given, step):
            self.state = RerunState.NOT_RUNNING_YET
        if self.mode is RerunMode.DISABLED:
            return self._alternate(given, step)
        iterators = checked(data_iterator)
        if self.state is RerunState.NOT_RUNNING_YET:
            self._given = given
            self._begin(iterators, step)
            return True
        if self.state in PENDING:
            self._given = given
            self._begin_from_checkpoint(iterators, step)
            return True
        if self.mode is RerunMode.REPORT_DETERMINISM_STATS:
            wish = Wish.RERUN if self.state is RerunState.INITIAL_RUN else Wish.GO_ON  # the same on every rank
        else:
            wish = agreement.largest(self._validation.wish(self.state), self._group)
        return self._follow(wish, iterators)

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """What follows on the step: ``(should_checkpoint, should_exit, exit_code)``, the same on every rank.

        The checkpoint is one of the beginning of the step, before the optimizer's step. With ``should_exit`` the
        process is to end with ``exit_code`` (16 or 17) and without the optimizer's step; else the code is 0.
        """
        self._validates = True
        if self.mode is not RerunMode.VALIDATE_RESULTS:
            return False, False, 0
        what = ending(self.state)
        if what.code is not None and agreement.rank() == 0:
            also = (
                "after a checkpoint of the beginning of the step"
                if what.checkpoint
                else "the checkpoint stays as it is"
            )
            _log.warning("step %d is not completed: exit code %d, %s", self.current_iteration, what.code, also)
        return what.checkpoint, what.code is not None, what.code or 0

    def _abandoned(self, given: list[Any], step: int | None) -> bool:
        """Whether an exception has ended the step that is said to run, for example the end of an epoch's data.

        Shown by another number or other iterators. Unseen, the next step would not be run: it would pass for its end.
        """
        if self.state in (RerunState.NOT_RUNNING_YET, *PENDING):
            return False
        others = len(given) != len(self._given) or any(a is not b for a, b in zip(given, self._given, strict=True))
        return others or (step is not None and step != self.current_iteration)

    def _alternate(self, given: list[Any], step: int | None) -> bool:
        """Nothing is run again: each step once."""
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
        self._validation.begin()
        self.state = RerunState.INITIAL_RUN

    def _begin_from_checkpoint(self, iterators: list[RerunDataIterator], step: int | None) -> None:
        self.current_iteration = self.current_iteration if step is None else step
        states, self._data = self._data, None
        if states is not None and len(states) != len(iterators):
            raise ValueError(
                f"the step to be re-run had {len(states)} data iterators, and now there are {len(iterators)}: resume "
                "with the same code, or train on without it (mode='disabled' until the next checkpoint)"
            )
        for each, state in zip(iterators, states or [], strict=False):
            each.load_state_dict(state)
        if not self._beginning:  # this rank was not there when the checkpoint was written
            self._beginning = {"rng": rng.capture(), "other": None}
        self._rewind(iterators)
        self._validation.verdict = None
        self.state = RerunState.RERUNNING_FROM_CHECKPOINT
        if agreement.rank() == 0:
            _log.warning("step %d is run again from its checkpoint", self.current_iteration)

    def _follow(self, wish: Wish, iterators: list[RerunDataIterator]) -> bool:
        """Do what the ranks have agreed on; whether forward and backward are run again."""
        following = after(self.state, wish)
        if following.rewind:
            self._rewind(iterators)
        self.state = following.state
        if self.state is RerunState.NOT_RUNNING_YET:
            for each in iterators:
                each.finish()
        if self.mode is RerunMode.REPORT_DETERMINISM_STATS and not following.run:
            self._determinism.end_of_step(self.current_iteration)
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
        """Have a result looked at; call it anywhere within the loop, in the same order in each run.

        Args:
            result: a number, a tensor, or whatever the two functions understand.
            rejection_func: takes the result and says whether it is wrong, for example ``torch.isnan``.
            message: what is validated, in a few words; tells the checks of a step apart.
            comparison_func: takes the first result and that of a re-run and returns their relative difference; by
                default 2 |a - b| / (|a| + |b|), the largest of all elements.
            tolerance: the largest relative difference that counts as the same result.
            fatal: whether the job is to end for it. Otherwise it is told and training goes on.

        Raises:
            ResultRejectedError: mode ``disabled``, and a fatal result was rejected.
            RuntimeError: called outside the loop.
            ValueError: ``rejection_func`` did not give one truth value.
        """
        step = max(self.current_iteration, 0)
        if self.mode is RerunMode.DISABLED:
            self._validation.refuse(step, result, rejection_func, message, fatal)
            return
        if self.state is RerunState.NOT_RUNNING_YET:
            raise RuntimeError(
                "validate_result() belongs into the loop `while machine.should_run_forward_backward(...)`; around an "
                "evaluation, call machine.set_mode('disabled') before and put the mode back after it"
            )
        self._calls[message] += 1
        call, first_run = (message, self._calls[message]), self.state is RerunState.INITIAL_RUN
        if self.mode is RerunMode.REPORT_DETERMINISM_STATS:
            self._determinism.validated(call, result, comparison_func, again=not first_run)
        elif not first_run:
            self._validation.compare(self.state, call, result, comparison_func, tolerance, fatal)
        elif self._validates:
            self._validation.look(call, step, result, rejection_func, fatal)

    def validate_loss(
        self,
        loss: Any,
        *,
        check_for_nan: bool = True,
        check_for_spiky_loss: bool = False,
        spiky_loss_factor: float = SPIKY_LOSS_FACTOR,
        tolerance: float = 0.0,
    ) -> None:
        """The usual checks of a loss of one number: NaN and infinity end the job, a spike (off by default) does not."""
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

        Never during these first values, and never for NaN and infinity. ``resample`` begins the warm-up anew.
        """
        return self._largest.exceeds(result, threshold, context, num_samples, resample=resample)

    # Determinism ------------------------------------------------------------------------------------------------------

    @property
    def determinism(self) -> DeterminismStatistics | None:
        """The statistics of all ranks as last reported, on the first rank; None elsewhere, and before the first one."""
        return self._determinism.total

    def report_determinism(self) -> DeterminismStatistics | None:
        """Add up the statistics of all ranks; the first one logs and returns them, others return None: a collective.

        Happens by itself every ``report_every`` steps; call it on all ranks when training ends.
        """
        return self._determinism.report()

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(
        self, data_iterator: Any = None, ckpt_format: str | None = None, force: bool = False
    ) -> dict[str, Any] | None:
        """What a checkpoint has to hold of this rank: None unless a step is to be re-run from it, or with ``force``.

        Each rank's is another one: save it per rank, or use :meth:`gather_state_dict` where one rank writes all.
        ``ckpt_format`` is for Megatron's checkpointing: ``"torch_dist"`` gives it a sharded object, and its other
        formats, which cannot hold one state a rank, None.
        """
        if self.state not in PENDING and not force:
            return None
        if ckpt_format not in (None, saving.MEGATRON_FORMAT) and not force:
            _log.warning("no step can be re-run from a checkpoint of format %s; torch_dist can hold it", ckpt_format)
            return None
        return saving.state_of(self._to_save(data_iterator), ckpt_format)

    def gather_state_dict(self, data_iterator: Any = None, force: bool = False) -> dict[str, Any] | None:
        """The states of all ranks in one, on the first rank, which writes the checkpoint; else None: a collective."""
        if self.state not in PENDING and not force:
            return None  # the state is the same on every rank
        mine = saving.state_of(self._to_save(data_iterator))
        everybody = agreement.gathered(mine, self._group)
        return None if everybody is None else {"ranks": everybody}

    def validate_state_dict(self, state_dict: dict[str, Any] | None) -> bool:
        """Whether a checkpoint's state says that a step is to be re-run."""
        return saving.is_pending(state_dict)

    def load_state_dict(self, state_dict: dict[str, Any] | None) -> None:
        """Take in a checkpoint's state, of either kind; the next step is then a re-run if it says so. None: nothing.

        Raises:
            ValueError: this is no state of a re-run state machine.
        """
        if state_dict is None:
            return
        if self.mode is not RerunMode.VALIDATE_RESULTS:
            if agreement.rank() == 0:
                _log.warning("mode %s: what the checkpoint says of a step to be re-run is ignored", self.mode.value)
            return
        saved = saving.read(state_dict, agreement.rank(self._group))
        self._largest.counts, self._largest.largest = saved.counts, saved.largest
        if not saved.pending:
            return
        self.state, self.current_iteration = RerunState.WILL_RERUN_FROM_CHECKPOINT, saved.step
        self._beginning, self._data = saved.beginning, saved.data
        self._validation.rejection = saved.rejection
        if saved.injector:
            self.error_injector.load_state_dict(saved.injector)

    def _to_save(self, data_iterator: Any) -> Saved:
        pending = self.state in PENDING
        # Ordinary checkpoints hold none, and may be written with data iterators that could not be rewound.
        iterators = checked(data_iterator) if pending and self._data is None else []
        return Saved(
            agreement.rank(self._group),
            self.current_iteration,
            self.mode.value,
            pending,
            rejection=self._validation.unsettled if pending else None,
            injector=self.error_injector.state_dict(),
            beginning=self._beginning,
            data=self._data if self._data is not None else [each.state_dict() for each in iterators],
            counts=self._largest.counts,
            largest=self._largest.largest,
        )

    @classmethod
    def get_skipped_iterations_from_tracker_file(cls, tracker_file_name: str) -> list[int]:
        """Steps that are better left out: see :func:`rankwatch.rerun.tracker.steps_to_skip`."""
        return steps_to_skip(tracker_file_name)


def _mode(mode: RerunMode | str) -> RerunMode:
    try:
        # "report_stats" is the older name, which configuration files still hold.
        return RerunMode.REPORT_DETERMINISM_STATS if mode == "report_stats" else RerunMode(mode)
    except ValueError:
        raise ValueError(f"{mode!r} is no mode; there are {', '.join(each.value for each in RerunMode)}") from None
