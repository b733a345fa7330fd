"""How the detector measures: whom it wraps, what counts as a step, what the durations of a section were like."""

from __future__ import annotations

import contextlib
import inspect
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.integrations.nvrx import fault_tolerance
from rankwatch.integrations.nvrx.report import Statistic
from rankwatch.recording import sections, shared_slots


@dataclass(frozen=True)
class CallableId:
    """``obj.name``, which is to be wrapped."""

    obj: object
    name: str
    arg_filter_fn: Callable[[inspect.BoundArguments], bool] | None = None
    extra_args_fn: Callable[[inspect.BoundArguments], dict[str, Any]] | None = None
    ignored_args: tuple[str, ...] | None = None

    def __str__(self) -> str:
        of = self.obj
        if inspect.ismodule(of):
            return f"{of.__name__}.{self.name}"
        return (
            f"{of.__module__}.{of.__name__}.{self.name}" if inspect.isclass(of) else f"{type(of).__name__}.{self.name}"
        )


class Steps:
    """Counts steps by the first section that is entered, as long as nothing else in the process counts any."""

    def __init__(self) -> None:
        self._leader: str | None = None
        self._left = 0
        """The iteration that was reached when the leader was left last."""

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Open a step around the section of this name, if it is the one that counts."""
        recorder = sections.attached()
        if self._leader is None and recorder is not None:
            reading = shared_slots.read(recorder.slots)
            others = reading is not None and STEP_SECTION in reading.open_sections
            self._leader, self._left = "" if others else name, recorder.iteration
        if (
            recorder is None
            or name != self._leader
            or recorder.iteration != self._left
            or fault_tolerance.counts_steps()
        ):
            yield
            return
        self._left = -1  # not again inside of itself
        try:
            with sections.step():
                yield
        finally:
            self._left = recorder.iteration


def place(user_of: str) -> str:
    """Where the ``with`` stands that entered a context manager of the file ``user_of``."""
    frame = sys._getframe(1)
    here = (__file__, user_of, contextlib.__file__)
    while frame.f_back is not None and frame.f_code.co_filename in here:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def summary(durations: Iterable[float]) -> dict[Statistic, float]:
    """The statistics of durations, of which there is one at least."""
    values = list(durations)
    return {
        Statistic.MIN: min(values),
        Statistic.MAX: max(values),
        Statistic.MED: statistics.median_low(values),  # torch.median's, as NVRx has it
        Statistic.AVG: statistics.fmean(values),
        Statistic.STD: statistics.stdev(values) if len(values) > 1 else float("nan"),
        Statistic.NUM: len(values),
    }
