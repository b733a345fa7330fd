"""Data that can be had once more: the microbatches of a step are kept until the step is over."""

from __future__ import annotations

import contextlib
import copy
from collections import UserDict
from collections.abc import Iterable
from typing import Any


class RerunDataIterator:
    """An iterator over microbatches that can go back to the first one of the step.

    ``skip_replayed`` says where the data go on after a resume in which a step is re-run from the checkpoint. True: at
    the beginning of that step, as with a loader that is set up by the number of the step, so that what is replayed is
    also drawn and dropped. False: behind it, as with a loader that keeps its own position in the checkpoint.
    """

    def __init__(self, iterable: Iterable[Any], *, skip_replayed: bool = True) -> None:
        self.iterable = iterable
        """As it was given: Megatron asks a loader for its own state through it."""
        self.skip_replayed = skip_replayed
        self._iterator: Any = iterable if hasattr(iterable, "__next__") else iter(iterable)
        # Only within a step of a machine that validates: whoever draws outside of one would let memory grow.
        self._keeps = False
        self._kept: list[Any] = []
        self._position: int | None = None
        """The next of the kept microbatches to be given out; None: new ones are drawn."""
        self._to_drop = 0

    def __iter__(self) -> RerunDataIterator:
        return self

    def __next__(self) -> Any:
        if self._position is not None and self._position < len(self._kept):
            self._position += 1
            return _apart(self._kept[self._position - 1])
        self._drop()
        microbatch = next(self._iterator)
        if self._keeps:
            self._kept.append(_apart(microbatch))
            if self._position is not None:
                self._position += 1  # a re-run that reads further than the first run did
        return microbatch

    def rewind(self) -> None:
        """Go back to the first microbatch of the step."""
        self._position = 0

    def advance(self) -> None:
        """Begin the next step: forget the microbatches of the last one, keep the new ones."""
        self._drop()
        self._keeps, self._kept, self._position = True, [], None

    def finish(self) -> None:
        """The step is over: keep nothing until the next one, neither on a GPU nor of what an evaluation draws."""
        self._keeps, self._kept, self._position = False, [], None

    def state_dict(self) -> dict[str, Any]:
        """The microbatches of the step that is to be re-run, for a checkpoint."""
        return {"microbatches": list(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give out the microbatches of a checkpoint first."""
        self._keeps, self._kept, self._position = True, list(state["microbatches"]), 0
        self._to_drop = len(self._kept) if self.skip_replayed else 0

    def _drop(self) -> None:
        """Draw what was replayed after a resume, before anything new is drawn."""
        while self._to_drop:
            self._to_drop -= 1
            with contextlib.suppress(StopIteration):
                next(self._iterator)


def _apart(microbatch: Any) -> Any:
    """A microbatch from which a step may take things out, as with ``batch.pop("labels")``; its tensors are shared."""
    return copy.copy(microbatch) if isinstance(microbatch, (dict, list, UserDict)) else microbatch


def checked(data_iterator: Any) -> list[RerunDataIterator]:
    """The iterators of a step: one, none (None), or a list of which some may be None.

    Raises:
        TypeError: one of them cannot be rewound.
    """
    given = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    iterators = [each for each in given if each is not None]
    for each in iterators:
        if not isinstance(each, RerunDataIterator):
            raise TypeError(
                f"a {type(each).__name__} cannot be rewound to re-run a step; wrap it once, before the first step: "
                "rankwatch.rerun.RerunDataIterator(iter(loader))"
            )
    return iterators
