"""HTTP client of the monitor's API, for commands and for background threads of a rank. Standard library only."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rankwatch.contract import env, text
from rankwatch.contract.http_connection import HttpConnection
from rankwatch.contract.semconv import API_PREFIX
from rankwatch.contract.tls import TlsFiles

DEFAULT_MONITOR: Final = "http://127.0.0.1:9560"
LARGEST_ANSWER: Final = 256 << 20
"""Bytes of one answer: the view of a job of 100,000 ranks has tens of millions."""
MOST_VALUES: Final = 1 << 24
"""Values in it: 256 MiB of empty lists would take 13 GiB of memory."""
TIMEOUT: Final = 15.0
"""Seconds without a byte until a request times out, by default."""
WHOLE: Final = 600.0
"""The same for the whole response; where a timeout is given, it holds for all of it."""
EXIT_AWAY: Final = 1
"""Exit code of a command: the monitor is unreachable, or failed."""
EXIT_WRONG: Final = 2
"""Exit code of a command: its arguments are wrong, or the monitor rejects the request."""

CONTROLLED: Final = ("/tokens", "/audit")
"""Paths below the API's prefix that only a control token may read."""
PLAIN_HTTP: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's names for an answer that is not TLS."""
SAME_CLOCK: Final = 2.0
"""Seconds by which the header ``Date`` of a response may differ from this machine's clock and count as the same: it has
whole seconds, and was sent a moment ago."""
_LARGEST_PROBLEM: Final = 1 << 20
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
"""Host names of this machine."""


class MonitorError(Exception):
    """A request failed; the message has the reason and the remedy. ``code`` is the exit code of a command.

    ``unknown``: the job is not known there, or no monitor that has it was found; it may appear.
    """

    def __init__(self, message: str, code: int, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.code, self.unknown = code, unknown


class MonitorClient:
    """Sends requests to one monitor.

    Raises:
        MonitorError: the address is invalid, or the monitor is unreachable or rejects the request.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float | None = None) -> None:
        if not _is_address(url):
            raise MonitorError(f"--monitor must be an address such as {DEFAULT_MONITOR}, not {url!r}", EXIT_WRONG)
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout
        self._ahead = 0.0
        """Seconds by which the monitor's clock is ahead of this machine's."""
        try:
            self._connection = connections_to(url, timeout or TIMEOUT)
        except OSError as error:
            words = f"the files of {env.CA_FILE}, {env.CLIENT_CERTIFICATE} and {env.CLIENT_KEY} cannot be used: {error}"
            raise MonitorError(words, EXIT_WRONG) from None

    @property
    def url(self) -> str:
        """The monitor's address."""
        return self._url

    def now(self) -> float:
        """Seconds since the epoch by the monitor's clock, as its last response gave it, so that ages are right here."""
        return time.time() + self._ahead

    def newest_job(self) -> str:
        """Return the id of the most recent job."""
        jobs = self.listed("/jobs", "jobs")
        if not jobs:
            raise MonitorError(f"the monitor at {self._url} has no job yet", EXIT_WRONG)
        newest: str = jobs[0]["id"]
        return newest

    def listed(self, path: str, name: str) -> list[dict[str, Any]]:
        """GET a path below the API's prefix; return the list ``name`` of objects with an id."""
        found = self.read(path)
        try:
            return [{**each, "id": str(each["id"])} for each in found[name]]
        except (KeyError, TypeError):
            raise self.not_a_monitor() from None

    def read(self, path: str) -> Any:
        """GET a path below the API's prefix; return its JSON."""
        return self._json(self.get(path))

    def get(self, path: str) -> bytes:
        """GET a path below the API's prefix; return the body."""
        with self._open(path) as response:
            return self._body(response)

    def send(self, method: str, path: str, content: Mapping[str, Any]) -> Any:
        """Send JSON with another method; return the JSON of the response."""
        with self._open(path, method, json.dumps(content).encode()) as response:
            body = self._body(response)
        return self._json(body)

    def first_events(self, path: str, wanted: frozenset[str]) -> dict[str, Any]:
        """Read a live stream up to the first event of each kind in ``wanted``; return these events by kind.

        If the stream ends early, some are missing.
        """
        found: dict[str, Any] = {}
        kind = ""
        with self._open(path) as stream:
            while wanted - found.keys() and (line := stream.readline(LARGEST_ANSWER)):
                name, _, value = line.decode(errors="replace").strip().partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind in wanted:
                    found.setdefault(kind, self._json(value))
        return found

    def _body(self, response: Any) -> bytes:
        body: bytes = response.read(LARGEST_ANSWER + 1)
        if len(body) > LARGEST_ANSWER:
            raise self.not_a_monitor()
        return body

    def _json(self, body: bytes | str) -> Any:
        if text.values(body) > MOST_VALUES:
            raise self.not_a_monitor()
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self.not_a_monitor() from None

    @contextmanager
    def _open(self, path: str, method: str = "GET", content: bytes | None = None) -> Iterator[Any]:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if content is not None:
            headers["Content-Type"] = "application/json"
        target = f"{urlsplit(self._url).path}{API_PREFIX}{path}"
        seconds, whole = self._timeout or TIMEOUT, self._timeout or WHOLE
        try:
            with closing(self._connection()) as connection:
                response = connection.begin(method, target, content, headers, timeout=seconds, whole=whole)
                self._compare_clocks(response.headers.get("Date"))
                if response.status >= 300:
                    raise self._rejected(response.status, _detail(response), method, path)
                yield response
        except (OSError, ValueError, http.client.HTTPException) as error:
            if getattr(error, "reason", "") in PLAIN_HTTP:
                plain = self._url.replace("https:", "http:", 1)
                raise MonitorError(f"what listens at {self._url} speaks http: give {plain}", EXIT_WRONG) from None
            raise MonitorError(
                f"no monitor answers at {self._url} ({error}); give its address with --monitor or "
                f"{env.MONITOR_URL}, the one that 'rankwatch run' printed when the job began",
                EXIT_AWAY,
            ) from None

    def _compare_clocks(self, date: str | None) -> None:
        try:
            ahead = parsedate_to_datetime(date).timestamp() - time.time() if date else 0.0
        except ValueError:
            return
        self._ahead = ahead if abs(ahead) >= SAME_CLOCK else 0.0

    def not_a_monitor(self) -> MonitorError:
        """Return the error for a response that is not a monitor's."""
        return MonitorError(f"what answers at {self._url} is not a Rankwatch monitor", EXIT_WRONG)

    def _rejected(self, status: int, detail: str, method: str, path: str) -> MonitorError:
        if status in (401, 403):
            may = "control" if method != "GET" or path.startswith(CONTROLLED) else "read"
            reason = detail or "the monitor wants another token"
            if status == 401 and not self._token:
                reason = f"the monitor at {self._url} needs a token"
            unnamed = self._url == DEFAULT_MONITOR and not self._token  # which gets none that was given
            named = f", and its address with --monitor or {env.MONITOR_URL}" if unnamed else ""
            return MonitorError(f"{reason}: pass one that may {may} with --token or {env.TOKEN}{named}", EXIT_WRONG)
        if status == 404 and not detail:
            return self.not_a_monitor()
        if status == 404:
            lists = "token list" if path.startswith("/tokens") else "status"
            return MonitorError(f"{detail}; 'rankwatch {lists}' lists those there are", EXIT_WRONG, unknown=True)
        if status in (409, 422) and detail:
            return MonitorError(detail, EXIT_WRONG)
        return MonitorError(
            f"the monitor at {self._url} answered {status}" + (f": {detail}" if detail else ""), EXIT_AWAY
        )


def path_of(job: str) -> str:
    """Return the path of a job below the API's prefix."""
    return f"/jobs/{quote(job, safe='')}"


def connections_to(url: str, connect_timeout: float) -> Callable[[], HttpConnection]:
    """What makes connections to a monitor, with the proxies and the certificates that the environment names.

    Raises:
        OSError: a file of a certificate or key cannot be used.
    """
    context = TlsFiles.of(os.environ).context() if urlsplit(url).scheme == "https" else None
    tls = None if context is None else lambda: context
    # A proxy from the environment cannot reach this machine's loopback.
    return partial(HttpConnection, url, tls=tls, proxies=not is_loopback(url), connect_timeout=connect_timeout)


def clock_ahead(url: str, timeout: float = 1.0) -> float | None:
    """Seconds by which this machine's clock is ahead of the monitor's; None: it did not say."""
    before = time.time()
    try:
        with closing(connections_to(url, timeout)()) as connection:
            target = f"{urlsplit(url).path.rstrip('/')}/livez"
            response = connection.request("GET", target, timeout=timeout, limit=_LARGEST_PROBLEM)
            return ahead_of(response.headers.get("date"), (before + time.time()) / 2)
    except (OSError, ValueError):
        return None


def ahead_of(date: str | None, asked: float) -> float | None:
    """Seconds by which the time ``asked`` is ahead of a header ``Date``, which has whole seconds; None: it is none."""
    try:
        return asked - parsedate_to_datetime(date).timestamp() - 0.5 if date else None
    except (TypeError, ValueError):
        return None


def is_loopback(url: str) -> bool:
    """Whether an address is a loopback address."""
    return urlsplit(url).hostname in LOOPBACK


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False


def _detail(response: Any) -> str:
    """Return the detail of a problem document; empty if the response is not one."""
    try:
        return str(json.loads(response.read(_LARGEST_PROBLEM))["detail"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        return ""
