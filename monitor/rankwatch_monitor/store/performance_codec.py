"""A job's performance as JSON and back: stragglers, the devices' own best, the history of its steps.

Arrays are packed as base64 of compressed float32. Encoding a large job takes a second or so; :func:`held` copies what
is needed at once, and what it returns may be called on another thread.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rankwatch.contract.enums import Action, Cause, ScoreReference, StragglerVerdict
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.straggler.scores import Finding, Straggler
from rankwatch_monitor.core.straggler.state import MAX_KERNELS, MAX_SECTIONS, Performance
from rankwatch_monitor.core.straggler.tables import Table


def held(performance: Performance) -> Callable[[], dict[str, Any]]:
    """What makes the row's body, as of now, whenever it is called."""
    told = performance.told
    stragglers = [replace(each) for each in told.stragglers]
    finding, cost, verdicts = told.finding, told.cost_gpu_hours, dict(performance.verdicts)
    found = {str(cause): count for cause, count in performance.found.items()}
    history, last, devices = performance.history.copy(), performance.last_straggler, list(performance.devices)
    tables = {name: (list(t.names), t["median"].copy()) for name, t in _tables(performance).items()}

    def body() -> dict[str, Any]:
        return {
            "stragglers": [each.to_json() for each in stragglers],
            "finding": finding.to_json(),
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
    """Fill what a job's performance was from a row's body.

    Raises:
        ValueError, KeyError, TypeError: it is not one that this version wrote.
    """
    told = performance.told
    told.stragglers = [_straggler(each) for each in body["stragglers"]]
    told.finding, told.cost_gpu_hours = _finding(body["finding"]), body["cost_gpu_hours"]
    performance.verdicts = {StragglerVerdict(verdict): count for verdict, count in body["verdicts"].items()}
    performance.found = {Cause(cause): count for cause, count in body["found"].items()}
    performance.last_straggler = body["last_straggler"]
    performance.devices = {key: row for row, key in enumerate(body["devices"])}
    for name, most in (("best", MAX_KERNELS), ("best_sections", MAX_SECTIONS)):
        stored = body["tables"][name]
        table = Table(("median",), most)
        table.grow(len(performance.devices))
        median_DK = _unpacked(stored["median"], len(stored["names"]))
        for column, each in enumerate(stored["names"]):
            if (own := table.index(each)) is not None:
                table["median"][: len(median_DK), own] = median_DK[:, column]
        setattr(performance, name, table)
    performance.history = History.of_json(body["history"])


def _tables(performance: Performance) -> dict[str, Table]:
    return {"best": performance.best, "best_sections": performance.best_sections}


def _packed(values: Any) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, dtype="<f4").tobytes(), 1)).decode()


def _unpacked(text: str, columns: int) -> Any:
    flat = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f4")
    return flat.reshape(-1, columns) if columns else flat.reshape(0, 0)


def _straggler(stored: Mapping[str, Any]) -> Straggler:
    enums = {
        "cause": Cause(stored["cause"]),
        "reference": ScoreReference(stored["reference"]),
        "action": Action(stored["action"]),
    }
    return Straggler(**{**stored, **enums})


def _finding(stored: Mapping[str, Any]) -> Finding:
    enums = {"verdict": StragglerVerdict(stored["verdict"]), "cause": Cause(stored["cause"])}
    return Finding(**{**stored, **enums, "ranks": tuple(stored["ranks"])})
