"""One window as statistics over its ranks: what is in it, what is left out, and how little it may cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.regression.sample import (
    KERNELS,
    PARTS,
    SECTIONS,
    CollectiveSample,
    DeviceSample,
    Measured,
    Sample,
    SectionSample,
    SlowRank,
    Waited,
    merged,
    policy_changes,
    sample_of,
    weighted_median,
)

BASE: dict[str, Any] = {"at": 1_760_000_000.0, "seconds": 10.0, "attempt": 2, "iteration": 64}


def made(**more: Any) -> Sample:
    sample = sample_of(
        Measured(**{**BASE, "hosts_R": ["b", "a", "b", ""], "step_R": np.array([0.4, 0.5, 0.6, np.nan]), **more})
    )
    assert sample is not None
    return sample


def test_missing_reports_are_left_out() -> None:
    sample = made()
    assert sample[:8] == (1_760_000_000.0, 10.0, 2, 64, 4, ("a", "b"), 0.5, 0.6)
    assert (sample.parts, sample.sections, sample.kernels, sample.collectives, sample.slowest) == ({}, {}, {}, {}, ())
    assert (sample.device, sample.waited) == (None, None)


@pytest.mark.parametrize("step_R", [[np.nan, np.nan], [0.0, np.inf], []])
def test_a_window_without_steps_is_none(step_R: list[float]) -> None:
    assert sample_of(Measured(**BASE, hosts_R=["a"], step_R=np.array(step_R))) is None


def test_parts_and_the_slowest_ranks() -> None:
    parts_RP = np.array([[0.1, 0.1, 0.2, 0.2], [0.1, 0.1, 0.3, 0.1], [0.1, 0.1, 0.2, 0.2], [np.nan] * 4])
    sample = made(parts_RP=parts_RP)
    assert sample.parts == {"data": 0.1, "host": 0.1, "compute": 0.2, "communication": 0.2}
    assert len(sample.slowest) == 3
    first = sample.slowest[0]
    assert (first.rank, first.host, first.work, first.late) == (1, "a", 0.5, 0.1)
    assert first.parts == (0.1, 0.1, 0.3)


def test_sections_without_the_step_itself() -> None:
    section_RS = np.array([[0.1, 0.4], [0.2, 0.5], [0.9, 0.6], [np.nan, np.nan]])
    sample = made(sections=("load", "step"), section_RS=section_RS, calls_RS=np.full((4, 2), 3.0))
    assert {name: tuple(section) for name, section in sample.sections.items()} == {"load": (0.2, 0.9, 2, 3.0)}


def test_tables_are_bounded_to_the_heaviest() -> None:
    names = [f"n{i}" * 200 for i in range(100)]
    values_RN = np.tile(np.arange(1.0, 101.0), (4, 1))
    sample = made(
        sections=names,
        section_RS=values_RN,
        kernels=names,
        kernel_RK=values_RN,
        collectives=dict.fromkeys(names, (1.0, 0.1)),
        throttled=dict.fromkeys(names, 1),
    )
    assert (len(sample.sections), len(sample.kernels), len(sample.collectives)) == (SECTIONS, KERNELS, 16)
    assert next(iter(sample.kernels.values())) == 100.0
    assert max(map(len, sample.kernels)) == 200
    assert sample.device is not None
    assert len(sample.device.throttled) == 16


def test_devices_and_cpu() -> None:
    sample = made(
        clock_R=np.array([2e9, 1e9, 2e9, np.nan]),
        temperature_R=np.array([60.0, 80.0, np.nan, np.nan]),
        throttled={"hw_slowdown": 1, "none": 0},
        waited_R=np.array([0.0, 0.01, 0.3, np.nan]),
    )
    assert sample.device == (2e9, 1e9, 80.0, {"hw_slowdown": 1}, 1, 1, 70.0)
    assert sample.waited == (0.01, 0.3)


def test_what_a_policy_changed() -> None:
    old = Policy()
    assert policy_changes(old, old) == ()
    changed = policy_changes(old, old.changed({"report_interval": 60, "on_straggler": "capture"}))
    assert {tuple(each) for each in changed} == {
        ("report_interval", 300.0, 60.0),
        ("on_straggler", "log", "capture"),
    }


def test_medians_over_very_many_ranks_are_close_and_cheap() -> None:
    ranks = 100_000
    random = np.random.default_rng(0)
    parts_RP = random.normal(0.1, 0.01, (ranks, len(PARTS)))
    step_R = parts_RP.sum(axis=1)
    names = [f"s{i}" for i in range(32)]
    section_RS = random.normal(0.1, 0.01, (ranks, 32))
    hosts_R = [f"node-{rank // 8}" for rank in range(ranks)]
    sample = sample_of(
        Measured(**BASE, hosts_R=hosts_R, step_R=step_R, parts_RP=parts_RP, sections=names, section_RS=section_RS)
    )
    assert sample is not None
    assert sample.step == pytest.approx(float(np.median(step_R)), rel=0.01)
    assert sample.step_max == pytest.approx(float(step_R.max()), rel=1e-3)
    assert sample.sections["s3"].worst == int(np.argmax(section_RS[:, 3]))


# Merging --------------------------------------------------------------------------------------------------------------


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
    assert both.collectives == {"dp": (0.1, 0.01, 0.0)}


def test_devices_by_their_extremes() -> None:
    one = sample(1.0, device=DeviceSample(2e9, 1e9, 70.0, {"a": 1}, 3, 4, 50.0), waited=Waited(0.1, 0.5))
    other = sample(2.0, device=DeviceSample(None, 5e8, 60.0, {"a": 3, "b": 1}, 5, 6), waited=Waited(0.3, 0.4))
    both = merged([one, other, sample(3.0)])
    assert both.device == (2e9, 5e8, 70.0, {"a": 3, "b": 1}, 5, 4, 50.0)
    assert both.waited == (0.2, 0.5)


def test_the_slowest_are_those_that_cost_most_in_all() -> None:
    often, once = SlowRank(3, "b", 0.6, 0.2, (0.1, 0.1, 0.4)), SlowRank(1, "a", 0.8, 0.4, (0.1, 0.1, 0.6))
    both = merged([sample(1.0, slowest=(often,)), sample(2.0, slowest=(once, often)), sample(3.0, slowest=(often,))])
    assert both.slowest == (often, once)
