"""Whole records of the API from the facts that a test is about: what else a response has is empty, zero or null."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, wraps
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from pydantic import TypeAdapter

from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.views import kernel_view, responses
from rankwatch_monitor.service.monitor import Monitor

Schema = Mapping[str, Any]
ROOT = "/api/v1"
PLAIN = {"string": "", "integer": 0, "number": 0.0, "boolean": False, "null": None}


@cache
def description() -> dict[str, Any]:
    """The OpenAPI description of the monitor."""
    return create_app(Monitor()).openapi()


@cache
def _schema(path: str) -> Schema:
    """Of what ``GET`` of a path answers; empty: anything."""
    for template, operations in description()["paths"].items():
        if "get" in operations and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), ROOT + path):
            [content] = operations["get"]["responses"]["200"]["content"].values()
            return content.get("schema") or {}
    return {}


@cache
def _checker(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(getattr(responses, name, None) or getattr(kernel_view, name))


def get(app: FastAPI, path: str) -> Callable[[Callable[..., Awaitable[Any]]], None]:
    """Add a route that completes what it answers."""

    def add(facts: Callable[..., Awaitable[Any]]) -> None:
        @app.get(ROOT + path)
        @wraps(facts)
        async def whole(*arguments: Any, **more: Any) -> Any:
            found = await facts(*arguments, **more)
            return found if isinstance(found, Response) else answer(path, found)

    return add


def answer(path: str, facts: Any) -> Any:
    """What ``GET`` of a path below :data:`ROOT` answers."""
    return whole(facts, _schema(path))


def event(stream: str, name: str, facts: Any) -> Any:
    """An event of ``JobEvents`` or ``FleetEvents``."""
    return whole(facts, description()["components"]["schemas"][stream]["properties"][name])


def whole(facts: Any, schema: Schema) -> Any:
    """A value with all fields of its schema; fails on one that it has not, and on one of another type."""
    filled = _filled(facts, schema, "")
    if "$ref" in schema:
        _checker(_name(schema)).validate_python(filled)
    return filled


def _name(schema: Schema) -> str:
    return str(schema["$ref"].rpartition("/")[2])


def _resolved(schema: Schema) -> Schema:
    return description()["components"]["schemas"][_name(schema)] if "$ref" in schema else schema


def _filled(facts: Any, schema: Schema, path: str) -> Any:
    schema = _resolved(schema)
    if "anyOf" in schema:
        return facts if facts is None else _filled(facts, _chosen(facts, schema["anyOf"]), path)
    if isinstance(facts, Mapping) and "properties" in schema:
        fields, required = schema["properties"], schema.get("required", ())
        unknown = facts.keys() - fields.keys()
        assert not unknown, f"{path or 'the answer'} has no {sorted(unknown)}"
        return {
            name: _filled(facts[name], each, f"{path}.{name}") if name in facts else _default(each)
            for name, each in fields.items()
            if name in facts or name in required
        }
    if isinstance(facts, Mapping):
        values = schema.get("additionalProperties")
        return {k: _filled(v, values, f"{path}.{k}") for k, v in facts.items()} if isinstance(values, dict) else facts
    if isinstance(facts, list) and isinstance(schema.get("items"), Mapping):
        return [_filled(each, schema["items"], f"{path}[{i}]") for i, each in enumerate(facts)]
    return facts


def _chosen(facts: Any, several: list[Schema]) -> Schema:
    """The smallest object that has all fields of the facts; an empty schema: they are no object."""
    options = [each for each in map(_resolved, several) if each.get("type") != "null"]
    if len(options) == 1:
        return options[0]
    known = facts.keys() if isinstance(facts, Mapping) else set()
    fit = [each for each in options if known <= each.get("properties", {}).keys()]
    return min(fit, key=lambda each: len(each["properties"])) if known and fit else {}


def _default(schema: Schema) -> Any:
    schema = _resolved(schema)
    for several in (schema.get("anyOf"), schema.get("prefixItems")):
        if several and any(each.get("type") == "null" for each in several):
            return None
    if "anyOf" in schema:
        return _default(schema["anyOf"][0])
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "properties" in schema:
        return {name: _default(schema["properties"][name]) for name in schema.get("required", ())}
    return {"array": [], "object": {}}.get(schema.get("type", ""), PLAIN.get(schema.get("type", "")))
