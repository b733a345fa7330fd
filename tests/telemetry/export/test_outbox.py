from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankwatch.export.outbox import Outbox


@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=60))
def test_it_keeps_the_newest_in_order_and_counts_the_rest(capacity: int, events: list[int]) -> None:
    """0 puts a batch, n settles the n oldest."""
    outbox: Outbox[int] = Outbox(capacity)
    put = lost = settled = 0
    for event in events:
        if event:
            count = min(event, len(outbox))
            outbox.settle(count)
            settled += count
        else:
            lost += outbox.put(put)
            put += 1
        assert len(outbox) == put - lost - settled <= capacity
        assert list(outbox.oldest(capacity)) == list(range(put - len(outbox), put))
        assert outbox.oldest(2) == outbox.oldest(capacity)[:2]
