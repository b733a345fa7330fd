"""The page's ``types.ts`` from the OpenAPI description of the monitor: the schemas that its modules import."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

HEAD: Final = """// Made by `python scripts/reference.py` of the OpenAPI description; a test fails when it is outdated.
"""
_IMPORT: Final = re.compile(r'import type \{([^}]*)\} from "[./\w]*/types"')
_LEFT_OUT: Final = (("Culprit", "cause"),)
"""The page shows causes in the words of the API."""
_NAMES: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}

_ROOM: Final = 140
"""Characters of a line."""
_EXTENDED: Final = 5
"""Fields from which an interface is extended: fewer are alike by chance."""

Schema = Mapping[str, Any]


def types(description: Schema, page: Path) -> str:
    """The whole file.

    Args:
        description: the OpenAPI description.
        page: the folder of the page's source.
    """
    schemas: dict[str, Schema] = {
        name: {**schema, "properties": {k: v for k, v in schema["properties"].items() if (name, k) not in _LEFT_OUT}}
        if "properties" in schema
        else schema
        for name, schema in description["components"]["schemas"].items()
    }
    found: dict[str, None] = {}
    for name in _imported(page):
        _reach({"$ref": name}, schemas, found)
    shown = {name: schemas[name] for name in sorted(found)}
    return "\n".join([HEAD, *(_declared(name, shown) for name in shown)])


def _imported(page: Path) -> set[str]:
    text = "".join(path.read_text() for folder in ("src", "tests") for path in (page / folder).rglob("*.ts*"))
    return {name.strip() for names in _IMPORT.findall(text) for name in names.split(",")}


def _reach(schema: Any, schemas: Mapping[str, Schema], found: dict[str, None]) -> None:
    """Note every named schema in a schema."""
    for name in _named(schema):
        if name not in found:
            found[name] = None
            _reach(schemas[name], schemas, found)


def _named(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for each in schema.values():
            yield from _named(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _named(each)


def _declared(name: str, schemas: Mapping[str, Schema]) -> str:
    schema = schemas[name]
    if "properties" not in schema:
        return _after(_comment(schema), f"export type {name} = {_type(schema)};\n", "")
    base = _base(schema, schemas)
    inherited = schemas[base]["properties"] if base else {}
    required = schema.get("required", ())
    fields = [
        (_comment(each), f"{field}{'' if field in required else '?'}: {_type(each)};")
        for field, each in schema["properties"].items()
        if field not in inherited
    ]
    head = f"export interface {name}{f' extends {base}' if base else ''}"
    whole = f"{head} {{ {' '.join(field for _, field in fields)} }}\n"
    if len(whole) > _ROOM or any(comment for comment, _ in fields):
        body = "".join(_after(comment, f"{field}\n", "  ") for comment, field in fields)
        whole = f"{head} {{\n{body}}}\n"
    return _after(_comment(schema), whole, "")


def _base(schema: Schema, schemas: Mapping[str, Schema]) -> str:
    """The largest schema that has a part of the fields of this one, and no other field; empty: there is none."""
    own = schema["properties"]
    parts = {
        name: len(other["properties"])
        for name, other in schemas.items()
        if _EXTENDED <= len(other.get("properties", ())) < len(own) and other["properties"].items() <= own.items()
    }
    return max(parts, key=parts.__getitem__, default="")


def _after(comment: str, text: str, indent: str) -> str:
    """The text after its comment, on one line where there is room."""
    fits = len(indent) + len(comment) + text.index("\n") <= _ROOM
    return f"{indent}{comment}{' ' if fits and comment else chr(10) + indent if comment else ''}{text}"


def _comment(schema: Schema) -> str:
    text = " ".join(schema.get("description", "").replace("``", "`").split())
    return f"/** {text} */" if text else ""


def _type(schema: Schema) -> str:
    """A schema as a type of TypeScript."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(map(_type, schema[several])))
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " | ".join(f'"{each}"' for each in schema["enum"])
    if schema.get("type") == "array":
        return _array(schema)
    if schema.get("type") == "object":
        return _object(schema)
    return _NAMES.get(schema.get("type", ""), "unknown")


def _array(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    item = _type(schema.get("items", {}))
    return f"({item})[]" if " | " in item else f"{item}[]"


def _object(schema: Schema) -> str:
    values = schema.get("additionalProperties")
    value = _type(values) if isinstance(values, Mapping) else "unknown"
    keys = _type(schema["propertyNames"]) if "propertyNames" in schema else "string"
    # A map by the members of an enumeration need not have all of them.
    return f"Record<string, {value}>" if keys == "string" else f"Partial<Record<{keys}, {value}>>"
