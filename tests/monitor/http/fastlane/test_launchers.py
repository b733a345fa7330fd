"""The short way of launchers: which requests go it, and that it does and states nothing else than the ordinary way."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.http.raw_launcher import EMPTY_HEADER, ORDINARY, SHORT, Line, Raw, RawAnswer, Served, Way
from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.http_connection import HttpConnection, Response
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch_launcher.monitor.link import MonitorLink
from rankwatch_monitor.http.auth import Tokens
from rankwatch_monitor.http.fastlane.launchers import LauncherFastLane, LauncherPost
from rankwatch_monitor.http.fastlane.requests import LONGEST_HEAD, FallBackError
from rankwatch_monitor.http.launchers import LauncherMessages
from rankwatch_monitor.http.origins import Origins
from rankwatch_monitor.http.request_gate import LARGE
from rankwatch_monitor.ingest.admission import Admission
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.service.monitor import Monitor
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.waiting import wait_for

TOKEN, READ_TOKEN = "letmein", "lookonly"


@pytest.fixture(scope="module", params=[(), ("--token", TOKEN, "--read-token", READ_TOKEN)], ids=["open", "tokens"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("lane"), *request.param) as made:
        yield made


@pytest.fixture
def served(running: RunningMonitor, request: pytest.FixtureRequest) -> Served:
    return Served(running.url, TOKEN if "tokens" in request.node.name else None)


@pytest.fixture
def api(served: Served) -> Iterator[Api]:
    with Api(served.url, served.token) as client:
        yield client


@pytest.fixture
def raw(served: Served, api: Api, job: str) -> Raw:
    """A launcher of a job of two ranks, of which one was started."""
    PlayedLauncher(api, job, ranks=(0,)).register()
    PlayedLauncher(api, job, ranks=(0,)).start(1, world_size=2)
    return Raw(served, job)


def order(api: Api, job: str, reason: str = "I am curious: größer") -> None:
    answer = api.post(f"/api/v1/jobs/{job}/actions", json={"action": "capture", "reason": reason})
    assert answer.status_code == 202


# The same on both ways ------------------------------------------------------------------------------------------------


def story(served: Served, api: Api, job: str, way: Way) -> tuple[list[RawAnswer], object]:
    """All that a launcher states, once: the answers, and what the monitor knows by then."""
    PlayedLauncher(api, job, ranks=(0, 1)).register()
    raw = Raw(served, job, way)
    common = {"kind": "started", "node": raw.node, "attempt": 1, "world_size": 2}
    started = [{**common, "rank": rank, "local_rank": rank, "pid": 2000 + rank} for rank in (0, 1)]
    seen = {"rank": 1, "pid": 2001, "process_state": "alive", "iteration": 6, "open_sections": {"load": 3.0}}
    printed = [
        raw.exchange(raw.post("process-events", {"events": started})),
        raw.exchange(raw.observe("it runs: größer", attempt=1, ranks=[{**seen, "uses_sections": True}])),
    ]
    order(api, job)
    printed.append(raw.exchange(raw.ask(wait=20)))
    (directive,) = printed[-1].directives
    stack = {"rank": 1, "pid": 2001, "method": "py-spy", "frames": [{"function": "f", "file": "t.py", "line": 3}]}
    captured = {"attempt": 1, "incident_id": directive["incident_id"], "directive": directive["id"], "stacks": [stack]}
    printed.append(raw.exchange(raw.post("evidence", {"node": raw.node, **captured})))
    groups = api.read(f"/jobs/{job}/incidents/{directive.pop('incident_id')}")["stack_groups"]
    assert "t.py" in str(groups), "the evidence was taken in"
    nodes = [(n["node"], n["ranks"], n["attempt"], n["role_reason"]) for n in api.job(job)["nodes"]]
    of = ("rank", "pid", "local_rank", "iteration", "state")
    ranks = [([rank[name] for name in of], list(rank["open_sections"])) for rank in api.ranks(job)]
    return printed, (directive, nodes, ranks, groups)


@pytest.mark.parametrize("way", ORDINARY.values(), ids=ORDINARY)
def test_what_a_launcher_states_has_the_same_effect_on_both_ways(served: Served, api: Api, job: str, way: Way) -> None:
    printed, known = story(served, api, f"{job}-short", SHORT)
    printed_ordinarily, known_ordinarily = story(served, api, f"{job}-ordinary", way)
    assert [each.short for each in printed] == [True] * 4
    assert [each.short for each in printed_ordinarily] == [False] * 4
    assert [each.status for each in printed] == [204, 204, 200, 204]
    assert [each.status for each in printed_ordinarily] == [204, 204, 200, 204]
    assert known == known_ordinarily


def test_a_waiting_request_gets_the_same_on_both_ways(raw: Raw, api: Api) -> None:
    other = Raw(raw.served, raw.job, EMPTY_HEADER)
    with Line(raw.served) as short, Line(raw.served) as ordinary:
        raw.wait(short), other.wait(ordinary)
        order(api, raw.job)
        received, received_ordinarily = short.receive(), ordinary.receive()
    assert (received.short, received_ordinarily.short) == (True, False)
    assert received.directives == received_ordinarily.directives != []
    assert received.directives == raw.exchange(raw.ask()).directives, "who asks later is reported as well"


def test_a_wait_that_runs_out_is_answered_the_same_on_both_ways(raw: Raw) -> None:
    other = Raw(raw.served, raw.job, EMPTY_HEADER)
    for wait in (0, 1):
        received, received_ordinarily = raw.exchange(raw.ask(wait=wait)), other.exchange(other.ask(wait=wait))
        assert (received.short, received_ordinarily.short) == (True, False)
        assert received.content == received_ordinarily.content == b'{"directives":[]}'


def joining(raw: Raw, **more: Any) -> bytes:
    return raw.post("nodes", {"node": "node-b", "host": "hö", "launcher_pid": 7, "local_world_size": 2, **more})


def test_one_more_launcher_of_a_job_registers_the_same_on_both_ways(served: Served, api: Api, job: str) -> None:
    received, known = [], []
    for way in (SHORT, EMPTY_HEADER):
        raw = Raw(served, f"{job}-{'short' if way is SHORT else 'ordinary'}", way)
        policy = {"max_restarts": 7, "silence_timeout": 50.0}
        PlayedLauncher(api, raw.job).register(policy=policy)
        received += [raw.exchange(joining(raw, policy=policy)) for _ in range(2)]
        of = ("node", "host", "ranks", "attempt", "lost")
        known.append([api.job(raw.job)["policy"], *([n[name] for name in of] for n in api.job(raw.job)["nodes"])])
    assert [each.short for each in received] == [True, True, False, False]
    assert [each.status for each in received] == [200] * 4
    answers = [json.loads(each.content) for each in received]
    assert [each.pop("job_id") for each in answers] == [f"{job}-short"] * 2 + [f"{job}-ordinary"] * 2
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert answers[0]["settings"]["launcher"]["max_restarts"] == 7
    assert known[0] == known[1]
    assert len(known[0]) == 3


@pytest.mark.parametrize("brought", [{"policy": {"max_restarts": 8}}, {"ft_state": {"version": 1}}])
def test_a_launcher_that_brings_something_else_goes_the_ordinary_way(
    raw: Raw, api: Api, brought: dict[str, Any]
) -> None:
    assert not raw.exchange(joining(raw, **brought)).short
    assert not Raw(raw.served, f"{raw.job}-new").exchange(joining(Raw(raw.served, f"{raw.job}-new"))).short, "the first"
    assert raw.exchange(joining(raw)).short


def test_what_real_launchers_send_goes_the_short_way(
    served: Served, api: Api, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their HTTP library decides on the bytes; whoever changes it must see that they are still known."""
    seen: dict[str, bool] = {}

    request = HttpConnection.request

    def noted(self: HttpConnection, method: str, target: str, *given: Any, **more: Any) -> Response:
        answer = request(self, method, target, *given, **more)
        seen[urlsplit(target).path.rpartition("/")[2]] = "date" not in answer.headers
        return answer

    monkeypatch.setattr(HttpConnection, "request", noted)
    control = MonitorLink(job, lambda: NodeRegistration("node-a.example", "h", 1, 2))
    printed = {"node": "node-a.example", "attempt": 0}
    control.post("process-events", lambda: {"events": [{**printed, "kind": "restarting"}]})
    control.post("observations", lambda: printed)
    control.post("evidence", lambda: {**printed, "incident_id": None, "stacks": []})
    control.connect(served.url, served.token or "")
    wait_for(lambda: "evidence" in seen, "all was sent")
    order(api, job)
    wait_for(lambda: "directives" in seen, "the long poll was answered")
    control.close(10.0)
    assert seen == {"nodes": False, "process-events": True, "observations": True, "evidence": True, "directives": True}


# Refused ------------------------------------------------------------------------------------------------------------


def refusals(raw: Raw) -> dict[str, bytes]:
    """Requests that cannot be taken, by what is wrong with them."""
    stranger, nowhere = Raw(raw.served, raw.job, raw.way, "nobody"), Raw(raw.served, "nowhere", raw.way)
    start = {"node": raw.node, "kind": "started", "attempt": 1, "rank": 0, "world_size": 2}
    captured = {"node": raw.node, "attempt": 1, "incident_id": None, "stacks": []}
    seen = {"pid": 1, "process_state": "alive"}
    registration = {"node": raw.node, "host": "h", "launcher_pid": 1, "local_world_size": 2}
    return {
        "404 job": nowhere.observe(),
        "404 job of events": nowhere.post("process-events", {"events": [start]}),
        "404 job of directives": nowhere.ask(wait=5),
        "404 launcher": stranger.observe(),
        "404 launcher of events": raw.post("process-events", {"events": [start, {**start, "node": "nobody"}]}),
        "404 launcher of evidence": raw.post("evidence", {**captured, "node": "nobody"}),
        "404 launcher of directives": stranger.ask(wait=5),
        "422 no JSON": raw.post("observations", b"{"),
        "422 nothing": raw.post("observations", b""),
        "400 no text": raw.post("observations", b'{"node": "\xff"}'),
        "422 a field is missing": raw.post("evidence", {"node": raw.node}),
        "422 another kind": raw.post("process-events", {"events": [{**start, "kind": "dance"}]}),
        "422 rank outside its world": raw.post("process-events", {"events": [start, {**start, "rank": 2}]}),
        "422 rank outside the world": raw.observe(ranks=[{**seen, "rank": 2}]),
        "422 rank below 0": raw.post("evidence", {**captured, "stacks": [{"rank": -1, "pid": 1, "method": ""}]}),
        "422 a number that cannot be": raw.observe(age=-1.0),
        "422 a name of no characters": raw.observe(node=""),
        "422 too long a wait": raw.ask(wait=31),
        "422 no launcher": raw.post("nodes", {"node": raw.node}),
        "422 a launcher without a name": raw.post("nodes", {**registration, "node": ""}),
        "422 too many facts": raw.post("nodes", {**registration, "facts": {str(n): "" for n in range(1000)}}),
    }


NO_LAUNCHER = Raw(Served(""), "")


@pytest.mark.parametrize("case", refusals(NO_LAUNCHER))
def test_it_refuses_in_the_same_words_as_the_ordinary_way(raw: Raw, api: Api, case: str) -> None:
    known = api.job(raw.job)["nodes"][0]["ranks"], api.incidents(raw.job), [r["pid"] for r in api.ranks(raw.job)]
    received, rejected = [], [api.rejected()]
    for way in (SHORT, EMPTY_HEADER):
        put = Raw(raw.served, raw.job, way)
        received.append(put.exchange(refusals(put)[case]))
        rejected.append(api.rejected())
        received[-1].headers.pop("date")
    assert received[0] == received[1]
    assert received[0].status == int(case.split()[0])
    assert json.loads(received[0].content)["detail"]
    counts = [sum(after.values()) - sum(before.values()) for before, after in pairwise(rejected)]
    assert counts == [1, 1], "each is counted once"
    after = api.job(raw.job)["nodes"][0]["ranks"], api.incidents(raw.job), [r["pid"] for r in api.ranks(raw.job)]
    assert after == known, "nothing of it was taken in"


@pytest.mark.parametrize("running", [("--token", TOKEN, "--read-token", READ_TOKEN)], indirect=True, ids=["tokens"])
@pytest.mark.parametrize(("token", "status"), [("wrong", 401), (None, 401), (READ_TOKEN, 403), (TOKEN, None)])
def test_tokens_are_asked_for_in_the_same_words(raw: Raw, api: Api, token: str | None, status: int | None) -> None:
    usual = Raw(raw.served, raw.job), Raw(raw.served, raw.job, EMPTY_HEADER)
    for make in (lambda of: of.observe("let in"), lambda of: of.ask(wait=0)):
        received = []
        for of in usual:
            of.token = token
            received.append(of.exchange(make(of)))
            received[-1].headers.pop("date", None)
        assert received[0].status == received[1].status
        if status is not None:
            assert received[0] == received[1]
            assert received[0].status == status
    assert api.job(raw.job)["nodes"][0]["role_reason"] == ("let in" if status is None else "")


def test_of_events_for_which_there_is_no_room_none_is_taken_in() -> None:
    """They are sent again, on the ordinary way and by the launcher: what was taken in would be reported twice."""
    monitor = Monitor(limits=Limits(ranks=8, ranks_per_job=8))
    for job in ("here", "there"):
        monitor.register(job, "")
        monitor.submit(job, NodeRegistration("n", "h", 1, 2))
        monitor.submit(job, ProcessEvent("n", ProcessEventKind.STARTED, 1, rank=0, pid=1, world_size=4))
    of = {"node": "n", "attempt": 1}
    reported = {**of, "kind": "notice", "rank": 0, "notice": "wrong_result", "reason": "it is wrong"}
    batch = {"events": [reported, {**of, "kind": "started", "rank": 5, "world_size": 6}]}
    assert isinstance(put_in(Raw(Served(""), "here").post("process-events", batch), of_monitor(monitor)), Exception)
    job = monitor.jobs["here"]
    assert (list(job.notices), job.incidents, job.world_size) == ([], [], 4)


def test_a_shared_job_without_registration_is_refused_alike(tmp_path: Path) -> None:
    with running_monitor(tmp_path, "--shared-as", "a", "--lease", "3") as monitor:
        served = Served(monitor.url)
        for _ in range(3):  # the first of them has the job taken up
            short, ordinary = (Raw(served, "fresh", way) for way in (SHORT, EMPTY_HEADER))
            received, received_ordinarily = short.exchange(short.ask()), ordinary.exchange(ordinary.ask())
            assert (received.status, received.content) == (received_ordinarily.status, received_ordinarily.content)
            assert received.status == 429


def test_questions_that_were_answered_leave_nothing_to_the_collector_of_cycles() -> None:
    """When it looks at a job of 100,000 ranks, the monitor stands still for most of a second."""
    asked, monitor, received = 50, Monitor(), []
    monitor.register("j", "")
    monitor.submit("j", NodeRegistration("n", "h", 1, 2))
    lane = of_monitor(monitor)

    async def ask_and_receive() -> None:
        for _ in range(asked):
            opened = lane.begin(HERE.ask(wait=20), ("127.0.0.1", 1))
            assert opened is not None
            assert lane.respond(opened[0], received.append) is None, "it waits"
        monitor.broker.end_long_polls()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(ask_and_receive())
        assert len(received) == asked
        assert gc.collect() < asked
    finally:
        gc.enable()


# What is opened -------------------------------------------------------------------------------------------------------


def of_monitor(monitor: Monitor) -> LauncherFastLane:
    return LauncherFastLane(LauncherMessages(monitor), Tokens(), Origins(), Admission())


def lane() -> LauncherFastLane:
    """A lane of a monitor that knows one job with one launcher; without a loop, so that nobody can wait."""
    monitor = Monitor()
    monitor.register("j", "")
    monitor.submit("j", NodeRegistration("n", "h", 1, 2))
    return of_monitor(monitor)


LANE, HERE = lane(), Raw(Served(""), "j", node="n")
USUAL = HERE.observe("usual"), HERE.ask(7), HERE.post("process-events", {"events": []})


def put_in(request: bytes, lane: LauncherFastLane = LANE) -> object:
    """Do with the bytes of a request what a connection does; None when they go the ordinary way."""
    if (opened := lane.begin(request, ("127.0.0.1", 1))) is None:
        return None
    letter, behind = opened
    rest = lane.add(letter, behind)
    letter.release()
    assert request.endswith(rest)
    if not letter.complete:
        return letter
    try:
        return lane.respond(letter, lambda _: None)
    except FallBackError as error:
        ordinary = error
    assert ordinary.request + rest == request, "every byte goes the other way"
    return ordinary


@pytest.mark.parametrize("request_", USUAL, ids=["observation", "question", "events"])
def test_what_is_usual_is_opened_with_every_byte_behind_it(request_: bytes) -> None:
    opened = LANE.begin(request_ + b"more", ("127.0.0.1", 1))
    assert opened is not None
    assert LANE.add(*opened) == b"more"
    answer = put_in(request_)
    assert isinstance(answer, bytes)
    assert answer.startswith(b"HTTP/1.1 20")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"POST", b"PUT"),
        (b"/jobs/j/", b"/jobs/%6a/"),
        (b"/observations", b"/observations/"),
        (b"/observations", b"/observations?x=1"),
        (b"/observations", b"/directives/1/acks"),
        (b"Host: localhost\r\n", b""),
        (b"Host", b"Content-Encoding: gzip\r\nHost"),
        (b"Host", b"Expect: 100-continue\r\nHost"),
        (b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        (b"Host", b"Content-Length: 3\r\nHost"),
        (b"Content-Length: ", b"Content-Length: %d" % LARGE),
        (b"Host", b"X-Long: " + b"x" * LONGEST_HEAD + b"\r\nHost"),
    ],
)
def test_a_post_that_is_put_differently_goes_the_ordinary_way(old: bytes, new: bytes) -> None:
    assert old in USUAL[0]
    assert LANE.begin(USUAL[0].replace(old, new, 1), ("127.0.0.1", 1)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"GET", b"HEAD"),
        (b"after=7", b"after=-7"),
        (b"after=7", b"after=" + b"7" * 16),
        (b"node=n", b"node="),
        (b"node=n", b"node=%6e"),
        (b"wait=0", b"wait=31"),
        (b"wait=0", b"wait=0.5"),
        (b"wait=0", b"wait=0&token=t"),
        (b"Host", b"Content-Length: 0\r\nHost"),
        (b"Host", b"Transfer-Encoding: chunked\r\nHost"),
    ],
)
def test_a_question_that_is_put_differently_goes_the_ordinary_way(old: bytes, new: bytes) -> None:
    assert old in USUAL[1]
    assert LANE.begin(USUAL[1].replace(old, new, 1), ("127.0.0.1", 1)) is None


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(noise: bytes) -> None:
    put_in(noise)
    for usual in USUAL:
        line, end, rest = usual.partition(b"\r\n")
        head, blank, body = rest.partition(b"\r\n\r\n")
        for made in (line + end + noise, line + noise + end + rest, usual[: -len(noise)] + noise, usual + noise):
            put_in(made)
        put_in(line + end + head + b"\r\nX-More: " + noise + blank + body)
        put_in(HERE.post("evidence", noise))


@given(st.sampled_from(USUAL), st.integers(0, 400), st.integers(0, 40), st.binary(max_size=40))
@example(HERE.ask(7), 50, 0, b"1")
def test_no_change_to_what_is_usual_makes_it_fail(usual: bytes, at: int, cut: int, noise: bytes) -> None:
    async def connected() -> None:  # a change may make a question that waits
        put_in(usual[:at] + noise + usual[at + cut :])

    asyncio.run(connected())


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), min_size=1))
def test_a_body_in_any_pieces_is_the_same_body(body: bytes, sizes: list[int]) -> None:
    opened = LANE.begin(HERE.post("observations", body) + b"next", ("127.0.0.1", 1))
    assert opened is not None
    letter, left = opened
    assert isinstance(letter, LauncherPost)
    for size in [*sizes, len(left)]:
        piece, left = left[:size], left[size:]
        left = LANE.add(letter, piece) + left
    assert (b"".join(letter.parts), left, letter.complete) == (body, b"next", True)
