"""What is remembered of how long sections took. Times are seconds here; see ``take`` below."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rankwatch.export.observed import REPEAT_SECONDS, News, Observed, Run

Span = tuple[float, float]
FIRST_STEP = 1.0
"""When the process completed its first step, where nothing else is said."""


def run(start: float, end: float, section: str = "step", *, first: bool = False) -> Run:
    return Run(section, _ns(start), _ns(end), first)


def take(
    observed: Observed,
    *runs: Run,
    now: float = 1e6,
    open_since: float | None = None,
    first_step_at: float | None = FIRST_STEP,
    lost: bool = False,
    ended: bool = False,
) -> None:
    observed.take(
        runs,
        now=_ns(now),
        open_since=None if open_since is None else _ns(open_since),
        first_step_at=None if first_step_at is None else _ns(first_step_at),
        lost=lost,
        ended=ended,
    )


def idle_longest(*batches: Sequence[Run], first_step_at: float | None = FIRST_STEP) -> float | None:
    observed = Observed()
    for runs in batches:
        take(observed, *runs, first_step_at=first_step_at)
    return observed.news(0).idle_longest


def test_the_time_from_the_last_section_to_the_end_is_outside_too() -> None:
    """A model is written out after the last step, maybe for an hour: the next run must be given that time."""
    observed = Observed()
    take(observed, run(0, 2), run(3, 5), now=60)
    assert observed.news(0).idle_longest == 1.0, "it may be a hang, as long as it lasts"
    take(observed, now=605, ended=True)
    assert observed.news(1, everything=True).idle_longest == 600.0
    take(observed, open_since=605, now=2000, ended=True)
    assert observed.news(2, everything=True).idle_longest == 600.0


def test_first_runs_and_the_longest_of_the_others_are_kept_apart() -> None:
    observed = Observed()
    take(observed, run(0, 50, first=True), run(50, 52), run(52, 57), run(57, 58), run(58, 61, "save", first=True))
    news = observed.news(0)
    assert news.longest == {"step": 5.0}
    assert news.first == {"step": 50.0, "save": 3.0}


def test_two_threads_that_both_run_it_first_compile_both() -> None:
    observed = Observed()
    take(observed, run(0, 5, first=True), run(1, 40, first=True), run(40, 42))
    assert observed.news(0) == News({"step": 2.0}, {"step": 39.0})


def test_only_what_grew_is_told_and_all_of_it_once_a_minute() -> None:
    observed = Observed()
    take(observed, run(0, 4, first=True), run(4, 6), run(7, 9, "save"))
    told = observed.news(100.0)
    assert told == News({"step": 2.0, "save": 2.0}, {"step": 4.0}, 1.0)
    assert observed.news(101.0) == News()
    take(observed, run(9, 11), run(11, 14, "save"))
    assert observed.news(102.0) == News({"save": 3.0}), "a run as long as the longest is no news"
    assert observed.news(100.0 + REPEAT_SECONDS - 0.001) == News()
    everything = News({"step": 2.0, "save": 3.0}, {"step": 4.0}, 1.0)
    assert observed.news(100.0 + REPEAT_SECONDS) == everything
    assert observed.news(161.0) == News()
    assert observed.news(162.0, everything=True) == everything


def test_nothing_seen_is_nothing_told() -> None:
    assert Observed().news(0.0, everything=True) == News()


def test_the_longest_time_between_two_sections() -> None:
    assert idle_longest([run(1, 2), run(5, 6), run(7, 8)]) == 3.0
    assert idle_longest([run(1, 2)], [], [run(5, 6), run(7, 8)]) == 3.0, "over several reports"


def test_time_that_any_section_covers_is_not_between_two() -> None:
    step, inner = run(1, 10), [run(2, 3, "forward"), run(8, 9, "backward")]
    assert idle_longest([*inner, step, run(10.5, 12)]) == 0.5, "nested"
    assert idle_longest([run(1, 4), run(3, 7, "load"), run(7.5, 9)]) == 0.5, "overlapping, on two threads"


def test_a_section_that_is_still_open_covers_from_its_entry_on() -> None:
    observed = Observed()
    take(observed, run(1, 2), run(5, 6, "inner"), run(30, 31, "inner"), open_since=3.0, now=40.0)
    assert observed.news(0).idle_longest == 1.0
    take(observed, run(50, 51, "inner"), open_since=3.0, now=60.0)
    take(observed, run(3, 70, "outer"), run(70.5, 71))
    assert observed.news(0, everything=True).idle_longest == 1.0


def test_a_section_begun_after_the_look_at_what_is_open_is_no_gap() -> None:
    observed = Observed()
    take(observed, run(1, 2), run(9, 9.5, "inner"), open_since=2.0, now=5.0)
    assert observed.news(0).idle_longest is None


def test_before_the_first_completed_step_nothing_counts() -> None:
    before = [run(0, 1, "setup", first=True), run(100, 110, first=True)]
    assert idle_longest(before, first_step_at=None) is None
    assert idle_longest([*before, run(112, 113)], first_step_at=110.0) == 2.0
    assert idle_longest(before, [run(118, 119)], first_step_at=110.5) == 7.5, "counted from the step on"


def test_after_a_loss_the_time_before_is_unknown() -> None:
    observed = Observed()
    take(observed, run(1, 2))
    take(observed, run(19, 20), run(21, 22), lost=True)
    assert observed.news(0).idle_longest == 1.0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=25), st.integers(1, 5), st.integers(0, 40))
def test_however_it_is_split_the_gaps_are_those_of_the_whole(
    raw: list[tuple[int, int]], reports: int, first_step_at: int
) -> None:
    """Sections as they lie in time, told in several reports that each see open what is open then."""
    spans = sorted(((start, start + length) for start, length in raw), key=lambda span: span[1])
    observed = Observed()
    told_until = -1
    for now in [70 * i // reports for i in range(1, reports + 1)]:
        batch = [run(start, end) for start, end in spans if told_until < end <= now]
        still = [start for start, end in spans if start <= now < end]
        take(observed, *batch, now=now, open_since=min(still, default=None), first_step_at=first_step_at)
        told_until = now
    gaps, since = [0], first_step_at
    for start, end in sorted(spans):
        gaps.append(start - since)
        since = max(since, end)
    assert (observed.news(0).idle_longest or 0) == max(gaps)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
