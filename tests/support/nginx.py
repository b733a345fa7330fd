"""A real nginx with the configuration that this project ships, before monitors on ports of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.ports import free_port, listens
from support.waiting import wait_for

SHIPPED = Path(__file__).parents[2] / "dashboards" / "proxy"
_LISTEN = "127.0.0.1:9560"
_MONITORS = ("127.0.0.1:9561", "127.0.0.1:9562")
_AROUND = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{shipped}
}}
"""


def binary() -> str:
    """The path of nginx; skips the test where there is none."""
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("nginx is not installed (Debian: apt install nginx-light)")
    return found


@contextlib.contextmanager
def running_nginx(folder: Path, monitors: Sequence[str]) -> Iterator[str]:
    """nginx before two monitors or more, whose URLs are given; yields its own, and ends it whatever happens."""
    first, *others = monitors
    servers = " max_fails=0;\n    server ".join(urlsplit(url).netloc for url in others)
    with _running(folder, "nginx.conf", {_MONITORS[0]: first, _MONITORS[1]: servers}) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def running_mtls(folder: Path, monitor: str, certificates: Path) -> Iterator[str]:
    """nginx before one monitor, for clients with a certificate; yields its URL, and ends it whatever happens.

    ``certificates`` holds ``ca.pem``, ``server.pem`` and ``server.key``.
    """
    with _running(folder, "nginx-mtls.conf", {_MONITORS[0]: monitor, "/etc/rankwatch": str(certificates)}) as port:
        yield f"https://127.0.0.1:{port}"


@contextlib.contextmanager
def _running(folder: Path, name: str, instead: Mapping[str, str]) -> Iterator[int]:
    nginx = binary()
    folder.mkdir()
    port = free_port()
    shipped = (SHIPPED / name).read_text().replace(_LISTEN, f"127.0.0.1:{port}")
    for example, own in instead.items():
        assert example in shipped
        shipped = shipped.replace(example, urlsplit(own).netloc or own)
    configuration = folder / "nginx.conf"
    # Started by root its workers are somebody else, who cannot keep large bodies below the folder of a test.
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(_AROUND.format(folder=folder, shipped=shipped, user=user))
    command = [nginx, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(configuration)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def ready() -> bool:
        assert process.poll() is None, (folder / "error.log").read_text()
        return listens(port)

    try:
        wait_for(ready, "nginx listens")
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
