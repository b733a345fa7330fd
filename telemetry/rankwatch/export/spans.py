"""Sampled spans: one for each section of every n-th step. Imported on the exporter thread only.

Spans are built as finished records, without a tracer provider: a provider registers a hook that runs the SDK in each
forked child.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from rankwatch.contract import semconv
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

    def of(self, runs: Iterable[SectionRun]) -> tuple[Sequence[ReadableSpan], int]:
        """Return the spans of the sampled ones among ``runs``, and how many were left out as too many."""
        if not self._stride:
            return (), 0
        sampled = [run for run in runs if run.iteration % self._stride == 0]
        to_wall = time.time_ns() - time.monotonic_ns()
        spans = [self._span(run, to_wall) for run in sampled[:SPANS_PER_EXPORT]]
        return spans, max(0, len(sampled) - SPANS_PER_EXPORT)

    def _span(self, run: SectionRun, to_wall: int) -> ReadableSpan:
        return ReadableSpan(
            run.section,
            self._context(),
            resource=self._resource,
            attributes={semconv.ATTR_ITERATION: run.iteration},
            start_time=run.start_ns + to_wall,
            end_time=run.end_ns + to_wall,
            instrumentation_scope=self._scope,
        )

    def _context(self) -> SpanContext:
        """Random ids; zero is not a valid one."""
        trace_id = self._random.randrange(1, 2**128)
        span_id = self._random.randrange(1, 2**64)
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
