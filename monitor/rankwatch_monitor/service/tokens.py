"""Named tokens: made, listed and revoked while the monitor runs; only their hashes are kept.

Requests are checked against memory. The store is read at the start, until that has worked once, and every
:data:`REFRESH` seconds where several monitors share it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")

REFRESH: Final = 2.0
"""Seconds until a change by another monitor on the same database takes effect here."""
MAX_TOKENS: Final = 1_000
MAX_JOBS: Final = 100
"""Patterns of one token."""
PREFIX: Final = "rw_"
_BYTES: Final = 32
_STORE_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NotStoredError(Exception):
    """The database refuses; the message states what holds now."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token without its secret."""

    name: str
    scope: str
    jobs: tuple[str, ...]
    """Job ids, with ``*``, ``?`` and ``[...]`` as in a shell; empty: not bound to jobs."""
    created_at: float
    """Unix seconds."""
    created_by: str
    """The name of the token it was made with."""

    def to_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {**asdict(self), "jobs": list(self.jobs)}


def matches(jobs: Sequence[str], job_id: str) -> bool:
    """Whether a job is one of those that a token is bound to."""
    return any(pattern == job_id or fnmatchcase(job_id, pattern) for pattern in jobs)


class TokenRegistry:
    """All named tokens. Used on the event loop."""

    def __init__(self, repository: Repository | None, now: Callable[[], float]) -> None:
        self._repository, self._now = repository, now
        self._by_digest: dict[str, NamedToken] = {}
        self._loaded = repository is None
        self.on_revoked: Callable[[str], None] = lambda _: None
        """Called with the name of each token that was revoked, also by another monitor."""
        self._changing = 0
        self._changes = 0

    def find(self, token: str) -> NamedToken | None:
        """The token with this secret."""
        return self._by_digest.get(_digest(token)) if token.startswith(PREFIX) else None

    def named_since(self, name: str, since: float) -> bool:
        """Whether there is a token of this name that was made before then, in unix seconds."""
        return any(each.name == name and each.created_at <= since for each in self._by_digest.values())

    def listed(self) -> list[NamedToken]:
        """All tokens, by name."""
        return sorted(self._by_digest.values(), key=lambda token: token.name)

    def team_of(self, job_id: str) -> str:
        """Who has a job: the first token that is bound to it, else the job itself."""
        names = (token.name for token in self.listed() if token.jobs and matches(token.jobs, job_id))
        return next((f"token {name}" for name in names), job_id)

    async def create(self, name: str, scope: str, jobs: Sequence[str], by: str, reserved: Sequence[str] = ()) -> str:
        """Make a token and return its secret, which is kept nowhere.

        Raises:
            ValueError: the name is taken or invalid, a pattern is invalid, or there are too many.
            NotStoredError: it could not be stored, and was not made.
        """
        if not _NAME.fullmatch(name) or name in reserved:
            raise ValueError(
                f"a name has 1 to 64 letters, digits and ._- and is none of {', '.join(reserved)}; not {name[:100]!r}"
            )
        if self._repository is not None and self._repository.shared:
            await self.load()  # the other monitors' tokens: one of the same name would end
        if any(token.name == name for token in self._by_digest.values()):
            raise ValueError(f"there is a token {name!r}: revoke it first, or choose another name")
        if len(self._by_digest) >= MAX_TOKENS:
            raise ValueError(f"there are {MAX_TOKENS} tokens already: revoke one first")
        if len(jobs) > MAX_JOBS or not all(0 < len(job) <= 256 and job.isprintable() for job in jobs):
            raise ValueError(f"'jobs' must be at most {MAX_JOBS} patterns of 1 to 256 printable characters")
        secret = PREFIX + secrets.token_urlsafe(_BYTES)
        digest, made = _digest(secret), NamedToken(name, scope, tuple(dict.fromkeys(jobs)), self._now(), by)
        self._by_digest[digest] = made
        if self._repository is not None:
            self._repository.save(schema.tokens, {**made.to_json(), "digest": digest})
        if not await self._settled(digest, stored=True):
            self._by_digest.pop(digest, None)
            self._delete(name)
            raise NotStoredError("the database refuses, so no token was made; see the monitor's log")
        return secret

    async def revoke(self, name: str) -> NamedToken:
        """Revoke a token at once.

        Raises:
            KeyError: there is none of that name.
            NotStoredError: it is revoked in this monitor, but still stored.
        """
        digest = next((digest for digest, token in self._by_digest.items() if token.name == name), None)
        if digest is None:
            raise KeyError(name)
        revoked = self._by_digest.pop(digest)
        self.on_revoked(name)
        self._delete(name)
        if not await self._settled(digest, stored=False):
            raise NotStoredError(
                f"{name!r} is revoked in this monitor, but the database refuses to delete it: a restart before it "
                "works again would bring it back"
            )
        return revoked

    async def load(self) -> None:
        """Read all tokens from the store; does nothing while a change is being stored."""
        if self._repository is None or self._changing:
            return
        changes = self._changes
        try:
            rows = await asyncio.to_thread(_read, self._repository)
        except SQLAlchemyError as error:
            log.debug("named tokens cannot be read: %s", error)
            return
        if changes != self._changes:
            return
        gone = [token.name for digest, token in self._by_digest.items() if digest not in rows]
        self._by_digest, self._loaded = rows, True
        for name in gone:
            self.on_revoked(name)

    async def run(self) -> None:
        """Read the store at the start and, where others write it too, again and again."""
        while True:
            await self.load()
            if self._loaded and not (self._repository is not None and self._repository.shared):
                return
            await asyncio.sleep(REFRESH)

    def _delete(self, name: str) -> None:
        if self._repository is not None:
            self._repository.remove(schema.tokens, {"name": name})

    async def _settled(self, digest: str, *, stored: bool) -> bool:
        """Wait until the store has a token, or has it no more; False when it refuses."""
        self._changes += 1
        if self._repository is None:
            return True
        self._changing += 1
        try:
            await asyncio.to_thread(self._repository.flush, _STORE_SECONDS)
            return (digest in await asyncio.to_thread(_read, self._repository)) is stored
        except SQLAlchemyError:
            return False
        finally:
            self._changing -= 1


def _digest(token: str) -> str:
    # The token has 256 random bits, so a plain hash cannot be inverted by guessing.
    return hashlib.sha256(token.encode()).hexdigest()


def _read(repository: Repository) -> dict[str, NamedToken]:
    with repository.engine.connect() as connection:
        rows: list[Mapping[str, Any]] = [dict(row) for row in connection.execute(select(schema.tokens)).mappings()]
    return {
        row["digest"]: NamedToken(row["name"], row["scope"], tuple(row["jobs"]), row["created_at"], row["created_by"])
        for row in rows
    }
