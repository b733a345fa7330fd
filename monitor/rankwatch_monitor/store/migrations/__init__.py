"""How the schema came to be, version by version; run by :mod:`rankwatch_monitor.store.upgrade` at the start."""
