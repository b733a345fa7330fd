"""Posts to a receiver and describes the outcome; the timing of retries.

A URL may hold a secret, so neither messages nor the log show more of it than scheme and host.
"""

from __future__ import annotations

import hashlib
import http
import os
import random
import ssl
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rankwatch.contract.http_connection import HttpConnection, basic_authorization, retry_after

CONNECT_TIMEOUT: Final = 5.0
ANSWER_TIMEOUT: Final = 15.0
"""Seconds without a byte of the response."""
LARGEST_ANSWER: Final = 64 * 1024
"""Bytes of a response that are read."""
FIRST: Final = 1.0
"""Seconds until the first retry; doubles with each further one."""
LONGEST: Final = 600.0
"""Seconds between two tries at most, unless the receiver asks for more."""


class Answer(NamedTuple):
    """The outcome of a request."""

    status: int | None
    """None: there was no response."""
    problem: str
    """What failed, as the part of a sentence after the receiver's name; empty after a success."""
    retry_after: float | None = None
    """Seconds that the receiver asks to wait for."""

    @property
    def taken(self) -> bool:
        """Whether the receiver accepted it."""
        return self.status is not None and 200 <= self.status < 300


class Target:
    """A URL to post to over one persistent connection. Not thread-safe."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._own: dict[str, str] = {}
        if parts.username is not None:
            self._own = {"Authorization": basic_authorization(parts.username, parts.password or "")}
        self._connection = HttpConnection(url, tls=_tls_context, connect_timeout=CONNECT_TIMEOUT)

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._connection.close()

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post a body; errors of the receiver or the network become an :class:`Answer`, never an exception."""
        connection, headers = self._connection, {**self._own, **headers}
        try:
            connection.connect()
        except TimeoutError:
            return Answer(None, f"cannot be reached within {CONNECT_TIMEOUT:.0f} s")
        except ssl.SSLError:
            return Answer(None, "presents a certificate that is not trusted")
        except (OSError, ValueError) as error:
            through = " through the proxy" if connection.proxied else ""
            return Answer(None, f"cannot be reached{through} ({_cause(error)})")
        try:
            answer = connection.request(
                "POST", self._target, body, headers, timeout=ANSWER_TIMEOUT, limit=LARGEST_ANSWER
            )
        except TimeoutError:
            return Answer(None, f"does not answer within {ANSWER_TIMEOUT:.0f} s")
        except (OSError, ValueError) as error:
            return Answer(None, f"cannot be reached ({_cause(error)})")
        asked = retry_after(answer.headers.get("retry-after"), time.time())
        return Answer(answer.status, _problem_of(answer.status), asked)


def _tls_context() -> ssl.SSLContext:
    """Trusts what the system trusts, or the file or folder that the environment names."""
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or None
    folder = bundle is not None and os.path.isdir(bundle)
    return ssl.create_default_context(cafile=None if folder else bundle, capath=bundle if folder else None)


def shown(url: str) -> str:
    """The public part of a URL: scheme and host."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}/…"


def fingerprint(url: str) -> str:
    """A stable identifier of a URL that does not reveal it."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def checked(url: str, flag: str) -> str:
    """Return the URL if it is valid to post to.

    Raises:
        ValueError: it is not; the text does not hold it, since it may be secret.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(c.isspace() for c in url):
        raise ValueError(f"{flag} needs a whole URL such as https://host/path, with http or https and a host")
    return url


def _problem_of(status: int) -> str:
    if 200 <= status < 300:
        return ""
    try:
        name = f" {http.HTTPStatus(status).phrase}"
    except ValueError:
        name = ""
    hint = "; give the address that it redirects to" if 300 <= status < 400 else ""
    return f"answers {status}{name}{hint}"


def _cause(error: Exception) -> str:
    """The operating system's description of an error."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row, with jitter so that senders do not retry together."""
    whole = min(LONGEST, FIRST * 2.0 ** min(failures - 1, 20))
    return whole * random.uniform(0.5, 1.0)
