"""Checks of the monitor: reachable, version, token, clock, telemetry.

The requests change nothing: the telemetry request is empty, and the permission to control is tested on a job that does
not exist.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import rankwatch
from rankwatch.cli.doctor.finding import Finding, fault, ok, warning
from rankwatch.cli.formatting import duration
from rankwatch.contract import env, semconv
from rankwatch.contract.text import decoded
from rankwatch.export.transport import OtlpClient, SendStatus
from rankwatch.monitor_client import MonitorClient, MonitorError, ahead_of, connections_to, is_loopback
from rankwatch.settings import load

TIMEOUT: Final = 5.0
"""Seconds per request."""
LARGEST_ANSWER: Final = 8 << 20
"""Bytes that are read of an answer: what listens there may be any user's, and send gigabytes within the time."""
CLOCKS_APART: Final = 3.0
"""Seconds: a server's Date has whole seconds, and uvicorn updates it once per second."""
PROBE_JOB: Final = "no-such-job-rankwatch-doctor-asks"
"""Id of a job that does not exist, to test the permission to control."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response; ``status`` is 0 if there was none."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    words: str = ""
    asked: float = 0.0
    """Unix time halfway between request and response."""

    def json(self) -> Any:
        """The body as JSON; None if it is not JSON."""
        try:
            return decoded(self.body)
        except ValueError:
            return None

    @property
    def detail(self) -> str:
        """The detail of a problem document."""
        document = self.json()
        return str(document.get("detail", "")) if isinstance(document, dict) else ""


def checks(url: str, token: str | None, *, named: bool) -> Iterator[Finding]:
    """Check the monitor at ``url``; ``named``: the address was configured, so that a missing monitor is a fault."""
    try:
        MonitorClient(url)
    except MonitorError as error:
        yield fault("monitor", str(error), f"set {env.MONITOR_URL}, or --monitor, to http://HOST:9560")
        return
    alive = _request(url, "/livez")
    if alive.status != 200:
        yield _unreachable(url, alive, named)
        return
    about = alive.json()
    if not isinstance(about, dict) or "rankwatch" not in about:
        yield fault("monitor", f"the server at {url} is not a Rankwatch monitor", "give the monitor's own address")
        return
    ready = _request(url, "/readyz")
    if ready.status == 200:
        yield ok("monitor", f"{url} answers and is ready")
    else:
        words = ready.detail or f"answers {ready.status}"
        yield fault(
            "monitor", f"{url} is there but not ready: {words}", "read the monitor's log; restart it if need be"
        )
    yield _version(str(about["rankwatch"]))
    yield from _page(url)
    yield _clock(alive)
    yield from _token(url, token)
    yield _telemetry(url, token)


def _unreachable(url: str, answer: Response, named: bool) -> Finding:
    if not named:
        return ok("monitor", f"none is configured and none listens at {url}; 'rankwatch run' starts one of its own")
    if answer.status:
        return fault("monitor", f"{url} answers {answer.status} to /livez", "give the monitor's own address")
    host, port = urlsplit(url).hostname, urlsplit(url).port or (443 if url.startswith("https") else 80)
    where = "on this machine" if is_loopback(url) else f"on {host}"
    mend = f"start it {where} (rankwatch monitor --port {port}), or give another address"
    if not is_loopback(url):
        mend += f"; is port {port} let through between here and {host}, and does it listen beyond loopback (--host)?"
    return fault("monitor", f"nothing answers at {url}: {answer.words}", mend)


def _version(theirs: str) -> Finding:
    ours = rankwatch.__version__
    if theirs == ours:
        return ok("version", f"{ours} here and at the monitor")
    mend = "install the same version on both sides: pip install 'rankwatch==VERSION'"
    words = f"{ours} here, {theirs or 'unknown'} at the monitor"
    # Until 1.0 a minor version may change names.
    same = ours.split(".")[:2] == theirs.split(".")[:2]
    return warning("version", words, mend) if same else fault("version", words, mend)


def _page(url: str) -> Iterator[Finding]:
    if _request(url, "/").status == 503:
        yield warning("page", f"the monitor at {url} has none, its API works", "install a wheel of Rankwatch there")


def _clock(answer: Response) -> Finding:
    apart = ahead_of(answer.headers.get("date"), answer.asked)
    if apart is None:
        return warning(
            "clock", "the monitor's answer has no Date, so clocks cannot be compared", "is a proxy in front?"
        )
    if abs(apart) <= CLOCKS_APART:
        return ok("clock", f"this machine's agrees with the monitor's within {CLOCKS_APART:g} s")
    words = f"this machine's is {duration(abs(apart))} {'ahead of' if apart > 0 else 'behind'} the monitor's"
    return warning(
        "clock", f"{words}: spans and times of reports will be inconsistent", "run chrony or systemd-timesyncd on both"
    )


def _token(url: str, token: str | None) -> Iterator[Finding]:
    variable = env.TOKEN
    read = _request(url, f"{semconv.API_PREFIX}/jobs", token=token)
    if token is None and read.status == 200:
        yield ok("token", "the monitor requires none")
        return
    if token is None:
        yield fault(
            "token", f"the monitor requires one: {read.detail or read.status}", f"set {variable} and {env.MONITOR_URL}"
        )
        return
    if _request(url, f"{semconv.API_PREFIX}/jobs").status == 200:
        yield ok("token", "one is set, and the monitor requires none", f"unset {variable} if it is meant for another")
        return
    sends = _request(url, semconv.OTLP_METRICS_PATH, b"", token=token)
    orders = _request(url, f"{semconv.API_PREFIX}/jobs/{PROBE_JOB}/policy", b"{}", token=token, method="PATCH")
    may = {"ingest": sends.status == 200, "read": read.status == 200, "control": orders.status not in (401, 403)}
    allowed = [scope for scope, yes in may.items() if yes]
    if not allowed:
        words = read.detail or f"it answers {read.status}"
        yield fault("token", f"the monitor rejects it: {words}", f"set {variable} to one of the monitor's tokens")
        return
    scopes = f"it allows {', '.join(allowed)}"
    if not may["ingest"]:
        yield warning("token", f"{scopes}; ranks could not send with it", "ranks need the ingest or the control token")
    elif not may["read"]:
        yield ok("token", f"{scopes}; this is the ranks' one: status and report need one that may read")
    else:
        yield ok("token", scopes)


def _telemetry(url: str, token: str | None) -> Finding:
    """Sends through a rank's own transport, which uses no proxy."""
    settings, _ = load({"monitor": url, "token": token, "otlp_timeout": TIMEOUT})
    client = OtlpClient(url.rstrip("/") + semconv.OTLP_METRICS_PATH, settings)
    try:
        result = client.post(b"")
    finally:
        client.close()
    if result.status is SendStatus.DELIVERED:
        return ok("telemetry", "an empty OTLP request was accepted")
    mend = (
        "see the lines above"
        if result.status is SendStatus.REJECTED
        else "can the ranks' nodes reach it without a proxy?"
    )
    return fault("telemetry", f"an empty OTLP request was not accepted: {result.reason}", mend)


def _request(
    url: str, path: str, body: bytes | None = None, *, token: str | None = None, method: str | None = None
) -> Response:
    kind = "application/x-protobuf" if path == semconv.OTLP_METRICS_PATH else "application/json"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Content-Type": kind} if body is not None else {}
    method = method or ("GET" if body is None else "POST")
    before = time.time()
    try:
        with closing(connections_to(url, TIMEOUT)()) as connection:
            target = urlsplit(url).path.rstrip("/") + path
            found = connection.request(method, target, body, headers, timeout=TIMEOUT, limit=LARGEST_ANSWER)
    except (OSError, ValueError) as error:
        return Response(0, words=str(error))
    return Response(found.status, found.body, found.headers, asked=(before + time.time()) / 2)
