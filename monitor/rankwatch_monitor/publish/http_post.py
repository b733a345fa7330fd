"""Posts to a receiver and describes the outcome; the timing of retries.

A URL may hold a secret, so neither messages nor the log show more of it than scheme and host. Exceptions of the HTTP
library hold the whole URL; their text is never used.
"""

from __future__ import annotations

import hashlib
import http
import logging
import os
import random
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_auth_from_url, get_environ_proxies, select_proxy
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProxyError, SSLError, TimeoutError

CONNECT_TIMEOUT: Final = 5.0
ANSWER_TIMEOUT: Final = 15.0
"""Seconds without a byte of the response."""
LARGEST_ANSWER: Final = 64 * 1024
"""Bytes of a response that are read."""
FIRST: Final = 1.0
"""Seconds until the first retry; doubles with each further one."""
LONGEST: Final = 600.0
"""Seconds between two tries at most, unless the receiver asks for more."""
MOST_ASKED: Final = 86_400.0
"""Seconds that a receiver may ask for with ``Retry-After``."""

# At debug level urllib3 logs the path of every request, which holds the secret of a webhook.
logging.getLogger("urllib3").setLevel(logging.WARNING)


class Answer(NamedTuple):
    """The outcome of a request."""

    status: int | None
    """None: there was no response."""
    problem: str
    """What failed, as the part of a sentence after the receiver's name; empty after a success."""
    retry_after: float | None = None
    """Seconds that the receiver asks to wait for."""
    content: bytes = b""

    @property
    def taken(self) -> bool:
        """Whether the receiver accepted it."""
        return self.status is not None and 200 <= self.status < 300


class Target:
    """A URL to post to over one persistent connection. Not thread-safe."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        self._url = urlunsplit(parts._replace(netloc=host + (f":{parts.port}" if parts.port else ""), fragment=""))
        self._own: dict[str, str] = {}
        if parts.username is not None:
            self._own = urllib3.make_headers(basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}")
        self._pool = _pool(self._url)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post a body; errors of the receiver or the network become an :class:`Answer`, never an exception."""
        try:
            answer = self._pool.urlopen(
                "POST",
                self._url,
                body=body,
                headers={**self._own, **headers},
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=ANSWER_TIMEOUT),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            content = answer.read(LARGEST_ANSWER)
            if len(content) < LARGEST_ANSWER:
                answer.release_conn()
            else:
                answer.close()
        except NewConnectionError as error:  # a subclass of ConnectTimeoutError, but not a timeout
            return Answer(None, f"cannot be reached ({_cause(error)})")
        except ConnectTimeoutError:
            return Answer(None, f"cannot be reached within {CONNECT_TIMEOUT:.0f} s")
        except TimeoutError:
            return Answer(None, f"does not answer within {ANSWER_TIMEOUT:.0f} s")
        except SSLError:
            return Answer(None, "presents a certificate that is not trusted")
        except ProxyError as error:
            return Answer(None, f"cannot be reached through the proxy ({_cause(error)})")
        except (HTTPError, OSError, ValueError) as error:
            return Answer(None, f"cannot be reached ({_cause(error)})")
        asked = retry_after(answer.headers.get("Retry-After"), time.time())
        return Answer(answer.status, _problem_of(answer.status), asked, content)


def _pool(url: str) -> urllib3.PoolManager:
    """A connection pool for a URL, with the proxy and certificates of the environment.

    The rules are those of ``requests``. Posting uses urllib3, which takes a fraction of the time and does not replace a
    given Authorization header by one from ``~/.netrc``.
    """
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or DEFAULT_CA_BUNDLE_PATH
    proxy = select_proxy(url, get_environ_proxies(url))
    if not proxy:
        return urllib3.PoolManager(num_pools=1, ca_certs=bundle)
    user, password = get_auth_from_url(proxy)
    own = urllib3.make_headers(proxy_basic_auth=f"{user}:{password}") if user else None
    return urllib3.ProxyManager(proxy, num_pools=1, ca_certs=bundle, proxy_headers=own)


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


def _cause(error: BaseException) -> str:
    """The operating system's description of the cause; the library's own would reveal the URL."""
    return next((e.strerror for e in _chain(error) if isinstance(e, OSError) and e.strerror), type(error).__name__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    while error is not None and seen < 20:
        yield error
        inner = next((a for a in error.args if isinstance(a, BaseException)), None)
        reason = getattr(error, "reason", None)
        inner = inner or (reason if isinstance(reason, BaseException) else None)
        error, seen = inner or error.__cause__ or error.__context__, seen + 1


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row, with jitter so that senders do not retry together."""
    whole = min(LONGEST, FIRST * 2.0 ** min(failures - 1, 20))
    return whole * random.uniform(0.5, 1.0)


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, given as a number or a date; None without a valid one.

    Args:
        value: the header.
        now: unix seconds.
    """
    if value is None:
        return None
    asked = value.strip()
    if asked.isascii() and asked.isdigit():
        return min(float(asked[:12]), MOST_ASKED)
    try:
        return min(max(0.0, parsedate_to_datetime(asked).timestamp() - now), MOST_ASKED)
    except (ValueError, TypeError, OverflowError):
        return None
