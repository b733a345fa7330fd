from __future__ import annotations

import random

from opentelemetry.sdk.resources import Resource

from rankwatch.export.spans import SPANS_PER_EXPORT, Spans
from rankwatch.recording.recorder import SectionRun


def test_steps_are_sampled_by_the_stride_up_to_the_limit() -> None:
    runs = [SectionRun("read", 0, 10, iteration, False) for iteration in (9, 10, 11, 20)]
    spans = Spans(Resource({}), 10, "test")
    made, too_many = spans.of(runs)
    assert ([dict(span.attributes or {})["dl.iteration"] for span in made], too_many) == ([10, 20], 0)
    made, too_many = spans.of([SectionRun("read", 0, 1, 0, False)] * (SPANS_PER_EXPORT + 7))
    assert (len(made), too_many) == (SPANS_PER_EXPORT, 7)
    assert Spans(Resource({}), 0, "test").of(runs) == ((), 0)


def test_span_ids_differ_between_equally_seeded_ranks_and_leave_their_generator_alone() -> None:
    contexts = []
    for _ in range(2):
        random.seed(0)
        before = random.getstate()
        (span,), _ = Spans(Resource({}), 1, "test").of([SectionRun("read", 0, 10, 0, False)])
        assert random.getstate() == before
        contexts.append(span.get_span_context())
    assert len({context.trace_id for context in contexts}) == len({context.span_id for context in contexts}) == 2
    assert all(context.is_valid for context in contexts)
