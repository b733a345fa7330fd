"""Measurement of the detector: wrapped callables, step counting, and statistics of durations."""

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
    """``obj.name``, a callable to wrap."""

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


class StepCounter:
    """Counts steps by the first section that is entered, unless something else in the process counts steps."""

    def __init__(self) -> None:
        self._leader: str | None = None
        self._left = 0
        """The iteration when the leading section was last left."""

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Open a step around the section of this name, if it is the leading one."""
        recorder = sections.attached()
        if self._leader is None and recorder is not None:
            reading = shared_slots.read(recorder.slots)
            counted = reading is not None and STEP_SECTION in reading.open_sections
            self._leader, self._left = "" if counted else name, recorder.iteration
        if (
            recorder is None
            or name != self._leader
            or recorder.iteration != self._left
            or fault_tolerance.counts_steps()
        ):
            yield
            return
        self._left = -1  # not recursively
        try:
            with sections.step():
                yield
        finally:
            self._left = recorder.iteration


def caller_location(file: str) -> str:
    """Return "FILE:LINE" of the ``with`` that entered a context manager defined in ``file``."""
    frame = sys._getframe(1)
    internal = (__file__, file, contextlib.__file__)
    while frame.f_back is not None and frame.f_code.co_filename in internal:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def summarize(durations: Iterable[float]) -> dict[Statistic, float]:
    """Return the statistics of durations; there must be at least one."""
    values = list(durations)
    return {
        Statistic.MIN: min(values),
        Statistic.MAX: max(values),
        Statistic.MED: statistics.median_low(values),  # like torch.median, which NVRx uses
        Statistic.AVG: statistics.fmean(values),
        Statistic.STD: statistics.stdev(values) if len(values) > 1 else float("nan"),
        Statistic.NUM: len(values),
    }
