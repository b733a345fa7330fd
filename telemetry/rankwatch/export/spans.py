"""Sampled spans: one for each section of every n-th step. Imported on the exporter's thread only.

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
from rankwatch.recording.recorder import Finished
from rankwatch.recording.shared_slots import Slots

SPANS_PER_EXPORT: Final = 512
"""A script may open a section for each of a thousand files of one step; spans are samples, so a part will do."""


class Spans:
    """Makes spans of finished sections, each with its own times."""

    def __init__(self, resource: Resource, slots: Slots, stride: int, scope: str) -> None:
        self._resource = resource
        self._slots = slots
        self._stride = stride
        self._scope = InstrumentationScope(scope)
        # The ids need a generator of their own: ranks that seed Python's global one alike would draw the same ids.
        self._random = random.Random()

    def of(self, finished: Iterable[Finished]) -> tuple[Sequence[ReadableSpan], int]:
        """Return the spans of the sampled ones among ``finished``, and how many were too many."""
        if not self._stride:
            return (), 0
        sampled = [section for section in finished if section.iteration % self._stride == 0]
        to_wall = time.time_ns() - time.monotonic_ns()
        spans = [self._span(section, section.start_ns + to_wall) for section in sampled[:SPANS_PER_EXPORT]]
        return spans, max(0, len(sampled) - SPANS_PER_EXPORT)

    def _span(self, section: Finished, start: int) -> ReadableSpan:
        return ReadableSpan(
            self._slots.name(section.section_id),
            self._context(),
            resource=self._resource,
            attributes={semconv.ATTR_ITERATION: section.iteration},
            start_time=start,
            end_time=start + section.duration_ns,
            instrumentation_scope=self._scope,
        )

    def _context(self) -> SpanContext:
        """Random ids; zero is not a valid one."""
        trace_id = self._random.randrange(1, 2**128)
        span_id = self._random.randrange(1, 2**64)
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
