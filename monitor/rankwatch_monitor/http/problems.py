"""Errors as ``application/problem+json`` (RFC 9457): each states what is wrong and how to fix it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from rankwatch_monitor.errors import HeldElsewhereError, RevokedError, TooManyError, UnknownJobError
from rankwatch_monitor.http.description import describe_fields
from rankwatch_monitor.ingest.limits import Counters

PROBLEM: Final[dict[str, Any]] = {
    "title": "Problem",
    "description": "What is wrong and how to fix it (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "minLength": 1},
        "remedy": {"type": "string", "description": "where it is another one for users of the API than for others"},
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
_RESPONSE: Final = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_REPLACED: Final = ("HTTPValidationError", "ValidationError")
"""Schemas that FastAPI adds for its own error format."""


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """An error response."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def install(app: FastAPI, counters: Counters) -> None:
    """Make every error response of an application a problem document, in its OpenAPI schema too."""
    _describe_problems(app)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        detail, path = error.detail, request.scope["path"]
        if error.status_code not in (401, 403, 409):  # counted elsewhere; 409: nothing is wrong with the request
            counters.reject("unknown" if error.status_code == 404 else "bad_request")
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            detail = f"{request.method} is not allowed at {path}; use {allowed}"
        if error.status_code == 404 and detail == "Not Found":
            return problem(404, f"there is nothing at {path}", remedy="the API is described at /docs")
        return problem(error.status_code, str(detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        del request
        errors = [{"where": ".".join(str(part) for part in e["loc"]), "what": e["msg"]} for e in error.errors()[:10]]
        message = "; ".join(f"{e['where']}: {e['what']}" for e in errors)
        if any(e["type"] == "json_invalid" for e in error.errors()):
            message = f"the body is not JSON ({error.errors()[0].get('ctx', {}).get('error', 'it cannot be parsed')})"
        counters.reject("bad_request")
        return problem(422, f"the request is invalid: {message}", errors=errors)

    @app.exception_handler(UnknownJobError)
    async def unknown_job(request: Request, error: UnknownJobError) -> JSONResponse:
        del request
        counters.reject("unknown")
        what = f"there is no job {str(error.args[0])[:200]!r}"
        return problem(404, what, remedy="GET /api/v1/jobs lists all jobs")

    @app.exception_handler(TooManyError)
    async def too_many(request: Request, error: TooManyError) -> JSONResponse:
        del request
        counters.reject(error.counted_as)
        return problem(429, str(error), {"Retry-After": "60"})

    @app.exception_handler(RevokedError)
    async def revoked(request: Request, error: RevokedError) -> JSONResponse:
        del request, error
        counters.reject("unauthorized")
        return problem(401, "the token was revoked", {"WWW-Authenticate": "Bearer"})

    @app.exception_handler(HeldElsewhereError)
    async def held_elsewhere(request: Request, error: HeldElsewhereError) -> JSONResponse:
        del request
        counters.reject(error.counted_as)
        return problem(error.status, str(error), {"Retry-After": "1"})


def _describe_problems(app: FastAPI) -> None:
    """Describe 4XX and 503 responses of all operations in the OpenAPI schema as problem documents."""
    generate = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = generate()
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                operation["responses"] |= {
                    "4XX": {"description": "The request is refused", **_RESPONSE},
                    "503": {
                        "description": "Temporarily unavailable; Retry-After may hold the seconds to wait",
                        **_RESPONSE,
                    },
                }
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for name in _REPLACED:
            schemas.pop(name, None)
        describe_fields(schemas)
        schemas["Problem"] = PROBLEM
        return schema

    app.openapi = described  # type: ignore[method-assign]
