"""OTLP ingest: request bytes in, rank reports and section spans out; every bound in :mod:`.limits`."""
