"""Encodes a job's performance as JSON, and decodes it: stragglers, best kernel medians by device, step history.

Arrays are packed as base64 of compressed float32. Encoding a large job takes about a second: :func:`snapshot` copies
the data, and the function it returns may encode it on another thread.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch.contract.messages import read
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.straggler.best_medians import BestMedians
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.state import Performance
from rankwatch_monitor.core.straggler.table import Table


def snapshot(performance: Performance) -> Callable[[], dict[str, Any]]:
    """Copy the stored state of a job as of now; the returned function encodes it, on any thread."""
    stragglers = [replace(each) for each in performance.stragglers]
    findings, cost, verdicts = performance.findings, performance.cost_gpu_hours, dict(performance.verdicts)
    found = {str(cause): count for cause, count in performance.found.items()}
    history, last, devices = performance.history.copy(), performance.last_straggler, list(performance.best.rows)
    tables = {
        name: (list(t.names), t["median"][: len(devices)].copy()) for name, t in _tables(performance.best).items()
    }

    def body() -> dict[str, Any]:
        return {
            "stragglers": [asdict(each) for each in stragglers],
            "findings": [asdict(each) for each in findings],
            "cost_gpu_hours": cost,
            "verdicts": {str(verdict): count for verdict, count in verdicts.items()},
            "found": found,
            "last_straggler": last,
            "devices": devices,
            "tables": {
                name: {"names": names, "median": _packed(median_DK)} for name, (names, median_DK) in tables.items()
            },
            "history": history.to_json(),
        }

    return body


def restore(performance: Performance, body: Mapping[str, Any]) -> None:
    """Load a row's body into the performance of a job.

    Raises:
        ValueError, KeyError, TypeError: it was written by an incompatible version.
    """
    best = BestMedians()
    best.rows = {key: row for row, key in enumerate(body["devices"])}
    for name, table in _tables(best).items():
        stored = body["tables"][name]
        table.grow(len(best.rows))
        median_DK = _unpacked(stored["median"], len(stored["names"]))
        for column, each in enumerate(stored["names"]):
            if (own := table.index(each)) is not None:
                table["median"][: len(median_DK), own] = median_DK[:, column]
    performance.stragglers = [read(Straggler, each) for each in body["stragglers"]]
    performance.findings = tuple(read(Finding, each) for each in body["findings"])
    performance.verdicts = {StragglerVerdict(verdict): count for verdict, count in body["verdicts"].items()}
    performance.found = {Cause(cause): count for cause, count in body["found"].items()}
    performance.cost_gpu_hours, performance.last_straggler = body["cost_gpu_hours"], body["last_straggler"]
    performance.best, performance.history = best, History.of_json(body["history"])


def _tables(best: BestMedians) -> dict[str, Table]:
    return {"best": best.kernels, "best_sections": best.sections}


def _packed(values: Any) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes(), 1)).decode()


def _unpacked(text: str, columns: int) -> Any:
    flat = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f4")
    return flat.reshape(-1, columns) if columns else flat.reshape(0, 0)
