"""``rankwatch monitor``: reads the settings, opens the database, and serves until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import uvicorn

from rankwatch.contract import access, records, text
from rankwatch.contract.access import MonitorAccess
from rankwatch.contract.files import replace_file
from rankwatch_monitor import web
from rankwatch_monitor.app import create_app
from rankwatch_monitor.http import deadlines, uvicorn_compat
from rankwatch_monitor.http.auth import Tokens
from rankwatch_monitor.http.fastlane.protocol import FastLaneProtocol
from rankwatch_monitor.http.origins import Origins
from rankwatch_monitor.publish.prometheus.state_entries import StateEntries
from rankwatch_monitor.publish.publisher import Publisher, Publishing, Watcher
from rankwatch_monitor.publish.wandb import publisher as wandb
from rankwatch_monitor.publish.wandb.run import Where
from rankwatch_monitor.publish.webhook import publisher as webhook
from rankwatch_monitor.publish.webhook.bodies import secret_key
from rankwatch_monitor.replay.recording import Recorder
from rankwatch_monitor.service import garbage
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.settings import Settings, read
from rankwatch_monitor.store import archive
from rankwatch_monitor.store.leases import Leases
from rankwatch_monitor.store.outbox import Outbox
from rankwatch_monitor.store.repository import Repository
from rankwatch_monitor.web import manual_files

log = logging.getLogger("rankwatch")

_GRACE: Final = 5.0
"""Seconds for a monitor to end by itself once the process that started it is gone."""
ACCEPTED: Final = 32
"""Connections that are accepted in one turn of the loop, which asyncio calls the backlog: each takes some 0.1 ms, and
whoever opens them by the thousand would keep everybody waiting for as long as that takes."""
WAITING: Final = 4096
"""Connections that the kernel holds until they are accepted."""
LOG_FORMAT: Final = "%(asctime)s [rankwatch monitor] %(levelname)s %(message)s"
"""A launcher finds the warnings of its monitor by it."""


def serve(argv: Sequence[str]) -> int:
    """Serve the monitor: telemetry in; page, API and directives for launchers out.

    The exit code is 0 after an orderly shutdown and 2 when the settings are invalid.
    """
    before = os.umask(0o077)  # its files hold stacks and tokens
    try:
        return _start(argv)
    finally:
        os.umask(before)


def _start(argv: Sequence[str]) -> int:
    if (problem := uvicorn_compat.complaint()) is not None:
        _print_error(problem)
        return 2
    try:
        settings = read(argv, os.environ)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(text.SafeFormatter(LOG_FORMAT))
        logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
        place = records.state_place(os.environ)
        if place.moved and Path(settings.database).parent == place.folder:
            log.warning("the database is %s: %s", settings.database, place.moved)
        if settings.read_only is not None and settings.parent_pid is not None:
            threading.Thread(target=_end_while_loading, args=(settings.parent_pid,), daemon=True).start()
        with _database(settings) as database:
            repository = _repository(settings, database)
            made = settings.with_tokens()
            try:
                _serve(argv, made, repository, own_tokens=made is not settings)
            except ValueError:
                if repository is not None:
                    repository.close()
                raise
            return 0
    except ValueError as error:
        _print_error(str(error))
        return 2


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[str]:
    """The database to open: that of the settings, or a copy of the file that is only read.

    Raises:
        ValueError: the file cannot be read.
    """
    if settings.read_only is None:
        yield settings.database
        return
    with tempfile.TemporaryDirectory(prefix="rankwatch-record-", ignore_cleanup_errors=True) as folder:
        copied = Path(folder) / "record.db"
        archive.copy(Path(settings.read_only), copied)
        yield str(copied)


def _serve(argv: Sequence[str], settings: Settings, repository: Repository | None, *, own_tokens: bool) -> None:
    """Serve until asked to end.

    Raises:
        ValueError: a setting cannot be used on this machine.
    """
    if _wants_wandb(settings) and not wandb.installed() and settings.read_only is None:
        if any(word.startswith("--wandb") for word in argv):
            raise ValueError(wandb.HOW_TO_GET_IT)
        # Set by the environment, which a launcher's local monitor inherits: hang detection must work without W&B.
        log.warning("%s", wandb.HOW_TO_GET_IT)
    with _listen(settings) as listener:
        read_only = settings.read_only is not None
        monitor = Monitor(
            repository=repository,
            leases=_leases(settings, repository, listener),
            policy=settings.job_policy(),
            read_only=read_only,
        )
        if settings.retention_days and not read_only:
            monitor.persistence.retention = settings.retention_days * 86_400.0
        if settings.record is not None:
            monitor.recorder = Recorder(settings.record, monitor.clock.now())
        config = _configured(settings, monitor, own_tokens=own_tokens)
        url = address(settings, listener)
        monitor.publishing = None if read_only else _publishing(settings, monitor, url)
        log.info("at most %d connections", deadlines.raise_descriptor_limit())
        server = _Server(config, monitor)
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn shuts down and then raises the signal again for the previous handler, which is this one.
            signal.signal(number, server.asked_to_end)
        if settings.no_token:
            log.warning("every user of this machine may read and stop all jobs of this monitor (--no-token)")
        with _access(settings, url) if own_tokens else contextlib.nullcontext():
            # asyncio's own loop: with uvloop a report costs the same, and accept() fails in silence.
            asyncio.run(_run(server, listener, settings))
    if server.asked_by is not None:
        log.info("the monitor has shut down (%s)", server.asked_by.name)


def _configured(settings: Settings, monitor: Monitor, *, own_tokens: bool) -> uvicorn.Config:
    """The application and how uvicorn serves it.

    Raises:
        ValueError: the certificate or its key cannot be used.
    """
    if monitor.read_only:
        tokens = Tokens(read=settings.read_token)  # no token allows anything else
    else:
        tokens = Tokens(settings.token, settings.read_token, settings.ingest_token, own=own_tokens)
    own = () if settings.loopback else (settings.host, socket.gethostname())
    origins = Origins((*settings.allowed_host, *own), settings.external_url)
    config = uvicorn.Config(
        create_app(monitor, tokens, origins),
        backlog=ACCEPTED,
        log_level="warning",
        access_log=False,
        headers=[("X-Content-Type-Options", "nosniff")],  # names of jobs and logs of ranks are in every kind of answer
        loop="asyncio",
        http=FastLaneProtocol,
        timeout_keep_alive=deadlines.KEEP_ALIVE,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        # Live streams and long polls are ended by :class:`_Server`; other requests get these seconds.
        timeout_graceful_shutdown=3,
    )
    try:
        config.load()
    except ssl.SSLError as error:
        raise ValueError(f"--tls-cert and --tls-key are not a certificate and its key: {error}") from None
    return config


@contextlib.contextmanager
def _access(settings: Settings, url: str) -> Iterator[None]:
    """Let this user's commands, launchers and ranks find the monitor's own tokens.

    Raises:
        ValueError: they cannot be written, so nobody could use them.
    """
    token, ingest = settings.token or "", settings.ingest_token or ""
    found = MonitorAccess(url, "", os.getpid(), token, ingest, host=socket.gethostname())
    try:
        file = access.publish(found)
    except OSError as error:
        raise ValueError(f"its tokens cannot be written for this user: {error}; give --token or --no-token") from None
    log.info("its tokens are in %s: commands, launchers and ranks of this user on this machine find them", file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Ends streams and long polls before it waits for requests in progress."""

    def __init__(self, config: uvicorn.Config, monitor: Monitor) -> None:
        super().__init__(config)
        self._monitor = monitor
        self.asked_by: signal.Signals | None = None

    def asked_to_end(self, number: int, frame: object) -> None:
        """Shut down; logging is left to later, since a signal handler must not write to a log."""
        del frame
        self.should_exit, self.asked_by = True, signal.Signals(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(WAITING)  # the loop has called it with ACCEPTED

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._monitor.broker.end_long_polls()
        await super().shutdown(sockets)


def _repository(settings: Settings, database: str) -> Repository | None:
    if database == "none":
        return None
    return Repository(database, shared=settings.shared_as is not None)


def _leases(settings: Settings, repository: Repository | None, listener: socket.socket) -> Leases | None:
    if settings.shared_as is None or repository is None:
        return None
    url = settings.external_url or address(settings, listener)
    log.info("the database is shared with other monitors; this one is %s at %s", settings.shared_as, url)
    return Leases(repository.engine, settings.shared_as, url, settings.lease)


def _wants_wandb(settings: Settings) -> bool:
    return settings.wandb_project is not None and settings.wandb_mode != "disabled"


def _publishing(settings: Settings, monitor: Monitor, url: str) -> Publishing:
    publishers: list[Publisher] = []
    if (to_wandb := _wandb(settings, url)) is not None:
        publishers.append(to_wandb)
    watchers: list[Watcher] = [StateEntries()]
    if settings.webhook:
        watchers.append(_webhooks(settings, monitor))
    return Publishing(publishers, watchers, monitor.host_activity)


def _webhooks(settings: Settings, monitor: Monitor) -> webhook.Webhooks:
    outbox = Outbox(monitor.repository) if monitor.repository is not None else None
    secret = None if settings.webhook_secret is None else secret_key(settings.webhook_secret)
    made = webhook.Webhooks(
        webhook.receivers(settings.webhook, settings.webhook_format, secret),
        monitor.jobs,
        monitor.clock.now,
        outbox=outbox,
        events=webhook.events(settings.webhook_events),
        external_url=settings.external_url,
        team_of=lambda job_id: monitor.team_of(job_id),
    )
    if outbox is not None:
        outbox.attach(made.rows_about)
    log.info("webhooks go to %s", ", ".join(delivery.name for delivery in made.deliveries.values()))
    return made


def _wandb(settings: Settings, url: str) -> wandb.WandbPublisher | None:
    if settings.wandb_project is None or not _wants_wandb(settings) or not wandb.installed():
        return None
    mode, page = settings.wandb_mode or "online", settings.external_url or url
    where = Where(settings.wandb_project, settings.wandb_entity, mode, settings.wandb_dir, settings.wandb_series, page)
    wandb.prepare(os.environ, where)
    log.info("jobs are published to project %s of Weights & Biases (%s)", where.project, where.mode)
    return wandb.WandbPublisher(where)


def _print_error(message: str) -> None:
    sys.stderr.write(f"rankwatch monitor: {text.lines(message)}\n")


async def _run(server: uvicorn.Server, listener: socket.socket, settings: Settings) -> None:
    url = address(settings, listener)
    asyncio.get_running_loop().set_exception_handler(deadlines.out_of_descriptors)
    watcher = asyncio.create_task(_end_with(settings.parent_pid, server, settings.ready_file))
    idle = asyncio.create_task(_end_when_idle(settings.idle_exit, server))
    announcer = asyncio.create_task(_announce(url, server, settings))
    collector = asyncio.create_task(garbage.collect_rarely())
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
        idle.cancel()
        announcer.cancel()
        collector.cancel()


async def _announce(url: str, server: uvicorn.Server, settings: Settings) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    parts = [*(["page"] if web.is_built() else []), *(["manual"] if manual_files.is_built() else []), "API"]
    log.info("%s and OTLP at %s", ", ".join(parts), url)
    if not web.is_built():
        log.warning("this installation has no page: %s", web.HOW_TO_BUILD)
    if not manual_files.is_built():  # no warning: a launcher prints those, and detection lacks nothing
        log.info("this installation has no manual: %s", manual_files.HOW_TO_BUILD)
    if settings.token and not settings.loopback and not settings.tls_cert:
        log.warning(
            "the token travels in clear text beyond this machine: give --tls-cert and --tls-key, or use a TLS proxy"
        )
    if settings.ready_file:
        replace_file(Path(settings.ready_file), json.dumps({"url": url, "pid": os.getpid(), "page": web.is_built()}))


def _end_while_loading(parent: int) -> None:
    """End this reader of a record when the process that started it is gone: a hostile record may take long to load."""
    while _is_there(parent):
        time.sleep(1.0)
    time.sleep(_GRACE)  # one that serves by now ends by itself
    os._exit(1)


def _is_there(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


async def _end_with(parent: int | None, server: uvicorn.Server, ready_file: str | None) -> None:
    """End the server when the process that started it is gone, which cannot remove the folder of its ready file."""
    while parent is not None:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            log.info("the launcher (pid %d) is gone, so this monitor ends", parent)
            server.should_exit = True
            if ready_file:
                Path(ready_file).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # it holds other files, so it is not the launcher's
                    Path(ready_file).parent.rmdir()
            return
        except PermissionError:
            return
        await asyncio.sleep(1.0)


async def _end_when_idle(seconds: int, server: uvicorn.Server) -> None:
    """End the server after this long without a request and without an open stream; 0: never."""
    if not seconds:
        return
    since, requests = time.monotonic(), 0
    while time.monotonic() - since < seconds:
        await asyncio.sleep(min(1.0, seconds / 4))
        state = server.server_state
        if state.tasks or state.total_requests != requests:  # an open page has a task: its live stream
            since, requests = time.monotonic(), state.total_requests
    log.info("nothing was asked for %d s, so this monitor ends", seconds)
    server.should_exit = True


def _listen(settings: Settings) -> socket.socket:
    """The socket to serve.

    Raises:
        ValueError: there is none.
    """
    if settings.listen_fd is not None:
        try:
            inherited = socket.socket(fileno=settings.listen_fd)
        except OSError as error:
            raise ValueError(f"--listen-fd {settings.listen_fd} is no socket: {error.strerror}") from None
        inherited.set_inheritable(False)
        return inherited
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "another --port may be free, --port 0 takes any"
        ) from None
    return listener


def address(settings: Settings, listener: socket.socket) -> str:
    """The URL under which the monitor is reached from this machine."""
    scheme = "https" if settings.tls_cert else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"
