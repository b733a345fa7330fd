"""Answers whoever asks for a trace of this rank: the next sampled step as a file, once; or why there is none."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rankwatch.profiling.plan import ProfilingPlan
from rankwatch.profiling.sampler import Sample
from rankwatch.profiling.source import Span
from rankwatch.profiling.trace_file import write
from rankwatch.settings import Settings


class Say(Protocol):
    """Tells the user something once; what is ``of_node`` is the same for all its ranks, and one of them says it."""

    def __call__(self, words: str, *, of_node: bool = False) -> None:
        """Say it, unless it was said."""


class TraceRequests:
    """Those of one session."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._done = ""

    def open(self, plan: ProfilingPlan) -> bool:
        """Whether somebody has asked for a trace of this rank and has not been answered."""
        return plan.trace is not None and plan.trace.rank == self._settings.rank and plan.trace.id != self._done

    def refuse(self, plan: ProfilingPlan, why: str) -> None:
        """There can be no trace now; the request stays open."""
        if self.open(plan):
            self._say(f"the trace of rank {self._settings.rank} that was asked for cannot be made: {why}")

    def answer(self, plan: ProfilingPlan, sample: Sample, sections: Sequence[Span]) -> None:
        """Write the trace, if one was asked for."""
        wanted, settings = plan.trace, self._settings
        if wanted is None or not self.open(plan):
            return
        self._done = wanted.id
        folder = Path(settings.trace_dir or Path(tempfile.gettempdir()) / "rankwatch-traces")
        job = settings.job_id or "job"
        try:
            path = write(folder, job, settings.rank, wanted.id, sample.trace, sample.step, sections)
        except OSError as error:
            self._say(
                f"the trace that was asked for cannot be written: {error}; set RANKWATCH_TRACE_DIR to a folder "
                "in which this process may write"
            )
            return
        self._say(f"the trace of step {sample.iteration} of rank {settings.rank} is in {path}")
