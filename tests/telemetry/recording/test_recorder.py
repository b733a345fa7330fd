"""The ids of section names, and the finished runs that the exporter takes."""

from __future__ import annotations

import threading

import rankwatch
from rankwatch.recording.recorder import DROP_RING, NAMES_CACHED, RING_LENGTH, Recorder
from rankwatch.recording.shared_slots import FIRST_TIME, NAME_BYTES


def test_an_id_is_marked_until_its_section_has_finished_once(recorder: Recorder) -> None:
    with rankwatch.section("load"):
        assert recorder.ids["load"] == 1 | FIRST_TIME
    assert recorder.ids["load"] == 1
    with rankwatch.section("load"):
        pass
    runs, lost = recorder.take_finished()
    assert [(run.section, run.first) for run in runs] == [("load", True), ("load", False)]
    assert not lost


def test_all_spellings_of_a_name_lose_the_mark_together(recorder: Recorder) -> None:
    long = "x" * NAME_BYTES
    with rankwatch.section(long + "1"):
        pass
    with rankwatch.section(long + "2"):
        pass
    assert set(recorder.ids.values()) == {1}
    assert [run.first for run in recorder.take_finished()[0]] == [True, False]


def test_the_cache_of_names_is_bounded(recorder: Recorder) -> None:
    for i in range(NAMES_CACHED + 50):
        with rankwatch.section("x" * NAME_BYTES + str(i)):
            pass
    assert len(recorder.ids) == NAMES_CACHED
    assert recorder.dropped == {}
    assert sum(run.first for run in recorder.take_finished()[0]) == 1


def test_first_runs_on_many_threads_register_every_name_once(recorder: Recorder) -> None:
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
    assert {run.section for run in recorder.take_finished()[0] if run.first} == set(names)


def test_finished_runs_are_taken_once_with_their_times_and_steps(recorder: Recorder) -> None:
    with rankwatch.step(7), rankwatch.section("load"):
        pass
    (load, step), lost = recorder.take_finished()
    assert (load.section, load.iteration, step.section, step.iteration) == ("load", 7, "step", 7)
    assert step.start_ns <= load.start_ns <= load.end_ns <= step.end_ns
    assert load.duration_ns == load.end_ns - load.start_ns
    assert (lost, recorder.take_finished()) == (False, ([], False))


def test_overwritten_runs_are_counted_as_dropped(recorder: Recorder) -> None:
    load = rankwatch.section("load")
    for _ in range(RING_LENGTH + 3):
        with load:
            pass
    runs, lost = recorder.take_finished()
    assert (len(runs), lost, recorder.dropped) == (RING_LENGTH, True, {DROP_RING: 3})
