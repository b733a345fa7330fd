"""When publishers are told of a job, and that one which fails harms nothing."""

from __future__ import annotations

import pytest

from monitor.core.accounted import Accounted
from monitor.publish.scored import NOW, scored, straggler
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.publish.publisher import CLOSING, SOONEST, Publishing
from rankwatch_monitor.publish.snapshot import Snapshot


class Kept:
    """A publisher that keeps what it was reported."""

    def __init__(self) -> None:
        self.taken: list[Snapshot] = []
        self.timeout: float | None = None

    def publish(self, snapshot: Snapshot) -> None:
        self.taken.append(snapshot)

    def close(self, timeout: float) -> None:
        self.timeout = timeout


class Failing(Kept):
    """A publisher with a bug."""

    def publish(self, snapshot: Snapshot) -> None:
        raise OSError("no way")


def watch(publishing: Publishing, job: Job, seconds: float, start: float = NOW, tick: float = 0.1) -> float:
    """Look as the loop does; return the time at the end."""
    for number in range(round(seconds / tick)):
        job.last_heard = start + number * tick
        publishing.observe(job, start + number * tick)
    return start + seconds


def reported_at(kept: Kept) -> list[float]:
    return [round(snapshot.at - NOW, 1) for snapshot in kept.taken]


def test_without_news_once_a_report_interval() -> None:
    kept, job = Kept(), scored()
    watch(Publishing([kept]), job, 1000)
    assert reported_at(kept) == pytest.approx([0, 300, 600, 900], abs=4)


def test_news_are_reported_soon_but_not_more_often_than_every_ten_seconds() -> None:
    kept, job = Kept(), scored()
    publishing = Publishing([kept])
    now = watch(publishing, job, 4)
    job.performance.stragglers.append(straggler(3))
    now = watch(publishing, job, 5.5, now)
    assert [snapshot.open_stragglers for snapshot in kept.taken] == [0], "not within ten seconds"
    now = watch(publishing, job, 2, now)
    assert [snapshot.open_stragglers for snapshot in kept.taken] == [0, 1]
    for _ in range(100):
        assert job.performance.scores is not None
        job.performance.scores.at += 1
        now = watch(publishing, job, 1, now)
    gaps = [b.at - a.at for a, b in zip(kept.taken, kept.taken[1:], strict=False)]
    assert min(gaps) >= SOONEST - 1e-6
    assert len(kept.taken) == pytest.approx(11, abs=1)


def test_an_incident_and_its_end_are_news() -> None:
    kept = Kept()
    publishing = Publishing([kept])
    scene = Accounted(ranks=4)
    for second in range(120):
        if second == 40:
            scene.hang(2)
        scene.run(1)
        publishing.observe(scene.job, scene.now)
    assert scene.closings
    phases = [snapshot.incidents[0]["closed_at"] is not None for snapshot in kept.taken if snapshot.incidents]
    assert phases[0] is False
    assert phases[-1] is True


def test_a_job_that_was_over_before_is_not_reported_and_one_that_ends_is_reported_once() -> None:
    before, now = Kept(), Kept()
    scene = Accounted(ranks=2).run(20)
    publishing = Publishing([now])
    publishing.observe(scene.job, scene.now)
    scene.run(20).finish(ProcessEventKind.FINISHED)
    later = Publishing([before])
    for second in range(2000):
        for each in (publishing, later):
            each.observe(scene.job, scene.now + second)
    assert [snapshot.over for snapshot in now.taken] == [False, True]
    assert before.taken == []


def test_the_last_word_is_reported_at_the_end() -> None:
    kept, job = Kept(), scored()
    publishing = Publishing([kept])
    now = watch(publishing, job, 2)
    job.performance.stragglers.append(straggler(3))
    publishing.close([job], now)
    assert [snapshot.open_stragglers for snapshot in kept.taken] == [0, 1]
    assert kept.timeout is not None
    assert 0.0 < kept.timeout <= CLOSING


def test_one_that_fails_is_counted_warned_of_once_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    kept, job = Kept(), scored()
    publishing = Publishing([Failing(), kept])
    watch(publishing, job, 1000)
    assert publishing.errors == len(kept.taken) == 4
    assert [record.getMessage() for record in caplog.records if record.funcName == "_failed"] == [
        "Failing failed for job job; its evaluation continues",
    ]
    assert "no way" in caplog.text
