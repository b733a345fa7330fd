from __future__ import annotations

import random

from opentelemetry.sdk.resources import Resource

from rankwatch.export.spans import SPANS_PER_EXPORT, Spans
from rankwatch.recording.recorder import Finished, Recorder


def test_only_steps_that_the_stride_divides_and_no_more_than_fit(recorder: Recorder) -> None:
    section_id = recorder.section_id("read")
    finished = [Finished(section_id, 0, 10, iteration) for iteration in (9, 10, 11, 20)]
    spans = Spans(Resource({}), recorder.slots, 10, "test")
    made, too_many = spans.of(finished)
    assert ([dict(span.attributes or {})["dl.iteration"] for span in made], too_many) == ([10, 20], 0)
    made, too_many = spans.of([Finished(section_id, 0, 1, 0)] * (SPANS_PER_EXPORT + 7))
    assert (len(made), too_many) == (SPANS_PER_EXPORT, 7)
    assert Spans(Resource({}), recorder.slots, 0, "test").of(finished) == ((), 0)


def test_ids_of_ranks_that_seed_alike_differ_and_their_seed_is_left_alone(recorder: Recorder) -> None:
    section_id = recorder.section_id("read")
    contexts = []
    for _ in range(2):
        random.seed(0)
        before = random.getstate()
        (span,), _ = Spans(Resource({}), recorder.slots, 1, "test").of([Finished(section_id, 0, 10, 0)])
        assert random.getstate() == before
        contexts.append(span.get_span_context())
    assert len({context.trace_id for context in contexts}) == len({context.span_id for context in contexts}) == 2
    assert all(context.is_valid for context in contexts)
