"""The description of a monitor's API as schemathesis reads it."""

from __future__ import annotations

from typing import Any


def described(url: str) -> Any:
    """The schema. Its arrays of fixed kinds have any of them: schemathesis 4.32 rewrites ``prefixItems`` wrongly."""
    from schemathesis import openapi  # here only: the import costs each worker of pytest a second

    schema = openapi.from_url(f"{url}/openapi.json")
    loosen(schema.raw_schema)
    return schema


def loosen(part: Any) -> None:
    """Replace ``prefixItems`` at any depth."""
    if isinstance(part, dict):
        if (kinds := part.pop("prefixItems", None)) is not None:
            part["items"] = {"anyOf": kinds}
        for each in part.values():
            loosen(each)
    elif isinstance(part, list):
        for each in part:
            loosen(each)
