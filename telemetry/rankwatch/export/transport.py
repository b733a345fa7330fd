"""OTLP requests to one receiver. Imported on the exporter thread only.

The stock OTLP exporters are not used: they retry by sleeping for up to their timeout, report no more than success or
failure, and import requests, which takes 8 MB of every rank. Here the retry is the next report, sent with newer ones,
or comes earlier where the receiver's Retry-After is shorter.
"""

from __future__ import annotations

import gzip
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from rankwatch.contract.http_connection import HttpConnection, reason_of, retry_after
from rankwatch.contract.tls import TlsFiles
from rankwatch.settings import Settings

MAX_QUEUED: Final = 60
"""Reports kept for a receiver that is away: a minute at the default interval, enough for a monitor to be restarted."""
MAX_BATCH: Final = 10
"""Reports in one request, so that ranks that reconnect together after an outage do not send a request for each."""

START_SECONDS: Final = 30.0
"""A launcher's monitor may take this long to start before its absence is logged."""

_RETRY_LATER: Final = frozenset({408, 429, 502, 503, 504})
_MAX_RETRY_AFTER: Final = 300.0
"""Seconds; a longer Retry-After is cut to it."""
_MAX_RESPONSE: Final = 65_536
"""Bytes read of a response; that to an export is empty, or a sentence."""
_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/x-protobuf", "user-agent": "rankwatch"}
_COMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {"gzip": gzip.compress, "deflate": zlib.compress}

_log = logging.getLogger("rankwatch")


class SendStatus(Enum):
    """What became of a request."""

    DELIVERED = "delivered"
    RETRY_LATER = "retry_later"
    """Not delivered; the same request may succeed later."""
    REJECTED = "rejected"
    """Not delivered; the same request would be rejected again."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The status of a request and its reason; ``retry_after`` is in seconds, ``body`` is the response's."""

    status: SendStatus
    reason: str = ""
    retry_after: float = 0.0
    body: bytes = b""
    unauthorized: bool = False


class OtlpClient:
    """Posts OTLP bodies to one address over a connection that is kept open. Proxies are not used."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._url = urlsplit(url)
        self._name = f"{self._url.scheme}://{self._url.netloc.rpartition('@')[2]}"
        self._settings = settings
        self._compress = _COMPRESS.get(settings.otlp_compression)
        encoding = {"content-encoding": settings.otlp_compression} if self._compress else {}
        self._headers = {**_HEADERS, **encoding, **settings.headers}
        tls = TlsFiles(settings.otlp_certificate, settings.otlp_client_certificate, settings.otlp_client_key)
        self._connection = HttpConnection(url, tls=tls.context, proxies=False, connect_timeout=settings.otlp_timeout)
        # One rank of a node logs for all of them, or an absent monitor would be logged by every rank.
        self._level = logging.WARNING if settings.local_rank == 0 else logging.DEBUG
        self._status = SendStatus.DELIVERED
        self._not_before = 0.0
        self._delivered = False
        self._first_failure = 0.0

    @property
    def retry_after(self) -> float:
        """Seconds until the receiver's Retry-After has passed; 0 when it has."""
        return max(0.0, self._not_before - time.monotonic())

    def send(self, body: bytes) -> SendResult:
        """Post ``body``, unless the receiver's Retry-After has not passed yet; log when the status changes."""
        if time.monotonic() < self._not_before:
            return SendResult(SendStatus.RETRY_LATER)
        result = self.post(body)
        if result.retry_after:
            self._not_before = time.monotonic() + result.retry_after
        self._delivered |= result.status is SendStatus.DELIVERED
        if result.status is not self._status and not self._may_be_starting(result):
            self._status = result.status
            self._log_status(result)
        return result

    def _may_be_starting(self, result: SendResult) -> bool:
        """Whether the job's own monitor has not been up yet: ranks need not wait for it."""
        if self._delivered or result.status is not SendStatus.RETRY_LATER or not self._launchers_monitor():
            return False
        self._first_failure = self._first_failure or time.monotonic()
        return time.monotonic() - self._first_failure < START_SECONDS

    def _launchers_monitor(self) -> bool:
        """Whether the receiver is the monitor of a launcher, which logs by itself whether it is reached."""
        return bool(self._settings.slots_dir) and urlsplit(self._settings.monitor or "").netloc == self._url.netloc

    def post(self, body: bytes) -> SendResult:
        """Post ``body`` once, twice over a connection that had gone stale. Network errors are results, not raised."""
        data = self._compress(body) if self._compress else body
        reused = self._connection.is_open
        try:
            try:
                return self._post(data)
            except ConnectionError:
                if not reused:
                    raise
                # The receiver closed the idle connection just as it was used again.
                return self._post(data)
        except OSError as error:
            return SendResult(SendStatus.RETRY_LATER, reason_of(error))

    def _post(self, data: bytes) -> SendResult:
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        timeout = self._settings.otlp_timeout
        answer = self._connection.request("POST", target, data, self._headers, timeout=timeout, limit=_MAX_RESPONSE)
        return interpret(answer.status, answer.reason, answer.headers, answer.body)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def _log_status(self, result: SendResult) -> None:
        if result.status is SendStatus.DELIVERED:
            _log.log(self._level, "%s accepts telemetry again", self._name)
        elif result.status is SendStatus.RETRY_LATER:
            _log.log(
                self._level,
                "%s does not accept telemetry now (%s); training continues and up to %d reports are kept",
                self._name,
                result.reason,
                MAX_QUEUED,
            )
        elif result.unauthorized and self._launchers_monitor():
            return  # the launcher has the same token, and logs it once for all ranks
        else:
            _log.log(self._level, "%s rejects telemetry (%s); it is dropped and counted", self._name, result.reason)


def interpret(status: int, reason: str, headers: Mapping[str, str], body: bytes = b"") -> SendResult:
    """Return what an HTTP response means for an export, by the OTLP specification."""
    if 200 <= status < 300:
        return SendResult(SendStatus.DELIVERED, body=body)
    text = f"HTTP {status} {reason}".rstrip()
    if status in _RETRY_LATER:
        asked = retry_after(headers.get("retry-after"), time.time()) or 0.0
        return SendResult(SendStatus.RETRY_LATER, text, min(asked, _MAX_RETRY_AFTER))
    if status == 401:
        words = f"the token is missing or unknown ({text}); give the monitor's in RANKWATCH_TOKEN"
        return SendResult(SendStatus.REJECTED, words, unauthorized=True)
    if 300 <= status < 400:
        text += f"; redirected to {headers.get('location', 'another address')}"
    return SendResult(SendStatus.REJECTED, text)
