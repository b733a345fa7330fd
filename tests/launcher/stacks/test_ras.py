"""NCCL's RAS is asked over a real socket, within bounds, and only where a rank of ours answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.contract.nccl_ras import RasReport
from rankwatch_launcher.stacks import ras
from support import fake_ras
from support.fake_ras import TEXT_2_24, json_answer, json_rank
from support.ports import free_port

ME = os.getpid()
BEHIND = json_answer([json_rank(0, 100, AllReduce=8), json_rank(1, 101)])


def process(folder: Path, pid: int, **variables: str) -> Path:
    """``/proc`` with the variables of a process, and its real sockets."""
    made = folder / str(pid)
    made.mkdir(parents=True)
    (made / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in variables.items()))
    (made / "fd").symlink_to(f"/proc/{pid}/fd")
    return folder


def asked(tmp_path: Path, port: int, seconds: float = 20.0, pid: int = ME) -> RasReport | None:
    proc = process(tmp_path / "proc", pid, NCCL_RAS_ADDR=f"127.0.0.1:{port}", OTHER="1")
    return ras.ask([pid], time.monotonic() + seconds, proc=proc)


def test_json_is_asked_for_twice_where_ranks_differ(tmp_path: Path) -> None:
    answers = [BEHIND, json_answer([json_rank(0, 100, AllReduce=9), json_rank(1, 101)])]
    wanted: list[bool] = []

    def answer(in_json: bool) -> str:
        wanted.append(in_json)
        return answers[len(wanted) - 1]

    found = asked(tmp_path, fake_ras.serve(answer))
    assert wanted == [True, True]
    assert found is not None
    assert (found.version, found.going_on, found.communicators) == ("2.28.9", 1, ())


def test_an_answer_in_which_nothing_differs_is_enough(tmp_path: Path) -> None:
    wanted: list[bool] = []
    found = asked(tmp_path, fake_ras.serve(lambda in_json: (wanted.append(in_json), fake_ras.HEALTHY)[1]))
    assert found is not None
    assert (found.total, len(wanted)) == (5, 1)


def test_an_older_nccl_answers_in_text(tmp_path: Path) -> None:
    found = asked(tmp_path, fake_ras.serve(lambda _: TEXT_2_24, json_known=False))
    assert found is not None
    assert [p.ranks for p in found.communicators[0].progress] == [7, 1]


def test_an_answer_in_json_beyond_the_limit_is_asked_for_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ras, "MAX_BYTES", 1000)
    found = asked(tmp_path, fake_ras.serve(lambda in_json: BEHIND if in_json else TEXT_2_24))
    assert found is not None
    assert found.version == "2.24.3"


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 5000, b"\xff\n", b""])
def test_another_program_at_the_port_is_not_believed(tmp_path: Path, greeting: bytes) -> None:
    assert asked(tmp_path, fake_ras.serve(lambda _: BEHIND, greeting=greeting), seconds=1.0) is None


@pytest.mark.parametrize("answer", ["", "{", "no answer", BEHIND[:200], "\0" * 100])
def test_an_answer_that_is_none_is_left_out(tmp_path: Path, answer: str) -> None:
    assert asked(tmp_path, fake_ras.serve(lambda _: answer)) is None


def test_an_answer_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "MAX_BYTES", 100_000)
    monkeypatch.setattr(ras, "MAX_TEXT_BYTES", 100_000)
    assert asked(tmp_path, fake_ras.serve(lambda _: b"x" * (1 << 24))) is None


@pytest.mark.timeout(60)
def test_an_answer_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    never = threading.Event()
    port = fake_ras.serve(lambda _: (never.wait(50), "")[1])
    began = time.monotonic()
    assert asked(tmp_path, port, seconds=0.5) is None
    assert time.monotonic() - began < 20.0
    never.set()


@pytest.fixture
def stranger() -> Iterator[tuple[int, int]]:
    """Another process that answers as RAS does: its pid and port."""
    code = (
        "import sys; from support import fake_ras; "
        "print(fake_ras.serve(lambda _: fake_ras.TEXT_2_24), flush=True); sys.stdin.read()"
    )
    folder = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folder},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as found:
        assert found.stdout is not None
        assert found.stdin is not None
        yield found.pid, int(found.stdout.readline())
        found.stdin.close()


def test_a_process_that_is_no_rank_of_ours_is_not_asked(tmp_path: Path, stranger: tuple[int, int]) -> None:
    pid, port = stranger
    assert asked(tmp_path / "a", port) is None
    assert asked(tmp_path / "b", port, pid=pid) is not None, "the same process, where it is a rank"


def test_where_another_job_shares_the_port_its_answers_are_not_ours(
    tmp_path: Path, stranger: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ras, "TRIES", 50)
    ours = json_answer([json_rank(0, 100)])
    assert fake_ras.serve(lambda _: ours, port=stranger[1]) == stranger[1]
    for number in range(12):  # the kernel chooses between the two at random
        found = asked(tmp_path / str(number), stranger[1])
        assert found is not None
        assert found.version == "2.28.9"


def test_nothing_is_asked_where_nobody_listens(tmp_path: Path) -> None:
    assert asked(tmp_path, free_port()) is None


def test_the_port_is_that_of_the_ranks_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:3002")
    values = {
        1: {}, 2: {"NCCL_RAS_ADDR": "[::1]:3000"}, 3: {"NCCL_RAS_ENABLE": "0"}, 4: {"NCCL_RAS_ADDR": "10.0.0.1:3001"},
        5: {"NCCL_RAS_ADDR": "x"}, 6: {"NCCL_RAS_ADDR": "h:99999999"}, 7: {"XNCCL_RAS_ADDR": "h:1"},
    }  # fmt: skip
    for pid, variables in values.items():
        process(tmp_path, pid, **variables)
    assert ras.ports([*values, 99], tmp_path) == [ras.PORT, 3000, 3001, 3002]


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")])
def test_a_rank_is_asked_at_the_address_at_which_it_listens(family: int, host: str) -> None:
    from rankwatch_launcher import tcp

    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        ((end, inode),) = tcp.listeners(port)
        assert inode in set(ras._inodes([ME], Path("/proc")))
        near = tcp.address(end)
        assert near == ("127.0.0.1" if family == socket.AF_INET else "::1", port)
        with socket.create_connection(near) as line:
            assert tcp.end_of(line.getsockname()[:2]) in {far for _, far, _ in tcp.connections(near_port=port)}


def test_where_a_process_does_not_answer_nccl_is_asked_once(tmp_path: Path) -> None:
    ranks = [json_rank(0, 100, AllReduce=8), json_rank(1, 101)]
    wanted: list[bool] = []

    def answer(in_json: bool) -> str:
        wanted.append(in_json)
        return json_answer(ranks, [fake_ras.missing_rank(2, 102)])

    found = asked(tmp_path, fake_ras.serve(answer))
    assert found is not None
    assert ([each.pid for each in found.missing], wanted) == ([102], [True])
