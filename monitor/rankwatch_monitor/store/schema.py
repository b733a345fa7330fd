"""The tables, the same in SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Final

from sqlalchemy import JSON, Column, Float, Index, Integer, MetaData, String, Table

metadata = MetaData()

jobs: Final = Table(
    "jobs",
    metadata,
    Column("id", String, primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("last_heard", Float, nullable=False),
    Column("policy", JSON, nullable=False),
    Column("learned", JSON, nullable=False),
    Column("body", JSON, nullable=False),
)

incidents: Final = Table(
    "incidents",
    metadata,
    Column("id", String, primary_key=True),
    Column("job_id", String, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("closed_at", Float),
    Column("body", JSON, nullable=False),
    Index("incidents_of_job", "job_id", "opened_at"),
)

flight_dumps: Final = Table(
    "flight_dumps",
    metadata,
    Column("incident_id", String, primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("job_id", String, nullable=False),
    Column("body", JSON, nullable=False),
    Index("flight_dumps_of_job", "job_id"),
)
"""What the flight recorder of each rank held, of a job's newest incidents: JSON, compressed, in base64."""

transitions: Final = Table(
    "transitions",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("job_id", String, nullable=False),
    Column("at", Float, nullable=False),
    Column("state", String, nullable=False),
    Column("reason", String, nullable=False),
    Index("transitions_of_job", "job_id", "at"),
)

directives: Final = Table(
    "directives",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("id", Integer, primary_key=True),
    Column("body", JSON, nullable=False),
)

performances: Final = Table(
    "performances",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("body", JSON, nullable=False),
)
"""Stragglers, reference medians of the devices and the step history: apart from the job's row, since it is larger."""

trends: Final = Table(
    "trends",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("body", JSON, nullable=False),
)
"""Goodput, speed, scores and logged values over time: a row for each hour, which a later hour overwrites."""

launchers: Final = Table(
    "launchers",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("node", String, primary_key=True),
    Column("body", JSON, nullable=False),
)
"""A row for each launcher, written when it changes: a job may have 20,000 with large registrations."""

messages: Final = Table(
    "messages",
    metadata,
    Column("queue", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("job_id", String, nullable=False),
    Column("at", Float, nullable=False),
    Column("body", JSON, nullable=False),
)
"""Undelivered webhook messages; ``queue`` identifies the receiver, ``number`` orders them; deleted once delivered."""

tokens: Final = Table(
    "tokens",
    metadata,
    Column("name", String, primary_key=True),
    Column("digest", String, nullable=False),
    Column("scope", String, nullable=False),
    Column("jobs", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", String, nullable=False),
)
"""Named tokens that were not revoked; ``digest`` is the hexadecimal SHA-256 of a token."""

sessions: Final = Table(
    "sessions",
    metadata,
    Column("digest", String, primary_key=True),
    Column("monitor", String, nullable=False),
    Column("name", String, nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("jobs", JSON, nullable=False),
    Column("ends", Float, nullable=False),
    Column("family", String, nullable=False),
    Column("salt", String, nullable=False),
    Column("tokens", String, nullable=False),
)
"""Open sessions of browsers; ``digest`` is the hexadecimal SHA-256 of a cookie, ``tokens`` a hash of the configured
tokens."""

audit: Final = Table(
    "audit",
    metadata,
    Column("id", String, primary_key=True),
    Column("at", Float, nullable=False),
    Column("action", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("by", String, nullable=False),
    Column("address", String, nullable=False),
    Column("detail", JSON, nullable=False),
    Index("audit_by_time", "at"),
)
"""What people ordered and changed; ``subject`` is a job's id or a token's name."""

leases: Final = Table(
    "leases",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("url", String, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("ends_at", Float, nullable=False),
    Column("asked_by", String),
    Column("former", String),
)
"""Which monitor holds a job of a shared database, and which one did before; ``ends_at`` is unix seconds by the
database's clock."""
