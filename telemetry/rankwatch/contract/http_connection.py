"""One HTTP connection that is kept open between requests, for ranks, launchers and the monitor's publishers.

Not imported with ``import rankwatch``: ranks use it on the exporter's thread only.
"""

from __future__ import annotations

import base64
import encodings.idna  # noqa: F401 - else the first connection imports it, maybe just as the process forks (session.py)
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from rankwatch.contract.text import one_line
from rankwatch.contract.tls import TlsFiles

Headers = Mapping[str, str]
NO_HEADERS: Final[Headers] = {}
MOST_ASKED: Final = 86_400.0
"""Seconds that a receiver may ask for with ``Retry-After``."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response; names of headers are in lower case."""

    status: int
    reason: str
    headers: Headers
    body: bytes


class HttpConnection:
    """Sends requests to one host, one at a time, and reconnects when the connection was closed. Not thread-safe.

    Redirects are not followed: a token is for the given address alone. ``~/.netrc`` is not read.

    Args:
        url: scheme, host and port; the rest is ignored.
        tls: makes the context of each new TLS connection; the system's authorities are trusted if None.
        proxies: use the proxies of the environment (``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY``).
        connect_timeout: seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        proxies: bool = True,
        connect_timeout: float = 5.0,
    ) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self._url = urlsplit(url)
        self._tls = tls or TlsFiles().context
        self._connect_timeout = connect_timeout
        self._used = False
        """The open connection has carried a request: what can be read from it is its end, not a TLS ticket."""
        self._proxy = _proxy_of(self._url) if proxies else None

    @property
    def is_open(self) -> bool:
        """Whether the next request may use a connection that is open already; the peer may have closed it."""
        return self._connection is not None

    @property
    def proxied(self) -> bool:
        """Whether requests go through a proxy."""
        return self._proxy is not None

    def connect(self) -> None:
        """Open the connection, unless it is open.

        Raises:
            OSError: it cannot be opened; TimeoutError after ``connect_timeout``.
        """
        if self._connection is not None:
            if self._connection.sock is not None and not (self._used and _readable(self._connection.sock)):
                return
            self._drop()  # the peer closed it
        connection = self._new()
        try:
            connection.connect()
        except http.client.HTTPException as error:  # of a proxy
            connection.close()
            raise _as_os_error(error) from error
        except BaseException:
            connection.close()
            raise
        self._connection, self._used = connection, False

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Headers = NO_HEADERS,
        *,
        timeout: float,
        limit: int | None = None,
    ) -> Response:
        """Send one request and return its response.

        Args:
            target: path and query.
            timeout: seconds in which the whole response must arrive.
            limit: bytes read of the response; the connection is closed if it has more.

        Raises:
            OSError: there is no response; the connection is closed. TimeoutError: connecting or the response timed out.
        """
        response = self.begin(method, target, body, headers, timeout=timeout)
        with self._dropped_on_error():
            content = response.read(limit) if limit is not None else response.read()
        if not response.isclosed():  # the rest of a long response is not read
            self._drop()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, response.reason, names, content)

    def begin(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Headers = NO_HEADERS,
        *,
        timeout: float,
        whole: float | None = None,
    ) -> http.client.HTTPResponse:
        """Send one request and return its response with nothing read of it but the head.

        Arguments and errors are those of :meth:`request`; ``whole``: seconds in which the whole response must arrive,
        if ``timeout`` is only that without a byte. Close the connection unless all of the response is read.
        """
        self.connect()
        connection = self._connection
        assert connection is not None
        connection.sock.settimeout(timeout)
        made: Any = partial(TimedResponse, whole or timeout)
        connection.response_class = made  # a factory will do
        self._used = True
        if self._proxy is not None and self._url.scheme == "http":
            target = f"http://{self._url.netloc.rpartition('@')[2]}{target}"
            headers = {**headers, **_authorization(self._proxy)}
        with self._dropped_on_error():
            connection.request(method, target, body, dict(headers))
            return connection.getresponse()

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._drop()
            if isinstance(error, http.client.HTTPException):
                raise _as_os_error(error) from error
            raise

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._drop()

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _new(self) -> http.client.HTTPConnection:
        https = self._url.scheme == "https"
        to = self._proxy or self._url
        try:
            host, port = to.hostname or "", to.port or (443 if to.scheme == "https" else 80)
        except ValueError as error:  # its port is no number
            raise OSError(f"the address of the {'proxy' if self._proxy else 'receiver'} is invalid: {error}") from None
        timeout: dict[str, Any] = {"timeout": self._connect_timeout}
        if https or to.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, context=self._tls(), **timeout
            )
        else:
            connection = http.client.HTTPConnection(host, port, **timeout)
        connection.response_class = partial(TimedResponse, self._connect_timeout)  # type: ignore[assignment]
        if https and self._proxy is not None:
            connection.set_tunnel(self._url.hostname or "", self._url.port or 443, _authorization(self._proxy))
        return connection


class TimedResponse(http.client.HTTPResponse):
    """A response that must arrive within some seconds: a peer that sends it by the byte would hold its reader for ever.

    The timeout of a socket starts anew with each byte.
    """

    def __init__(self, seconds: float, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp = io.BufferedReader(_TimedReader(self.fp, sock, seconds))


class _TimedReader(io.RawIOBase):
    def __init__(self, file: Any, sock: socket.socket, seconds: float) -> None:
        self._file, self._raw, self._sock = file, file.raw, sock
        self._until, self._silence = time.monotonic() + seconds, sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left if self._silence is None else min(left, self._silence))
        read: int | None = self._raw.readinto(buffer)
        return read

    def close(self) -> None:
        self._file.close()
        super().close()


def _readable(sock: Any) -> bool:
    """Whether an idle connection has something to read: its end, since no response is due."""
    poll = select.poll()  # select() fails for descriptors above 1023
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _as_os_error(error: http.client.HTTPException) -> OSError:
    return error if isinstance(error, OSError) else ConnectionError(str(error).strip() or type(error).__name__)


def _proxy_of(url: SplitResult) -> SplitResult | None:
    import urllib.request

    proxies = urllib.request.getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    if not found or urllib.request.proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    return {"Proxy-Authorization": basic_authorization(proxy.username, proxy.password or "")}


def reason_of(error: Exception) -> str:
    """Why there is no response: the operating system's text, ``connection refused``, where there is one."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror.lower()
    return one_line(str(error), 300) or type(error).__name__


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, given as a number or a date; None without a valid one."""
    if value is None:
        return None
    asked = value.strip()
    if asked.isascii() and asked.isdigit():
        return min(float(asked[:12]), MOST_ASKED)
    try:
        return min(max(0.0, parsedate_to_datetime(asked).timestamp() - now), MOST_ASKED)
    except (ValueError, TypeError, OverflowError):
        return None


def basic_authorization(user: str, password: str) -> str:
    """The header of basic authorization for percent-encoded user and password of a URL."""
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")
