"""No client follows a redirect with its token: what redirects may be a proxy, a captive portal or an attacker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rankwatch.cli.doctor import monitor_checks
from rankwatch.contract.messages import NodeRegistration
from rankwatch.export.transport import OtlpClient, SendStatus
from rankwatch.monitor_client import MonitorClient, MonitorError
from rankwatch.settings import load
from rankwatch_launcher.monitor.link import MonitorLink
from rankwatch_monitor.publish.http_post import Target

SECRET = "control-secret"


@contextmanager
def serving(status: int, location: str = "", twice: threading.Event | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything alike; its URL, and the requests that came."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
            if twice is not None and len(seen) > 1:
                twice.set()
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            if location:
                self.send_header("Location", location + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_client_takes_its_token_to_another_host(status: int) -> None:
    with serving(200) as (elsewhere, taken), serving(status, elsewhere) as (url, asked):
        client = MonitorClient(url, SECRET)
        with pytest.raises(MonitorError, match=f"answered {status}"):
            client.read("/jobs")
        with pytest.raises(MonitorError, match=f"answered {status}"):
            client.send("PATCH", "/jobs/j/policy", {})
        assert monitor_checks._request(url, "/api/v1/jobs", token=SECRET).status == status
        rank = OtlpClient(f"{url}/v1/metrics", load({"monitor": url, "token": SECRET}, {})[0])
        try:
            assert rank.post(b"").status is not SendStatus.DELIVERED
        finally:
            rank.close()
        assert not Target(url).post(b"{}", {"Authorization": f"Bearer {SECRET}"}).taken  # webhooks
        assert len(asked) == 5, "each has asked once"
        assert all(SECRET in each for each in asked)
        assert taken == []


def test_a_launcher_does_not_take_its_token_to_another_host() -> None:
    twice = threading.Event()
    with serving(200) as (elsewhere, taken), serving(307, elsewhere, twice) as (url, asked):
        link = MonitorLink(
            "j", lambda: NodeRegistration(node="n", host="n", launcher_pid=1, local_world_size=1, attempt=0)
        )
        link.connect(url, SECRET)
        try:
            assert twice.wait(90), "the launcher tries again"
        finally:
            link.close(1.0)
        assert SECRET in asked[0]
        assert taken == []
