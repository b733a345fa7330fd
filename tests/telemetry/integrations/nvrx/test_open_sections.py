from __future__ import annotations

import pytest

from rankwatch.integrations.nvrx.open_sections import DROP_MISUSE, MAX_OPEN, OpenSections
from rankwatch.recording import shared_slots
from rankwatch.recording.recorder import Recorder


def opened(recorder: Recorder) -> set[str]:
    reading = shared_slots.read(recorder.slots)
    assert reading is not None
    return set(reading.open_sections)


def test_sections_overlap_as_they_like(recorder: Recorder) -> None:
    sections = OpenSections()
    assert sections.open("one")
    assert sections.open("two")
    assert sections.close("one")
    assert opened(recorder) == {"two"}
    assert ("one" in sections, "two" in sections) == (False, True)
    assert sections.close("two")
    assert opened(recorder) == set()


def test_a_step_counts_an_iteration_unless_it_is_broken_off(recorder: Recorder) -> None:
    sections = OpenSections()
    sections.open("step")
    sections.close("step")
    assert recorder.iteration == 1
    sections.open("step")
    sections.close_all()
    assert recorder.iteration == 2
    sections.open("step")
    sections.close_all(completed=False)
    assert recorder.iteration == 2
    assert opened(recorder) == set()


@pytest.mark.parametrize("misuse", ["twice", "not open"])
def test_misuse_is_counted_reported_once_and_changes_nothing(
    recorder: Recorder, misuse: str, caplog: pytest.LogCaptureFixture
) -> None:
    sections = OpenSections()
    sections.open("one")
    for _ in range(2):
        assert not (sections.open("one") if misuse == "twice" else sections.close("other"))
    assert opened(recorder) == {"one"}
    assert recorder.dropped == {DROP_MISUSE: 2}
    assert len(caplog.messages) == 1
    assert ("again before it was closed" if misuse == "twice" else "but not open") in caplog.messages[0]


def test_a_script_that_closes_none_does_not_fill_the_memory(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    sections = OpenSections()
    found = [sections.open(f"batch {number}") for number in range(MAX_OPEN + 5)]
    assert found == [True] * MAX_OPEN + [False] * 5
    assert caplog.text.count("further ones are not opened") == 1
    sections.close_all()
    assert sections.open("batch 0")


def test_before_init_nothing_is_recorded_and_nothing_breaks() -> None:
    sections = OpenSections()
    assert sections.open("one")
    assert not sections.open("one")
    assert sections.close("one")
