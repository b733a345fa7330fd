"""Derives sections and steps of an unmodified training loop from events of torch. Pure.

==================  ================================================================================================
section             from, to
==================  ================================================================================================
``data``            ``next()`` of a data loader
``forward``         call of an outermost module
``evaluation``      the same without gradients or in eval mode, between two steps; or a whole evaluation of a framework
``backward``        call of ``backward()``
``optimizer``       call of ``optimizer.step()``
``checkpointing``   call of a function that saves; or all that a framework does for a checkpoint
``step``            from the first training forward, backward or optimizer step after the last step, until every
                    participating optimizer has stepped once (:class:`Optimizers`); none without an optimizer
==================  ================================================================================================

Within an evaluation or a checkpoint of a framework (:mod:`.frameworks`) batches and forwards are its progress alone.
Between two steps and after the last one no section is open, since the script's activity is unknown. A batch, a second
forward and a second backward belong to the open step (gradient accumulation).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from rankwatch.contract.semconv import CHECKPOINTING_SECTION, EVALUATION_SECTION, OPTIMIZER_SECTION, STEP_SECTION
from rankwatch.recording.sections import Section, Step, progress

DATA: Final = "data"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
NAMES: Final = (DATA, FORWARD, EVALUATION_SECTION, BACKWARD, OPTIMIZER_SECTION, CHECKPOINTING_SECTION, STEP_SECTION)

MAX_REPEATS: Final = 8
"""An optimizer that is idle for this many steps of the others no longer participates. Adversarial training usually
steps one optimizer 5 times per step of the other."""


class Optimizers:
    """The optimizers of one iteration, which is complete when each of them has stepped."""

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._stepped: set[int] = set()
        self._repeats = 0

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._members)

    def add(self, key: int) -> None:
        """Add an optimizer, whose step the iteration then waits for."""
        self._members.add(key)

    def remove(self, key: int) -> None:
        """Remove an optimizer that was deleted or is part of another one."""
        self._members.discard(key)
        self._stepped.discard(key)

    def stepped(self, key: int) -> bool:
        """Record a step; return whether it completes the iteration."""
        if key in self._stepped:
            self._repeats += 1
            if self._repeats > MAX_REPEATS:
                self._members = set(self._stepped)
        self._members.add(key)
        self._stepped.add(key)
        if not self._members <= self._stepped:
            return False
        self._stepped.clear()
        self._repeats = 0
        return True


class TrainingLoop:
    """Opens and closes sections upon the events of the main thread, in order."""

    def __init__(self) -> None:
        self.optimizers = Optimizers()
        self.first_step: int | None = None
        """Number of the first step if the script resumes from a checkpoint; to be set before that step begins."""
        self._sections = {name: Section(name) for name in NAMES if name != STEP_SECTION}
        self._step: Step | None = None
        self._counts_steps = True
        self._open: list[tuple[Hashable, Section | None]] = []
        """The open events: the owner of each, and its section, if any."""
        self._phases: list[tuple[str, Section | None]] = []
        """The evaluations and checkpoints of a framework that are under way, the innermost last."""
        self._stepping = 0
        """Depth of nested optimizer steps."""
        self._loader: Hashable = None
        self._training_loaders: set[Hashable] = set()
        """Data loaders whose batches were followed by a backward."""
        self._forwards = 0
        self._forward_unseen = False
        """The last step had no forward: the model is compiled together with its caller."""

    def defer(self, name: str) -> None:
        """Stop recording a section, which the script records itself."""
        if name == STEP_SECTION:
            self._counts_steps = False
            self._leave_step(completed=False)
        else:
            self._sections.pop(name, None)

    @property
    def in_step(self) -> bool:
        """Whether a step is open."""
        return self._step is not None

    # Events -----------------------------------------------------------------------------------------------------------

    def fetch_begins(self, loader: Hashable) -> None:
        """``next()`` of a data loader begins; events that are still open were ended by an exception."""
        self._end_all()
        self._loader = loader
        self._begin(DATA, DATA)

    def fetch_ended(self, *, exhausted: bool) -> None:
        """``next()`` has ended, with a batch or without."""
        self._end(DATA, failed=exhausted)
        if self._phases:
            progress()
        elif exhausted:
            # What follows is not part of the step: an evaluation, a save, the end of the script.
            self._leave_step(completed=False)
        elif self._forward_unseen and self._loader in self._training_loaders:
            self._enter_step()

    def forward_begins(self, module: Hashable, *, training: bool) -> None:
        """An outermost module is called; ``training``: with gradients and in training mode."""
        if training:
            self._enter_step()
            self._forwards += 1
        self._begin(module, FORWARD if training or self.in_step else EVALUATION_SECTION)

    def forward_ended(self, module: Hashable) -> None:
        """The module has returned or raised."""
        self._end(module)
        if self._phases:
            progress()

    def backward_begins(self) -> None:
        """``backward()`` is called."""
        self._training_loaders.add(self._loader)
        self._enter_step()
        self._begin(BACKWARD, BACKWARD)

    def backward_ended(self, *, failed: bool = False) -> None:
        """``backward()`` has returned or raised."""
        self._end(BACKWARD, failed=failed)

    def optimizer_begins(self, key: int) -> None:
        """``optimizer.step()`` is called; within another one (sharded, wrapped) it is part of that."""
        owner = (OPTIMIZER_SECTION, key)
        if self._stepping:
            self._end(owner)  # its last step raised, for which torch calls no hook
        nested = self._stepping > 0
        if nested:
            self.optimizers.remove(key)
        else:
            self.optimizers.add(key)
            self._enter_step()
        self._stepping += 1
        self._begin(owner, None if nested else OPTIMIZER_SECTION)

    def optimizer_ended(self, key: int) -> None:
        """``optimizer.step()`` has returned."""
        self._end((OPTIMIZER_SECTION, key))
        if not self._stepping and self.optimizers.stepped(key):
            self._leave_step(completed=True)

    def save_begins(self) -> None:
        """A function that saves is called; a nested one is part of it."""
        nested = any(owner == CHECKPOINTING_SECTION for owner, _ in self._open)
        self._begin(CHECKPOINTING_SECTION, None if nested else CHECKPOINTING_SECTION)

    def save_ended(self, *, failed: bool = False) -> None:
        """The function that saves has returned or raised."""
        self._end(CHECKPOINTING_SECTION, failed=failed)

    def phase_begins(self, name: str) -> None:
        """A framework begins an evaluation or a checkpoint; one within another of the same kind is part of it."""
        within = any(name == each for each, _ in self._phases)
        section = None if within else self._sections.get(name)
        self._phases.append((name, section))
        if section is not None:
            section.__enter__()

    def phase_ended(self, *, failed: bool = False) -> None:
        """The innermost of them has ended."""
        _, section = self._phases.pop()
        if section is not None:
            section.__exit__(RuntimeError if failed else None, None, None)

    # Sections ---------------------------------------------------------------------------------------------------------

    def _begin(self, owner: Hashable, name: str | None) -> None:
        section = self._sections.get(name) if name is not None and not self._phases else None
        self._open.append((owner, section))
        if section is not None:
            section.__enter__()

    def _end(self, owner: Hashable, *, failed: bool = False) -> None:
        """Close the event of this owner and those nested in it. Idempotent."""
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] == owner:
                self._end_all(place, failed=failed)
                return

    def _end_all(self, down_to: int = 0, *, failed: bool = True) -> None:
        while len(self._open) > down_to:
            owner, section = self._open.pop()
            if type(owner) is tuple:
                self._stepping -= 1
            if section is not None:
                section.__exit__(RuntimeError if failed else None, None, None)

    def _enter_step(self) -> None:
        if self._counts_steps and self._step is None and self.optimizers and not self._phases:
            self._step = _AutoStep(self.first_step)
            self.first_step = None
            self._step.__enter__()

    def _leave_step(self, *, completed: bool) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        if completed:
            self._forward_unseen = not self._forwards
            self._forwards = 0
        step.__exit__(None if completed else RuntimeError, None, None)


class _AutoStep(Step):
    """A step that was not opened by the script, so no observer hears of it."""

    __slots__ = ()

    def __init__(self, iteration: int | None) -> None:
        self._name, self._opened, self._iteration = STEP_SECTION, None, iteration
