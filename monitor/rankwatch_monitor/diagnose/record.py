"""Writes a diagnosis as a record, which ``rankwatch open --database FILE`` shows like that of a watched job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from rankwatch_monitor.diagnose.judge import Judged
from rankwatch_monitor.store import codec, schema
from rankwatch_monitor.store.repository import Repository

FLUSH_SECONDS = 30.0


def write(path: Path, judged: Sequence[Judged]) -> None:
    """Write the jobs with their incidents into a new file.

    Raises:
        ValueError: it exists, or cannot be written; the message tells why.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None
    with contextlib.closing(Repository(os.path.abspath(path))) as repository:
        for each in judged:
            each.job.last_heard = each.at
            repository.save(schema.jobs, codec.job_row(each.job))
            if each.incident is not None:
                repository.save(schema.incidents, codec.incident_row(each.incident))
        if not repository.flush(FLUSH_SECONDS) or repository.writer.errors:
            raise ValueError(f"cannot write {path}: {repository.db_error or 'the database refused it'}")
