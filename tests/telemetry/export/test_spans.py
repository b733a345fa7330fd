from __future__ import annotations

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
