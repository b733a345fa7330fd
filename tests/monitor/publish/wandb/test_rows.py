"""Names, tables and alerts, without W&B."""

from __future__ import annotations

import re

from monitor.publish.scored import NOW, scored, straggler
from rankwatch_monitor.publish.snapshot import snapshot
from rankwatch_monitor.publish.wandb import rows


def test_every_number_is_documented() -> None:
    job = scored(slow=2)
    row = rows.row(snapshot(job, NOW)) | dict.fromkeys(rows.tables(snapshot(job, NOW)), 0.0)
    row |= {"rankwatch/iteration": 1.0, "rankwatch/goodput": 1.0}
    names = {re.sub(r"section/[^/]+/\w+", "section/NAME/relative", re.sub(r"_(min|median|max)$", "", n)) for n in row}
    assert names == {m.name.removesuffix("_max") for m in rows.METRICS}


def test_incidents_and_stragglers_that_were_over_before_are_no_news() -> None:
    job = scored()
    job.performance.stragglers = [straggler(1, ended=NOW - 100), straggler(2, ended=NOW - 1), straggler(3)]
    reported = {alert.id: alert.current for alert in rows.alerts(snapshot(job, NOW), since=NOW - 50)}
    assert reported == {"s1": False, "s2": True, "s3": True}


def test_titles_fit_into_what_wandb_takes() -> None:
    job = scored(slow=2)
    job.name = "n" * 300
    (alert,) = rows.alerts(snapshot(job, NOW), since=0)
    assert alert.title.startswith("rank 2 is slow: compute (nnn")
    assert len(alert.title) < 64
