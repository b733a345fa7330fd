"""FastAPI's type adapters, made once for each type of a process: the tests make hundreds of applications."""

from __future__ import annotations

from typing import Any

from fastapi._compat import v2
from pydantic import TypeAdapter

_made: dict[str, tuple[Any, TypeAdapter[Any]]] = {}


def _adapter(annotated: Any, *, config: Any = None) -> TypeAdapter[Any]:
    key = f"{annotated!r} {config!r}"
    if key not in _made:
        _made[key] = (
            annotated,
            TypeAdapter(annotated, config=config),
        )  # what was described stays, and so does its address
    return _made[key][1]


v2.TypeAdapter = _adapter  # type: ignore[attr-defined, misc, assignment]
