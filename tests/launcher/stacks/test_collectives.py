"""How far real process groups have come, asked from outside; and what torch's flight recorder states, read."""

from __future__ import annotations

import contextlib
import http
import http.server
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract.messages import Collective
from rankwatch_launcher.stacks import collectives
from support.gloo_ranks import GlooRanks, gloo_ranks
from support.waiting import wait_for

WORLD, PAIR = "default_pg", "pair (1)"


def asked(ranks: GlooRanks, rank: int, seconds: float = 5.0) -> dict[str, Collective]:
    return {c.group: c for c in collectives.of_rank(ranks.socket(rank), time.monotonic() + seconds)}


def numbers(collective: Collective) -> tuple[str, int, int]:
    return collective.operation, collective.enqueued, collective.completed


@pytest.mark.parametrize("kind", ["sleep", "gil"])
def test_a_rank_that_misses_a_collective_is_behind_in_that_group_alone(tmp_path: Path, kind: str) -> None:
    with gloo_ranks(tmp_path, 3, kind=kind) as ranks:
        for rank in (0, 2):
            wait_for(lambda r=rank: asked(ranks, r)[WORLD].enqueued == 4, f"rank {rank} enters the fourth")
            assert numbers(asked(ranks, rank)[WORLD]) == ("all_reduce", 4, 3)
        late = asked(ranks, 1)
        assert numbers(late[WORLD]) == ("all_reduce", 3, 3)
        # Point-to-point calls went both ways in this group's world; they are not counted.
        assert numbers(late[PAIR]) == numbers(asked(ranks, 0)[PAIR]) == ("broadcast", 1, 1)


def test_the_deadline_holds_for_a_stopped_process(tmp_path: Path) -> None:
    with gloo_ranks(tmp_path) as ranks:
        assert asked(ranks, 1)
        ranks.stop(1)
        began = time.monotonic()
        with pytest.raises(OSError):
            asked(ranks, 1, seconds=0.5)
        assert 0.4 < time.monotonic() - began < 30.0


def test_a_missing_peer_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        collectives.of_rank(tmp_path / "none.sock", time.monotonic() + 5)


# Answers that are none ------------------------------------------------------------------------------------------------

Answer = Callable[[socket.socket], None]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[Answer], Path]]:
    """Start a server on a unix socket that answers by a function of the connection."""
    servers: list[tuple[socketserver.BaseServer, threading.Thread]] = []

    def begin(answer: Answer) -> Path:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(4096)
                with contextlib.suppress(OSError):
                    answer(self.request)

        path = tmp_path / f"{len(servers)}.sock"
        server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        servers.append((server, thread))
        return path

    yield begin
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.socket.close()


def body(status: int, text: str) -> Answer:
    words = http.server.BaseHTTPRequestHandler.responses[http.HTTPStatus(status)][0]
    return lambda line: line.sendall(f"HTTP/1.1 {status} {words}\r\nConnection: close\r\n\r\n{text}".encode())


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (404, "no such handler", "404"),
        (200, "", "it is empty"),
        (200, "[]", "unexpected answer"),
        (200, '{"entries": [{"is_p2p": false}]}', "unexpected answer"),
        (200, "[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_an_answer_that_is_none_is_refused(answering: Any, status: int, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        collectives.of_rank(answering(body(status, text)), time.monotonic() + 5)


def test_no_http_is_refused(answering: Any) -> None:
    with pytest.raises(ValueError, match="invalid answer"):
        collectives.of_rank(answering(lambda line: line.sendall(b"hello\r\n\r\n")), time.monotonic() + 5)


def test_an_answer_that_trickles_ends_at_the_deadline(answering: Any) -> None:
    ended = threading.Event()

    def trickle(line: socket.socket) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not ended.wait(0.02):
            line.sendall(b" ")

    began = time.monotonic()
    with pytest.raises(OSError):
        collectives.of_rank(answering(trickle), time.monotonic() + 0.5)
    ended.set()
    assert time.monotonic() - began < 30.0


def test_an_answer_without_end_is_cut_off(answering: Any) -> None:
    def flood(line: socket.socket) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            line.sendall(bytes(65536))

    with pytest.raises(ValueError, match="more than 100000 bytes"):
        collectives.query(answering(flood), collectives.FLIGHT_RECORDER, time.monotonic() + 20, most=100_000)


# The flight recorder's JSON -------------------------------------------------------------------------------------------


def entry(sequence: int, group: str = "0", description: str = "default_pg", **more: Any) -> dict[str, Any]:
    return {
        "record_id": sequence,
        "pg_id": 0,
        "process_group": [group, description],
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
        "state": "scheduled",
        "retired": True,
        **more,
    }


def reduced(*entries: dict[str, Any], **more: Any) -> tuple[Collective, ...]:
    return collectives.from_flight_recorder(json.loads(json.dumps({"entries": entries, **more})))


def test_a_collective_under_way_is_enqueued_and_not_completed() -> None:
    (only,) = reduced(entry(57), entry(58, retired=False, state="started"))
    assert only == Collective("default_pg", "all_reduce", 58, 57, (), 57, ("all_reduce", "all_reduce"))


def test_calls_around_the_completed_one_are_reported_with_their_sizes() -> None:
    made = [entry(n, retired=n <= 8, input_sizes=[[2, n], [3]], input_dtypes=["Float", "Float"]) for n in range(1, 20)]
    made[8] = entry(9, retired=False, profiling_name="gloo:barrier", input_sizes=[])
    made[9] = entry(10, retired=False, profiling_name="gloo:gather", input_sizes=[[4]])
    del made[10]
    (only,) = reduced(*made)
    assert (only.enqueued, only.completed, only.calls_from) == (19, 8, 5)
    assert only.calls == (
        *(f"all_reduce of {2 * n + 3} Float" for n in (5, 6, 7, 8)),
        *("barrier", "gather", "", "all_reduce of 27 Float"),
    )


@pytest.mark.parametrize(
    "sizes",
    [[[1 << 63]], [[10**4000] * 2], [[-1]], [[2.0]], [[True]], [["ab", 3]], [[1] * 65], [[1]] * 1025, [[[1], 2]]],
    ids=["large", "product", "negative", "fraction", "bool", "text", "dimensions", "tensors", "list"],
)
def test_what_are_no_sizes_of_tensors_are_not_multiplied(sizes: list[list[Any]]) -> None:
    (only,) = reduced(entry(1, input_sizes=[[1] * 64] * 1024), entry(2, input_sizes=sizes))
    assert only.calls == ("all_reduce of 1024 values", "all_reduce")


def test_a_ring_that_holds_only_what_is_under_way_still_reports_what_was_completed() -> None:
    assert reduced(entry(58, retired=False), entry(59, retired=False))[0].completed == 57
    assert reduced(entry(1, retired=False))[0].completed == -1


def test_point_to_point_calls_do_not_count() -> None:
    assert reduced(entry(3), entry(9, is_p2p=True))[0].enqueued == 3


def test_groups_of_one_description_are_kept_apart_by_their_names() -> None:
    found = reduced(entry(1, "3", "mesh_tp"), entry(2, "4", "mesh_tp"), entry(5, "7", "undefined"))
    assert [c.group for c in found] == ["7", "mesh_tp (3)", "mesh_tp (4)"]


def test_of_a_group_made_again_the_newer_one_counts() -> None:
    (only,) = reduced(entry(90, pg_id=1, record_id=1), entry(2, pg_id=5, record_id=2))
    assert only.enqueued == 2


def test_members_are_reported_where_torch_reports_them_and_never_in_part() -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    assert reduced(entry(1), pg_config=config)[0].ranks == (0, 1, 2)
    config["0"]["ranks"] = str(list(range(5000)))
    assert reduced(entry(1), pg_config=config)[0].ranks == ()
    assert reduced(entry(1), pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})[0].ranks == ()


def test_groups_are_bounded_and_those_used_last_are_kept() -> None:
    found = reduced(*(entry(n, str(n), "many", record_id=n) for n in range(1, 200)))
    assert len(found) == collectives.MAX_GROUPS
    assert {c.enqueued for c in found} == set(range(200 - collectives.MAX_GROUPS, 200))


def test_a_recorder_that_is_switched_off_reports_nothing() -> None:
    assert collectives.from_flight_recorder({"pg_config": {}, "pg_status": {}, "version": "2.10"}) == ()


# The order of calls in several groups, and who made them --------------------------------------------------------------


def called(*groups: str) -> dict[str, Collective]:
    """The position in each group after one call in each of ``groups``, in this order."""
    made = [
        entry(groups[: number + 1].count(group), group, "", record_id=number) for number, group in enumerate(groups)
    ]
    return {found.group: found for found in reduced(*made)}


@pytest.mark.parametrize(
    ("groups", "unusual"),
    [
        (("1", "0", "1", "0", "1", "0", "1"), set()),
        (("1", "0", "1", "0", "1", "0", "0"), {"0"}),
        (("1", "0", "0", "1", "0", "1", "0", "0"), set()),
        (("1", "0", "1", "0", "0"), set()),
        (("0", "0", "0", "0"), set()),
    ],
    ids=["as ever", "another order", "seen before", "too little is known", "one group"],
)
def test_a_call_after_other_groups_than_ever_is_unusual(groups: tuple[str, ...], unusual: set[str]) -> None:
    assert {name for name, found in called(*groups).items() if found.unusual} == unusual


def test_the_thread_that_made_the_newest_call_is_kept() -> None:
    (found,) = reduced(entry(1, thread_id="140"), entry(2, thread_id="141"))
    assert found.thread == 141
    (found,) = reduced(entry(1))
    assert found.thread == 0
