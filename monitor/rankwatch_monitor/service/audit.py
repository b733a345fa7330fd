"""The audit log: every order and every change of a policy or a token, with time, token name and address.

It is kept in the store, at most :data:`KEPT` entries for each monitor; without a store in memory alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")

KEPT: Final = 10_000
LONGEST_DETAIL: Final = 2_000
"""Characters of an entry's detail as JSON; a longer one is replaced by its beginning."""
_LONGEST: Final = 256
_STORE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One order or change."""

    id: str
    at: float
    """Unix seconds."""
    action: str
    """``order``, ``policy``, ``token.create`` or ``token.revoke``."""
    subject: str
    """The job's id, or the name of the token that was changed."""
    by: str
    """The name of the token it was done with; ``none`` where the monitor has no tokens."""
    address: str
    """Where the request came from; behind a proxy on the monitor's machine, what the proxy states."""
    detail: Mapping[str, Any]


class AuditLog:
    """Records entries and reads them back. Used on the event loop."""

    def __init__(self, repository: Repository | None, now: Callable[[], float]) -> None:
        self._repository, self._now = repository, now
        self._entries: deque[Entry] = deque()
        """Oldest first."""
        self._loaded = repository is None

    def record(self, action: str, subject: str, by: str, address: str, detail: Mapping[str, Any]) -> None:
        """Record an entry; returns at once."""
        text = json.dumps(detail)
        bounded = detail if len(text) <= LONGEST_DETAIL else {"beginning": text[:LONGEST_DETAIL]}
        entry = Entry(uuid4().hex, self._now(), action, subject[:_LONGEST], by[:_LONGEST], address[:_LONGEST], bounded)
        log.info("%s of %s by %s from %s: %s", action, entry.subject, entry.by, address, json.dumps(bounded))
        self._entries.append(entry)
        if self._repository is not None:
            self._repository.save(schema.audit, asdict(entry))
        self._prune()

    async def newest(self, limit: int) -> list[Entry]:
        """The newest entries, the newest first, also those of other monitors on the database."""
        if self._repository is not None and not self._repository.db_error:
            try:
                await asyncio.to_thread(self._repository.flush, _STORE_SECONDS)
                return await asyncio.to_thread(_read, self._repository, limit)
            except SQLAlchemyError as error:
                log.debug("the audit log cannot be read: %s", error)
        return list(self._entries)[: -limit - 1 : -1]

    async def load(self) -> None:
        """Read the stored entries, so that the oldest can be removed."""
        if self._loaded or self._repository is None:
            return
        try:
            stored = await asyncio.to_thread(_read, self._repository, KEPT + 1_000)
        except SQLAlchemyError as error:
            log.debug("the audit log cannot be read: %s", error)
            return
        known = {entry.id for entry in self._entries}
        self._entries.extendleft(entry for entry in stored if entry.id not in known)
        self._loaded = True
        self._prune()

    def _prune(self) -> None:
        while len(self._entries) > KEPT:
            oldest = self._entries.popleft()
            if self._repository is not None:
                self._repository.remove(schema.audit, {"id": oldest.id})


def _read(repository: Repository, limit: int) -> list[Entry]:
    columns = schema.audit.c
    with repository.engine.connect() as connection:
        rows = connection.execute(select(schema.audit).order_by(columns.at.desc(), columns.id).limit(limit)).mappings()
        return [Entry(**row) for row in rows]
