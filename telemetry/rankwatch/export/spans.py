"""Sampled spans: one for each section of every n-th step, and of profiled steps. Imported on the exporter thread only.

A profiled step also has a span for each stretch of exposed communication: in collectives, while nothing was computed.
They carry ``rankwatch.part``; one of zero length stands for a profiled step without any. Other profiled steps than
every n-th one are at least n steps apart, so that they at most double the number of spans.

Spans are built as finished records, without a tracer provider: a provider registers a hook that runs the SDK in each
forked child.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch.profiling.sampler import ProfiledStep
from rankwatch.recording.recorder import SectionRun

SPANS_PER_EXPORT: Final = 512
"""A script may open a section for each of a thousand files in one step; spans are samples, so a part suffices."""


class Spans:
    """Makes spans of section runs."""

    def __init__(self, resource: Resource, stride: int, scope: str) -> None:
        self._resource = resource
        self._stride = stride
        self._scope = InstrumentationScope(scope)
        # The ids need a generator of their own: ranks that seed Python's global one alike would draw the same ids.
        self._random = random.Random()
        self._last_profiled: int | None = None

    def of(
        self, runs: Iterable[SectionRun], profiled: ProfiledStep | None = None
    ) -> tuple[Sequence[ReadableSpan], int]:
        """Return the spans of the sampled ones among ``runs`` and of the profiled step, and how many were left out as
        too many."""
        if not self._stride:
            return (), 0
        sampled = [run for run in runs if run.iteration % self._stride == 0]
        waits: list[SectionRun] = []
        if profiled is not None and self._is_due(profiled.iteration):
            if profiled.iteration % self._stride:
                sampled += profiled.runs
            intervals = profiled.waits or [(profiled.begin_ns, profiled.begin_ns)]
            waits = [SectionRun(Part.COMMUNICATION, *each, profiled.iteration, False) for each in intervals]
        to_wall = time.time_ns() - time.monotonic_ns()
        spans = [self._span(run, to_wall) for run in sampled[:SPANS_PER_EXPORT]]
        spans += [self._span(wait, to_wall, {semconv.ATTR_PART: Part.COMMUNICATION.value}) for wait in waits]
        return spans, max(0, len(sampled) - SPANS_PER_EXPORT)

    def _is_due(self, iteration: int) -> bool:
        """Whether a profiled step is sent: every n-th one is sent anyway, others n steps apart."""
        if iteration % self._stride == 0:
            return True
        last = self._last_profiled
        if last is not None and last <= iteration < last + self._stride:
            return False
        self._last_profiled = iteration
        return True

    def _span(self, run: SectionRun, to_wall: int, more: Mapping[str, str] | None = None) -> ReadableSpan:
        return ReadableSpan(
            run.section,
            self._context(),
            resource=self._resource,
            attributes={semconv.ATTR_ITERATION: run.iteration, **(more or {})},
            start_time=run.start_ns + to_wall,
            end_time=run.end_ns + to_wall,
            instrumentation_scope=self._scope,
        )

    def _context(self) -> SpanContext:
        """Random ids; zero is not a valid one."""
        trace_id = self._random.randrange(1, 2**128)
        span_id = self._random.randrange(1, 2**64)
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
