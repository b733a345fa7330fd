"""The training jobs of the end-to-end tests, here with ranks that are instrumented as Megatron's are."""

from __future__ import annotations

from e2e.conftest import monitor, training, watched

__all__ = ["monitor", "training", "watched"]
