"""The launcher's line to the monitor: register, take directives, send events. On threads of its own; it fails open.

Nothing here blocks the agent's loop and nothing it raises reaches it. What cannot be sent waits in a bounded queue
and goes out in order when the monitor is back, events that follow each other in one request; one line says when the
monitor is lost and one when it has returned.
"""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice, takewhile
from typing import Any, Final
from urllib.parse import quote, urlsplit

import requests

from rankwatch.contract.enums import AckState, DirectiveKind
from rankwatch.contract.intervals import POLL_SECONDS
from rankwatch.contract.messages import Directive, DirectiveAck, NodeRegistration, read
from rankwatch.contract.semconv import API_PREFIX, JOB_HEADER
from rankwatch_launcher.log import logger

QUEUE_LIMIT: Final = 1000
"""Posts kept while the monitor is away: hours of events, minutes of evidence."""
EVENTS: Final = "process-events"
"""The path of posts of which several make one request: their lists are joined."""
TOGETHER: Final = 100
"""Such posts in one request at most."""

_CONNECT_SECONDS: Final = 3.05
_READ_SECONDS: Final = 10.0
_BACKOFF: Final = (0.2, 5.0)
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

Body = Callable[[], Mapping[str, Any]]
"""Makes the JSON when it is sent, so that ages are right however long it waited."""


class RefusedError(Exception):
    """The monitor answered, and it will not take this."""


class UnknownJobError(Exception):
    """The monitor does not know the job: it has lost its store."""


class Control:
    """The connection to one monitor. Before :meth:`connect` everything is queued; after :meth:`close` it is dropped."""

    def __init__(self, job_id: str, registration: Callable[[], NodeRegistration]) -> None:
        self.job_id = job_id
        self.url = ""
        self.on_directive: Callable[[Directive], None] = lambda _: None
        self.on_registered: Callable[[Mapping[str, Any], bool], None] = lambda _settings, _again: None
        self._registration = registration
        self._token = ""
        self._queue: collections.deque[tuple[str, Body]] = collections.deque(maxlen=QUEUE_LIMIT)
        self._put_off: list[tuple[float, str, Body]] = []
        """Posts that join the queue at their moment."""
        self._changed = threading.Condition()
        self._registered = threading.Event()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._away = False
        self._ever = False
        self._patient_until = 0.0
        self._complaints: set[str] = set()
        self._after = 0

    def connect(
        self, url: str, token: str = "", *, ready: Callable[[], object] | None = None, patience: float = 0.0
    ) -> None:
        """Begin to talk to the monitor at ``url``.

        Args:
            url: where it is, or will be.
            token: what it asks for.
            ready: waited for first, on the connection's own thread.
            patience: for so many seconds it may be starting still, and not answering is nothing to speak of.
        """
        self._patient_until = time.monotonic() + patience
        self.url, self._token = url.rstrip("/"), token
        for target, name in ((lambda: self._listen(ready), "listen"), (self._send, "send")):
            thread = threading.Thread(target=target, name=f"rankwatch-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def post(self, path: str, body: Body, *, delay: float = 0.0) -> None:
        """Send ``body`` to a path below the job after ``delay`` seconds, once the monitor is there. Never blocks."""
        if self._closing.is_set():
            return
        with self._changed:
            self._put_off.append((time.monotonic() + delay, path, body))
            self._ripen()
            self._changed.notify()

    def ack(self, node: str, directive: Directive, state: AckState, detail: str, max_iteration: int | None) -> None:
        """Answer a directive."""
        answer = DirectiveAck(node, state, detail, max_iteration)
        self.post(f"directives/{directive.id}/acks", lambda: asdict(answer))

    def try_post(self, session: requests.Session, path: str, body: Mapping[str, Any]) -> bool:
        """Send at once or not at all: for what is stale a second later. The session is the calling thread's own."""
        if not self._registered.is_set():
            return False
        try:
            self._call(session, "POST", path, json=body)
        except (requests.RequestException, RefusedError, UnknownJobError):
            # The listening thread meets the same trouble, says so and registers again.
            return False
        return True

    def session(self) -> requests.Session:
        """A session for one thread; sessions must not be shared between threads."""
        session = requests.Session()
        if urlsplit(self.url).hostname in LOOPBACK:
            # A proxy from the environment cannot reach this machine's loopback.
            session.trust_env = False
        session.headers[JOB_HEADER] = quote(self.job_id, safe="")
        if self._token:
            session.headers["Authorization"] = f"Bearer {self._token}"
        return session

    def close(self, timeout: float) -> None:
        """Send what is queued, for at most ``timeout`` seconds and if the monitor is there; then end the threads."""
        until = time.monotonic() + timeout
        with self._changed:
            # What was put off is older than how the job ended, and belongs before it.
            latest, self._put_off = sorted(self._put_off, key=lambda item: item[0], reverse=True), []
            self._queue.extendleft(item[1:] for item in latest[: max(0, QUEUE_LIMIT - len(self._queue))])
            self._changed.notify_all()
            while self.url and self._ripen(math.inf) and not self._away and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._closing.set()
            self._changed.notify_all()

    # The listening thread --------------------------------------------------------------------------------------------

    def _listen(self, ready: Callable[[], object] | None) -> None:
        if ready is not None:
            ready()
        session, delay = self.session(), _BACKOFF[0]
        while not self._closing.is_set():
            try:
                if not self._registered.is_set():
                    self._register(session)
                self._poll(session)
                delay = _BACKOFF[0]
            except UnknownJobError:
                self._registered.clear()
            except (requests.RequestException, RefusedError, ValueError) as error:
                self._trouble(error)
                self._closing.wait(delay)
                delay = min(delay * 2, _BACKOFF[1])

    def _register(self, session: requests.Session) -> None:
        answer = self._call(session, "POST", "nodes", json=asdict(self._registration()))
        settings, last = answer.get("settings"), answer.get("last_directive")
        self._after = last if isinstance(last, int) else 0
        self._fine()
        if not self._ever:
            logger.info("watched by %s as job %s", self.url, self.job_id)
        self.on_registered(settings if isinstance(settings, Mapping) else {}, self._ever)
        self._ever = True
        self._registered.set()
        with self._changed:
            self._changed.notify_all()

    def _poll(self, session: requests.Session) -> None:
        registration = self._registration()
        # After a silence the first answer must come at once: until then nobody knows that the monitor is back.
        wait = 0.0 if self._away else POLL_SECONDS
        query = {"after": str(self._after), "node": registration.node, "wait": f"{wait:g}"}
        answer = self._call(session, "GET", "directives", params=query, read_timeout=POLL_SECONDS + _READ_SECONDS)
        self._fine()
        for item in answer.get("directives", ()):
            self._after = max(self._after, int(item["id"]))
            try:
                directive = read_directive(item)
            except ValueError as error:
                self._complain(f"a directive was not understood: {error}")
            else:
                self.on_directive(directive)

    # The sending thread ----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        session, delay, alone = self.session(), _BACKOFF[0], 0
        while True:
            with self._changed:
                while not (self._ripen() and self._registered.is_set()) and not self._closing.is_set():
                    next_at = min((at for at, _, _ in self._put_off), default=math.inf)
                    self._changed.wait(min(1.0, max(0.0, next_at - time.monotonic())))
                if self._closing.is_set():
                    return
                items = _together(self._queue, 1 if alone else TOGETHER)
            path = items[0][0]
            try:
                self._call(session, "POST", path, json=_joined(items))
                delay = _BACKOFF[0]
            except UnknownJobError:
                self._registered.clear()
                continue
            except requests.RequestException as error:
                self._trouble(error)
                self._closing.wait(delay)
                delay = min(delay * 2, _BACKOFF[1])
                continue
            except (RefusedError, ValueError) as error:
                if len(items) > 1:
                    alone = len(items)  # one of them is to blame: only that one is lost
                    continue
                self._complain(f"{path} was not taken: {error}")
            alone = max(0, alone - 1)
            with self._changed:
                for item in items:
                    # A full queue may have dropped it in the meantime, and the end of it all put others before it.
                    with contextlib.suppress(ValueError):
                        self._queue.remove(item)
                drained = not self._queue
                self._changed.notify_all()
            if drained:
                session.close()  # it is seldom needed, and the monitor has one of every launcher open already

    def _ripen(self, now: float | None = None) -> bool:
        """Queue what was put off until now; say whether anything is queued. Whoever calls holds the lock."""
        now = time.monotonic() if now is None else now
        for item in sorted((item for item in self._put_off if item[0] <= now), key=lambda item: item[0]):
            self._put_off.remove(item)
            self._queue.append(item[1:])
        return bool(self._queue)

    # Both ------------------------------------------------------------------------------------------------------------

    def _call(
        self,
        session: requests.Session,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        read_timeout: float = _READ_SECONDS,
    ) -> dict[str, Any]:
        url = f"{self.url}{API_PREFIX}/jobs/{quote(self.job_id, safe='')}/{path}"
        answer = session.request(method, url, json=json, params=params, timeout=(_CONNECT_SECONDS, read_timeout))
        if answer.status_code == 404 and path != "nodes":
            raise UnknownJobError
        if answer.status_code in (408, 429) or answer.status_code >= 500:
            raise requests.HTTPError(f"{answer.status_code} {answer.reason}")
        if answer.status_code >= 400:
            raise RefusedError(f"{answer.status_code} {answer.reason} {answer.text[:300]}".strip())
        if answer.status_code == 204 or not answer.content:
            return {}
        body = answer.json()
        if not isinstance(body, dict):
            raise ValueError(f"{url} answered something that is no JSON object")
        return body

    def _trouble(self, error: Exception) -> None:
        if isinstance(error, RefusedError):
            self._complain(f"the monitor at {self.url} refuses this launcher: {error}")
        elif not self._ever and time.monotonic() < self._patient_until:
            return
        else:
            with self._changed:  # two threads come here: one of them says it
                known = self._away or self._closing.is_set()
                self._away = self._away or not known
                self._changed.notify_all()
            if not known:
                logger.warning(
                    "the monitor at %s does not answer (%s); training goes on, crashed ranks are still restarted",
                    self.url,
                    _short(error),
                )

    def _fine(self) -> None:
        if self._away:
            self._away = False
            logger.info("the monitor at %s answers again", self.url)

    def _complain(self, words: str) -> None:
        if words not in self._complaints and len(self._complaints) < 20:
            self._complaints.add(words)
            logger.warning("%s", words)


def _together(queue: Iterable[tuple[str, Body]], most: int) -> list[tuple[str, Body]]:
    """The first post of a queue, and those right behind it that go in the same request."""
    first = next(iter(queue))
    most = most if first[0] == EVENTS else 1
    return list(islice(takewhile(lambda item: item[0] == first[0], queue), most))


def _joined(items: Sequence[tuple[str, Body]]) -> Mapping[str, Any]:
    bodies = [body() for _, body in items]
    return bodies[0] if len(bodies) == 1 else {"events": [event for body in bodies for event in body["events"]]}


def read_directive(item: Mapping[str, Any]) -> Directive:
    """Read a directive and its kind.

    Raises:
        ValueError: it lacks a field, or its kind is unknown to this version.
    """
    plain = read(Directive, item)
    return read(Directive, {**item, "kind": DirectiveKind(plain.kind)})


def _short(error: Exception) -> str:
    text = str(error)
    return "connection refused" if "refused" in text.lower() else f"{type(error).__name__}: {text[:120]}"
