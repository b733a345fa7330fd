"""The store is there as long as any rank needs it."""

from __future__ import annotations

import subprocess

import pytest

from rankwatch.inprocess.meeting import StoreHost, free_port

pytest.importorskip("torch")


def test_the_store_stays_for_a_rank_that_does_other_things_between_two_calls() -> None:
    host = StoreHost(free_port(), kept=0.5, patience=60.0)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            host._process.wait(2.0)
    finally:
        host._process.kill()
        host._process.wait()
