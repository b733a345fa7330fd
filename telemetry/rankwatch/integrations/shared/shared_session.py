"""The Rankwatch session of integrations whose script calls no ``init()``: one session, reference-counted.

It ends with the last integration that uses it; a session that the script began is never ended here.
"""

from __future__ import annotations

import weakref
from typing import Any

import rankwatch

_users: weakref.WeakSet[SharedSession] = weakref.WeakSet()
_began_here = False


class SharedSession:
    """One integration's reference to the session, from :meth:`begin` to :meth:`end`."""

    def begin(self, **arguments: Any) -> None:
        """Call :func:`rankwatch.init` with these arguments, unless the session has begun."""
        global _began_here
        if not rankwatch.is_initialized():
            rankwatch.init(**arguments)
            _began_here = rankwatch.is_initialized()
        _users.add(self)

    def end(self) -> None:
        """Release the session. Idempotent."""
        global _began_here
        if self not in _users:
            return
        _users.discard(self)
        if _began_here and not _users:
            _began_here = False
            rankwatch.shutdown()
