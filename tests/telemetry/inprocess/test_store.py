"""The store is there as long as any rank needs it."""

from __future__ import annotations

import subprocess

import pytest

from rankwatch.inprocess.store import StoreProcess, free_port

pytest.importorskip("torch")


def test_the_store_stays_for_a_rank_that_does_other_things_between_two_calls() -> None:
    host = StoreProcess(free_port(), idle_timeout=0.5, timeout=60.0)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            host._process.wait(2.0)
    finally:
        host._process.kill()
        host._process.wait()
