"""The tables as they were made before versions were noted: those that are there already stay as they are."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make what is not there."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("last_heard", sa.Float, nullable=False),
        sa.Column("policy", sa.JSON, nullable=False),
        sa.Column("learned", sa.JSON, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("opened_at", sa.Float, nullable=False),
        sa.Column("closed_at", sa.Float),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_index("incidents_of_job", "incidents", ["job_id", "opened_at"], if_not_exists=True)
    op.create_table(
        "transitions",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        if_not_exists=True,
    )
    op.create_index("transitions_of_job", "transitions", ["job_id", "at"], if_not_exists=True)
    op.create_table(
        "directives",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "performances",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "messages",
        sa.Column("queue", sa.String, primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
