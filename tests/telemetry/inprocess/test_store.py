"""The store is there as long as any rank needs it."""

from __future__ import annotations

import subprocess

import pytest

from launcher.test_kept_from_others import listening
from rankwatch.inprocess import store
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


@pytest.mark.parametrize(
    ("address", "listens"),
    [("127.0.0.1", {"0100007F"}), ("localhost", {"0100007F"}), ("rank0.example", {"00000000", "0" * 32})],
)
def test_the_store_of_ranks_on_one_node_listens_on_loopback_alone(
    address: str, listens: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setattr(store, "_process", None)
    found = store.locate(world=2, rank=0, call=1, port=None, timeout=60.0)
    assert found.host == address
    process = store._process
    assert process is not None
    try:
        assert listening(process._process.pid) <= listens
        assert listening(process._process.pid)
    finally:
        process._process.kill()
        process._process.wait()
