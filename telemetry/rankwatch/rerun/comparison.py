"""Compares results of validations, and detects unexpectedly large ones. Pure; does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

MATCH: Final = 0.0
MISMATCH: Final = math.inf
SPIKY_LOSS_FACTOR: Final = 10.0
"""A loss is a spike from this multiple of the largest warm-up value on; Megatron's constant."""
WARM_UP_SAMPLES: Final = 100
"""Values of the warm-up; Megatron's default."""


def difference(first: Any, second: Any, comparison_func: Callable[[Any, Any], float] | None = None) -> float:
    """Return the difference of two results, by the user's function if there is one; never negative or NaN.

    Where that function returns NaN, as most formulas do for a NaN result, :func:`relative_difference` decides.

    Raises:
        TypeError: the results are not numbers.
    """
    found = math.nan if comparison_func is None else abs(float(comparison_func(first, second)))
    return relative_difference(first, second) if math.isnan(found) else found


def relative_difference(first: Any, second: Any) -> float:
    """Return the relative difference of two results: 0 if equal, infinite for NaN against a number.

    2 |a - b| / (|a| + |b|), for a tensor the maximum over its elements. NaN equals NaN: the same fault twice.

    Raises:
        TypeError: the results are not numbers.
    """
    first_values, second_values = _values(first), _values(second)
    if len(first_values) != len(second_values):
        return MISMATCH
    return max((_difference(a, b) for a, b in zip(first_values, second_values, strict=True)), default=MATCH)


def _difference(first: float, second: float) -> float:
    if first == second or (math.isnan(first) and math.isnan(second)):
        return MATCH
    if not (math.isfinite(first) and math.isfinite(second)):
        return MISMATCH
    # Scaled by the larger one, so that the sum neither overflows nor underflows.
    larger = max(abs(first), abs(second))
    one, other = first / larger, second / larger
    return 2 * abs(one - other) / (abs(one) + abs(other))


def _values(result: Any) -> list[float]:
    """Return the numbers of a result."""
    try:
        if hasattr(result, "detach"):
            flat = result.detach().flatten().tolist()
            return [float(each) for each in flat]
        if isinstance(result, (list, tuple)):
            return [value for each in result for value in _values(each)]
        return [float(result)]
    except (TypeError, ValueError):
        raise TypeError(
            f"results of type {type(result).__name__} cannot be compared as numbers; give validate_result a "
            "comparison_func(first, second) that returns their relative difference"
        ) from None


def to_bool(rejected: Any, message: str) -> bool:
    """Return the result of a rejection function as a bool.

    Raises:
        ValueError: it returned more than one truth value.
    """
    try:
        return bool(rejected)
    except (RuntimeError, ValueError, TypeError):
        raise ValueError(
            f"the rejection_func of {message!r} must return one truth value, not {format_result(rejected)}; for a "
            "tensor of several values use for example lambda result: result.isnan().any()"
        ) from None


def snapshot(result: Any) -> Any:
    """Return a copy of a result to keep until the re-run: detached, and independent of in-place changes."""
    if type(result) in (list, tuple):
        return type(result)(map(snapshot, result))
    if type(result) is dict:
        return {name: snapshot(value) for name, value in result.items()}
    if hasattr(result, "detach"):
        return result.detach().clone()
    return result.item() if getattr(result, "shape", None) == () else result  # of NumPy: no checkpoint has its types


def format_result(result: Any) -> str:
    """Return a result as text: numbers in full, anything else in at most 80 characters."""
    try:
        if hasattr(result, "numel") and result.numel() == 1:
            result = result.item()
        text = f"{result:.9g}" if isinstance(result, float) else repr(result)
    except Exception as error:  # noqa: BLE001 - user objects; formatting a message must not end the training
        text = f"a {type(result).__name__} that cannot be shown ({type(error).__name__})"
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_nan(result: Any) -> bool:
    """Whether any number of a result is NaN."""
    return bool(result.isnan().any()) if hasattr(result, "isnan") else any(map(math.isnan, _values(result)))


def is_inf(result: Any) -> bool:
    """Whether any number of a result is infinite."""
    return bool(result.isinf().any()) if hasattr(result, "isinf") else any(map(math.isinf, _values(result)))


class SpikeDetector:
    """Detects values far larger than those of a warm-up; each context has its own warm-up."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.largest: dict[str, float] = {}

    def exceeds(self, result: Any, threshold: float, context: str, num_samples: int, *, resample: bool) -> bool:
        """Whether a value's magnitude is at least ``threshold`` times the largest of the first ``num_samples`` values.

        Never during the warm-up, nor for NaN and infinity, which need checks of their own.
        """
        sizes = [abs(value) for value in _values(result)]
        if not all(map(math.isfinite, sizes)):
            return False
        size = max(sizes, default=0.0)
        if resample:
            self.counts.pop(context, None)
            self.largest.pop(context, None)
        seen = self.counts.get(context, 0)
        if seen < num_samples:
            self.counts[context] = seen + 1
            self.largest[context] = max(self.largest.get(context, 0.0), size)
            return False
        return 0 < size >= threshold * self.largest[context]  # after a warm-up of zeros, zero is not a spike
