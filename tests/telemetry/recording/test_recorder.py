"""The ids of section names: what they say of first runs, and that they do not grow without bound."""

from __future__ import annotations

import threading

import rankwatch
from rankwatch.recording.recorder import NAMES_REMEMBERED, Finished, Recorder
from rankwatch.recording.shared_slots import FIRST_TIME, NAME_BYTES


def test_an_id_is_marked_until_its_section_was_finished(recorder: Recorder) -> None:
    with rankwatch.section("load"):
        assert recorder.ids["load"] == 1 | FIRST_TIME
    assert recorder.ids["load"] == 1
    with rankwatch.section("load"):
        pass
    assert [Finished(*entry).first for entry in recorder.finished] == [True, False]
    assert {recorder.slots.name(section_id) for section_id, *_ in recorder.finished} == {"load"}


def test_all_spellings_of_a_name_lose_the_mark_together(recorder: Recorder) -> None:
    long = "x" * NAME_BYTES
    with rankwatch.section(long + "1"):
        pass
    with rankwatch.section(long + "2"):
        pass
    assert set(recorder.ids.values()) == {1}
    assert [Finished(*entry).first for entry in recorder.finished] == [True, False]


def test_names_that_differ_only_beyond_what_is_recorded_are_not_remembered_for_ever(recorder: Recorder) -> None:
    for i in range(NAMES_REMEMBERED + 50):
        with rankwatch.section("x" * NAME_BYTES + str(i)):
            pass
    assert len(recorder.ids) == NAMES_REMEMBERED
    assert recorder.dropped == {}
    assert sum(Finished(*entry).first for entry in recorder.finished) == 1


def test_first_runs_on_many_threads_leave_every_name_known(recorder: Recorder) -> None:
    names = [f"section {i}" for i in range(20)]
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for name in names:
            with rankwatch.section(name):
                pass

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(recorder.ids.values()) == list(range(1, len(names) + 1))
    first = [recorder.slots.name(f.section_id) for f in (Finished(*entry) for entry in recorder.finished) if f.first]
    assert set(first) == set(names)
