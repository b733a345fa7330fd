"""Named tokens, and the log of what people did."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "tokens",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("jobs", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
        if_not_exists=True,
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
        if_not_exists=True,
    )
    op.create_index("audit_by_time", "audit", ["at"], if_not_exists=True)
