"""Ranks of large jobs spread what all of them report; and how often launchers of many report."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from rankwatch.contract import intervals
from rankwatch.export import exporter as exporter_module
from rankwatch.export.exporter import Exporter
from rankwatch.recording.recorder import Recorder
from support.waiting import wait_for

NEVER = 3600.0
"""Seconds that no test waits: the interval has not brought the report that comes."""


class Reports:
    """Counts what is reported."""

    retry_after = 0.0

    def __init__(self) -> None:
        self.made = threading.Semaphore(0)
        self.closed = threading.Event()

    def report(self) -> bool:
        self.made.release()
        return True

    def close(self) -> None:
        self.closed.set()

    def next(self) -> None:
        """Wait for a report; fails when none comes."""
        assert self.made.acquire(timeout=60), "nothing is reported"

    @property
    def another(self) -> bool:
        """Whether there was one more already."""
        return self.made.acquire(blocking=False)


class Chance:
    """Stands in for the thread's ``random``: draws what the test has set, and states how often it was asked."""

    def __init__(self) -> None:
        self.drawn, self.draws, self.asked = 0.0, 0, threading.Event()

    def random(self) -> float:
        self.draws += 1
        self.asked.set()
        return self.drawn

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> Chance:
    made = Chance()
    monkeypatch.setattr(exporter_module, "random", made)
    return made


Start = Callable[..., tuple[Exporter, Reports]]


@pytest.fixture
def start(recorder: Recorder, chance: Chance) -> Iterator[Start]:
    """Start an exporter whose first report has been made."""
    started: list[Exporter] = []

    def begin(spread: float = 0.0, interval: float = NEVER) -> tuple[Exporter, Reports]:
        reports = Reports()
        started.append(Exporter(lambda: reports, recorder, interval, spread))
        started[-1].start()
        reports.next()
        return started[-1], reports

    yield begin
    for exporter in started:
        exporter.stop(20)


def test_news_is_reported_when_this_ranks_turn_has_come(start: Start, chance: Chance) -> None:
    exporter, reports = start(spread=NEVER)
    for turn in (0.0, 0.01 / NEVER):  # at once, and a moment later
        chance.drawn = turn
        exporter.wake()
        reports.next()
    assert chance.draws == 2


def test_news_is_not_reported_before_this_ranks_turn(start: Start, chance: Chance) -> None:
    exporter, reports = start(spread=NEVER)
    chance.drawn = 0.5
    exporter.wake()
    assert chance.asked.wait(60)
    exporter.wake()
    exporter.configure({"export_interval": NEVER})
    wait_for(lambda: not exporter._wake.is_set(), "it sleeps until its turn")
    assert not reports.another
    exporter.stop(20)
    assert chance.draws == 1, "more news waits for the same turn"
    assert reports.another, "the last report, which comes at once"
    assert not reports.another, "and none before it"


def test_more_news_does_not_put_the_turn_off(start: Start, chance: Chance) -> None:
    exporter, reports = start(spread=NEVER)
    chance.drawn = 0.2 / NEVER
    exporter.wake()
    assert chance.asked.wait(60)
    chance.drawn = 0.5
    exporter.wake()
    reports.next()


def test_a_report_that_is_due_does_not_wait_for_the_turn(start: Start, chance: Chance) -> None:
    chance.drawn = 0.5
    exporter, reports = start(spread=NEVER, interval=0.2)
    exporter.wake()
    for _ in range(3):
        reports.next()


def test_without_a_spread_news_is_reported_at_once(start: Start, chance: Chance) -> None:
    chance.drawn = 1.0
    exporter, reports = start()
    for _ in range(3):
        exporter.wake()
        reports.next()
    assert not reports.another, "once for each"


def test_the_end_does_not_wait_for_the_turn(start: Start, chance: Chance) -> None:
    exporter, reports = start(spread=NEVER)
    chance.drawn = 0.5
    exporter.wake()
    assert chance.asked.wait(60)
    exporter.stop(20)
    assert reports.closed.is_set(), "it has reported and ended"


def test_the_end_alone_is_no_news_that_is_spread(start: Start, chance: Chance) -> None:
    exporter, reports = start(spread=NEVER)
    chance.drawn = 1.0
    exporter.stop(20)
    assert reports.another
    assert reports.closed.is_set()


def test_news_of_the_time_of_a_report_is_reported_by_the_next(recorder: Recorder, chance: Chance) -> None:
    class Slow(Reports):
        """Its first report lasts until the test states."""

        def __init__(self) -> None:
            super().__init__()
            self.begun, self.goes_on = threading.Event(), threading.Event()

        def report(self) -> bool:
            self.begun.set()
            assert self.goes_on.wait(60)
            return super().report()

    slow = Slow()
    exporter = Exporter(lambda: slow, recorder, NEVER, 1.0)
    exporter.start()
    assert slow.begun.wait(60)
    exporter.wake()
    slow.goes_on.set()
    slow.next()
    slow.next()
    exporter.stop(20)


# How often ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launchers", "beat", "word", "evidence", "spares"),
    [
        (1, 5.0, 0.5, 0.0, False),
        (64, 5.0, 0.5, 0.0, False),
        (65, 5.0, 0.5, 0.026, True),
        (512, 5.0, 1.024, 0.2048, True),
        (513, math.inf, 1.026, 0.2052, True),
        (2_048, math.inf, 4.096, 0.8192, True),
        (12_500, math.inf, 20.0, 5.0, True),
    ],
)
def test_launchers_state_less_the_more_they_are(
    launchers: int, beat: float, word: float, evidence: float, spares: bool
) -> None:
    assert intervals.launcher_heartbeat_seconds(launchers) == beat
    assert intervals.proxy_report_seconds(launchers) == pytest.approx(word)
    assert intervals.evidence_spread(launchers) == pytest.approx(evidence)
    assert intervals.omits_redundant_reports(launchers) is spares


@pytest.mark.parametrize(
    ("launchers", "silence", "beat", "word"),
    [
        (512, 9.0, 5.0, 1.024),
        (513, 60.0, math.inf, 1.026),
        (513, 59.0, 59 / 3, 1.026),
        (2_048, 30.0, 10.0, 4.096),
        (2_048, 12.0, 5.0, 2.0),
        (12_500, 90.0, math.inf, 15.0),
        (12_500, 600.0, math.inf, 20.0),
        (12_500, 1.0, 5.0, 0.5),
    ],
)
def test_launchers_speak_in_time_for_the_limit_of_their_silence(
    launchers: int, silence: float, beat: float, word: float
) -> None:
    assert intervals.launcher_heartbeat_seconds(launchers, silence) == pytest.approx(beat)
    assert intervals.proxy_report_seconds(launchers, silence) == pytest.approx(word)


@pytest.mark.parametrize("launchers", [1, 64, 65, 512, 513, 2_048, 12_500])
def test_the_words_of_all_launchers_together_stay_within_what_a_monitor_takes(launchers: int) -> None:
    if launchers > intervals.FEW_LAUNCHERS:
        assert launchers / intervals.evidence_spread(launchers) <= intervals.MAX_EVIDENCE_RATE * 1.001
    if launchers / intervals.MAX_PROXY_REPORT_RATE <= intervals.POLL_SECONDS:
        assert launchers / intervals.proxy_report_seconds(launchers) <= intervals.MAX_PROXY_REPORT_RATE
    assert intervals.proxy_report_seconds(launchers) <= intervals.POLL_SECONDS


@pytest.mark.parametrize(("ranks", "seconds"), [(4_096, 0.0), (4_097, 0.20485), (100_000, 5.0)])
def test_ranks_of_large_jobs_spread_their_news(ranks: int, seconds: float) -> None:
    assert intervals.burst_spread(ranks) == pytest.approx(seconds)
    if seconds:
        assert ranks / seconds <= intervals.MAX_REPORT_RATE * 1.001
