"""The tables of the first release: ``schema.py`` makes them, and no database is of an earlier version."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing is to be done."""
