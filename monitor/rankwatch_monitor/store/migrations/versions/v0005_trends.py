"""Goodput, speed, scores and logged values over time."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "trends",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
