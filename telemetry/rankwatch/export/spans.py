"""Sampled spans: one for each section of every n-th step. Imported on the exporter's thread only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from rankwatch.contract import semconv
from rankwatch.recording.recorder import Finished
from rankwatch.recording.shared_slots import Slots

SPANS_PER_EXPORT: Final = 512
"""A script may open a section for each of a thousand files of one step; spans are samples, so a part will do."""


class Spans:
    """Makes spans of finished sections, each with its own times, on a private provider."""

    def __init__(self, resource: Resource, slots: Slots, stride: int, scope: str) -> None:
        self._slots = slots
        self._stride = stride
        self._ended = _Collector()
        provider = TracerProvider(resource=resource, sampler=ALWAYS_ON, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(scope)

    def of(self, finished: Iterable[Finished]) -> tuple[Sequence[ReadableSpan], int]:
        """Return the spans of the sampled ones among ``finished``, and how many were too many."""
        if not self._stride:
            return (), 0
        sampled = [section for section in finished if section.iteration % self._stride == 0]
        to_wall = time.time_ns() - time.monotonic_ns()
        for section in sampled[:SPANS_PER_EXPORT]:
            start = section.start_ns + to_wall
            span = self._tracer.start_span(
                self._slots.name(section.section_id),
                attributes={semconv.ATTR_ITERATION: section.iteration},
                start_time=start,
            )
            span.end(start + section.duration_ns)
        return self._ended.take(), max(0, len(sampled) - SPANS_PER_EXPORT)


class _Collector(SpanProcessor):
    """Hands ended spans over at once: they are already on the exporter's thread."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> Sequence[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans
