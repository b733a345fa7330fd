"""What a reader makes of the words: the ages that limits are judged by."""

from __future__ import annotations

import time

import pytest

import rankwatch
from rankwatch.contract.limits import RankActivity
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import SETTINGS_BYTES, Reading, Slots, read


def reading(recorder: Recorder, after: float = 0.0) -> Reading:
    """What is read ``after`` so many seconds."""
    found = read(recorder.slots, time.monotonic_ns() + round(after * 1e9))
    assert found is not None
    return found


def test_before_any_sign_of_progress_nothing_is_quiet(recorder: Recorder) -> None:
    rankwatch.heartbeat()
    assert reading(recorder, 100).quiet is None


def test_every_sign_of_progress_ends_the_quiet(recorder: Recorder) -> None:
    def sign(begins: int) -> float:
        """How long it has been quiet 100 s after now, at the least and at the most."""
        quiet = reading(recorder, 100).quiet
        assert quiet is not None
        assert 100 <= quiet <= 100 + (time.monotonic_ns() - begins) / 1e9
        return quiet

    begins = time.monotonic_ns()
    with rankwatch.step():
        sign(begins)
        begins = time.monotonic_ns()
        rankwatch.progress()
        sign(begins)
        begins = time.monotonic_ns()
        with rankwatch.section("forward"):
            sign(begins)
            begins = time.monotonic_ns()
        sign(begins)
        begins = time.monotonic_ns()
    sign(begins)


@pytest.mark.parametrize("word", [layout.LAST_CLOSED, layout.LAST_PROGRESS, layout.OPEN + 1])
def test_the_youngest_sign_counts(recorder: Recorder, word: int) -> None:
    words = recorder.words
    for each in (layout.LAST_CLOSED, layout.LAST_PROGRESS, layout.OPEN + 1):
        words[each] = 10**9
    words[layout.OPEN] = recorder.slots.add_name("step")
    words[word] = 7 * 10**9
    found = read(recorder.slots, 20 * 10**9)
    assert found is not None
    assert found.quiet == 13.0


def test_a_completed_step_is_progress_by_itself(recorder: Recorder) -> None:
    recorder.complete_step()
    assert recorder.words[layout.LAST_PROGRESS] == recorder.words[layout.FIRST_STEP_AT] > 0
    assert (reading(recorder, 100).quiet or 0.0) >= 100


def test_a_mistaken_progress_is_none(recorder: Recorder) -> None:
    rankwatch.progress("many")  # type: ignore[arg-type]
    assert recorder.words[layout.LAST_PROGRESS] == 0


def test_a_section_is_open_for_the_first_time_until_it_was_finished_once(recorder: Recorder) -> None:
    with rankwatch.section("load"):
        assert reading(recorder).first_time == {"load"}
        with rankwatch.section("parse"):
            assert reading(recorder).first_time == {"load", "parse"}
        with rankwatch.section("parse"):
            assert reading(recorder).first_time == {"load"}
    with rankwatch.section("load"):
        assert reading(recorder).open_sections.keys() == {"load"}
        assert reading(recorder).first_time == frozenset()


def test_a_first_run_that_failed_may_not_have_come_to_what_takes_its_time(recorder: Recorder) -> None:
    with pytest.raises(KeyError), rankwatch.step():
        raise KeyError("batch")
    with rankwatch.step():
        assert reading(recorder).first_time == {"step"}
    with rankwatch.step():
        assert reading(recorder).first_time == frozenset()


def test_a_run_entered_before_the_first_was_finished_is_a_first_run_too(recorder: Recorder) -> None:
    early, late = rankwatch.section("compile"), rankwatch.section("compile")
    early.__enter__()
    late.__enter__()
    early.__exit__(None, None, None)
    assert reading(recorder).first_time == {"compile"}
    late.__exit__(None, None, None)
    with rankwatch.section("compile"):
        assert reading(recorder).first_time == frozenset()


def test_what_limits_are_judged_by(recorder: Recorder) -> None:
    rankwatch.heartbeat()
    with rankwatch.section("load"):
        seen = reading(recorder, 5)
        assert seen.activity() == RankActivity(
            seen.open_sections, seen.heartbeat_age, None, seen.quiet, frozenset({"load"})
        )
    seen = reading(recorder, 5)
    assert seen.activity() == RankActivity({}, seen.heartbeat_age, seen.idle, seen.quiet)
    assert (seen.idle or 0.0) >= 5


def test_what_happens_after_the_look_at_the_clock_has_no_age(recorder: Recorder) -> None:
    with rankwatch.step():
        found = read(recorder.slots, time.monotonic_ns() - 10**9)
    assert found is not None
    assert (found.open_sections, found.quiet) == ({"step": 0.0}, 0.0)


def test_slots_taken_over_know_nothing_of_their_former_owner(recorder: Recorder) -> None:
    with rankwatch.step():
        rankwatch.progress()
        recorder.slots.reset()
        recorder.slots.claim(rank=0, local_rank=0, world_size=1, attempt=2)
        found = reading(recorder)
    assert (found.quiet, found.open_sections, found.first_time) == (None, {}, frozenset())


def test_slots_of_another_layout_are_not_read() -> None:
    slots = Slots.private()
    slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    assert read(slots) is not None
    slots.words[layout.MAGIC] -= 1
    assert read(slots) is None


def test_the_limits_of_as_many_sections_as_a_rank_can_use_fit_into_the_settings() -> None:
    limits = {f"section-{i:02d}": 86_400.125 for i in range(layout.NAME_LIMIT)}
    settings = {"limits": {"sections": limits, "learned": limits, "first_times": limits}}
    slots = Slots.private()
    slots.write_settings(settings)
    assert slots.settings() == (2, settings)
    with pytest.raises(ValueError, match="do not fit"):
        slots.write_settings({"much": "x" * SETTINGS_BYTES})
