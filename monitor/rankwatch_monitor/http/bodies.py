"""JSON bodies of the API: decoded and validated without keeping others waiting, whatever they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from rankwatch_monitor.ingest import json_body
from rankwatch_monitor.ingest.rejection import Refusal

_SEVERAL: Final = {
    "list": core_schema.ListSchema,
    "tuple": core_schema.TupleSchema,
    "set": core_schema.SetSchema,
    "frozenset": core_schema.FrozenSetSchema,
    "dict": core_schema.DictSchema,
}
_STOPPABLE: Final = [kind for kind, schema in _SEVERAL.items() if "fail_fast" in schema.__annotations__]
"""Kinds of schemas that this version of pydantic can have stop at the first wrong entry."""


class FirstError:
    """Annotates a body that is a dataclass or a mapping: of several wrong entries the first is described.

    The errors about a MiB of empty objects would take 20 s to describe. Models of pydantic, which keep their own
    validators, have ``fail_fast`` in their fields.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """The schema of the type, stopping at the first wrong entry of each list and mapping."""
        schema = handler(source)
        _stop_at_first(schema, handler, set())
        return schema


def _stop_at_first(schema: Any, handler: GetCoreSchemaHandler, seen: set[int]) -> None:
    if isinstance(schema, list | tuple):
        for each in schema:
            _stop_at_first(each, handler, seen)
    if not isinstance(schema, dict) or id(schema) in seen:
        return
    seen.add(id(schema))
    if schema.get("type") == "definition-ref":
        _stop_at_first(handler.resolve_ref_schema(schema), handler, seen)
    if schema.get("type") in _STOPPABLE:
        schema["fail_fast"] = True
    for each in list(schema.values()):
        _stop_at_first(each, handler, seen)


class _Request(Request):
    async def json(self) -> Any:
        """The decoded body.

        Raises:
            HTTPException: 413, it has too many names.
        """
        body = await self.body()
        try:
            if len(body) <= json_body.SMALL:
                return json_body.decode(body)
            return await asyncio.to_thread(json_body.decode, body)
        except Refusal as refusal:
            raise HTTPException(refusal.status, refusal.message) from None


class BodyRoute(APIRoute):
    """A route whose body is decoded by :mod:`rankwatch_monitor.ingest.json_body`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler

        async def answer(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return answer
