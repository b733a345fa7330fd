"""The store is there as long as any rank needs it."""

from __future__ import annotations

import socket
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
    [
        ("127.0.0.1", {"0100007F"}),
        ("localhost", {"0100007F"}),
        ("127.0.0.2", {"0200007F"}),
        ("192.0.2.1", {"00000000", "0" * 32}),
    ],
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


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.3"], ["127.0.0.3", "127.0.0.4"], ["192.0.2.1"], []],
    ids=["loopback here", "several", "another machine's", "unknown"],
)
def test_a_name_that_is_not_one_address_of_this_machine_is_listened_for_everywhere(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = socket.getaddrinfo

    def found(_: str, *rest: object, **more: object) -> object:
        if not addresses:
            raise socket.gaierror
        return [each for address in addresses for each in known(address, *rest, **more)]  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert store.listens_on("rank0.example") == ""
