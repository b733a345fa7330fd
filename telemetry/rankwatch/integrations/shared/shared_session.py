"""Who begins Rankwatch's session where the script has not: each integration that needs one, and none of them twice.

A session that an integration began ends with the last integration that uses it; the script's own is never ended here.
"""

from __future__ import annotations

import weakref
from typing import Any

import rankwatch

_users: weakref.WeakSet[OwnSession] = weakref.WeakSet()
_ours = False


class OwnSession:
    """One user's part in it, from :meth:`begin` to :meth:`end`."""

    def begin(self, **given: Any) -> None:
        """Call :func:`rankwatch.init` with these arguments, if nobody has."""
        global _ours
        if not rankwatch.is_initialized():
            rankwatch.init(**given)
            _ours = rankwatch.is_initialized()
        _users.add(self)

    def end(self) -> None:
        """Need it no more; a second call does nothing."""
        global _ours
        if self not in _users:
            return
        _users.discard(self)
        if _ours and not _users:
            _ours = False
            rankwatch.shutdown()
