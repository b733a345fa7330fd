"""The database: jobs, incidents, directives, messages and leases in SQLite or PostgreSQL.

In: rows, queued by the event loop and written by one thread. Out: jobs as a restarted monitor loads them.
Open :mod:`~rankwatch_monitor.store.repository` first, then ``writer``; ``schema`` has the tables, ``codec`` their JSON.
"""
