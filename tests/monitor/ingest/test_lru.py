from __future__ import annotations

from rankwatch_monitor.ingest.lru import SECONDS, LruCache


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
