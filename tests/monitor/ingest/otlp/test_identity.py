"""Where a rank stands in the parallel layout, as its resource states it. Who it is: see test_otlp."""

from __future__ import annotations

import pytest

from monitor.ingest.decoding import Ingest
from monitor.ingest.otlp_requests import RANK_3, request_of
from rankwatch_monitor.core.events import RankIdentity

Places = tuple[int, int, int, int]


def places(identity: RankIdentity) -> Places:
    return (
        identity.data_parallel,
        identity.tensor_parallel,
        identity.pipeline_parallel,
        identity.expert_parallel,
    )


@pytest.mark.parametrize(
    ("reported", "read"),
    [
        ({}, (-1, -1, -1, -1)),
        ({"dl.data_parallel.rank": 2, "dl.data_parallel.size": 4}, (2, -1, -1, -1)),
        ({"dl.tensor_parallel.rank": "1", "dl.pipeline_parallel.rank": 3.0}, (-1, 1, 3, -1)),
        ({"nv.dl.expert_parallel.rank": 0, "nv.dl.expert_parallel.size": 1}, (-1, -1, -1, 0)),
        ({"dl.data_parallel.size": 4}, (-1, -1, -1, -1)),
    ],
)
def test_what_was_given_is_taken(ingest: Ingest, reported: dict[str, object], read: Places) -> None:
    assert places(ingest.one(attributes=RANK_3 | reported).identity) == read


@pytest.mark.parametrize("rank", [-1, "two", 1.5, 4, 2**70 * 1.0, ""])
def test_what_makes_no_sense_is_left_out_and_reported(ingest: Ingest, rank: object) -> None:
    reported = {"dl.data_parallel.rank": rank, "dl.data_parallel.size": 4, "dl.tensor_parallel.rank": 1}
    decoded = ingest(request_of(RANK_3 | reported))
    assert places(decoded.reports[0].identity) == (-1, 1, -1, -1)
    assert "dl.data_parallel.rank left out" in decoded.rejections.message()
    assert (decoded.rejections.items, ingest.counters.rejected) == (0, {"bad_identity": 1})


def test_a_place_beyond_all_ranks_is_left_out() -> None:
    ingest = Ingest(ranks_per_job=8)
    ingest(request_of(RANK_3 | {"dl.pipeline_parallel.rank": 8}))
    assert ingest.counters.rejected == {"bad_identity": 1}
    ingest.one(attributes=RANK_3 | {"dl.pipeline_parallel.rank": 7})
