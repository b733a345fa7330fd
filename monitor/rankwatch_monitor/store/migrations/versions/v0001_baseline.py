"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("last_heard", sa.Float, nullable=False),
        sa.Column("policy", sa.JSON, nullable=False),
        sa.Column("learned", sa.JSON, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("opened_at", sa.Float, nullable=False),
        sa.Column("closed_at", sa.Float),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("incidents_of_job", "incidents", ["job_id", "opened_at"])
    op.create_table(
        "flight_dumps",
        sa.Column("incident_id", sa.String, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("flight_dumps_of_job", "flight_dumps", ["job_id"])
    op.create_table(
        "transitions",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
    )
    op.create_index("transitions_of_job", "transitions", ["job_id", "at"])
    op.create_table(
        "directives",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_table(
        "performances",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_table(
        "messages",
        sa.Column("queue", sa.String, primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_table(
        "launchers",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("node", sa.String, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("ends_at", sa.Float, nullable=False),
        sa.Column("asked_by", sa.String),
        sa.Column("former", sa.String),
    )
    op.create_table(
        "tokens",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("jobs", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("monitor", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("jobs", sa.JSON, nullable=False),
        sa.Column("ends", sa.Float, nullable=False),
        sa.Column("salt", sa.String, nullable=False),
        sa.Column("tokens", sa.String, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
    )
    op.create_index("audit_by_time", "audit", ["at"])
    op.create_table(
        "trends",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )
