"""One request to a receiver, and what became of it in words. Imported on the exporter's thread only.

The stock OTLP exporters are not used for this: they retry by sleeping, for as long as their timeout allows, and tell no
more than success or failure. Here the retry is the next interval, with fresher news beside it. Nor is requests, which
with what it imports takes 8 MB of every rank.
"""

from __future__ import annotations

import email.utils
import encodings.idna  # noqa: F401 - else the first connection imports it, maybe just as the process forks (session.py)
import gzip
import http.client
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from rankwatch.settings import Settings

_RETRY_LATER: Final = frozenset({408, 429, 502, 503, 504})
_LONGEST_PAUSE: Final = 300.0
"""Seconds; a Retry-After beyond it is not believed."""
_LONGEST_ANSWER: Final = 65_536
"""Bytes; an answer to an export is empty, or a sentence."""
_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/x-protobuf", "user-agent": "rankwatch"}
_COMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class Fate(Enum):
    """What became of a request."""

    DELIVERED = "delivered"
    LATER = "later"
    """Not now; the same request may succeed another time."""
    REFUSED = "refused"
    """Never: the same request would be refused again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The fate of a request, in words for people; ``pause`` is how many seconds the receiver wants to be left alone."""

    fate: Fate
    words: str = ""
    pause: float = 0.0
    body: bytes = b""


class Transport:
    """Posts OTLP bodies to one address, over one connection that is kept open. Proxies are not used."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._url = urlsplit(url)
        self._settings = settings
        self._compress = _COMPRESS.get(settings.otlp_compression)
        encoding = {"content-encoding": settings.otlp_compression} if self._compress else {}
        self._headers = {**_HEADERS, **encoding, **settings.headers}
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes) -> Answer:
        """Send once (twice over a connection that had gone stale); never raises for what the network does."""
        data = self._compress(body) if self._compress else body
        try:
            return self._send(data)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer(Fate.LATER, _reason(error))

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, data: bytes) -> Answer:
        if self._connection is not None:
            try:
                return self._exchange(self._connection, data)
            except ConnectionError:
                # The receiver closed an idle connection just as it was used again.
                self.close()
        self._connection = self._connect()
        return self._exchange(self._connection, data)

    def _exchange(self, connection: http.client.HTTPConnection, data: bytes) -> Answer:
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        connection.request("POST", target, data, self._headers)
        response = connection.getresponse()
        body = response.read(_LONGEST_ANSWER)
        if not response.isclosed():
            self.close()  # there is more of it than anybody wants to read
        headers = {name.lower(): value for name, value in response.getheaders()}
        return judge(response.status, response.reason, headers, body)

    def _connect(self) -> http.client.HTTPConnection:
        host, port, timeout = self._url.hostname or "", self._url.port, self._settings.otlp_timeout
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=_tls(self._settings))


def _tls(settings: Settings) -> ssl.SSLContext:
    files = settings.otlp_certificate, settings.otlp_client_certificate, settings.otlp_client_key
    trusted, own, key = files
    try:
        context = ssl.create_default_context(cafile=trusted)
        if own:
            context.load_cert_chain(own, key)
    except OSError as error:
        # ssl does not say which file it could not read.
        raise OSError(f"{error} ({', '.join(filter(None, files))})") from error
    return context


def judge(status: int, reason: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
    """What an HTTP status means for an export, as the OTLP specification says."""
    if 200 <= status < 300:
        return Answer(Fate.DELIVERED, body=body)
    words = f"it answers {status} {reason}".rstrip()
    if status in _RETRY_LATER:
        return Answer(Fate.LATER, words, pause=_retry_after(headers.get("retry-after", "")))
    if status == 401:
        words += "; is RANKWATCH_TOKEN the monitor's token?"
    elif 300 <= status < 400:
        words += f"; it points to {headers.get('location', 'elsewhere')}"
    return Answer(Fate.REFUSED, words)


def _retry_after(value: str) -> float:
    """Seconds from a Retry-After header, which holds seconds or a date; 0 when it holds neither."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_PAUSE) if seconds == seconds else 0.0


def _reason(error: Exception) -> str:
    """The operating system's words where there are any: "connection refused", not the number before it."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror.lower()
    return str(error).strip() or type(error).__name__
