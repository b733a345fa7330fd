"""Answers that are read again and again: one that has not changed is not sent again (``ETag``, 304)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from rankwatch_monitor.core.plain import plain


class RecordsResponse(JSONResponse):
    """Content as JSON, in which there may be records."""

    def render(self, content: Any) -> bytes:
        """Encode it."""
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=plain).encode()


def answer(request: Request, content: Any) -> Response:
    """The content as JSON, or 304 without a body if the caller has it already."""
    response = RecordsResponse(content)
    tag = f'W/"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    known = request.headers.get("if-none-match", "")
    if tag in (each.strip() for each in known.split(",")):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response
