"""Several windows as one."""

from __future__ import annotations

import pytest

from rankwatch_monitor.core.regression.merging import merged, weighted_median
from rankwatch_monitor.core.regression.sample import (
    CollectiveSample,
    DeviceSample,
    Sample,
    SectionSample,
    SlowRank,
    Waited,
)


def sample(at: float, step: float = 0.4, **more: object) -> Sample:
    return Sample(at, 10.0, 0, int(at), 8, ("node-a",), step, 2 * step)._replace(**more)


def test_a_median_by_weight() -> None:
    assert weighted_median([(1.0, 1.0), (2.0, 1.0), (9.0, 1.0)]) == 2.0
    assert weighted_median([(1.0, 5.0), (2.0, 1.0), (9.0, 1.0)]) == 1.0
    assert weighted_median([(1.0, 1.0), (2.0, 1.0)]) == 1.5
    with pytest.raises(ValueError, match="at least one"):
        weighted_median([])


def test_one_alone_stays_as_it_is() -> None:
    assert merged([sample(1.0)]) is not None
    assert merged([sample(1.0)]) == sample(1.0)


def test_steps_by_their_median_and_their_largest() -> None:
    both = merged([sample(1.0, 0.3), sample(2.0, 0.4), sample(3.0, 5.0)])
    assert (both.at, both.iteration, both.seconds, both.step, both.step_max) == (3.0, 3, 30.0, 0.4, 10.0)


def test_tables_by_name() -> None:
    one = sample(
        1.0,
        parts={"data": 0.1},
        sections={"load": SectionSample(0.1, 0.2, 3), "eval": SectionSample(9.0, 9.0, 1)},
        kernels={"gemm": 0.2},
        collectives={"dp": CollectiveSample(0.1, 0.01)},
    )
    other = sample(2.0, parts={"data": 0.3}, sections={"load": SectionSample(0.3, 0.9, 5)}, kernels={})
    both = merged([one, other])
    assert both.parts == {"data": 0.2}
    assert both.sections == {"eval": (9.0, 9.0, 1, 1.0), "load": (0.2, 0.9, 5, 1.0)}
    assert both.kernels == {"gemm": 0.2}
    assert both.collectives == {"dp": (0.1, 0.01)}


def test_devices_by_their_extremes() -> None:
    one = sample(1.0, device=DeviceSample(2e9, 1e9, 70.0, {"a": 1}), waited=Waited(0.1, 0.5))
    other = sample(2.0, device=DeviceSample(None, 5e8, 60.0, {"a": 3, "b": 1}), waited=Waited(0.3, 0.4))
    both = merged([one, other, sample(3.0)])
    assert both.device == (2e9, 5e8, 70.0, {"a": 3, "b": 1})
    assert both.waited == (0.2, 0.5)


def test_the_slowest_are_those_that_cost_most_in_all() -> None:
    often, once = SlowRank(3, "b", 0.6, 0.2, (0.1, 0.1, 0.4)), SlowRank(1, "a", 0.8, 0.4, (0.1, 0.1, 0.6))
    both = merged([sample(1.0, slowest=(often,)), sample(2.0, slowest=(once, often)), sample(3.0, slowest=(often,))])
    assert both.slowest == (often, once)
