from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rankwatch
from rankwatch.recording import sections
from rankwatch.recording.recorder import DROP_ARGUMENT, DROP_NAMES, DROP_OPEN, RING_LENGTH, Recorder
from rankwatch.recording.shared_slots import FINISHED, NAME_LIMIT, OPEN_COUNT, PROGRESS, STOP_STEP, Reading, Slots, read


def reading(recorder: Recorder) -> Reading:
    found = read(recorder.slots)
    assert found is not None
    return found


def finished_names(recorder: Recorder) -> list[str]:
    return [recorder.slots.name(section_id) for section_id, *_ in recorder.finished]


def test_an_open_section_is_seen_and_ages_until_it_closes(recorder: Recorder) -> None:
    with rankwatch.section("forward"):
        first = reading(recorder).open_sections["forward"]
        assert reading(recorder).open_sections["forward"] > first
        assert reading(recorder).idle is None
    closed = reading(recorder)
    assert closed.open_sections == {}
    assert closed.idle is not None
    assert (closed.finished, closed.progress) == (1, 1)


def test_the_duration_is_that_of_the_body(recorder: Recorder) -> None:
    before = time.monotonic_ns()
    with rankwatch.section("forward"):
        inside = time.monotonic_ns()
    after = time.monotonic_ns()
    ((run,), _) = recorder.take_finished()
    assert before <= run.start_ns <= inside <= run.end_ns <= after
    assert run.iteration == 0


def test_nothing_happens_before_init_nor_to_a_section_that_init_finds_open() -> None:
    recorder = Recorder(Slots.private())
    early, step = rankwatch.section("early"), rankwatch.step()
    with early, step:
        rankwatch.heartbeat()
        rankwatch.progress()
        assert not rankwatch.should_stop()
        sections.attach(recorder)
    assert not recorder.finished
    assert recorder.iteration == recorder.words[FINISHED] == recorder.words[PROGRESS] == 0


def test_an_exception_closes_the_section_and_goes_on_its_way(recorder: Recorder) -> None:
    with pytest.raises(KeyError), rankwatch.step(), rankwatch.section("forward"):
        raise KeyError("batch")
    assert reading(recorder).open_sections == {}
    assert finished_names(recorder) == ["forward", "step"]
    assert reading(recorder).iteration is None, "a step that failed is not completed"


def test_steps_count_from_zero_and_an_explicit_index_moves_the_count(recorder: Recorder) -> None:
    with rankwatch.step():
        assert reading(recorder).iteration is None
    assert reading(recorder).iteration == 0
    with rankwatch.step(100):
        pass
    with rankwatch.step():
        pass
    assert reading(recorder).iteration == 101
    assert [iteration for *_, iteration in recorder.finished] == [0, 100, 101]


def test_progress_is_that_within_the_step_and_the_first_step_is_remembered(recorder: Recorder) -> None:
    assert reading(recorder).first_iteration is None
    with rankwatch.step(40), rankwatch.section("forward"):
        rankwatch.progress(5)
    with rankwatch.step():
        rankwatch.progress(3)
        assert (reading(recorder).iteration, reading(recorder).progress) == (40, 3)
    after = reading(recorder)
    assert (after.iteration, after.progress, after.first_iteration) == (41, 0, 40)
    assert 0 <= (after.first_iteration_age or 0.0) < 60


def test_sections_belong_to_the_step_they_are_in(recorder: Recorder) -> None:
    with rankwatch.step(7), rankwatch.section("forward"):
        pass
    assert [iteration for *_, iteration in recorder.finished] == [7, 7]


@pytest.mark.parametrize("senseless", ["seven", -1, 2**80, float("nan"), float("inf"), object()])
def test_a_senseless_step_index_is_counted_and_otherwise_ignored(recorder: Recorder, senseless: object) -> None:
    with rankwatch.step(senseless):  # type: ignore[arg-type]
        pass
    assert reading(recorder).iteration == 0
    assert recorder.dropped == {DROP_ARGUMENT: 1}


def test_progress_counts_and_ignores_what_is_no_number(recorder: Recorder) -> None:
    rankwatch.progress()
    rankwatch.progress(32)
    rankwatch.progress("many")  # type: ignore[arg-type]
    rankwatch.progress(2**80)
    assert reading(recorder).progress == 33
    assert recorder.dropped == {DROP_ARGUMENT: 2}


def test_heartbeats_count_and_age(recorder: Recorder) -> None:
    assert reading(recorder).heartbeat_age is None
    rankwatch.heartbeat()
    rankwatch.heartbeat()
    assert reading(recorder).beats == 2
    assert 0 <= (reading(recorder).heartbeat_age or 0) < 60


def test_the_first_question_states_that_the_script_asks(recorder: Recorder) -> None:
    assert not reading(recorder).polls_should_stop
    assert not rankwatch.should_stop()
    assert reading(recorder).polls_should_stop
    another = Recorder(Slots.private())
    another.slots.claim(rank=0, local_rank=0, world_size=1, attempt=2)
    sections.attach(another)
    assert not reading(another).polls_should_stop, "a later session is reported again"
    rankwatch.should_stop()
    assert reading(another).polls_should_stop


def test_a_script_states_that_nothing_is_left_to_train(recorder: Recorder) -> None:
    assert not reading(recorder).complete
    rankwatch.mark_complete()
    assert reading(recorder).complete
    sections.attach(None)
    rankwatch.mark_complete()  # without a session it is one more thing that does nothing


def test_should_stop_from_the_agreed_step_on(recorder: Recorder) -> None:
    assert not rankwatch.should_stop()
    recorder.words[STOP_STEP] = 3  # after iteration 2
    answers = []
    for _ in range(5):
        with rankwatch.step():
            pass
        answers.append(rankwatch.should_stop())
    assert answers == [False, False, True, True, True]


def test_ranks_that_ask_rarely_stop_at_the_same_step(recorder: Recorder) -> None:
    recorder.words[STOP_STEP] = 3
    for iteration in range(20):
        with rankwatch.step():
            pass
        if iteration % 4 == 3 and rankwatch.should_stop():
            break
    assert iteration == 3


def test_more_open_sections_than_there_is_room_for_are_timed_but_not_seen(recorder: Recorder) -> None:
    many = [rankwatch.section("deep") for _ in range(OPEN_COUNT + 3)]
    for section in many:
        section.__enter__()
    for section in many:
        section.__exit__(None, None, None)
    assert recorder.dropped == {DROP_OPEN: 3}
    assert recorder.words[FINISHED] == len(many)
    assert len(recorder.free) == OPEN_COUNT


def test_more_names_than_there_is_room_for_are_counted_and_not_remembered(recorder: Recorder) -> None:
    for i in range(NAME_LIMIT + 50):
        with rankwatch.section(f"batch {i}"):
            pass
    assert recorder.dropped == {DROP_NAMES: 50}
    assert len(recorder.ids) == NAME_LIMIT
    assert len(recorder.free) == OPEN_COUNT
    assert recorder.words[FINISHED] == NAME_LIMIT


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("", "unnamed"),
        ("é" * 40, "é" * 31),
        ("a\0b", "ab"),
        ("\ud800", "?"),
        (7, "7"),
        (["list"], "['list']"),
    ],
)
def test_any_name_does(recorder: Recorder, given: object, shown: str) -> None:
    with rankwatch.section(given):  # type: ignore[arg-type]
        assert list(reading(recorder).open_sections) == [shown]
    assert finished_names(recorder) == [shown]


def test_leaving_what_was_never_entered_is_harmless(recorder: Recorder) -> None:
    rankwatch.section("x").__exit__(None, None, None)
    assert not recorder.finished


def test_the_ring_keeps_the_newest(recorder: Recorder) -> None:
    for _ in range(RING_LENGTH + 10):
        with rankwatch.section("fast"):
            pass
    assert len(recorder.finished) == RING_LENGTH


def test_a_decorated_function_may_recurse(recorder: Recorder) -> None:
    @rankwatch.section("recursive")
    def down(n: int) -> int:
        """Count."""
        return n and 1 + down(n - 1)

    assert down(5) == 5
    assert (down.__name__, down.__doc__) == ("down", "Count.")
    assert finished_names(recorder) == ["recursive"] * 6
    durations = [run.duration_ns for run in recorder.take_finished()[0]]
    assert durations == sorted(durations), "the innermost call ends first and is the shortest"


def test_a_decorated_step_completes_an_iteration_with_each_call(recorder: Recorder) -> None:
    @rankwatch.step()
    def train() -> None:
        pass

    train()
    train()
    assert reading(recorder).iteration == 1


def test_a_decorated_coroutine_is_open_until_it_returns(recorder: Recorder) -> None:
    @rankwatch.section("load")
    async def load(gate: asyncio.Event) -> str:
        await gate.wait()
        return "batch"

    async def main() -> list[str]:
        gates = [asyncio.Event(), asyncio.Event()]
        tasks = [asyncio.create_task(load(gate)) for gate in gates]
        await asyncio.sleep(0)
        assert list(reading(recorder).open_sections) == ["load"]
        assert len(recorder.free) == OPEN_COUNT - 2
        for gate in gates:  # the first to be entered is also the first to be left
            gate.set()
        return list(await asyncio.gather(*tasks))

    assert asyncio.run(main()) == ["batch", "batch"]
    assert len(recorder.free) == OPEN_COUNT


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=200))
def test_any_interleaving_leaves_open_what_is_open(events: list[tuple[str, int]]) -> None:
    """Each event enters a section of that name, or leaves one of those open: not always the innermost."""
    recorder = Recorder(Slots.private())
    recorder.slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    sections.attach(recorder)
    still_open: list[tuple[str, sections.Section]] = []
    left: Counter[str] = Counter()
    for name, choice in events:
        if choice % 2 or not still_open:
            still_open.append((name, rankwatch.section(name).__enter__()))
        else:
            name, section = still_open.pop(choice % len(still_open))
            section.__exit__(None, None, None)
            left[name] += 1
        if recorder.dropped:
            continue
        assert set(reading(recorder).open_sections) == {name for name, _ in still_open}
        assert len(recorder.free) == OPEN_COUNT - len(still_open)
    for name, section in reversed(still_open):
        section.__exit__(None, None, None)
        left[name] += 1
    assert Counter(finished_names(recorder)) == left
    assert sorted(recorder.free) == sorted(set(recorder.free)), "no entry is given out twice"
    assert len(recorder.free) == OPEN_COUNT


def test_threads_neither_lose_counts_nor_each_others_sections(recorder: Recorder) -> None:
    shared = rankwatch.section("shared")
    rounds, threads = 3000, 4

    def work() -> None:
        for _ in range(rounds):
            with rankwatch.section("own"), shared:
                rankwatch.heartbeat()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    after = reading(recorder)
    assert after.open_sections == {}
    assert (after.beats, after.finished, after.progress) == (rounds * threads, *2 * (2 * rounds * threads,))
    assert sorted(recorder.free) == sorted(set(recorder.free))
    assert len(recorder.free) == OPEN_COUNT
    assert recorder.dropped == {}


def test_a_reader_never_sees_an_age_that_was_not(recorder: Recorder) -> None:
    """Short sections, one after the other: whatever the moment, neither an open section nor the pause is ever old."""
    stop = threading.Event()
    with rankwatch.section("s"):
        pass

    def work() -> None:
        while not stop.is_set():
            with rankwatch.section("s"):
                pass

    worker = threading.Thread(target=work)
    began = time.monotonic()
    worker.start()
    try:
        seen = [reading(recorder) for _ in range(3000)]
    finally:
        stop.set()
        worker.join()
    longest = time.monotonic() - began
    assert all(age <= longest for r in seen for age in r.open_sections.values())
    assert all(r.open_sections or r.idle is not None for r in seen)
