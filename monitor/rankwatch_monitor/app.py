"""Assembles the ASGI application: all routes with their scopes, in one place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.params import Depends as DependsOn

import rankwatch
from rankwatch.contract import semconv
from rankwatch_monitor import web
from rankwatch_monitor.http import auth, problems
from rankwatch_monitor.http.auth import AllTokens, Bearer, Scope, Tokens, TokenSource, admit_senders, line_of, require
from rankwatch_monitor.http.bodies import BodyRoute
from rankwatch_monitor.http.fastlane.launchers import LauncherFastLane
from rankwatch_monitor.http.fastlane.otlp import OtlpFastLane
from rankwatch_monitor.http.fastlane.protocol import FAST_LANES, OTHERS
from rankwatch_monitor.http.grid import grid_routes
from rankwatch_monitor.http.jobs import job_routes, score_routes
from rankwatch_monitor.http.launchers import LauncherMessages, launcher_routes
from rankwatch_monitor.http.logs import answer_routes, log_routes
from rankwatch_monitor.http.nodes import node_routes
from rankwatch_monitor.http.operation import metrics_routes, probe_routes
from rankwatch_monitor.http.origins import Origins
from rankwatch_monitor.http.ownership import acquired, elsewhere
from rankwatch_monitor.http.policy import control_routes, policy_routes
from rankwatch_monitor.http.request_gate import RequestGate
from rankwatch_monitor.http.sessions import Sessions, code_routes, session_routes
from rankwatch_monitor.http.stream import stream_routes
from rankwatch_monitor.http.timeline import timeline_routes
from rankwatch_monitor.http.tokens import audit_routes, token_routes
from rankwatch_monitor.http.why import why_routes
from rankwatch_monitor.ingest.admission import LINE_BYTES, Admission
from rankwatch_monitor.ingest.routes import OtlpEndpoints, OtlpMiddleware, Senders
from rankwatch_monitor.ingest.work_queue import WorkQueue
from rankwatch_monitor.service.audit import AuditLog
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.service.tokens import TokenRegistry
from rankwatch_monitor.web.manual_files import mount_manual

COMPRESSED_FROM = 16_384
"""Bytes of an answer from which it is compressed. OTLP never gets there, and streams compress themselves."""


_READ_ROUTES: Final[tuple[Callable[[APIRouter, Monitor], None], ...]] = (
    *(job_routes, policy_routes, stream_routes, why_routes),
    *(timeline_routes, grid_routes, node_routes, log_routes),
)


def create_app(monitor: Monitor, tokens: TokenSource | None = None, origins: Origins | None = None) -> FastAPI:
    """The monitor as an ASGI application."""
    origins = origins or Origins()
    registry, tokens, sessions = _access(monitor, tokens or Tokens())
    audit = AuditLog(monitor.repository, monitor.clock.now)
    bodies = Admission()  # apart from that of telemetry, which is refused while too much is in memory

    loops: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, object]]:
        monitor.begin()
        if monitor.repository is not None and not monitor.repository.db_error:
            await registry.load()  # before the first request, so that no valid token is refused
            if tokens.any:
                await sessions.load(tokens, registry.named_since)
        access = asyncio.create_task(_load_access(registry, audit), name="rankwatch-access")
        loop = asyncio.create_task(monitor.run(), name="rankwatch-loop")
        loops[:] = [loop]
        launchers = LauncherFastLane(LauncherMessages(monitor), tokens, origins, bodies)
        yield {FAST_LANES: (OtlpFastLane(otlp), launchers), OTHERS: WorkQueue(LINE_BYTES)}
        for task in (access, loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        monitor.close()

    app = FastAPI(
        title="Rankwatch monitor",
        version=rankwatch.__version__,
        summary="Which ranks hang, why, since when, and what was done about it.",
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would repeat the Host of the request
        docs_url=None,  # FastAPI's own pages load scripts from another server
        redoc_url=None,
    )
    problems.install(app, monitor.counters)

    def behind(scope: Scope, *, also: Scope | None = None, contact: bool = False) -> list[DependsOn]:
        allowed = require(tokens, scope, monitor.counters, sessions, also=also)
        return [Depends(allowed), Depends(acquired(monitor, contact=contact))]

    def may_control(headers: Mapping[str, str]) -> bool:
        return auth.refused(Bearer(tokens, headers), Scope.CONTROL) is None

    otlp = _otlp(monitor, tokens, origins)
    app.include_router(otlp.router)
    app.add_middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM, compresslevel=1)
    app.add_middleware(OtlpMiddleware, endpoints=otlp)
    app.add_middleware(  # the last to be added is the outermost
        RequestGate,
        tokens=tokens,
        sessions=sessions,
        origins=origins,
        counters=monitor.counters,
        admission=bodies,
        refuse_evidence=monitor.refuse_evidence,
    )

    add = partial(_add, app)
    reads, orders = behind(Scope.READ), behind(Scope.CONTROL)
    ingests = behind(Scope.INGEST, contact=True)
    add(session_routes, tokens, sessions, monitor.counters)
    add(launcher_routes, monitor, audit, may_control, behind=ingests)
    add(answer_routes, monitor, behind=ingests)
    for make in _READ_ROUTES:
        add(make, monitor, behind=reads)
    add(code_routes, sessions, behind=reads)
    # Ranks log the scores of their job, and have a token that may ingest.
    add(score_routes, monitor, behind=behind(Scope.READ, also=Scope.INGEST))
    add(control_routes, monitor, audit, behind=orders)
    add(token_routes, registry, tokens, audit, behind=orders)
    # A record is opened by its owner, and no token of its monitor may control.
    of_record = Scope.READ if monitor.read_only else None
    add(audit_routes, audit, behind=behind(Scope.CONTROL, also=of_record))

    add(metrics_routes, monitor, under="", behind=reads)
    add(probe_routes, monitor, loops, under="")
    web.mount(app)
    mount_manual(app)
    return app


def _add(
    app: FastAPI,
    make: Callable[..., None],
    *given: object,
    under: str = semconv.API_PREFIX,
    behind: Sequence[DependsOn] = (),
) -> None:
    """Add routes; of an included router FastAPI would make each twice, the second time within the first request."""
    made = APIRouter(prefix=under, dependencies=behind, route_class=BodyRoute)
    make(made, *given)
    app.router.routes += made.routes


def _access(monitor: Monitor, given: TokenSource) -> tuple[TokenRegistry, AllTokens, Sessions]:
    """The tokens made here, all that are valid, and the sessions opened with them."""
    registry = TokenRegistry(monitor.repository, monitor.clock.now)
    # A record is opened by its owner each time anew.
    kept = None if monitor.read_only else monitor.repository
    sessions = Sessions(monitor.clock.now, repository=kept, monitor=monitor.shared_as)
    monitor.team_of = registry.team_of
    registry.on_revoked = sessions.end_of
    # Those in a record are of the monitor that wrote it, or of who made the record.
    return registry, AllTokens(given, registry.find if not monitor.read_only else lambda _: None), sessions


def _otlp(monitor: Monitor, tokens: TokenSource, origins: Origins) -> OtlpEndpoints:
    return OtlpEndpoints(
        monitor.ingest,
        spans=monitor.ingest_spans,
        limits=monitor.limits,
        counters=monitor.counters,
        since_unix_ns=int(monitor.started_at * 1e9),
        replaced=monitor.replaced,
        senders=Senders(
            admit_senders(tokens, monitor, origins),
            elsewhere(monitor),
            monitor.report_shed,
            line=lambda headers: line_of(tokens, headers, headers.get(semconv.JOB_HEADER, "")),
            shared=monitor.shared,
        ),
    )


async def _load_access(registry: TokenRegistry, audit: AuditLog) -> None:
    await audit.load()
    await registry.run()
