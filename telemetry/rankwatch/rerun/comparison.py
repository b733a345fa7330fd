"""Whether two results are the same, and whether one is unexpectedly large. Pure; tensors are asked, torch is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

MATCH: Final = 0.0
MISMATCH: Final = math.inf
SPIKY_LOSS_FACTOR: Final = 10.0
"""How many times the largest value of the warm-up makes a loss spiky; Megatron's constant."""
WARM_UP_SAMPLES: Final = 100
"""Values from which the largest normal one is taken; Megatron's default."""


def difference(first: Any, second: Any, comparison_func: Callable[[Any, Any], float] | None = None) -> float:
    """By how much two results differ, by the user's function if there is one: never negative, never NaN.

    NaN is what most formulas answer for a NaN, which is the very result that is looked into here: then ours decides.

    Raises:
        TypeError: these are no numbers.
    """
    found = math.nan if comparison_func is None else abs(float(comparison_func(first, second)))
    return relative_difference(first, second) if math.isnan(found) else found


def relative_difference(first: Any, second: Any) -> float:
    """By how much two results differ, relative to their size: 0 for equal ones, infinite for NaN against a number.

    2 |a - b| / (|a| + |b|), the largest of all elements for a tensor. NaN equals NaN: the same fault twice.

    Raises:
        TypeError: these are no numbers.
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
    # In units of the larger one: the sum of two huge numbers would be infinite, that of two tiny ones nothing.
    larger = max(abs(first), abs(second))
    one, other = first / larger, second / larger
    return 2 * abs(one - other) / (abs(one) + abs(other))


def _values(result: Any) -> list[float]:
    """The numbers of a result."""
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


def truth(rejected: Any, message: str) -> bool:
    """What a rejection function answered.

    Raises:
        ValueError: it answered with more than one truth value.
    """
    try:
        return bool(rejected)
    except (RuntimeError, ValueError, TypeError):
        raise ValueError(
            f"the rejection_func of {message!r} must return one truth value, and gave {shown(rejected)}; for a tensor "
            "of several values use for example lambda result: result.isnan().any()"
        ) from None


def kept(result: Any) -> Any:
    """A result that is kept until the re-run: without its graph, and unchanged by what is done to the original."""
    if type(result) in (list, tuple):
        return type(result)(map(kept, result))
    if type(result) is dict:
        return {name: kept(value) for name, value in result.items()}
    return result.detach().clone() if hasattr(result, "detach") else result


def shown(result: Any) -> str:
    """A result in a sentence: numbers in full, anything else in at most 80 characters."""
    try:
        if hasattr(result, "numel") and result.numel() == 1:
            result = result.item()
        words = f"{result:.9g}" if isinstance(result, float) else repr(result)
    except Exception as error:  # noqa: BLE001 - results are the user's objects; a sentence must not end the training
        words = f"a {type(result).__name__} that cannot be shown ({type(error).__name__})"
    words = " ".join(words.split())
    return words if len(words) <= 80 else f"{words[:77]}..."


def is_nan(result: Any) -> bool:
    """Whether any number of a result is NaN."""
    return bool(result.isnan().any()) if hasattr(result, "isnan") else any(map(math.isnan, _values(result)))


def is_inf(result: Any) -> bool:
    """Whether any number of a result is infinite."""
    return bool(result.isinf().any()) if hasattr(result, "isinf") else any(map(math.isinf, _values(result)))


class LargestSoFar:
    """Whether values are far larger than those of a warm-up were, one warm-up for each context."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.largest: dict[str, float] = {}

    def exceeds(self, result: Any, threshold: float, context: str, num_samples: int, *, resample: bool) -> bool:
        """Whether a value's size is ``threshold`` times the largest of the first ``num_samples`` values, or more.

        During the warm-up nothing is too large. NaN and infinity are no sizes: check for them by themselves.
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
        return 0 < size >= threshold * self.largest[context]  # zeros in the warm-up do not make a zero too large
