"""A job's performance survives the monitor: stragglers, the devices' own best, the history of its steps."""

from __future__ import annotations

import json

import pytest

from rankwatch_monitor.core.straggler.state import Performance
from rankwatch_monitor.store import performance_codec
from support.windows import COMPUTE, Ranks, slower


def test_all_of_it_comes_back() -> None:
    job = Ranks(8).run(4).run(6, slower(3, COMPUTE, 0.4))
    job.kernels({3: 0.7})
    job.run(1, slower(3, COMPUTE, 0.4))
    known = job.job.performance
    body = json.loads(json.dumps(performance_codec.snapshot(known)()))
    restored = Performance()
    performance_codec.restore(restored, body)
    assert restored.stragglers == known.stragglers
    assert restored.finding == known.finding
    assert restored.cost_gpu_hours == known.cost_gpu_hours > 0
    assert restored.verdicts == known.verdicts
    assert restored.best.rows == known.best.rows
    assert restored.best.kernels["median"] == pytest.approx(known.best.kernels["median"])
    assert restored.best.sections.names == known.best.sections.names
    assert [s.step for s in restored.history.window()] == pytest.approx([s.step for s in known.history.window()])


def test_a_snapshot_does_not_change_afterwards() -> None:
    job = Ranks(8).run(4).run(6, slower(3, COMPUTE, 0.4))
    body = performance_codec.snapshot(job.job.performance)
    job.run(8)
    assert body()["stragglers"][0]["ended"] is None
    assert job.performance.stragglers[0].ended is not None


def test_a_job_of_which_nothing_is_known() -> None:
    restored = Performance()
    performance_codec.restore(restored, performance_codec.snapshot(Performance())())
    assert restored.stragglers == []


@pytest.mark.parametrize("ranks", [1, 9, 37])
def test_the_best_medians_of_any_number_of_devices_come_back(ranks: int) -> None:
    job = Ranks(ranks).run(2)
    known, restored = job.job.performance.best, Performance()
    performance_codec.restore(restored, json.loads(json.dumps(performance_codec.snapshot(job.job.performance)())))
    assert len(known.rows) == ranks
    assert restored.best.sections["median"][:ranks] == pytest.approx(known.sections["median"][:ranks])
