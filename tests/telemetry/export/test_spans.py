from __future__ import annotations

import random

from opentelemetry.sdk.resources import Resource

from rankwatch.export.spans import SPANS_PER_EXPORT, Spans
from rankwatch.profiling.sampler import ProfiledStep
from rankwatch.recording.recorder import SectionRun


def test_steps_are_sampled_by_the_stride_up_to_the_limit() -> None:
    runs = [SectionRun("read", 0, 10, iteration, False) for iteration in (9, 10, 11, 20)]
    spans = Spans(Resource({}), 10, "test")
    made, too_many = spans.of(runs)
    assert ([dict(span.attributes or {})["dl.iteration"] for span in made], too_many) == ([10, 20], 0)
    made, too_many = spans.of([SectionRun("read", 0, 1, 0, False)] * (SPANS_PER_EXPORT + 7))
    assert (len(made), too_many) == (SPANS_PER_EXPORT, 7)
    assert Spans(Resource({}), 0, "test").of(runs) == ((), 0)


def profiled(iteration: int, *waits: tuple[int, int]) -> ProfiledStep:
    return ProfiledStep(iteration, 0, [SectionRun("step", 0, 100, iteration, False)], waits)


def sent(spans: Spans, step: ProfiledStep) -> list[tuple[str, int, str | None]]:
    """Name, nanoseconds and part of the spans of a profiled step."""
    made, _ = spans.of((), step)
    return [
        (span.name, span.end_time - span.start_time, dict(span.attributes or {}).get("rankwatch.part"))
        for span in made
        if span.end_time is not None and span.start_time is not None
    ]


def test_a_profiled_step_is_sent_with_its_waits_and_without_any_with_an_empty_one() -> None:
    spans = Spans(Resource({}), 10, "test")
    assert sent(spans, profiled(64, (10, 30), (50, 55))) == [
        ("step", 100, None),
        ("communication", 20, "communication"),
        ("communication", 5, "communication"),
    ]
    assert sent(spans, profiled(128)) == [("step", 100, None), ("communication", 0, "communication")]
    assert sent(spans, profiled(130, (1, 2))) == [("communication", 1, "communication")], "its sections are sent anyway"
    assert Spans(Resource({}), 0, "test").of((), profiled(64)) == ((), 0)


def test_profiled_steps_at_most_double_the_spans() -> None:
    spans = Spans(Resource({}), 10, "test")
    assert [bool(sent(spans, profiled(step))) for step in (1, 2, 9, 10, 11, 12, 21)] == [
        True, False, False, True, True, False, True,
    ]  # fmt: skip
    assert sent(spans, profiled(3)), "the steps went back"


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
