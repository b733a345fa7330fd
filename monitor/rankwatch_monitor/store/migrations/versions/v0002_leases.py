"""Which of several monitors holds a job."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table of leases."""
    op.create_table(
        "leases",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("ends_at", sa.Float, nullable=False),
        sa.Column("asked_by", sa.String),
        if_not_exists=True,
    )
