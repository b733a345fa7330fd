"""Nothing that a terminal obeys is printed, whichever text of an answer holds it: a record may be anybody's."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest

from rankwatch.cli.access import audit
from rankwatch.cli.digest import digest
from rankwatch.cli.incidents import incidents
from rankwatch.cli.report import report
from rankwatch.cli.status.command import status
from rankwatch.cli.why import why
from rankwatch.monitor_client import MonitorClient
from support.launcher import PlayedLauncher
from support.monitor_process import Api, running_monitor
from support.otlp import add_window, rank_report

JOB: Final = "printed"
OBEYED: Final = "\x1b]0;owned\x07\x1b[2J\u202e\r"
Command = Callable[[Sequence[str]], int]
COMMANDS: Final = {
    "status": (status, [JOB]),
    "status of all": (status, []),
    "why": (why, [JOB]),
    "report": (report, [JOB]),
    "communication": (report, ["--communication", JOB]),
    "incidents": (incidents, [JOB]),
    "digest": (digest, []),
    "audit": (audit, []),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A monitor with a job that has failed."""
    with running_monitor(tmp_path_factory.mktemp("monitor")) as monitor, Api(monitor.url) as api:
        fail(api)
        yield monitor.url


def fail(api: Api) -> None:
    launcher = PlayedLauncher(api, JOB)
    launcher.register()
    launcher.start(1)
    for step in range(3):
        reports = [rank_report(JOB, rank, iteration=step, attempt=1) for rank in range(4)]
        for each in reports:
            add_window(each, step, sections={"step": {"median": 1.0}}, operations={"all_reduce": (0.1, 5)})
        api.report(*reports)
    launcher.events({"kind": "exited", "rank": 1, "exit_code": 1}, {"kind": "failed", "reason": "a", "cause": "b"})


def texts(of: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(of, str):
        yield name, of
    elif isinstance(of, dict | list):
        for key, each in of.items() if isinstance(of, dict) else ((name, each) for each in of):
            yield from texts(each, key)


def changed(of: Any, name: str, at: str = "") -> Any:
    """An answer with what terminals obey behind each text of this name."""
    if isinstance(of, dict):
        return {key: changed(each, name, key) for key, each in of.items()}
    if isinstance(of, list):
        return [changed(each, name, at) for each in of]
    return of + OBEYED if isinstance(of, str) and at == name else of


@pytest.mark.parametrize(("command", "words"), COMMANDS.values(), ids=list(COMMANDS))
def test_no_text_of_an_answer_is_obeyed(
    url: str, monkeypatch: pytest.MonkeyPatch, command: Command, words: Sequence[str]
) -> None:
    answers: dict[str, bytes] = {}
    name, ask = "", MonitorClient.get

    def get(self: MonitorClient, path: str) -> bytes:
        if path not in answers:
            answers[path] = ask(self, path)
        try:
            return json.dumps(changed(json.loads(answers[path]), name)).encode()
        except ValueError:
            return answers[path] + OBEYED.encode()

    def printed() -> str:
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        command([*words, "--monitor", url])
        return out.getvalue()

    monkeypatch.setattr(MonitorClient, "get", get)
    shown = printed()
    assert "\x1b" not in shown
    found = {name: text for body in answers.values() if body[:1] == b"{" for name, text in texts(json.loads(body))}
    for name, text in found.items():
        if text.lower() in shown.lower():
            made = printed()
            assert all(line.isprintable() for line in made.split("\n")), f"{name}: {made!r}"
