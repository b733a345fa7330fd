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
    body = json.loads(json.dumps(performance_codec.held(known)()))
    restored = Performance()
    performance_codec.restore(restored, body)
    assert restored.told.stragglers == known.told.stragglers
    assert restored.told.finding == known.told.finding
    assert restored.told.cost_gpu_hours == known.told.cost_gpu_hours > 0
    assert restored.verdicts == known.verdicts
    assert restored.devices == known.devices
    assert restored.best["median"] == pytest.approx(known.best["median"])
    assert restored.best_sections.names == known.best_sections.names
    assert [s.step for s in restored.history.window()] == pytest.approx([s.step for s in known.history.window()])


def test_what_is_held_is_as_of_then() -> None:
    job = Ranks(8).run(4).run(6, slower(3, COMPUTE, 0.4))
    body = performance_codec.held(job.job.performance)
    job.run(8)
    assert body()["stragglers"][0]["ended"] is None
    assert job.told.stragglers[0].ended is not None


def test_a_job_of_which_nothing_is_known() -> None:
    restored = Performance()
    performance_codec.restore(restored, performance_codec.held(Performance())())
    assert restored.told.stragglers == []
