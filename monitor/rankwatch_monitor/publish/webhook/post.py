"""One HTTP POST to a receiver, its answer in words, and never its address: a URL may carry a secret.

Neither the words nor the log hold more of a URL than its scheme and host. Exceptions of the HTTP library name the whole
URL, so their text is never used.
"""

from __future__ import annotations

import hashlib
import http
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_auth_from_url, get_environ_proxies, select_proxy
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProxyError, SSLError, TimeoutError

from rankwatch_monitor.publish.webhook.retry import retry_after

CONNECT_TIMEOUT: Final = 5.0
ANSWER_TIMEOUT: Final = 15.0
"""Seconds without a byte of the answer."""
LARGEST_ANSWER: Final = 64 * 1024
"""Bytes of an answer that are read."""

# At debug level it logs the path of every request, which is where a webhook's secret stands.
logging.getLogger("urllib3").setLevel(logging.WARNING)


class Answer(NamedTuple):
    """What came of a request."""

    status: int | None
    """None: there was no answer."""
    words: str
    """What went wrong, as the part of a sentence after the receiver's name; empty after a success."""
    retry_after: float | None = None
    """Seconds that the receiver asks to wait."""
    content: bytes = b""

    @property
    def taken(self) -> bool:
        """The receiver has it."""
        return self.status is not None and 200 <= self.status < 300


class Target:
    """A URL that is posted to, over one connection that is kept open. For one thread at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        self._url = urlunsplit(parts._replace(netloc=host + (f":{parts.port}" if parts.port else ""), fragment=""))
        self._own: dict[str, str] = {}
        if parts.username is not None:
            self._own = urllib3.make_headers(basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}")
        self._pool = _pool(self._url)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post a body; never raises for what the other side or the network does."""
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
        except NewConnectionError as error:  # a timeout by its class, but not by what it means
            return Answer(None, f"cannot be reached ({_cause(error)})")
        except ConnectTimeoutError:
            return Answer(None, f"cannot be reached within {CONNECT_TIMEOUT:.0f} s")
        except TimeoutError:
            return Answer(None, f"does not answer within {ANSWER_TIMEOUT:.0f} s")
        except SSLError:
            return Answer(None, "shows a certificate that is not trusted")
        except ProxyError as error:
            return Answer(None, f"cannot be reached through the proxy ({_cause(error)})")
        except (HTTPError, OSError, ValueError) as error:
            return Answer(None, f"cannot be reached ({_cause(error)})")
        asked = retry_after(answer.headers.get("Retry-After"), time.time())
        return Answer(answer.status, _words(answer.status), asked, content)


def _pool(url: str) -> urllib3.PoolManager:
    """Connections to a URL, by the proxy and with the certificates that the environment names.

    ``requests`` knows those rules; for posting itself it takes several times as long as urllib3, and would put what it
    finds in ``~/.netrc`` in the place of a header that was asked for.
    """
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or DEFAULT_CA_BUNDLE_PATH
    proxy = select_proxy(url, get_environ_proxies(url))
    if not proxy:
        return urllib3.PoolManager(num_pools=1, ca_certs=bundle)
    user, password = get_auth_from_url(proxy)
    own = urllib3.make_headers(proxy_basic_auth=f"{user}:{password}") if user else None
    return urllib3.ProxyManager(proxy, num_pools=1, ca_certs=bundle, proxy_headers=own)


def shown(url: str) -> str:
    """As much of a URL as may be read by anybody: scheme and host."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}/…"


def fingerprint(url: str) -> str:
    """What a URL is called where it is not written down; the same after a restart."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def checked(url: str, flag: str) -> str:
    """The URL, if it can be posted to.

    Raises:
        ValueError: it cannot; the text does not hold it, as it may be secret.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(c.isspace() for c in url):
        raise ValueError(f"{flag} needs a whole URL such as https://host/path, with http or https and a host")
    return url


def _words(status: int) -> str:
    if 200 <= status < 300:
        return ""
    try:
        name = f" {http.HTTPStatus(status).phrase}"
    except ValueError:
        name = ""
    hint = "; give the address that it redirects to" if 300 <= status < 400 else ""
    return f"answers {status}{name}{hint}"


def _cause(error: BaseException) -> str:
    """The operating system's word for it; those of the library name the URL."""
    return next((e.strerror for e in _chain(error) if isinstance(e, OSError) and e.strerror), type(error).__name__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    while error is not None and seen < 20:
        yield error
        inner = next((a for a in error.args if isinstance(a, BaseException)), None)
        reason = getattr(error, "reason", None)
        inner = inner or (reason if isinstance(reason, BaseException) else None)
        error, seen = inner or error.__cause__ or error.__context__, seen + 1
