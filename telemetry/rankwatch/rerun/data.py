"""A data iterator that can be rewound: keeps the microbatches of a step until the step has ended."""

from __future__ import annotations

import contextlib
import copy
from collections import UserDict
from collections.abc import Iterable
from typing import Any


class RerunDataIterator:
    """An iterator over microbatches that can be rewound to the first one of the step.

    Args:
        iterable: yields the microbatches.
        skip_replayed: where the iterable continues after a step was re-run from a checkpoint. True: at the beginning of
            that step, as with a loader positioned by the step number, so that replayed microbatches are also drawn and
            dropped. False: after that step, as with a loader that saves its own position in the checkpoint.
    """

    def __init__(self, iterable: Iterable[Any], *, skip_replayed: bool = True) -> None:
        self.iterable = iterable
        """The wrapped iterable; Megatron saves the loader's own state through it."""
        self.skip_replayed = skip_replayed
        self._iterator: Any = iterable if hasattr(iterable, "__next__") else iter(iterable)
        # Kept only within a validated step, since memory would grow otherwise.
        self._keeps = False
        self._kept: list[Any] = []
        self._position: int | None = None
        """Index of the next kept microbatch to return; None: new ones are drawn."""
        self._to_drop = 0

    def __iter__(self) -> RerunDataIterator:
        return self

    def __next__(self) -> Any:
        if self._position is not None and self._position < len(self._kept):
            self._position += 1
            return _shallow_copy(self._kept[self._position - 1])
        self._drop()
        microbatch = next(self._iterator)
        if self._keeps:
            self._kept.append(_shallow_copy(microbatch))
            if self._position is not None:
                self._position += 1  # the re-run reads further than the first run did
        return microbatch

    def rewind(self) -> None:
        """Rewind to the first microbatch of the step."""
        self._position = 0

    def advance(self) -> None:
        """Begin the next step: drop the microbatches of the last one and keep new ones."""
        self._drop()
        self._keeps, self._kept, self._position = True, [], None

    def finish(self) -> None:
        """End the step: keep no microbatches until the next one begins, to free memory also during an evaluation."""
        self._keeps, self._kept, self._position = False, [], None

    def state_dict(self) -> dict[str, Any]:
        """Return the microbatches of the step that is to be re-run, for a checkpoint."""
        return {"microbatches": list(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return the microbatches of a checkpoint first."""
        self._keeps, self._kept, self._position = True, list(state["microbatches"]), 0
        self._to_drop = len(self._kept) if self.skip_replayed else 0

    def _drop(self) -> None:
        """Draw and drop replayed microbatches after a resume."""
        while self._to_drop:
            self._to_drop -= 1
            with contextlib.suppress(StopIteration):
                next(self._iterator)


def _shallow_copy(microbatch: Any) -> Any:
    """Return a copy of a container, so that ``batch.pop("labels")`` spares the kept one; tensors are shared."""
    return copy.copy(microbatch) if isinstance(microbatch, (dict, list, UserDict)) else microbatch


def rerun_iterators(data_iterator: Any) -> list[RerunDataIterator]:
    """Return the iterators of a step, given as one, None, or a list that may contain None.

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
