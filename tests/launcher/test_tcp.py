"""The connections of one port, as the kernel tells them."""

from __future__ import annotations

import socket

import pytest

from rankwatch_launcher.tcp import bytes_moved, connections


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_connections_of_one_port_are_found_from_both_ends(family: int, host: str) -> None:
    with socket.socket(family) as listener, socket.socket() as other:
        listener.bind((host, 0))
        listener.listen()
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = listener.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)) as near,
            socket.create_connection(other.getsockname()),
            listener.accept()[0],
        ):
            mine = near.getsockname()[1]
            ends = [f"7F000001:{mine:04X}", f"7F000001:{port:04X}"]
            assert [(one, two) for one, two, _ in connections(far_port=port)] == [tuple(ends)]
            assert [(one, two) for one, two, _ in connections(near_port=port)] == [tuple(reversed(ends))]
            assert {str(inode) for _, _, inode in connections(near_port=port)} <= bytes_moved().keys()
