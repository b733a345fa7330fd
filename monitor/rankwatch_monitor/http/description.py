"""What the OpenAPI description says of each field of a response: the docstrings of its type, read when it is asked for.

Pydantic could read them too, which parses the module once for each type whenever the monitor starts.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any

from rankwatch_monitor.core.views import responses


def describe_fields(schemas: dict[str, dict[str, Any]]) -> None:
    """Add the descriptions to schemas by name. Of a record all fields are sent, those with a default, too."""
    shapes = {name: shape for name, shape in vars(responses).items() if name in schemas and isinstance(shape, type)}
    modules = {shape.__module__ for shape in shapes.values() if is_dataclass(shape)} - {responses.__name__}
    parsed = (
        each
        for module in [*sorted(modules), responses.__name__]
        for each in ast.parse(inspect.getsource(sys.modules[module])).body
    )
    classes = {each.name: each for each in parsed if isinstance(each, ast.ClassDef)}
    for name, shape in shapes.items():
        fields: dict[str, dict[str, Any]] = schemas[name].get("properties", {})
        if is_dataclass(shape):
            schemas[name]["required"] = list(fields)
            for field in fields.values():
                field.pop("default", None)
        for each, text in _fields(classes, name):
            fields[each]["description"] = text.replace("None:", "null:")


def _fields(classes: dict[str, ast.ClassDef], name: str) -> Iterator[tuple[str, str]]:
    """Each documented field of a class and of those that it extends."""
    if name not in classes:  # made by a call
        return
    body = classes[name].body
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _fields(classes, base.id)
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(text.value))
