"""Hugging Face Accelerate: ``steps = Steps(accelerator)``, then ``with steps:`` around each batch."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

import rankwatch
from rankwatch.contract.semconv import CHECKPOINTING_SECTION
from rankwatch.recording.sections import Section


class Accelerator(Protocol):
    """The part of ``accelerate.Accelerator`` that is used, so that it need not be imported."""

    @property
    def sync_gradients(self) -> bool:
        """Whether the optimizer steps with this batch."""


class Steps:
    """Records a step per gradient synchronization of the accelerator; batches before that count as progress.

    ::

        steps = Steps(accelerator)
        for batch in loader:
            with accelerator.accumulate(model), steps:
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            if rankwatch.should_stop():
                break

    ``accelerator.backward`` and ``accelerator.save_state`` become the sections ``backward`` and ``checkpointing``.

    Args:
        accelerator: the ``accelerate.Accelerator`` of the loop.
        iteration: number of the first step, if training resumes from a checkpoint.
        init: arguments of :func:`rankwatch.init`, which is called here unless the script has called it.
    """

    def __init__(self, accelerator: Accelerator, *, iteration: int | None = None, **init: Any) -> None:
        rankwatch.init(**init)
        self._accelerator = accelerator
        self._next = iteration
        self._step: Section | None = None
        rankwatch.wrap(accelerator, "backward", "backward")
        rankwatch.wrap(accelerator, "save_state", CHECKPOINTING_SECTION)

    def __enter__(self) -> Steps:
        if self._step is None:
            self._step = rankwatch.step(self._next).__enter__()
            self._next = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._step is None:
            return
        if kind is None and not self._accelerator.sync_gradients:
            rankwatch.progress()  # the step goes on with the next batch
            return
        step, self._step = self._step, None
        step.__exit__(kind, error, trace)
