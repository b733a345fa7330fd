"""Limits the size of every request body, before the application reads it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankwatch_monitor.http.problems import problem
from rankwatch_monitor.ingest.limits import Counters


class BodyLimit:
    """ASGI middleware that refuses bodies above ``limit`` bytes with 413, except under ``exempt`` paths."""

    def __init__(self, app: ASGIApp, *, limit: int, counters: Counters, exempt: tuple[str, ...]) -> None:
        self.app, self.limit, self.counters, self.exempt = app, limit, counters, exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["type"] != "http" or scope["path"].startswith(self.exempt):
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.limit:
            await self._refuse(scope, receive, send)
            return
        received = 0
        body: list[Message] = []
        # Bodies are small here. Buffering them shows an excess before the application has any effect.
        while True:
            message = await receive()
            body.append(message)
            received += len(message.get("body", b""))
            if received > self.limit:
                await self._refuse(scope, receive, send)
                return
            if message["type"] != "http.request" or not message.get("more_body"):
                break

        async def replay() -> Message:
            return body.pop(0) if body else await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.counters.reject("body_too_large")
        await problem(413, f"the request body is above the limit of {self.limit} bytes")(scope, receive, send)
