"""What the OpenAPI description says of each field of a response: the docstrings of its type, read when it is asked for.

Pydantic could read them too, which parses the module once for each type whenever the monitor starts.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rankwatch_monitor.core.views import responses


def describe_fields(schemas: dict[str, dict[str, Any]]) -> None:
    """Add the descriptions to schemas by name."""
    classes = {
        each.name: each for each in ast.parse(inspect.getsource(responses)).body if isinstance(each, ast.ClassDef)
    }
    for name, schema in schemas.items():
        if name in classes:
            for field, text in _fields(classes, name):
                schema["properties"][field]["description"] = text


def _fields(classes: dict[str, ast.ClassDef], name: str) -> Iterator[tuple[str, str]]:
    """Each documented field of a class and of those that it extends."""
    body = classes[name].body
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _fields(classes, base.id)
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(text.value))
