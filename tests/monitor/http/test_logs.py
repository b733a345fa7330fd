"""What ranks print, asked of their launchers over HTTP: the way there and back, its bounds, and answers that lie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from monitor.http.raw_launcher import Line, Raw, Served
from rankwatch.contract import rank_output
from rankwatch.contract.rank_output import MOST_RANKS, LogAnswer, LogPart, LogRequest
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.service.log_requests import AT_ONCE, LogRequests
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor


class Answering(PlayedLauncher):
    """A launcher that answers questions for logs, once each."""

    def question(self, wait: float = 15.0) -> dict[str, Any]:
        """The next question, by long poll."""
        while True:
            params: dict[str, Any] = {"after": self.after, "node": self.node, "wait": wait}
            found = self.api.get(f"/api/v1/jobs/{self.job}/directives", params=params, timeout=60.0).json()
            self.after = max([self.after, *(directive["id"] for directive in found["directives"])])
            if asked := found.get("log_requests"):
                (one,) = asked
                return dict(one)

    def answers(self, *parts: Mapping[str, Any], **more: Any) -> threading.Thread:
        """Answer the next question on another thread."""

        def run() -> None:
            self.post("logs", {"node": self.node, "request": self.question()["id"], "parts": list(parts), **more})

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


def part(rank: int, *lines: str, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "stream": "output", "path": "/p", "lines": lines, "end": 10, "size": 10, **more}


@pytest.fixture
def first(api: Api, job: str) -> Answering:
    launcher = Answering(api, job, "node-a", (0, 1))
    launcher.register()
    launcher.start(1)
    return launcher


@pytest.fixture
def second(api: Api, job: str, first: Answering) -> Answering:
    del first
    launcher = Answering(api, job, "node-b", (2, 3))
    launcher.register()
    launcher.start(1)
    return launcher


def read(api: Api, job: str, **params: Any) -> dict[str, Any]:
    answer = api.get(f"/api/v1/jobs/{job}/logs", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_each_launcher_is_asked_for_its_ranks_and_the_answers_are_one(
    api: Api, job: str, first: Answering, second: Answering
) -> None:
    threads = [
        first.answers(part(0, "zero"), part(1, "one", "uno")),
        second.answers(part(2, "two"), gaps={"3": "no_file"}),
    ]
    found = read(api, job)
    for thread in threads:
        thread.join(60)
    assert [(log["rank"], log["host"], log["lines"]) for log in found["logs"]] == [
        (0, "node-a", ["zero"]),
        (1, "node-a", ["one", "uno"]),
        (2, "node-b", ["two"]),
    ]
    assert [(gap["rank"], gap["host"], gap["gap"]) for gap in found["gaps"]] == [(3, "node-b", "no_file")]
    assert (found["attempt"], found["newest"], found["ended"], found["left_out"]) == (1, 1, False, 0)
    assert found["after"] == "0.output.10,1.output.10,2.output.10"


def test_the_question_states_ranks_attempt_bounds_and_position_and_comes_at_once(
    api: Api, job: str, first: Answering, second: Answering
) -> None:
    asked: list[dict[str, Any]] = []

    def answer() -> None:
        asked.append(question := second.question(30.0))
        second.post(
            "logs", {"node": second.node, "request": question["id"], "parts": [part(2, "more", end=99, size=99)]}
        )

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    found = read(api, job, rank=2, after="2.output.44", size=2048, whole=True)
    thread.join(60)
    assert found["after"] == "2.output.99"
    (question,) = asked
    assert {name: question[name] for name in ("attempt", "ranks", "most", "after", "whole")} == {
        "attempt": 1, "ranks": [2], "most": 2048, "after": {"2.output": 44}, "whole": True,
    }  # fmt: skip


def test_a_long_poll_on_the_short_way_is_answered_when_there_is_a_question(
    monitor: RunningMonitor, api: Api, job: str
) -> None:
    raw = Raw(Served(monitor.url), job)
    launcher = Answering(api, job, raw.node, (0, 1))
    launcher.register()
    launcher.start(1)

    with Line(raw.served) as line:
        line.send(raw.ask(wait=30))
        reader = threading.Thread(target=lambda: api.get(f"/api/v1/jobs/{job}/logs", params={"rank": 0}), daemon=True)
        reader.start()
        answer = line.receive()
    assert b"log_requests" in answer.content
    reader.join(60)


def test_a_launcher_that_does_not_answer_is_named_within_the_time(api: Api, job: str, first: Answering) -> None:
    found = read(api, job, rank=1)
    assert [(gap["rank"], gap["host"], gap["gap"]) for gap in found["gaps"]] == [(1, "node-a", "no_answer")]
    assert f"{rank_output.ANSWER_SECONDS:g} s" in found["gaps"][0]["text"]


def test_nobody_is_asked_for_what_has_ended_or_is_lost(api: Api, job: str, first: Answering, second: Answering) -> None:
    facts = {"kept_output": "/tmp/kept output"}
    second.register(facts=facts)
    first.events({"kind": "node_lost", "lost_node": "node-b", "reason": "it is gone"})
    found = read(api, job, rank=[2, 77])
    assert [(gap["rank"], gap["gap"]) for gap in found["gaps"]] == [(2, "lost"), (77, "unknown")]
    assert found["gaps"][0]["place"]["command"] == "tail -n 200 '/tmp/kept output'/attempt_1/rank_2.*log"
    first.events({"kind": "finished"})
    assert [gap["gap"] for gap in read(api, job, rank=0)["gaps"]] == ["ended"]


def test_an_earlier_attempt_is_asked_of_all_launchers(api: Api, job: str, first: Answering, second: Answering) -> None:
    first.start(2)
    second.start(2)
    threads = [first.answers(gaps={"3": "not_here"}), second.answers(part(3, "of then"))]
    found = read(api, job, rank=3, attempt=1)
    for thread in threads:
        thread.join(60)
    assert [(log["host"], log["lines"]) for log in found["logs"]] == [("node-b", ["of then"])]
    assert (found["gaps"], found["attempt"], found["newest"]) == ([], 1, 2)


@pytest.mark.parametrize(
    "params",
    [
        {"rank": -1}, {"rank": "../0"}, {"rank": 10**7}, {"rank": list(range(MOST_RANKS + 1))}, {"attempt": 0},
        {"attempt": 9}, {"attempt": "1/.."}, {"size": 1}, {"size": 1 << 30}, {"after": "0.passwd.1"}, {"after": "x"},
    ],
)  # fmt: skip
def test_what_is_no_rank_attempt_or_position_is_refused(
    api: Api, job: str, first: Answering, params: dict[str, Any]
) -> None:
    answer = api.get(f"/api/v1/jobs/{job}/logs", params=params)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


def test_lies_are_left_out_cut_and_neutralised(api: Api, job: str, first: Answering) -> None:
    lies = (
        part(0, "\x1b]0;owned\x07\x1b[2J", "x" * 100_000, path="/a\x1b[1m", end=1, begin=5, first=-3, stream="evil"),
        part(0, *("y" * 3_000 for _ in range(60))),
        part(1, "not asked for"),
    )
    thread = first.answers(*lies, gaps={"0": "made_up", "5": "lost", "x": "lost"}, paths={"0": "/" + "p" * 9_000})
    found = read(api, job, rank=0, size=2048)
    thread.join(60)
    (log,) = found["logs"]
    assert (log["rank"], found["gaps"]) == (0, [])
    assert all(line.isprintable() for line in log["lines"])
    assert sum(len(line) + 1 for line in log["lines"]) <= 4 * 2048
    assert log["begin"] >= 0
    assert log["size"] >= log["end"]


def test_an_answer_that_nobody_asked_for_changes_nothing(api: Api, job: str, first: Answering) -> None:
    first.post("logs", {"node": first.node, "request": "0" * 16, "parts": [part(0, "unasked")]})
    first.post("logs", {"node": "stranger", "request": "0" * 16}, status=404)
    first.post("logs", {"node": first.node}, status=422)
    refused = api.post(f"/api/v1/jobs/{job}/logs", content=b"[" * 100_000, headers={"content-type": "application/json"})
    assert refused.status_code in (400, 422)
    large = {"node": first.node, "request": "0", "parts": [part(0, "x" * (1 << 20))]}
    assert api.post(f"/api/v1/jobs/{job}/logs", json=large).status_code == 413


# Bounds ---------------------------------------------------------------------------------------------------------------


def asking(requests: LogRequests, reader: str = "r", most: int = 1 << 20, now: float = 0.0) -> Any:
    return requests.ask("j", {"n": [0]}, LogRequest("", 1, (), most), reader=reader, now=now)


def test_a_reader_waits_for_a_few_answers_at_a_time_and_others_do_not_wait_for_it() -> None:
    async def scene() -> None:
        requests = LogRequests(lambda job, node: None, Limits())
        waiting = [asyncio.ensure_future(asking(requests)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as refused:
            await asking(requests)
        assert refused.value.status == 429
        other = asyncio.ensure_future(asking(requests, "s"))
        await asyncio.sleep(0)
        questions = requests.take("j", "n")
        assert len(questions) == AT_ONCE + 1
        assert not requests.asked("j", "n")
        for each in questions:
            assert requests.answered("j", LogAnswer("n", each.id, (LogPart(0, "output", "/p", ("a",)),)))
            assert not requests.answered("j", LogAnswer("n", each.id)), "one answer"
        found = [await each for each in (*waiting, other)]
        assert [answer["n"].parts[0].lines for answer in found] == [("a",)] * (AT_ONCE + 1)

    asyncio.run(scene())


def test_a_reader_has_a_minutes_worth_and_gets_it_back() -> None:
    async def scene() -> None:
        requests = LogRequests(lambda job, node: None, Limits(log_bytes_per_token=2 * rank_output.MOST_BYTES))
        for _ in range(2):
            requests._charge("r", rank_output.MOST_BYTES, 0.0)
        with pytest.raises(Refusal) as refused:
            await asking(requests, now=1.0)
        assert (refused.value.status, refused.value.reason) == (429, "too_many_logs")
        assert refused.value.retry_after is not None
        requests._charge("s", rank_output.MOST_BYTES, 1.0)
        requests._charge("r", rank_output.MOST_BYTES, 1.0 + refused.value.retry_after)

    asyncio.run(scene())


def test_a_reader_that_leaves_leaves_no_question() -> None:
    async def scene() -> None:
        requests = LogRequests(lambda job, node: None, Limits())
        waiting = asyncio.ensure_future(asking(requests))
        await asyncio.sleep(0)
        assert requests.asked("j", "n")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not requests.asked("j", "n")
        assert not requests._waiting
        assert not requests._reading

    asyncio.run(scene())
