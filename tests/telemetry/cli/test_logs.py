"""``rankwatch logs`` at the terminal: prefixes, patterns, paging, what is missing; nothing that a terminal obeys."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rankwatch.cli.logs import logs

Answer = dict[str, Any]


def log(rank: int, *lines: str, stream: str = "output", **more: Any) -> Answer:
    place = {"host": f"h{rank}", "path": f"/logs/{rank}", "first": 0, "begin": 0, "end": 100, "size": 100}
    return {"rank": rank, "stream": stream, "lines": list(lines), **place, **more}


def gap(rank: int, why: str, command: str = "") -> Answer:
    place = {"command": command, "host": "h", "note": "", "newest": False}
    return {"rank": rank, "host": "h", "gap": why, "path": "", "text": f"text of {why}", "place": place}


def answer(*found: Answer, **more: Any) -> Answer:
    named = {
        "job_id": "j",
        "attempt": 1,
        "newest": 1,
        "ended": False,
        "recorded": [],
        "left_out": 0,
        "after": "0.output.9",
    }
    mine = [each for each in found if "gap" not in each], [each for each in found if "gap" in each]
    return {**named, "logs": mine[0], "gaps": mine[1], **more}


class Played:
    """A monitor that gives prepared answers, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, list[str]]] = []
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                played.asked.append(parse_qs(parts.query))
                found = played.answers.pop(0) if len(played.answers) > 1 else played.answers[0]
                body = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.close()


Show = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def show(played: Played, capsys: pytest.CaptureFixture[str]) -> Show:
    def run(answers: Sequence[Answer], *flags: str) -> tuple[int, list[str], str]:
        played.answers = list(answers)
        code = logs(["j", "--monitor", f"http://127.0.0.1:{played.server.server_port}", *flags])
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err

    return run


def test_one_log_is_shown_as_it_is_and_several_with_their_ranks(show: Show) -> None:
    assert show([answer(log(3, "a", "b"))], "--rank", "3") == (0, ["a", "b"], "")
    found = answer(log(0, "a"), log(1, "b", stream="stderr"), log(1, "c", stream="stdout"))
    assert show([found])[1] == ["[rank 0] a", "[rank 1 stderr] b", "[rank 1 stdout] c"]
    assert show([answer(log(0, *map(str, range(500))))], "--tail", "2")[1] == ["498", "499"]
    assert len(show([answer(log(0, *map(str, range(500))))])[1]) == 100


def test_a_pattern_is_looked_for_in_all_that_is_kept(show: Show, played: Played) -> None:
    pages = [
        answer(log(0, "loss 1", "loss nan", end=50, size=100), after="0.output.50"),
        answer(log(0, "loss nan 2", "x" * 3000 + "\x1b[2J", begin=50), after="0.output.100"),
    ]
    assert show(pages, "--grep", "nan")[1] == ["loss nan", "loss nan 2"]
    assert [each.get("after") for each in played.asked] == [["0"], ["0.output.50"]]
    assert show(pages, "--grep", "loss", "--tail", "2")[1] == ["loss nan", "loss nan 2"]


@pytest.mark.parametrize(
    "flags",
    [("--grep", "("), ("--rank", "-1"), ("--rank", "../1"), ("--rank", "1e3"), ("--tail", "-3"), ("--attempt", "x")],
)
def test_wrong_arguments_are_refused_in_one_line(flags: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        logs(["j", *flags])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_is_missing_goes_to_stderr_with_where_it_is(show: Show) -> None:
    code, lines, errors = show([answer(log(0, "a"), gap(1, "no_answer", "tail /x"), left_out=84)])
    assert (code, lines) == (0, ["[rank 0] a"])
    assert "rank 1: text of no_answer; the whole log, on h: tail /x" in errors
    assert "84 more ranks: name them with --rank" in errors
    assert show([answer(gap(1, "lost"))])[0] == 1


def test_what_an_incident_holds_is_shown_of_a_job_that_has_ended(show: Show) -> None:
    held = {
        "rank": 1,
        "host": "h",
        "stream": "stderr",
        "path": "/p",
        "lines": ["ValueError: bad"],
        "title": "",
        "text": "",
    }
    code, lines, errors = show([answer(gap(1, "ended"), recorded=[held], ended=True)], "--follow")
    assert (code, lines) == (0, ["ValueError: bad"])
    assert "an incident holds 1 line of it" in errors
    assert "job j has ended" in errors


def test_following_goes_on_in_the_next_attempt_and_ends_with_the_job(
    show: Show, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwatch.cli.logs.FOLLOW_SECONDS", 0.0)
    answers = [
        answer(log(0, "one"), after="0.output.4"),
        answer(log(0, "two"), after="0.output.8", newest=2),
        answer(log(0, "last of 1"), after="0.output.18", newest=2),
        answer(log(0, "first of 2"), attempt=2, newest=2, after="0.output.3"),
        answer(log(0, "end"), attempt=2, newest=2, ended=True, after="0.output.6"),
    ]
    code, lines, errors = show(answers, "-f")
    assert (code, lines) == (0, ["one", "two", "last of 1", "first of 2", "end"])
    assert "attempt 2 has begun" in errors
    assert [(each.get("attempt"), each.get("after")) for each in played.asked] == [
        (None, None),
        (["1"], ["0.output.4"]),
        (["1"], ["0.output.8"]),
        (["2"], ["0"]),
        (["2"], ["0.output.3"]),
    ]
    assert all(each["whole"] == ["true"] for each in played.asked)


def test_nothing_that_a_terminal_obeys_is_printed_whatever_the_monitor_says(show: Show) -> None:
    bad = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
    code, lines, errors = show([answer({**log(0, bad), "rank": bad}, {**gap(1, bad, bad), "text": bad})])
    assert code == 0
    assert all(line.isprintable() for line in (*lines, *errors.splitlines()))


@pytest.mark.parametrize(
    "found", [{}, {"logs": 3, "gaps": []}, {"logs": [{}], "gaps": [], "recorded": []}, [], None, "x"]
)
def test_what_is_no_answer_of_a_monitor_is_said_so(show: Show, found: Any) -> None:
    code, lines, errors = show([found])
    assert (code, lines) == (2, [])
    assert "is not a Rankwatch monitor" in errors
