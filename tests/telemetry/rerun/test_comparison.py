"""When two results are the same, what is unexpectedly large, and how any result is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rankwatch.rerun import comparison
from rankwatch.rerun.comparison import SpikeDetector, relative_difference

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (1.0, 1.0, 0.0),
        (NAN, NAN, 0.0),
        (INF, INF, 0.0),
        (INF, -INF, INF),
        (NAN, 1.0, INF),
        (1.0, INF, INF),
        (0.0, -0.0, 0.0),
        (0.0, 1.0, 2.0),
        (1.0, -1.0, 2.0),
        (1e308, -1e308, 2.0),
        (5e-324, 0.0, 2.0),
        (99.0, 101.0, 0.02),
        (torch.tensor(2.0), torch.tensor(2.0), 0.0),
        (torch.tensor([1.0, NAN]), torch.tensor([3.0, NAN]), 1.0),
        (torch.ones(2), torch.ones(3), INF),
        ([1, torch.tensor(2.0)], [1, torch.tensor(2.0)], 0.0),
        ([], [], 0.0),
    ],
)
def test_relative_difference(first: Any, second: Any, difference: float) -> None:
    assert relative_difference(first, second) == pytest.approx(difference)
    assert relative_difference(second, first) == pytest.approx(difference)


def test_results_that_are_no_numbers_need_a_function_of_their_own() -> None:
    with pytest.raises(TypeError, match=r"results of type object cannot be compared.*comparison_func"):
        relative_difference(object(), object())


def test_one_truth_value_is_asked_for() -> None:
    assert comparison.to_bool(torch.tensor(True), "x") is True
    with pytest.raises(ValueError, match=r"the rejection_func of 'the loss' must return one truth value.*any\(\)"):
        comparison.to_bool(torch.tensor([True, False]), "the loss")


def test_a_kept_result_has_no_graph_and_stays_as_it_was() -> None:
    loss = torch.ones(1, requires_grad=True) * 2
    kept = comparison.snapshot(loss)
    with torch.no_grad():
        loss.mul_(5)
    assert (kept.item(), kept.requires_grad) == (2.0, False)


def test_what_is_within_a_kept_result_has_no_graph_either() -> None:
    loss = torch.ones(1, requires_grad=True) * 2
    kept = comparison.snapshot({"losses": [loss], "both": (loss, 1)})
    with torch.no_grad():
        loss.mul_(5)
    assert kept == {"losses": [2.0], "both": (2.0, 1)}
    assert not kept["losses"][0].requires_grad


def test_any_result_can_be_shown() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert comparison.format_result(torch.tensor(1.5)) == "1.5"
    assert comparison.format_result(NAN) == "nan"
    assert comparison.format_result(Odd()) == "a Odd that cannot be shown (RuntimeError)"
    assert len(comparison.format_result("x" * 500)) == 80
    assert comparison.format_result(torch.zeros(2, 2)) == "tensor([[0., 0.], [0., 0.]])"


@pytest.mark.parametrize("of", [float, torch.tensor])
def test_nan_and_infinity_are_seen_in_numbers_and_tensors(of: Any) -> None:
    assert [comparison.is_nan(of(value)) for value in (1.0, NAN, INF)] == [False, True, False]
    assert [comparison.is_inf(of(value)) for value in (1.0, NAN, -INF)] == [False, False, True]


def test_large_is_ten_times_what_the_warm_up_saw() -> None:
    sizes = SpikeDetector()
    seen = [sizes.exceeds(torch.tensor(value), 10.0, "loss", 3, resample=False) for value in (2.0, -3.0, 1.0)]
    assert seen == [False] * 3, "the warm-up"
    assert [sizes.exceeds(value, 10.0, "loss", 3, resample=False) for value in (29.9, 30.0, -31.0)] == [
        False,
        True,
        True,
    ]
    assert not sizes.exceeds(NAN, 10.0, "loss", 3, resample=False), "another check's business"
    assert not sizes.exceeds(torch.tensor([1e9, NAN]), 10.0, "loss", 3, resample=False), "wherever it stands"
    assert not sizes.exceeds(1e9, 10.0, "grads", 3, resample=False), "a warm-up of its own"
    assert not sizes.exceeds(100.0, 10.0, "loss", 3, resample=True), "the warm-up begins again"
    assert sizes.largest["loss"] == 100.0


def test_zero_is_never_large() -> None:
    """A rank whose values are all masked out sees nothing else."""
    sizes = SpikeDetector()
    assert not any(sizes.exceeds(0.0, 10.0, "loss", 2, resample=False) for _ in range(4))
    assert sizes.exceeds(1e-9, 10.0, "loss", 2, resample=False)
