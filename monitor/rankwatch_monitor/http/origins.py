"""Host and Origin: the names under which the monitor may be addressed, and the pages that may change something.

A page of another site can have a browser send requests here: directly, or under a name of its own that it lets resolve
to the monitor's address (DNS rebinding). The first is visible in ``Origin``, the second in ``Host``. Neither can carry
a token, and the second no cookie of a session: names are checked at monitors without tokens, pages unless a token is
in the head.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods that change nothing."""
_REMEMBERED: Final = 256
"""``Host`` values that were found to be allowed."""


class Denied(NamedTuple):
    """Why a request is refused, as HTTP status and sentence."""

    status: int
    message: str


class Origins:
    """The names and pages of one monitor. IP addresses need no entry: no other site's page has one as its name."""

    def __init__(self, names: Iterable[str] = (), external_url: str | None = None) -> None:
        outside = urlsplit(external_url or "")
        self._names = {"localhost", *(name.lower().rstrip(".") for name in (*names, outside.hostname or "") if name)}
        self._page = (outside.scheme, outside.netloc.lower().rpartition("@")[2]) if external_url else None
        self._allowed: set[str] = {""}  # clients of HTTP/1.0 may send none; browsers always do

    def denied(self, method: str, headers: Mapping[str, str], *, guarded: bool) -> Denied | None:
        """Why a request is refused; None when it is not.

        Args:
            headers: by lower-case name.
            guarded: whether the monitor has tokens, which no foreign page has.
        """
        host = headers.get("host", "")
        if not guarded and host not in self._allowed and not self._allows(host):
            return Denied(
                421,
                f"this monitor is not addressed as {host[:200]!r}: start it with --allowed-host NAME or --external-url",
            )
        origin = headers.get("origin")
        bearer = guarded and "authorization" in headers
        if origin is None or bearer or method in SAFE_METHODS or self._own(origin, host):
            return None
        return Denied(
            403, f"a page of {origin[:200]!r} may change nothing here; behind a proxy, start with --external-url"
        )

    def _allows(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name not in self._names and not name.endswith(".localhost") and not _is_address(name):
            return False
        if len(self._allowed) < _REMEMBERED:
            self._allowed.add(host)
        return True

    def _own(self, origin: str, host: str) -> bool:
        scheme, _, place = origin.lower().partition("://")
        return (scheme in ("http", "https") and place == host.lower()) or (scheme, place) == self._page


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
