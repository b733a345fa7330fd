"""What keeps a monitor from writing of a job that is not its own (docs/adr/0012-jobs-are-held-by-lease.md)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sqlalchemy import Connection


class Fence(Protocol):
    """Asked at the beginning of each transaction that writes."""

    def held(self, connection: Connection, job_ids: Collection[str]) -> set[str]:
        """Of these jobs those that are ours; they stay so until the transaction of ``connection`` ends."""
