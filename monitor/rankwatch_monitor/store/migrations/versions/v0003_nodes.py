"""Launchers apart from the rest of a job. Those in jobs' rows of before are read from there until they change."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table of launchers."""
    op.create_table(
        "nodes",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
