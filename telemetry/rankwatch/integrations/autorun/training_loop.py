"""Sections and steps of a training loop that knows nothing of Rankwatch, told from what torch is seen to do. Pure.

How this works
--------------
==================  ================================================================================================
section             from, to
==================  ================================================================================================
``data``            a batch is asked of a data loader, it is there
``forward``         an outermost module is called, it returns
``evaluation``      the same without gradients or in eval mode, between two steps
``backward``        ``backward()`` is called, it returns
``optimizer``       ``optimizer.step()`` is called, it returns
``checkpointing``   something is saved, it has been
``step``            the first forward to learn from, backward or optimizer after the last step, until every optimizer
                    that takes part has stepped once (:class:`Optimizers`); none where there is no optimizer
==================  ================================================================================================

Between two steps no section is open: whatever a script does there, and after its last step, nobody can name.
A batch that is fetched, a second forward, a second backward belong to the step that is open (gradient accumulation).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from rankwatch.contract.semconv import CHECKPOINTING_SECTION, EVALUATION_SECTION, STEP_SECTION
from rankwatch.recording.sections import Section, Step

DATA: Final = "data"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
NAMES: Final = (DATA, FORWARD, EVALUATION_SECTION, BACKWARD, OPTIMIZER, CHECKPOINTING_SECTION, STEP_SECTION)

MOST_REPEATS: Final = 8
"""An optimizer that sits out so many steps of the others is no part of the iteration any more. Training of adversarial
networks steps one optimizer 5 times for each step of the other."""


class Optimizers:
    """Which optimizers make one iteration: when each of them has stepped, it is complete."""

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._stepped: set[int] = set()
        self._repeats = 0

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._members)

    def built(self, key: int) -> None:
        """The script has made one: it is waited for."""
        self._members.add(key)

    def gone(self, key: int) -> None:
        """It does not exist any more, or is only a part of another."""
        self._members.discard(key)
        self._stepped.discard(key)

    def stepped(self, key: int) -> bool:
        """Whether an iteration is complete now that this one has stepped."""
        if key in self._stepped:
            self._repeats += 1
            if self._repeats > MOST_REPEATS:
                self._members = set(self._stepped)
        self._members.add(key)
        self._stepped.add(key)
        if not self._members <= self._stepped:
            return False
        self._stepped.clear()
        self._repeats = 0
        return True


class TrainingLoop:
    """Takes what happens on the main thread, in order, and opens and closes sections."""

    def __init__(self) -> None:
        self.optimizers = Optimizers()
        self.first_step: int | None = None
        """Index of the first step, where the script goes on from a checkpoint; to be set before it begins."""
        self._sections = {name: Section(name) for name in NAMES if name != STEP_SECTION}
        self._own_step: Step | None = None
        self._counts = True
        self._open: list[tuple[Hashable, Section | None]] = []
        """What has begun and not ended: by what, and the section that is open for it."""
        self._stepping = 0
        """Optimizers that step now, one within the other."""
        self._fed_by: Hashable = None
        self._feeders: set[Hashable] = set()
        """Data loaders whose batches were followed by a backward."""
        self._forwards = 0
        self._blind = False
        """A step went by in which no forward was seen: the model was compiled together with what calls it."""

    def give_way(self, name: str) -> None:
        """The script opens the section itself; from now on it is not opened here."""
        if name == STEP_SECTION:
            self._counts = False
            self._leave_step(completed=False)
        else:
            self._sections.pop(name, None)

    @property
    def in_step(self) -> bool:
        """Whether a step is open."""
        return self._own_step is not None

    # What happens -----------------------------------------------------------------------------------------------------

    def fetch_begins(self, loader: Hashable) -> None:
        """A batch is asked for. What is still open was left by an exception that nobody told of."""
        self._end_all()
        self._fed_by = loader
        self._begin(DATA, DATA)

    def fetch_ended(self, *, exhausted: bool) -> None:
        """The batch is there, or there are no more."""
        self._end(DATA, failed=exhausted)
        if exhausted:
            # Whatever comes now is not of this step only: an evaluation, a save, the end of the script.
            self._leave_step(completed=False)
        elif self._blind and self._fed_by in self._feeders:
            self._enter_step()

    def forward_begins(self, module: Hashable, *, training: bool) -> None:
        """An outermost module is called; ``training``: to learn from it."""
        if training:
            self._enter_step()
            self._forwards += 1
        self._begin(module, FORWARD if training or self.in_step else EVALUATION_SECTION)

    def forward_ended(self, module: Hashable) -> None:
        """It has returned, or raised."""
        self._end(module)

    def backward_begins(self) -> None:
        """Gradients are computed."""
        self._feeders.add(self._fed_by)
        self._enter_step()
        self._begin(BACKWARD, BACKWARD)

    def backward_ended(self, *, failed: bool = False) -> None:
        """They are there."""
        self._end(BACKWARD, failed=failed)

    def optimizer_begins(self, key: int) -> None:
        """An optimizer steps; one that does so within another (sharded, wrapped) is a part of that."""
        owner = (OPTIMIZER, key)
        if self._stepping:
            self._end(owner)  # its last step raised, and torch told nobody
        nested = self._stepping > 0
        if nested:
            self.optimizers.gone(key)
        else:
            self.optimizers.built(key)
            self._enter_step()
        self._stepping += 1
        self._begin(owner, None if nested else OPTIMIZER)

    def optimizer_ended(self, key: int) -> None:
        """It has stepped."""
        self._end((OPTIMIZER, key))
        if not self._stepping and self.optimizers.stepped(key):
            self._leave_step(completed=True)

    def save_begins(self) -> None:
        """Something is saved; a save within it is a part of it."""
        nested = any(owner == CHECKPOINTING_SECTION for owner, _ in self._open)
        self._begin(CHECKPOINTING_SECTION, None if nested else CHECKPOINTING_SECTION)

    def save_ended(self, *, failed: bool = False) -> None:
        """It has been saved."""
        self._end(CHECKPOINTING_SECTION, failed=failed)

    # Sections ---------------------------------------------------------------------------------------------------------

    def _begin(self, owner: Hashable, name: str | None) -> None:
        section = self._sections.get(name) if name is not None else None
        self._open.append((owner, section))
        if section is not None:
            section.__enter__()

    def _end(self, owner: Hashable, *, failed: bool = False) -> None:
        """Close what it opened, and what was opened inside and never left; nothing, if it has been closed already."""
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
        if self._counts and self._own_step is None and self.optimizers:
            self._own_step = OwnStep(self.first_step)
            self.first_step = None
            self._own_step.__enter__()

    def _leave_step(self, *, completed: bool) -> None:
        step, self._own_step = self._own_step, None
        if step is None:
            return
        if completed:
            self._blind = not self._forwards
            self._forwards = 0
        step.__exit__(None if completed else RuntimeError, None, None)


class OwnStep(Step):
    """A step that was opened here and not by the script."""

    __slots__ = ()
