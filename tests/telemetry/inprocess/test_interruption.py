"""An interruption reaches a thread wherever it is, and only while it is armed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rankwatch.inprocess import connections
from rankwatch.inprocess.interruption import Interruption
from rankwatch.inprocess.state import RankShouldRestart


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    made = Interruption()
    yield made
    made.disarm()
    made.close()


def compute() -> None:
    while True:
        sum(range(100))


def sleep() -> None:
    time.sleep(1000)


def wait_for_a_lock() -> None:
    threading.Event().wait()


PIPE = os.pipe()  # made beforehand: an interruption in the middle of making it would leak it


def read() -> None:
    os.read(PIPE[0], 1)


@pytest.mark.parametrize("busy", [compute, sleep, wait_for_a_lock, read])
def test_whatever_the_main_thread_does(interruption: Interruption, busy: Callable[[], None]) -> None:
    begun = threading.Event()

    def strike() -> None:
        begun.wait()
        while interruption.interrupt():
            if over.wait(0.2):
                return

    over = threading.Event()
    thread = threading.Thread(target=strike)
    thread.start()
    try:
        interruption.arm()
        begun.set()
        with pytest.raises(RankShouldRestart):
            busy()
    finally:
        interruption.disarm()
        over.set()
        thread.join()


def test_what_is_on_its_way_when_it_is_disarmed_never_comes(interruption: Interruption) -> None:
    for _ in range(300):
        interruption.arm()
        thread = threading.Thread(target=interruption.interrupt)
        try:
            thread.start()
            interruption.disarm()
        except RankShouldRestart:
            interruption.disarm()
        thread.join()
        assert not interruption.interrupt()


def test_an_atomic_stretch_is_not_interrupted(interruption: Interruption) -> None:
    interruption.arm()
    answers: list[bool] = []
    with interruption.atomic:
        thread = threading.Thread(target=lambda: answers.append(interruption.interrupt()))
        thread.start()
        thread.join()
    interruption.disarm()
    assert answers == [True]


def test_connections_of_python_are_spared_and_others_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = connections.open_sockets()
        spared = socket.create_connection(server.getsockname())
        peer_of_spared, _ = server.accept()
        other = socket.create_connection(server.getsockname()).detach()
        peer, _ = server.accept()
        peer.settimeout(10)
        with spared, peer_of_spared, peer, socket.socket(fileno=None) as _:
            assert connections.shutdown_since(before) == 1
            assert peer.recv(1) == b"", "the other end sees that it is cut"
            peer_of_spared.sendall(b"x")
            assert spared.recv(1) == b"x"
        socket.socket(fileno=other).close()
    assert connections.shutdown_since(connections.open_sockets()) == 0
