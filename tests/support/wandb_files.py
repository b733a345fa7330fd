"""Reads back what W&B wrote: its log of records, which is what ``wandb sync`` uploads, and the tables beside it.

The file is a LevelDB log after a header of 7 bytes: blocks of 32 KiB, in each of which records stand with a checksum,
a length and whether they are whole or a part.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # W&B takes a second to import
    from wandb.proto.wandb_internal_pb2 import AlertRecord, Record, RunRecord

_BLOCK = 32 * 1024
_HEADER = 7
_WHOLE, _LAST = 1, 4


@dataclass
class WrittenRun:
    """One ``.wandb`` file."""

    file: Path
    run: RunRecord
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    alerts: list[AlertRecord] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    exit_code: int | None = None

    def last(self, name: str) -> Any:
        """The newest value of a metric, by its name without the prefix; None: it was never logged."""
        return next((row[f"rankwatch/{name}"] for row in reversed(self.rows) if f"rankwatch/{name}" in row), None)

    def tables(self, name: str) -> list[list[dict[str, Any]]]:
        """Every version of a table that was logged, each a list of rows by column."""
        found = []
        for row in self.rows:
            if (reported := row.get(f"rankwatch/{name}")) is not None:
                table = json.loads((self.file.parent / "files" / reported["path"]).read_text())
                found.append([dict(zip(table["columns"], values, strict=True)) for values in table["data"]])
        return found


def written_runs(folder: Path) -> list[WrittenRun]:
    """All runs below ``folder``, in the order in which they began."""
    runs = [_read(file) for file in folder.glob("**/*run-*-*/*.wandb") if not file.parent.is_symlink()]
    return sorted(runs, key=lambda run: (run.run.start_time.seconds, run.run.start_time.nanos))


def _read(file: Path) -> WrittenRun:
    from wandb.proto.wandb_internal_pb2 import RunRecord

    found = WrittenRun(file, RunRecord())
    for record in _records(file.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            found.config |= _nested(record.run.config.update)
        elif kind == "config":
            found.config |= {
                item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.config.update
            }
        elif kind == "history":
            found.rows.append(_nested(record.history.item))
        elif kind == "summary":
            found.summary |= _nested(record.summary.update)
        elif kind == "alert":
            found.alerts.append(record.alert)
        elif kind == "metric":
            found.step_metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            found.finished, found.exit_code = True, record.exit.exit_code
    return found


def _nested(items: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for item in items:
        path = [item.key] if item.key else list(item.nested_key)
        into = made
        for name in path[:-1]:
            into = into.setdefault(name, {})
        into[path[-1]] = json.loads(item.value_json)
    return made


def _records(data: bytes) -> Iterator[Record]:
    """The records of a file; one that is cut off at its end, since it is being written, is left out."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, part = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += _HEADER
        if kind == 0 or at + length > len(data):
            return
        part += data[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST):
            record = Record()
            record.ParseFromString(part)
            yield record
            part = b""
