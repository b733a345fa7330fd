"""A row for each launcher, in place of one for all launchers of a job."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the table, move the launchers into it and drop the one before."""
    op.create_table(
        "launchers",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("node", sa.String, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    launchers = sa.table("launchers", sa.column("job_id"), sa.column("node"), sa.column("body", sa.JSON))
    nodes = sa.table("nodes", sa.column("job_id"), sa.column("body", sa.JSON))
    for job_id, stored in op.get_bind().execute(sa.select(nodes.c.job_id, nodes.c.body)).all():
        rows = [{"job_id": job_id, "node": each["registration"]["node"], "body": each} for each in stored]
        op.bulk_insert(launchers, rows)
    op.drop_table("nodes")
