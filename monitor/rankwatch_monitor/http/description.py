"""What the API's own description (OpenAPI) promises of errors: the documents of ``problems``, on every operation."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

PROBLEM: Final[dict[str, Any]] = {
    "title": "Problem",
    "description": "What was wrong, in a sentence, and what to do (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "minLength": 1},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["where", "what"],
                "properties": {"where": {"type": "string"}, "what": {"type": "string"}},
            },
        },
    },
}
_ANSWER: Final = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_REPLACED: Final = ("HTTPValidationError", "ValidationError")
"""What FastAPI describes in their place."""


def promise_problems(app: FastAPI) -> None:
    """Describe every refusal (4XX) and 503 of an application as a problem document."""
    made = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = made()
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                operation["responses"] |= {
                    "4XX": {"description": "Refused", **_ANSWER},
                    "503": {"description": "Not now; Retry-After says when to come again, if it is known", **_ANSWER},
                }
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for name in _REPLACED:
            schemas.pop(name, None)
        schemas["Problem"] = PROBLEM
        return schema

    app.openapi = described  # type: ignore[method-assign]
