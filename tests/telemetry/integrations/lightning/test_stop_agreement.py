from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

distributed = pytest.importorskip("torch.distributed")
LOG = logging.getLogger("test_agreement")


def ranks(number: int) -> list[Any]:
    from rankwatch.integrations.lightning.stop_agreement import (
        StoreAgreement,  # the package imports Lightning, which takes seconds
    )

    store = distributed.HashStore()
    return [StoreAgreement(store, 1, LOG) for _ in range(number)]


def test_no_rank_stops_without_a_signal() -> None:
    one, other = ranks(2)
    assert not any(rank.completed(signalled=False) for _ in range(5) for rank in (one, other))


@pytest.mark.parametrize("first", [0, 1])
def test_all_stop_after_the_same_step_whoever_is_ahead(first: int) -> None:
    from rankwatch.integrations.lightning.stop_agreement import AHEAD

    both = ranks(2)
    order = (both[first], both[1 - first])
    stopped = {}
    for step in range(1, 20):
        for rank in order:
            if rank not in stopped and rank.completed(signalled=rank is both[0] and step >= 4):
                stopped[rank] = step
    assert stopped == dict.fromkeys(both, 4 + AHEAD)


def test_the_first_of_two_signals_counts() -> None:
    behind, ahead = ranks(2)
    behind.completed(signalled=False)
    ahead.completed(signalled=False)
    assert not ahead.completed(signalled=True)  # after step 2: stop after 4
    assert [behind.completed(signalled=True) for _ in range(3)] == [False, False, True]
    assert [ahead.completed(signalled=True) for _ in range(2)] == [False, True]


def test_a_rank_that_is_too_far_ahead_stops_and_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    slow, fast = ranks(2)
    for _ in range(10):
        assert not fast.completed(signalled=False)
    slow.completed(signalled=True)
    assert fast.completed(signalled=False)
    assert "8 steps ahead" in caplog.text


def test_a_store_that_is_gone_is_reported_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    from rankwatch.integrations.lightning.stop_agreement import AHEAD, StoreAgreement

    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=2))
    client = distributed.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=2))
    rank = StoreAgreement(client, 1, LOG)
    assert not rank.completed(signalled=False)
    del server
    assert not any(rank.completed(signalled=True) for _ in range(AHEAD + 2))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
