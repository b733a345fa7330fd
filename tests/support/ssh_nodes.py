"""Nodes that are reached by a real ssh: each a network, a process tree and a host name of its own, with an sshd.

Nothing beyond this machine can be reached from them. All processes of a node end with its first one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from support.namespaces import Network, networked
from support.waiting import wait_for

SERVER = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
ListenAddress {address}
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
"""
CLIENT = """\
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known
"""


def program(name: str) -> str | None:
    """Where a program is, also one of the administrator."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class SshNodes:
    """Running nodes; see :func:`ssh_nodes`."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the servers, and wait until each answers."""
        for name in ("host", "key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=60)
        client = CLIENT.format(folder=self.folder)
        client += "".join(f"Host {name}\nHostName {self.network.address(name)}\n" for name in self.network.names)
        (self.folder / "client").write_text(client)
        (self.folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/client "$@"\n')
        (self.folder / "ssh").chmod(0o755)
        for name in self.network.names:
            self._serve(name)
        for name in self.network.names:
            wait_for(lambda name=name: self.run(name, "true") == 0, f"{name} answers", 60.0)

    def run(self, name: str, *words: str) -> int:
        """Run a command on a node; return its exit code."""
        return self.start_there(name, *words).wait(60)

    def start_there(self, name: str, *words: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command on a node."""
        there = self.inside(("ssh", "-o", "StrictHostKeyChecking=accept-new", name, shlex.join(words)))
        return subprocess.Popen(
            there, env=self.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )

    def inside(self, words: Sequence[str]) -> list[str]:
        """The command line that runs a command from where all nodes are reached."""
        return ["ip", "netns", "exec", self.network.namespace(self.network.names[0]), *words]

    def environment(self) -> Mapping[str, str]:
        """The environment in which ``ssh`` knows the nodes."""
        return os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    def close(self) -> None:
        """End all nodes with everything on them."""
        for server in self._servers:
            server.kill()
        for server in self._servers:
            server.wait()

    def _serve(self, name: str) -> None:
        settings = self.folder / f"server-{name}"
        settings.write_text(SERVER.format(folder=self.folder, address=self.network.address(name)))
        own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
        serve = f"hostname {name} && mkdir -p /run/sshd && exec {program('sshd')} -D -e -f {settings}"
        with (self.folder / f"log-{name}").open("wb") as log:
            self._servers.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.network.namespace(name), *own, "sh", "-c", serve],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )


def ssh_nodes(*names: str) -> Iterator[SshNodes]:
    """The body of a fixture; skips where the programs or the rights are missing."""
    if missing := [each for each in ("sshd", "ssh", "ssh-keygen", "unshare") if program(each) is None]:
        pytest.skip(f"needs {', '.join(missing)} (Debian and Ubuntu: apt install openssh-server util-linux)")
    with contextlib.contextmanager(networked)(*names) as network, tempfile.TemporaryDirectory() as folder:
        nodes = SshNodes(network, Path(folder))
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.close()
