"""Emulated launchers, one for each node: what ``rankwatch run`` states to a monitor beside the telemetry of its ranks.

How this works
--------------
What is sent, when and on how many connections is what ``rankwatch_launcher`` does: it registers, reports started
ranks, holds a long poll open, shows itself at times, speaks for ranks past their limit, takes stacks when it is asked
to, and starts its ranks again. Bodies are made by the shapes of ``rankwatch.contract.messages``, paces by
``rankwatch.contract.intervals``. Nothing runs on a node: stacks are always the same, and a capture or a restart is a
pause.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import _table
from _load_fleet import Fleet
from _load_stacks import STUCK, TENSOR_PARALLEL, WAITING, collectives

from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind, ProcessState
from rankwatch.contract.intervals import (
    LAUNCHER_HEARTBEAT_SECONDS,
    POLL_SECONDS,
    evidence_spread,
    launcher_heartbeat_seconds,
    omits_redundant_reports,
    proxy_report_seconds,
)
from rankwatch.contract.messages import (
    Evidence,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
    RankObservation,
    RankStack,
)
from rankwatch.contract.semconv import API_PREFIX, JOB_HEADER

CAPTURE_SECONDS: Final = 0.5
"""What eight runs of py-spy at once take."""
RESTART_SECONDS: Final = 3.0
"""From the order to restart until the ranks run again."""
JOIN_SECONDS: Final = 5.0
"""Within which all launchers of a job begin."""
ANSWER_SECONDS: Final = 10.0
"""After which the launcher gives up an answer."""
BACKOFF: Final = 0.2
SENDING: Final = 4_000
"""Launchers that deliver something at the same time: all of them are one process here, with one limit of files."""
_PID: Final = 70_000
_NAME: Final = "THE-NAME"
_RANK: Final = 777_777_776
"""A number that nothing else has, and the first rank of a tensor-parallel group."""


class Reply(NamedTuple):
    """An answer; status 0: there was none."""

    status: int
    body: bytes = b""


class Line(asyncio.Protocol):
    """One kept connection, with one request under way at most; opened when it is needed."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        self._received = b""

    async def ask(self, request: bytes, timeout: float) -> Reply:
        """Send a request and wait for its answer."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                if self._transport is None or self._transport.is_closing():
                    self._transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
                self._received, self._answer = b"", loop.create_future()
                self._transport.write(request)
                return await self._answer
        except (OSError, TimeoutError):
            self.close()
            return Reply(0)
        finally:
            self._answer = None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or self._answer is None or self._answer.done():
            return
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
        if len(body) >= length:
            self._answer.set_result(Reply(int(lines[0].split(" ", 2)[1]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Reply(0))


@dataclass
class Tally:
    """What became of the launchers' requests."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """From a request to its answer, by what was asked; not of long polls, which are meant to last."""
    statuses: Counter[str] = field(default_factory=Counter)
    moments: dict[str, list[float]] = field(default_factory=dict)
    """When each launcher received or had done something, by what it was."""

    def note(self, what: str) -> None:
        """One launcher has come so far."""
        self.moments.setdefault(what, []).append(time.monotonic())


class Node:
    """One launcher."""

    def __init__(self, name: str, job: int, ranks: range, lines: Iterator[Line]) -> None:
        self.name, self.job, self.ranks = name, job, ranks
        self.listen, self.observe, self.send = lines
        self.beat = 0.0
        self.beat_at = math.inf
        """When it next states that it runs; not before it has registered."""
        self.speaking: asyncio.Task[None] | None = None
        """A word for its ranks that is under way."""
        self.attempt = 1
        self.sending = asyncio.Lock()
        """What is to be delivered goes out one after the other."""


def _written(ranks: tuple[int, ...], behind: frozenset[int], directive: int, attempt: int, incident: str | None) -> str:
    """The evidence of a node, with :data:`_NAME` for its own and ranks that count from :data:`_RANK`."""
    stacks = tuple(
        RankStack(
            _RANK + rank,
            _PID + local,
            "py-spy",
            STUCK if rank in behind else WAITING,
            process_state=ProcessState.ALIVE,
            collectives=tuple(collectives(_RANK + rank, behind=rank in behind)),
        )
        for local, rank in enumerate(ranks)
    )
    return json.dumps(asdict(Evidence(_NAME, attempt, incident, stacks, directive, seconds=CAPTURE_SECONDS)))


def node_name(number: int) -> str:
    """The name of a launcher, as launchers make it: host, process, and a part that no other has."""
    return f"node-{number:05d}-{_PID}-{number:04x}"


def registration(name: str, ranks: range) -> dict[str, Any]:
    """A launcher registers."""
    return asdict(NodeRegistration(name, f"{name}.cluster.internal", _PID, len(ranks)))


def started(name: str, attempt: int, ranks: range, world: int) -> dict[str, Any]:
    """It has started its ranks."""
    kind = ProcessEventKind.STARTED
    events = [
        ProcessEvent(name, kind, attempt, rank=rank, local_rank=local, pid=_PID + local, world_size=world)
        for local, rank in enumerate(ranks)
    ]
    return {"events": [asdict(event) for event in events]}


def poll_path(name: str, after: int) -> str:
    """Where a launcher waits for the directives that follow ``after``."""
    return f"directives?after={after}&node={name}&wait={POLL_SECONDS:g}"


def common_headers(netloc: str) -> str:
    """What each request of a launcher has in its head."""
    headers = f"host: {netloc}\r\nuser-agent: python-requests/2\r\naccept-encoding: gzip, deflate\r\n"
    return headers + "accept: */*\r\nconnection: keep-alive\r\n"


def request(method: str, job: str, path: str, headers: str, body: bytes = b"") -> bytes:
    """The bytes of a request about a job."""
    job = quote(job, safe="")
    head = f"{method} {API_PREFIX}/jobs/{job}/{path} HTTP/1.1\r\n{headers}{JOB_HEADER}: {job}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Launchers:
    """The launchers of all jobs of a fleet."""

    def __init__(self, fleet: Fleet, url: str, limit: float) -> None:
        """Prepare; ``limit`` is that of the section ``step`` in jobs that hang, in seconds."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._fleet, self._limit, self.tally = fleet, limit, Tally()
        self._headers = common_headers(parts.netloc)
        self.nodes = [
            Node(node_name(number), job, ranks, iter([self._line() for _ in range(3)]))
            for number, (job, ranks) in enumerate(fleet.members)
        ]
        count = len(self.nodes) // len(fleet.jobs)
        self._beat, self._word = launcher_heartbeat_seconds(count), proxy_report_seconds(count)
        self._spares, self._spread = omits_redundant_reports(count), evidence_spread(count)
        self._written: dict[tuple[tuple[int, ...], frozenset[int], int, int], str] = {}
        """Evidence as it is sent, but for names and ranks."""
        self._room = asyncio.Semaphore(SENDING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._look_at = 0.0

    def start(self) -> None:
        """Let all of them begin, within a few seconds."""
        for node in self.nodes:
            after = random.uniform(0, JOIN_SECONDS)
            node.beat = LAUNCHER_HEARTBEAT_SECONDS if 0 in node.ranks else self._beat
            self._task(self._live(node, after))
        self._task(self._show())

    async def close(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.nodes:
            for line in (node.listen, node.observe, node.send):
                line.close()

    def forget(self) -> None:
        """Count again from here on."""
        self.tally = Tally()

    def figures(self) -> dict[str, Any]:
        """What is to be printed."""
        tally = self.tally
        first = min((at for moments in tally.moments.values() for at in moments), default=0.0)
        return {
            "emulated launchers": len(self.nodes),
            **{f"launchers' {what}, s": _table.spread(took) for what, took in sorted(tally.seconds.items())},
            "launchers' answers": dict(sorted(tally.statuses.items())),
            "launchers came so far, s after the first": {
                what: f"{len(at)}: {min(at) - first:.2f} to {max(at) - first:.2f}" for what, at in tally.moments.items()
            },
        }

    # One launcher -----------------------------------------------------------------------------------------------------

    async def _live(self, node: Node, after: float) -> None:
        await asyncio.sleep(after)
        body = registration(node.name, node.ranks)
        while (reply := await self._post(node, node.listen, "nodes", body)).status != 200:
            await asyncio.sleep(BACKOFF)
        node.beat_at = time.monotonic() + random.random() * node.beat
        last = int(json.loads(reply.body)["last_directive"])
        self._task(self._started(node))
        while True:
            asked = self._request("GET", node, poll_path(node.name, last))
            reply = await node.listen.ask(asked, POLL_SECONDS + ANSWER_SECONDS)
            self.tally.statuses[f"asked {reply.status}"] += 1
            if reply.status != 200:
                await asyncio.sleep(BACKOFF)
                continue
            for directive in json.loads(reply.body)["directives"]:
                last = max(last, directive["id"])
                self._task(self._obey(node, directive))

    async def _obey(self, node: Node, directive: dict[str, Any]) -> None:
        kind = directive["kind"]
        self.tally.note(f"received {kind}")
        detail = ""
        if kind == DirectiveKind.CAPTURE:
            if not self._spares or 0 in node.ranks:
                await self._deliver(node, "observations", self._seen(node))
            await asyncio.sleep(random.uniform(CAPTURE_SECONDS, 2 * CAPTURE_SECONDS) + random.random() * self._spread)
            await self._deliver(node, "evidence", self._evidence(node, directive))
            self.tally.note("delivered evidence")
            detail = f"{len(node.ranks)} stacks"
        ack = {"node": node.name, "state": AckState.DONE, "detail": detail, "max_iteration": None}
        if not self._spares:
            await self._deliver(node, f"directives/{directive['id']}/acks", ack)
        if kind == DirectiveKind.RESTART:
            await asyncio.sleep(RESTART_SECONDS)
            node.attempt = directive["attempt"] + 1
            if self._fleet.jobs[node.job].attempt < node.attempt:
                self._fleet.restart(node.job)
            await self._started(node)
            self.tally.note("reported started ranks")

    async def _started(self, node: Node) -> None:
        world = self._fleet.shape.ranks_a_job
        body = started(node.name, node.attempt, node.ranks, world)
        await self._deliver(node, "process-events", body)

    async def _show(self) -> None:
        """Beats of all launchers, and in small jobs their words for ranks past a limit."""
        while True:
            now = time.monotonic()
            looks = now >= self._look_at
            self._look_at = now + self._word if looks else self._look_at
            for node in self.nodes:
                late = looks and not self._spares and self._past_limit(node.job, now)
                late = late and node.beat_at < math.inf
                if (late or now >= node.beat_at) and (node.speaking is None or node.speaking.done()):
                    node.beat_at = now + node.beat
                    printed = self._seen(node) if late else asdict(NodeObservation(node.name, node.attempt))
                    node.speaking = self._task(self._speak(node, printed))
            await asyncio.sleep(0.05)

    async def _speak(self, node: Node, printed: dict[str, Any]) -> None:
        await self._post(node, node.observe, "observations", printed)

    def _past_limit(self, job: int, now: float) -> bool:
        emulated, step = self._fleet.jobs[job], self._fleet.shape.step_seconds
        if emulated.hung_at > now:
            return False
        entered = emulated.began + (emulated.hung_at - emulated.began) // step * step
        return now > entered + self._limit

    def _seen(self, node: Node) -> dict[str, Any]:
        job, now, step = self._fleet.jobs[node.job], time.monotonic(), self._fleet.shape.step_seconds
        trained = min(now, job.hung_at) - job.began
        age = now - job.began - trained // step * step
        ranks = tuple(
            RankObservation(
                rank,
                _PID + local,
                ProcessState.ALIVE,
                pulse_age=0.1,
                iteration=job.first_iteration + int(trained / step),
                progress=1000,
                open_sections={"step": age, "backward": max(0.0, age - step / 2)},
                idle=now - job.began,
                uses_sections=True,
                quiet=max(0.0, age - step / 2),
            )
            for local, rank in enumerate(node.ranks)
        )
        return asdict(NodeObservation(node.name, node.attempt, ranks))

    def _evidence(self, node: Node, directive: dict[str, Any]) -> bytes:
        first = node.ranks.start // TENSOR_PARALLEL * TENSOR_PARALLEL
        ranks = tuple(rank - first for rank in node.ranks)
        behind = frozenset(rank - first for rank in self._fleet.jobs[node.job].hung_ranks)
        what = (ranks, behind.intersection(ranks), directive["id"], node.attempt)
        if what not in self._written:
            self._written[what] = _written(*what, directive["incident_id"])
        text = self._written[what].replace(_NAME, node.name)
        for number in range(ranks[-1] // TENSOR_PARALLEL * TENSOR_PARALLEL + TENSOR_PARALLEL):
            text = text.replace(str(_RANK + number), str(first + number))
        return text.encode()

    # Requests ---------------------------------------------------------------------------------------------------------

    async def _deliver(self, node: Node, path: str, body: dict[str, Any] | bytes) -> None:
        """Send until it is taken, as the launcher's queue does."""
        async with node.sending, self._room:
            while (await self._post(node, node.send, path, body)).status in (0, 408, 429, 500, 502, 503, 504):
                await asyncio.sleep(BACKOFF)
            node.send.close()  # as the launcher does, once nothing is left to be sent

    async def _post(self, node: Node, line: Line, path: str, body: dict[str, Any] | bytes) -> Reply:
        began, written = time.monotonic(), body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await line.ask(self._request("POST", node, path, written), ANSWER_SECONDS)
        what = "acks" if path.endswith("acks") else path
        self.tally.statuses[f"{what} {reply.status}"] += 1
        self.tally.seconds.setdefault(what, []).append(time.monotonic() - began)
        return reply

    def _request(self, method: str, node: Node, path: str, body: bytes = b"") -> bytes:
        return request(method, self._fleet.jobs[node.job].id, path, self._headers, body)

    def _line(self) -> Line:
        return Line(self._host, self._port)

    def _task(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
