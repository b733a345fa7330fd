from __future__ import annotations

from rankwatch_monitor.ingest.lru import SECONDS, SWEPT, LruCache


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_value_is_made_once_while_its_key_is_used() -> None:
    clock, made = Clock(), list[str]()
    remembered = LruCache(lambda key: made.append(key) or key.upper(), 10, clock)  # type: ignore[func-returns-value]
    for _ in range(20):
        assert remembered("a") == "A"
        clock.now += SECONDS / 3
    assert made == ["a"]


def test_silent_launchers_are_forgotten_and_others_are_not() -> None:
    clock = Clock()
    remembered: LruCache[str, list[str]] = LruCache(lambda key: [key], 1000, clock)
    active = remembered("active")
    for number in range(50):
        remembered(f"guest {number}")
        clock.now += SECONDS / 10
        assert remembered("active") is active
    assert len(remembered) <= 23  # ten guests in each generation, and one more at each edge


def test_there_are_never_more_than_the_most_and_the_oldest_goes_first() -> None:
    clock = Clock()
    remembered: LruCache[int, list[int]] = LruCache(lambda key: [key], 3, clock)
    first = [remembered(key) for key in (1, 2, 3)]
    remembered(1)
    remembered(4)  # pushes 2 out, of which nothing was heard for longest
    assert len(remembered) == 3
    clock.now += SECONDS + 1
    remembered(5)  # and 3
    assert remembered(1) is first[0]
    assert remembered(2) is not first[1]
    assert remembered(3) is not first[2]
    assert len(remembered) == 3


def test_a_full_house_that_speaks_in_turn_keeps_its_values_over_generations() -> None:
    clock = Clock()
    remembered: LruCache[int, list[int]] = LruCache(lambda key: [key], 100, clock)
    values = [remembered(key) for key in range(100)]
    for _ in range(3):
        clock.now += SECONDS + 1
        assert all(remembered(key) is values[key] for key in range(100))


def test_keys_that_are_over_are_swept_out_and_others_stay() -> None:
    clock = Clock()
    remembered: LruCache[int, list[int]] = LruCache(lambda key: [key], 2000, clock)
    before = [remembered(key) for key in range(1000)]
    clock.now += SECONDS + 1
    values = [remembered(key) for key in range(1000, 1500)]
    live = [*before[:100], *values]
    for _ in range(2 * SWEPT):
        assert all(remembered(value[0]) is value for value in live)
        remembered.sweep(lambda key, _: 100 <= key < 1000)
    assert len(remembered) == len(live)


def test_a_sweep_looks_at_a_part_of_the_keys_those_not_used_for_longest() -> None:
    remembered: LruCache[int, list[int]] = LruCache(lambda key: [key], 1000, Clock())
    for key in range(10 * SWEPT):
        remembered(key)
    looked: list[int] = []
    assert not remembered.sweep(lambda key, _: looked.append(key) is not None)
    assert looked == list(range(len(looked)))
    assert 10 <= len(looked) <= 11


def test_sweeping_evicts_the_silent_also_where_no_key_is_new() -> None:
    clock = Clock()
    remembered: LruCache[str, list[str]] = LruCache(lambda key: [key], 10, clock)
    for key in ("silent", "active"):
        remembered(key)
    for _ in range(3):
        clock.now += SECONDS + 1
        remembered("active")
        remembered.sweep(lambda *_: False)
    assert len(remembered) == 1
