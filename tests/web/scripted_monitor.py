"""A monitor that answers as a test configures it: states that real jobs reach rarely or slowly, at once and for long.

The shapes are those of the REST surface; of the monitor's own code ``mount``, the policy's checks and the phases of an
incident run here.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from rankwatch.cli.formatting import fault
from rankwatch.contract.enums import Action, JobState, LimitSource, RankState, VerdictKind
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.cause import Detection
from rankwatch_monitor.core.incident_record import Incident, Phase, Timeline
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import downtime, phases, responses
from rankwatch_monitor.core.views.stated import TONES
from rankwatch_monitor.web import mount
from support.served import served
from web.scripted_rows import TIMEOUTS, host_of, rank_scores, straggler
from web.scripted_tabs import COOKIE, add_tabs
from web.whole import ROOT, answer, event, get

OF_DETAIL = responses.JobDetail.__required_keys__ - responses.JobSummary.__required_keys__
LEGEND = [str(state) for state in RankState]
OUTER = [{"function": "main", "file": "/srv/ada/train.py", "line": 90, "of_script": True}]
WAITING = [
    {
        "function": "all_reduce",
        "file": "/v/lib/python3.11/site-packages/torch/distributed/c10d.py",
        "line": 3020,
        "of_script": False,
    }
]
STUCK = [{"function": "read_shard", "file": "/srv/ada/data.py", "line": 41, "of_script": True}]

CLOCK = r"(?:\d\d:\d\d:\d\d|\d+ \w+ \d\d:\d\d)"
"""A time of day on the page; one of yesterday has its date."""


@dataclass
class Script:
    """What the monitor reports; changed by the test while the page is open."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    ranks: dict[str, list[str]] = field(default_factory=dict)
    incidents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    goodput: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By job; a job that is not named is answered as by a monitor without this route."""
    goodput_readings: int = 0
    performance: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By job; a job that is not named has no figures of its speed yet."""
    slow_since: dict[str, float] = field(default_factory=dict)
    """Jobs whose steps became slower so many seconds ago; by job."""
    run: float = 3600.0
    """Seconds of which there is a history."""
    restarts: tuple[float, ...] = ()
    """How many seconds ago attempts began, besides the first."""
    logged: tuple[str, ...] = ()
    """Names of values that the training script logs."""
    broken: tuple[float, float] | None = None
    """The first logged value was NaN from so many seconds ago to so many."""
    pipeline: int = 0
    """Stages of the parallel layout that ranks report; 0: none."""
    kernels: bool = True
    """Whether ranks have reported kernels."""
    spans: bool = True
    """Whether ranks have sent spans."""
    policy: Policy = field(default_factory=Policy)
    ordered: list[dict[str, Any]] = field(default_factory=list)
    """Actions that were ordered."""
    control: str | None = None
    """The token that orders and changes need."""
    token: str | None = None
    seen_tokens: set[str | None] = field(default_factory=set)
    """What came as ``Authorization``."""
    seen_queries: set[str] = field(default_factory=set)
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Jobs that another monitor watches, and what is reported to those that ask here."""
    ahead: float = 0.0
    """Seconds that the monitor's clock is ahead of the browser's."""
    judged: float | None = None
    """When the jobs were last evaluated; None: just now."""
    frozen: bool = False
    """Connections stay open, and nothing is sent on them."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Answers by path below ``/api/v1``, instead of those below."""
    pictures: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    """By job: the events of its stream, instead of those that are made from the rest."""
    open: bool = False
    """Event streams end when this is False: the server would otherwise wait for them when it stops."""

    def add(self, job_id: str, ranks: list[str], **facts: Any) -> None:
        """Add a job with these rank states; what it loses time to makes its state, unless that is among the facts."""
        verdict = facts.get("verdict", "healthy")
        running = {"healthy": "running", "no_step": "no step"}.get(verdict, "slow")
        self.jobs[job_id] = {
            "id": job_id, "name": f"{job_id}-name", "state": running, "world_size": len(ranks),
            "ranks_reporting": len(ranks), "attempt": 1, "started_at": time.time() - 3600, "ended_at": None,
            "goodput": 0.97, "iteration": 1204, "iterations_per_second": 3.2, "instrumented": True,
            "verdict": verdict, "max_restarts": 3,
        } | facts  # fmt: skip
        self.ranks[job_id] = ranks
        self.incidents[job_id] = []

    def hang(self, job_id: str, rank: int, reason: str) -> dict[str, Any]:
        """Open an incident about one rank; the others wait."""
        now = time.time()
        self.ranks[job_id] = ["hung" if r == rank else "waiting" for r in range(len(self.ranks[job_id]))]
        self.jobs[job_id] |= {"state": "hung", "reason": reason, "open_incidents": 1, "incidents": 1}
        incident: dict[str, Any] = {
            "id": "i1", "job_id": job_id, "kind": "section_overrun", "attempt": 1, "opened_at": now - 2,
            "closed_at": None,
            "culprits": [{"rank": rank, "host": host_of(rank), "class": "behind"}],
            "reason": reason, "section": "step", "limit": 10.0, "elapsed": 10.2, "action": "restart",
            "action_reason": "a configured limit acts at once",
            "phase": "capturing", "confirmed": True, "outcome": "",
            "timeline": {"since": now - 12.2, "detected": now - 2, "decided": now - 2, "captured": None,
                         "restarted": None, "first_step": None},
        }  # fmt: skip
        self.incidents[job_id] = [incident]
        return incident

    def suspect(self, job_id: str, rank: int, reason: str) -> dict[str, Any]:
        """Open an incident that is not confirmed: a learned limit was passed, and the ranks may still go on."""
        incident = self.hang(job_id, rank, reason)
        incident["timeline"] |= {"decided": None, "captured": incident["timeline"]["detected"] + 1}
        incident |= {
            "confirmed": False, "phase": "confirming", "action_reason": "the policy is to restart",
            "acts_at": incident["opened_at"] + 60, "restart_cost": 42.0,
        }  # fmt: skip
        self.jobs[job_id] |= {"state": "suspected", "reason": reason}
        return incident

    def confirm(self, job_id: str) -> None:
        """Nothing has moved in the window: what was suspected is acted on."""
        [incident] = self.incidents[job_id]
        incident["timeline"]["decided"] = time.time()
        incident |= {"confirmed": True, "phase": "capturing"}
        self.jobs[job_id] |= {"state": "hung", "reason": incident["reason"]}

    def go_on(self, job_id: str) -> None:
        """Close the incident: the ranks went on by themselves."""
        [incident] = self.incidents[job_id]
        incident |= {
            "closed_at": time.time(),
            "phase": "closed",
            "ended": "went_on",
            "outcome": "the ranks went on by themselves",
        }
        self.jobs[job_id] |= {"state": "running", "reason": "", "open_incidents": 0}
        self.ranks[job_id] = ["running"] * len(self.ranks[job_id])

    def account(self, job_id: str, ratio: float, **buckets: float) -> None:
        """State where the time went; seconds by bucket. The ledger holds the job's incidents."""
        entries = [
            {
                "id": each["id"], "kind": each["kind"], "opened_at": each["opened_at"], "steps_lost": 3,
                "outcome": each["outcome"], "lost_steps_s": 3.0, "cost": {"seconds": 24.8, "since": None},
                "phases": _course(each["timeline"]["since"], detect=10.2, capture=1.1, restart=4.0, recover=6.5),
            }
            for each in self.incidents[job_id]
        ]  # fmt: skip
        self.jobs[job_id]["goodput"] = ratio
        self.goodput[job_id] = {
            "ratio": ratio, "window": {"seconds": 3600.0, "ratio": 0.9712}, "buckets": buckets, "incidents": entries,
        }  # fmt: skip

    def score(self, job_id: str, slow: tuple[int, ...] = (), verdict: str = "healthy", reason: str = "") -> None:
        """Give every rank scores; the others wait for the slow ones, each a little less than for the one before."""
        if verdict != "healthy" and self.jobs[job_id]["state"] == "running":
            self.jobs[job_id]["state"] = "slow"
        ranks, now = len(self.ranks[job_id]), time.time()
        lost = {rank: 0.4 / (1 + place) for place, rank in enumerate(slow)}
        blamed = [straggler(rank, share, now) for rank, share in lost.items()]
        others = [rank for rank in range(ranks) if rank not in lost]
        worst = [rank_scores(rank, lost.get(rank, 0.0)) for rank in (*slow, *others)][:10]
        scores = [1.0 - lost.get(rank, 0.004 * (rank % 4)) for rank in range(ranks)]
        spread = {"min": min(scores), "median": sorted(scores)[ranks // 2], "max": max(scores)}
        self.performance[job_id] = {
            "at": now - 12, "gpu_at": now - 40, "reference": "robust", "processing_seconds": 0.042, "ranks": worst,
            "overall": {"gpu_robust": spread, "gpu_relative": spread, "gpu_individual": None},
            "lowest": {"gpu_robust": scores.index(min(scores)), "gpu_relative": None, "gpu_individual": None},
            "stragglers": blamed, "open": len(blamed), "ended": [],
            "finding": {"verdict": verdict, "cause": blamed[0]["cause"] if blamed else "unexplained", "reason": reason,
                        "since": now - 600 if blamed else None, "ranks": list(slow),
                        "share": max(lost.values(), default=0.0)},
            "cost_gpu_hours": sum(each["cost_gpu_hours"] for each in blamed),
            "grid": {"robust": _look(scores), "lateness": _look([lost.get(rank, 0.0) for rank in range(ranks)])},
        }  # fmt: skip

    def speed_up(self, job_id: str) -> None:
        """All stragglers are as fast as the others again."""
        reported = self.performance[job_id]
        ended = [each | {"ended": time.time()} for each in reported["stragglers"]]
        self.score(job_id)
        self.performance[job_id] |= {"ended": ended, "cost_gpu_hours": reported["cost_gpu_hours"]}

    def heal(self, job_id: str) -> None:
        """Close the incident: restarted, and the first new step was seen."""
        [incident] = self.incidents[job_id]
        timeline = incident["timeline"]
        decided = timeline["decided"]
        now = decided + 5
        timeline |= {"captured": decided + 1, "restarted": decided + 4, "first_step": now}
        incident |= {
            "closed_at": now,
            "phase": "closed",
            "steps_lost": 3,
            "lost_steps_s": 3.0,
            "outcome": "Restarted as attempt 2.",
        }
        self.jobs[job_id] |= {"state": "running", "reason": "", "open_incidents": 0, "attempt": 2, "restarts": 1}
        self.ranks[job_id] = ["running"] * len(self.ranks[job_id])


def _look(values: list[float]) -> str:
    return base64.b64encode(bytes(min(254, round(200 * each)) for each in values)).decode()


@contextmanager
def serving(script: Script, port: int | None = None) -> Iterator[str]:
    """Serve the page and the script on loopback; yield the base URL."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port or 0))
    listener.listen()  # from here on a caller waits instead of being refused
    server = uvicorn.Server(uvicorn.Config(_app(script), log_level="error", timeout_graceful_shutdown=1, ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(served(server, listener)))
    script.open = True
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        script.open = False
        server.should_exit = True
        thread.join()
        listener.close()


class Login(BaseModel):
    """What a session is opened with."""

    token: str


def _scope(script: Script, token: str | None) -> str:
    return "control" if script.control in (None, token) else "read"


def _app(script: Script) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def authenticate(request: Request, proceed: Any) -> Any:
        if not request.url.path.startswith("/api"):
            return await proceed(request)
        while script.frozen:
            await asyncio.sleep(0.1)
        script.seen_tokens.add(request.headers.get("authorization"))
        script.seen_queries.add(request.url.query)
        opened = request.cookies.get(COOKIE)
        if request.url.path != "/api/v1/session" and script.token not in (None, opened):
            return _problem(401, "this monitor needs a token")
        return await proceed(request)

    @app.post("/api/v1/session")
    async def log_in(login: Login) -> Response:
        if login.token not in (script.token, script.control):
            return _problem(401, "the token is wrong")
        response = JSONResponse({"scope": _scope(script, login.token), "name": "mine"})
        response.set_cookie(COOKIE, login.token, httponly=True, samesite="strict")
        return response

    @app.delete("/api/v1/session", status_code=204)
    async def log_out(response: Response) -> None:
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    @app.get("/api/v1/session/grant")
    async def granted(request: Request) -> Any:
        guarded = script.token is not None or script.control is not None
        return {"scope": _scope(script, request.cookies.get(COOKIE)), "name": "mine" if guarded else "none"}

    @app.middleware("http")
    async def refuse(request: Request, proceed: Any) -> Any:
        words = script.elsewhere.get(request.url.path.removeprefix("/api/v1/jobs/").partition("/")[0])
        return await proceed(request) if words is None else _problem(503, words)

    @app.middleware("http")
    async def answered(request: Request, proceed: Any) -> Any:
        path = request.url.path.removeprefix(ROOT)
        found = script.answers.get(path)
        return await proceed(request) if found is None else JSONResponse(answer(path, found))

    @get(app, "/jobs")
    async def jobs() -> Any:
        return {"jobs": _listed(script)}

    @get(app, "/events")
    async def fleet_events() -> Response:
        return _stream(script, "FleetEvents", lambda: [("jobs", {"jobs": _listed(script)})])

    @get(app, "/hosts")
    async def hosts() -> Any:
        return {"hosts": script.hosts}

    @get(app, "/jobs/{job_id}")
    async def job(job_id: str) -> Any:
        if job_id not in script.jobs:
            return _problem(404, f"No job {job_id}.")
        return _stated(script.jobs[job_id]) | {"timeouts": TIMEOUTS}

    @get(app, "/jobs/{job_id}/goodput")
    async def goodput(job_id: str) -> Any:
        script.goodput_readings += 1
        return script.goodput.get(job_id) or _problem(404, "Not found.")

    add_tabs(app, script)

    @get(app, "/jobs/{job_id}/ranks")
    async def ranks(job_id: str) -> Any:
        if job_id not in script.jobs:
            return _problem(404, f"No job {job_id}.")
        looks = {
            name: base64.b64decode(text) for name, text in script.performance.get(job_id, {}).get("grid", {}).items()
        }
        return {
            "ranks": [_rank(number, state) | _known(looks, number) for number, state in enumerate(script.ranks[job_id])]
        }

    @get(app, "/jobs/{job_id}/incidents")
    async def incidents(job_id: str) -> Any:
        if job_id not in script.jobs:
            return _problem(404, f"No job {job_id}.")
        return {"incidents": [_timed(each) for each in script.incidents[job_id]]}

    @get(app, "/jobs/{job_id}/incidents/{incident_id}")
    async def incident(job_id: str, incident_id: str) -> Any:
        [found] = [each for each in script.incidents[job_id] if each["id"] == incident_id]
        blamed = [culprit["rank"] for culprit in found["culprits"]]
        others = [rank for rank in range(len(script.ranks[job_id])) if rank not in blamed]
        return _timed(found) | {
            "stack_groups": [_group(others, WAITING, f"{len(others)} ranks", False),
                             _group(blamed, STUCK, f"rank {blamed[0]}", True)],
            "collectives": [
                {"group": "default_pg", "operation": "all_reduce", "enqueued": number, "completed": 6, "ranks": ranks}
                for number, ranks in ((7, others), (6, blamed))
            ],
            "nccl": [
                {"node": "n", "host": "node-a", "version": "2.28.9", "accused": blamed[:1], "witness": "agrees",
                 "text": "NCCL 2.28.9, asked on node-a, accuses it as well", "lines": ["communicator feed of 8 ranks"]},
            ],
            "flight_dumps": {
                "ranks": [0, 1], "bytes": 2_000,
                "path": f"/api/v1/jobs/{job_id}/incidents/{incident_id}/flight-recorder"
            },
        }  # fmt: skip

    @get(app, "/jobs/{job_id}/events")
    async def job_events(job_id: str) -> Response:
        if job_id not in script.jobs:
            return _problem(404, f"No job {job_id}.")
        return _stream(script, "JobEvents", lambda: script.pictures.get(job_id) or [
            ("job", _summary(script.jobs[job_id])),
            ("grid", _grid(script, job_id)),
            *(("incident", _timed(each)) for each in script.incidents[job_id]),
            *(("performance", each) for each in [script.performance.get(job_id)] if each),
        ])  # fmt: skip

    mount(app)
    return app


def _listed(script: Script) -> list[dict[str, Any]]:
    others = [
        {"id": each, "name": each, "state": "running", "reason": "", "world_size": 64, "ranks_reporting": None,
         "attempt": 1, "started_at": time.time() // 3600 * 3600, "goodput": None, "monitor": "b"}
        for each in script.elsewhere
    ]  # fmt: skip
    return [*map(_summary, script.jobs.values()), *others]


def _summary(job: dict[str, Any]) -> dict[str, Any]:
    """A job without what only its own page has."""
    return {name: value for name, value in _stated(job).items() if name not in OF_DETAIL}


def _stated(job: dict[str, Any]) -> dict[str, Any]:
    """A job with the fields of its verdict that follow from its facts."""
    state, advice = JobState(job["state"]), job.get("advice")
    tone = TONES[state]
    if tone == "bad" and advice is not None and advice["waits"]:
        tone = "waits"
    words = job.get("headline") or job.get("reason", "")
    several = f"All {job['world_size']:,} ranks make progress" if job["world_size"] > 1 else "The rank makes progress"
    calm = several if state is JobState.RUNNING else f"The job is {state}"
    since = job["ended_at"] if tone in ("calm", "over") else (job["ended_at"] or job["started_at"])
    return {"tone": tone, "headline": words, "title": words or calm, "since": since} | job


def _rank(number: int, state: str) -> dict[str, Any]:
    troubled = state != "running"
    return {
        "rank": number, "local_rank": number % 8, "host": host_of(number), "pid": 4000 + number, "state": state,
        "iteration": 1204, "progress": 1204, "heartbeat_age": 14.2 if troubled else 0.2, "report_age": 0.3,
        "open_sections": {"step": 14.2 if troubled else 0.1},
    }  # fmt: skip


def _known(looks: dict[str, bytes], rank: int) -> dict[str, Any]:
    if not looks:
        return {}
    return {"scores": {"gpu_robust": looks["robust"][rank] / 200, "lateness_share": looks["lateness"][rank] / 200}}


def _group(ranks: list[int], inner: list[dict[str, Any]], label: str, is_culprit: bool) -> dict[str, Any]:
    return {
        "ranks": ranks, "label": label, "frames": inner + OUTER, "is_culprit": is_culprit, "process_state": "alive",
    }  # fmt: skip


def _grid(script: Script, job_id: str) -> dict[str, Any]:
    states = bytes(LEGEND.index(state) for state in script.ranks[job_id])
    step = script.jobs[job_id]["iteration"]
    return {
        "attempt": script.jobs[job_id]["attempt"], "world_size": len(states), "legend": LEGEND,
        "states": base64.b64encode(states).decode(), "iterations": {"min": step, "max": step},
    }  # fmt: skip


def _clock(script: Script) -> list[tuple[str, Any]]:
    now = time.time() // 1 + script.ahead
    return [("clock", {"now": now, "judged": now if script.judged is None else script.judged})]


def _stream(script: Script, kind: str, picture: Callable[[], list[tuple[str, Any]]]) -> Response:
    """Send the current picture, and again whenever it has changed."""

    async def events() -> AsyncIterator[str]:
        sent: dict[str, str] = {}
        while script.open:
            if script.frozen:
                await asyncio.sleep(0.1)
                continue
            for name, data in [*picture(), *_clock(script)]:
                text = json.dumps(event(kind, name, data))
                key = f"{name} {data['id']}" if name == "incident" else name
                if sent.get(key) != text:
                    sent[key] = text
                    yield f"event: {name}\ndata: {text}\n\n"
            await asyncio.sleep(0.1)

    return StreamingResponse(events(), media_type="text/event-stream")


def _course(begin: float, **took: float) -> list[dict[str, Any]]:
    """Consecutive phases of so many seconds."""
    ends = itertools.accumulate(took.values(), initial=begin)
    return [
        {"name": name, "begin": one, "end": other, "mark": name, "limit": None}
        for name, (one, other) in zip(took, itertools.pairwise(ends), strict=True)
    ]


def _timed(incident: dict[str, Any]) -> dict[str, Any]:
    """The incident with the phases and the cost that follow from its times."""
    job, line, known = Job(incident["job_id"], incident["opened_at"]), incident["timeline"], incident
    record = Incident(
        known["id"], known["job_id"], VerdictKind(known["kind"]), known["attempt"], known["opened_at"], "",
        action=Action(known["action"]), phase=Phase(known["phase"]), confirmed=known["confirmed"],
        closed_at=known["closed_at"], timeline=Timeline(**line),
        found=Detection(VerdictKind(known["kind"]), 0, "", known["section"], known["limit"] or 0.0,
                        known["elapsed"] or 0.0, LimitSource.CONFIGURED),
    )  # fmt: skip
    lost = incident.get("lost_steps_s")
    cost = downtime.cost(job, record, time.time())
    title = incident.get("headline", incident["reason"])
    words = {"title": title, "headline": title, "label": fault(incident["kind"])}
    words["sequel"] = "" if title == incident["reason"] else incident["reason"]
    return (
        words
        | incident
        | {
            "phases": plain(phases.phases(job, record, time.time())),
            "cost": {"seconds": cost.seconds + (lost or 0.0), "since": cost.since},
            "lost_steps_s": lost,
            "place": {key: value for key, value in STUCK[0].items() if key != "of_script"}
            | {"section": known["section"]},
        }
    )


def _problem(status: int, detail: str) -> Response:
    return JSONResponse(
        {"type": "about:blank", "title": "problem", "status": status, "detail": detail},
        status,
        media_type="application/problem+json",
    )
