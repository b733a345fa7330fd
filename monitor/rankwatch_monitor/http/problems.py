"""Errors as ``application/problem+json`` (RFC 9457): what was wrong, in a sentence, and what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from rankwatch_monitor.errors import HeldElsewhereError, TooManyError, UnknownJobError
from rankwatch_monitor.http.description import promise_problems
from rankwatch_monitor.ingest.limits import Counters


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """An error answer."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def install(app: FastAPI, counters: Counters) -> None:
    """Make every error of an application a problem document, and its description say so."""
    promise_problems(app)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        detail = error.detail
        if error.status_code not in (401, 403):
            counters.reject("unknown" if error.status_code == 404 else "bad_request")
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            detail = f"{request.method} is not possible at {request.url.path}; it takes {allowed}"
        if error.status_code == 404 and detail == "Not Found":
            detail = f"there is nothing at {request.url.path}; the API is described at /docs"
        return problem(error.status_code, str(detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        del request
        errors = [{"where": ".".join(str(part) for part in e["loc"]), "what": e["msg"]} for e in error.errors()[:10]]
        said = "; ".join(f"{e['where']}: {e['what']}" for e in errors)
        if any(e["type"] == "json_invalid" for e in error.errors()):
            said = f"the body is not JSON ({error.errors()[0].get('ctx', {}).get('error', 'it cannot be parsed')})"
        counters.reject("bad_request")
        return problem(422, f"the request does not fit: {said}", errors=errors)

    @app.exception_handler(UnknownJobError)
    async def unknown_job(request: Request, error: UnknownJobError) -> JSONResponse:
        del request
        counters.reject("unknown")
        return problem(404, f"there is no job {str(error.args[0])[:200]!r}; GET /api/v1/jobs lists those there are")

    @app.exception_handler(TooManyError)
    async def too_many(request: Request, error: TooManyError) -> JSONResponse:
        del request
        counters.reject(error.counted_as)
        return problem(429, str(error), {"Retry-After": "60"})

    @app.exception_handler(HeldElsewhereError)
    async def held_elsewhere(request: Request, error: HeldElsewhereError) -> JSONResponse:
        del request
        counters.reject(error.counted_as)
        return problem(503, str(error), {"Retry-After": "1"})
