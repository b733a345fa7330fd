"""Whose the port of an address is, as the kernel tells, and whether the process that had it lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rankwatch.contract import processes

BOUND = [
    ("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::ffff:127.0.0.1", "127.0.0.1"),
    ("127.0.0.1", "localhost"), ("::1", "[::1]"), ("::", "[::1]"),
]  # fmt: skip


def listening(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if ":" in host:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((host, 0))
    except OSError:
        made.close()
        pytest.skip("this machine has no IPv6")
    made.listen()
    return made


def serves(url: str, file: Path = Path("none")) -> bool:
    return processes.serves(file, url, os.getpid(), processes.start_time(os.getpid()) or "")


@pytest.mark.parametrize(("bound", "host"), BOUND)
def test_a_port_that_another_user_listens_on_is_found(bound: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(bound) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"
        assert serves(url)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not serves(url)
    assert serves(url), "nobody listens, so nobody is sent anything"


def test_another_address_of_the_same_port_is_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening("127.0.0.2") as listener:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert serves(f"http://127.0.0.1:{listener.getsockname()[1]}")


def test_a_connection_that_has_the_port_listens_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening("127.0.0.1") as listener, socket.create_connection(listener.getsockname()) as client:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert serves(f"http://127.0.0.1:{client.getsockname()[1]}")


def test_where_the_kernel_does_not_tell_the_process_alone_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "_TABLES", (tmp_path / "tcp",))
    with listening("127.0.0.1") as listener:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert serves(url)
        file = tmp_path / "file"
        file.touch()
        assert not processes.serves(file, url, os.getpid(), "1")
        assert not file.exists()
