"""The launcher's link to the monitor: registers, polls directives, posts events, on two threads. It fails open.

The agent's loop is never blocked by it and never sees its exceptions. Posts wait in a bounded queue while the monitor
is unreachable and are sent in order afterwards, adjacent events in one request. Loss and return of the monitor are
logged once each.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice, takewhile
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from rankwatch.contract import env
from rankwatch.contract.enums import AckState
from rankwatch.contract.http_connection import HttpConnection, Response, reason_of
from rankwatch.contract.intervals import POLL_SECONDS
from rankwatch.contract.messages import Directive, DirectiveAck, NodeRegistration, RunClaim
from rankwatch.contract.rank_output import LogRequest
from rankwatch.contract.semconv import API_PREFIX, JOB_HEADER
from rankwatch.contract.tls import TlsFiles
from rankwatch.monitor_client import is_loopback
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor import answers

QUEUE_LIMIT: Final = 1000
"""Posts kept while the monitor is unreachable: hours of events, minutes of evidence."""
EVENTS: Final = "process-events"
"""Path of posts that can be batched into one request."""
MAX_BATCH: Final = 100

_CONNECT_SECONDS: Final = 3.05
_READ_SECONDS: Final = 10.0
_BACKOFF: Final = (0.2, 5.0)
_LONGEST_WARNING: Final = 2_000
"""Characters of one warning of the monitor."""

Body = Callable[[], Mapping[str, Any]]
"""Builds the JSON when it is sent, so that ages are right however long it was queued."""


class RefusedError(Exception):
    """The monitor rejected the request."""


class ConflictError(Exception):
    """Another run has the job's id."""


class UnknownJobError(Exception):
    """The monitor does not know the job: it lost its store."""


class UnavailableError(OSError):
    """The monitor, or a proxy before it, cannot serve the request now."""


class MonitorLink:
    """The link to one monitor. Before :meth:`connect` posts are queued; after :meth:`close` they are dropped."""

    def __init__(self, job_id: str, registration: Callable[[], NodeRegistration]) -> None:
        self.job_id = job_id
        self.url = ""
        self.on_directive: Callable[[Directive], None] = lambda _: None
        self.on_log_request: Callable[[LogRequest], None] = lambda _: None
        self.on_registered: Callable[[Mapping[str, Any], bool], None] = lambda _settings, _again: None
        self._registration = registration
        self._token = ""
        self._prefix = ""
        self._tls = TlsFiles.of(os.environ)
        self._queue: collections.deque[tuple[str, Body]] = collections.deque(maxlen=QUEUE_LIMIT)
        self._delayed: list[tuple[float, str, Body]] = []
        """Posts with the time at which they join the queue."""
        self._changed = threading.Condition()
        self._registered = threading.Event()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._unreachable = False
        self._was_registered = False
        self._patient_until = 0.0
        self._warned: set[str] = set()
        self._after = 0

    def connect(
        self, url: str, token: str = "", *, ready: Callable[[], object] | None = None, patience: float = 0.0
    ) -> None:
        """Connect to the monitor at ``url``.

        Args:
            url: its address; it need not listen yet.
            ready: called first, on the link's thread; returns when the monitor is ready, False when it is not yet.
            patience: seconds in which it may still be starting, so that failures are not logged.
        """
        self._patient_until = time.monotonic() + patience
        self.url, self._token = url.rstrip("/"), token
        self._prefix = urlsplit(self.url).path
        for target, name in ((lambda: self._poll_directives(ready), "listen"), (self._send, "send")):
            thread = threading.Thread(target=target, name=f"rankwatch-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def claim(self, url: str, token: str, claim: RunClaim) -> str:
        """Claim the job's id for a run, before :meth:`connect`; returns why it is refused, empty if it is not.

        A monitor that is away refuses nothing.
        """
        self.url, self._token = url.rstrip("/"), token
        self._prefix = urlsplit(self.url).path
        try:
            with contextlib.closing(self.connection()) as connection:
                self._call(connection, "POST", "runs", asdict(claim), read_timeout=_CONNECT_SECONDS)
        except ConflictError as refused:
            return str(refused)
        except (OSError, RefusedError, UnknownJobError, ValueError):
            return ""
        return ""

    def post(self, path: str, body: Body, *, delay: float = 0.0) -> None:
        """Queue ``body`` for a path below the job after ``delay`` seconds. Never blocks."""
        if self._closing.is_set():
            return
        with self._changed:
            self._delayed.append((time.monotonic() + delay, path, body))
            self._queue_delayed()
            self._changed.notify()

    def ack(self, node: str, directive: Directive, state: AckState, detail: str, max_iteration: int | None) -> None:
        """Acknowledge a directive."""
        answer = DirectiveAck(node, state, detail, max_iteration)
        self.post(f"directives/{directive.id}/acks", lambda: asdict(answer))

    def try_post(self, connection: HttpConnection, path: str, body: Mapping[str, Any]) -> bool:
        """Send at once or not at all, for what is stale a second later, over a connection of the calling thread."""
        if not self._registered.is_set():
            return False
        try:
            self._call(connection, "POST", path, body)
        except (OSError, RefusedError, UnknownJobError, ValueError):
            # The polling thread meets the same error, logs it and registers again.
            return False
        return True

    def connection(self) -> HttpConnection:
        """A connection for one thread."""
        # A proxy from the environment cannot reach loopback.
        return HttpConnection(
            self.url, tls=self._tls.context, proxies=not is_loopback(self.url), connect_timeout=_CONNECT_SECONDS
        )

    def close(self, timeout: float) -> None:
        """Send what is queued if the monitor is reachable, at most ``timeout`` seconds long; then end the threads."""
        until = time.monotonic() + timeout
        with self._changed:
            # Delayed posts are older than the event that ended the job: they come first.
            latest, self._delayed = sorted(self._delayed, key=lambda item: item[0], reverse=True), []
            self._queue.extendleft(item[1:] for item in latest[: max(0, QUEUE_LIMIT - len(self._queue))])
            self._changed.notify_all()
            while (
                self.url
                and self._queue_delayed(math.inf)
                and not self._unreachable
                and (left := until - time.monotonic()) > 0
            ):
                self._changed.wait(left)
            self._closing.set()
            self._changed.notify_all()

    # The polling thread ----------------------------------------------------------------------------------------------

    def _poll_directives(self, ready: Callable[[], object] | None) -> None:
        while ready is not None and ready() is False:
            if self._closing.is_set():
                return  # it has never listened: what does so at its address is no monitor of this job
        connection, delay = self.connection(), _BACKOFF[0]
        while not self._closing.is_set():
            try:
                if not self._registered.is_set():
                    self._register(connection)
                self._poll(connection)
                delay = _BACKOFF[0]
            except UnknownJobError:
                self._registered.clear()
            except (OSError, RefusedError, ValueError) as error:
                self._on_error(error)
                self._closing.wait(delay)
                delay = min(delay * 2, _BACKOFF[1])
            except Exception as error:  # noqa: BLE001 - the thread's boundary: without it nothing of the monitor arrives
                self._warn_once(f"an answer of the monitor could not be used: {error!r}")
                self._closing.wait(delay)
                delay = min(delay * 2, _BACKOFF[1])

    def _register(self, connection: HttpConnection) -> None:
        answer = self._call(connection, "POST", "nodes", asdict(self._registration()))
        self._after = answers.whole(answer, "last_directive")
        self._log_reachable()
        if not self._was_registered:
            logger.debug("connected to the monitor at %s as job %s", self.url, self.job_id)
        self.on_registered(answers.settings_of(answer), self._was_registered)
        self._was_registered = True
        self._registered.set()
        with self._changed:
            self._changed.notify_all()

    def _poll(self, connection: HttpConnection) -> None:
        registration = self._registration()
        # After an outage the first poll does not wait, so that the monitor's return is noticed at once.
        wait = 0.0 if self._unreachable else POLL_SECONDS
        query = urlencode({"after": str(self._after), "node": registration.node, "wait": f"{wait:g}"})
        answer = self._call(connection, "GET", f"directives?{query}", read_timeout=POLL_SECONDS + _READ_SECONDS)
        self._log_reachable()
        for item in answers.items(answer, "log_requests"):
            try:
                self.on_log_request(answers.read_log_request(item))
            except ValueError as error:
                self._warn_once(f"invalid question for logs ignored: {error}")
        if not isinstance(answer.get("directives"), list):
            raise ValueError("its answer has no list of directives")
        for item in answer["directives"]:
            self._after = max(self._after, answers.whole(item, "id") if isinstance(item, dict) else 0)
            try:
                directive = answers.read_directive(item)
            except ValueError as error:
                self._warn_once(f"invalid directive ignored: {error}")
                self._closing.wait(_BACKOFF[0])  # one without a number would come again at once
            else:
                self.on_directive(directive)

    # The sending thread ----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        connection, delay, unbatched = self.connection(), _BACKOFF[0], 0
        while True:
            with self._changed:
                while not (self._queue_delayed() and self._registered.is_set()) and not self._closing.is_set():
                    next_at = min((at for at, _, _ in self._delayed), default=math.inf)
                    self._changed.wait(min(1.0, max(0.0, next_at - time.monotonic())))
                if self._closing.is_set():
                    return
                items = _batch(self._queue, 1 if unbatched else MAX_BATCH)
            path = items[0][0]
            try:
                self._call(connection, "POST", path, _joined_body(items))
                delay = _BACKOFF[0]
            except UnknownJobError:
                self._registered.clear()
                continue
            except OSError as error:
                self._on_error(error)
                self._closing.wait(delay)
                delay = min(delay * 2, _BACKOFF[1])
                continue
            except Exception as error:  # noqa: BLE001 - the thread's boundary, and what the monitor rejects
                if len(items) > 1:
                    unbatched = len(items)  # send each by itself: only the rejected one is lost
                    continue
                self._warn_once(f"the monitor rejected {path}: {error}")
            unbatched = max(0, unbatched - 1)
            with self._changed:
                for item in items:
                    # A full queue may have dropped it meanwhile, and close() may have put others before it.
                    with contextlib.suppress(ValueError):
                        self._queue.remove(item)
                drained = not self._queue
                self._changed.notify_all()
            if drained:
                connection.close()  # rarely needed; the monitor already holds one connection of every launcher

    def _queue_delayed(self, now: float | None = None) -> bool:
        """Queue delayed posts that are due; return whether the queue holds any. Call it with the lock held."""
        now = time.monotonic() if now is None else now
        for item in sorted((item for item in self._delayed if item[0] <= now), key=lambda item: item[0]):
            self._delayed.remove(item)
            self._queue.append(item[1:])
        return bool(self._queue)

    # Both ------------------------------------------------------------------------------------------------------------

    def _call(
        self,
        connection: HttpConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        read_timeout: float = _READ_SECONDS,
    ) -> dict[str, Any]:
        headers = {JOB_HEADER: quote(self.job_id, safe=""), "User-Agent": "rankwatch"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            # What a process said may name a file whose name is no text (a lone surrogate), which a monitor refuses.
            content = json.dumps(body, allow_nan=False, ensure_ascii=False).encode(errors="replace")
        target = f"{self._prefix}{API_PREFIX}/jobs/{quote(self.job_id, safe='')}/{path}"
        answer = connection.request(
            method, target, content, headers, timeout=read_timeout, limit=answers.LARGEST_ANSWER
        )
        status = f"{answer.status} {answer.reason}".rstrip()
        if 300 <= answer.status < 400:  # the token is for this address alone
            raise UnavailableError(f"{answer.status} redirects; give the address it redirects to")
        if answer.status == 404 and path != "nodes":
            raise UnknownJobError
        if answer.status in (408, 429) or answer.status >= 500:
            raise UnavailableError(status)
        if answer.status == 409 and path == "runs":
            raise ConflictError(answers.detail(answer.body) or answer.body[:300].decode(errors="replace"))
        if answer.status >= 400:
            raise RefusedError(_refusal(answer, bool(self._token)))
        if answer.status == 204 or not answer.body:
            return {}
        try:
            found = answers.read_object(answer.body)
        except ValueError:
            raise UnavailableError(f"{status} without JSON: it is not a Rankwatch monitor") from None
        for warning in answers.items(found, "warnings"):
            self._warn_once(str(warning)[:_LONGEST_WARNING])
        return found

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, RefusedError):
            self._warn_once(
                f"the monitor at {self.url} refuses this launcher: {error}. Training continues and crashes are "
                "restarted, but hangs are not detected"
            )
        elif not self._was_registered and time.monotonic() < self._patient_until:
            return
        else:
            with self._changed:  # called by two threads: one of them logs it
                logged = self._unreachable or self._closing.is_set()
                self._unreachable = self._unreachable or not logged
                self._changed.notify_all()
            if not logged:
                logger.warning(
                    "the monitor at %s does not answer (%s); training continues, crashed ranks are still restarted",
                    self.url,
                    reason_of(error),
                )

    def _log_reachable(self) -> None:
        if self._unreachable:
            self._unreachable = False
            logger.info("the monitor at %s answers again", self.url)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 20:
            self._warned.add(text)
            logger.warning("%s", text)


def _batch(queue: Iterable[tuple[str, Body]], limit: int) -> list[tuple[str, Body]]:
    """The first post of a queue, with those right behind it that fit into the same request."""
    first = next(iter(queue))
    limit = limit if first[0] == EVENTS else 1
    return list(islice(takewhile(lambda item: item[0] == first[0], queue), limit))


def _joined_body(items: Sequence[tuple[str, Body]]) -> Mapping[str, Any]:
    bodies = [body() for _, body in items]
    return bodies[0] if len(bodies) == 1 else {"events": [event for body in bodies for event in body["events"]]}


def _refusal(answer: Response, token_given: bool) -> str:
    """Why the monitor refused a request, and what to do: not its problem document."""
    if answer.status in (401, 403):
        what = "the token is not the monitor's" if token_given else "it wants a token"
        if answer.status == 403:
            what = "the token may not control this job"
        return f"{what}; give one in {env.TOKEN} (or --token) on every node"
    return f"{answer.status} {answers.detail(answer.body) or answer.reason}"
