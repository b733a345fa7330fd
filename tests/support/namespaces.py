"""Hosts of their own on this machine: network namespaces around a switch, from which each can be cut off."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


def ip(*words: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60)


class Network:
    """A switch in a namespace, and a host in another for each name. Nothing beyond this machine can be reached."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._made: list[str] = []

    def namespace(self, name: str) -> str:
        """The namespace of a host."""
        return f"rw{os.getpid()}{name}"

    def address(self, name: str) -> str:
        """The address of a host."""
        return f"198.18.78.{self.names.index(name) + 1}"

    def cut(self, name: str) -> None:
        """Switch the port of a host off: it has no carrier any more."""
        ip("-n", self.namespace("-"), "link", "set", f"port{name}", "down")

    def mend(self, name: str) -> None:
        """Switch it on again."""
        ip("-n", self.namespace("-"), "link", "set", f"port{name}", "up")

    def join(self) -> str:
        """Join the network with the namespace of the tests too; its address there."""
        here = f"rwj{os.getpid()}"
        switch = self.namespace("-")
        ip("link", "add", here, "type", "veth", "peer", "name", "portjoined", "netns", switch)
        ip("-n", switch, "link", "set", "portjoined", "master", "switch")
        ip("-n", switch, "link", "set", "portjoined", "up")
        ip("addr", "add", "198.18.78.254/24", "dev", here)
        ip("link", "set", here, "up")
        return "198.18.78.254"

    def make(self) -> None:
        """Make the namespaces and links."""
        for each in ("-", *self.names):
            ip("netns", "add", self.namespace(each))
            self._made.append(self.namespace(each))
            ip("-n", self.namespace(each), "link", "set", "lo", "up")
        switch = self.namespace("-")
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for name in self.names:
            far = ("peer", "name", "net0", "netns", self.namespace(name))
            ip("-n", switch, "link", "add", f"port{name}", "type", "veth", *far)
            ip("-n", switch, "link", "set", f"port{name}", "master", "switch")
            ip("-n", self.namespace(name), "addr", "add", f"{self.address(name)}/24", "dev", "net0")
            ip("-n", self.namespace(name), "link", "set", "net0", "up")
            self.mend(name)

    def remove(self) -> None:
        """Remove what was made; the links go with their namespaces."""
        for each in self._made:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", each)


def networked(*names: str) -> Iterator[Network]:
    """The body of a fixture; skips where no namespace can be made."""
    if shutil.which("ip") is None:
        pytest.skip("`ip` is missing: apt install iproute2")
    made = Network(*names)
    try:
        made.make()
        yield made
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces can be made here (it needs root): {str(error.stderr).strip()}")
    finally:
        made.remove()
