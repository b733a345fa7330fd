"""What alembic runs: the migrations, on the connection and in the transaction that it was handed."""

from alembic import context

from rankwatch_monitor.store.schema import metadata
from rankwatch_monitor.store.upgrade import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
