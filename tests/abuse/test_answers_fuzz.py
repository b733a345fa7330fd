"""Arbitrary answers of what listens at the monitor's address: a launcher ignores them, keeps listening and goes on.

The same sequence in every run.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from abuse.test_launcher_fuzz import WILD, changed
from launcher.here import Here
from rankwatch.contract.limits import RankActivity, RankLimits
from rankwatch.contract.messages import Directive, NodeRegistration
from rankwatch.profiling import plan
from rankwatch.settings import Settings
from rankwatch_launcher.coordination.decisions import RestartBudget
from rankwatch_launcher.job import closing_summary
from rankwatch_launcher.monitor import answers
from rankwatch_launcher.monitor.link import MonitorLink
from rankwatch_launcher.outcome import FINISHED, Outcome
from support.waiting import wait_for

SETTINGS: Final = {
    "limits": {"sections": {"step": 5.0}, "heartbeat": 60.0, "learned": {"step": 4.0}, "first_time": 600.0},
    "profiling": {"source": "auto", "interval": 5, "ranks": "all", "report_interval": 60.0, "trace": {"rank": 0}},
    "launcher": {"max_restarts": 3, "max_no_progress": 2, "silence_timeout": 60.0},
    "ft_state": {"current_timeouts": {"section": {"section": {"step": 9.0}, "calculated_sections": ["step"]}}},
}
DIRECTIVE: Final = {
    "id": 1, "kind": "capture", "attempt": 1, "reason": "why", "incident_id": "i", "deadline": 5.0, "stop_step": 7,
    "settings": SETTINGS, "exclude": ["n"], "watch": 5.0, "place": "p", "proven": True, "suspected": True,
    "proof": "busy", "follows": "f", "acts_in": 5.0, "no_restart": "used_up",
    "slow_rank": 1, "word": "HANG", "headlines": ["Rank 2 on vm hangs", "Rank 2 hangs"],
}  # fmt: skip
JOB: Final = {"restarts": 1, "goodput": 0.5, "goodput_notes": ["x"], "started_at": 1.0, "ended_at": 9.0}
INCIDENTS: Final = [{"action": "restart", "attempt": 1, "reason": "hang", "id": "i"}]
EXAMPLES: Final = settings(
    max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def node() -> Iterator[Here]:
    with Here() as made:
        yield made


@EXAMPLES
@given(changed(DIRECTIVE))
def test_a_directive_is_read_as_it_is_declared_or_refused(item: Any) -> None:
    assert set(DIRECTIVE) == {field.name for field in fields(Directive)}
    try:
        directive = answers.read_directive(json.loads(json.dumps(item)))
    except ValueError:
        return
    plain = json.dumps(asdict(directive), ensure_ascii=False).encode(errors="replace")
    TypeAdapter(Directive).validate_json(plain, strict=True)  # of an instance it would check nothing


@EXAMPLES
@given(data=st.data())
def test_whatever_the_settings_are_the_job_goes_on(node: Here, data: st.DataObject) -> None:
    answer = json.loads(json.dumps({"settings": data.draw(changed(SETTINGS))}))
    taken = answers.settings_of(answer)
    node.session.apply_settings(taken)
    budget = node.session.budget(RestartBudget(1, 2))
    assert (type(budget.max_restarts), type(budget.max_no_progress)) == (int, int)
    silence = node.session.view().silence
    assert silence is None or 0.0 < silence < 1e9
    RankLimits.from_settings(taken).passed(RankActivity({"step": 3.0}, 1.0, None, 1.0))
    plan.with_pushed(plan.of_settings(Settings()), taken)


@EXAMPLES
@given(changed(JOB), changed(INCIDENTS))
def test_whatever_the_monitor_says_of_it_a_job_ends_with_its_lines(job: Any, incidents: Any) -> None:
    class Discovery:
        monitor_url, record, holds_monitor = "http://127.0.0.1:9", None, False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing_summary, "_ask", lambda *_: (job, incidents, 0))
        assert closing_summary.summary(Outcome(FINISHED, 0), Discovery())  # type: ignore[arg-type]


@EXAMPLES
@given(st.one_of(WILD, changed({"directives": [DIRECTIVE], "warnings": ["x"], "last_directive": 3}), st.binary()))
def test_any_body_of_an_answer_is_an_object_or_refused(content: Any) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    with contextlib.suppress(ValueError):
        found = answers.read_object(body)
        assert isinstance(found, dict)
        assert isinstance(answers.items(found, "warnings"), list)
        assert isinstance(answers.whole(found, "last_directive"), int)
    assert isinstance(answers.detail(body), str)


# A launcher's link to such a server -----------------------------------------------------------------------------------


class Broken:
    """Answers each poll with the next body, then with a directive; None: without an end."""

    def __init__(self, bodies: list[bytes | None]) -> None:
        self.bodies, self.sent = bodies, 0
        broken = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(b'{"settings": [], "last_directive": "x", "warnings": 7}')

            def do_GET(self) -> None:
                body = broken.bodies.pop(0) if broken.bodies else json.dumps({"directives": [DIRECTIVE]}).encode()
                if body is None:
                    self._endless()
                else:
                    self._answer(body)

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _endless(self) -> None:
                self.close_connection = True
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    while broken.sent < 1 << 30:
                        broken.sent += self.wfile.write(b" " * (1 << 16))

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> Broken:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"directives": null}',
        b'{"directives": {"id": 1}}',
        b'{"directives": [null, 1, {"id": "x"}, {"id": 1e999}]}',
        b'{"directives": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"directives": [{"id": 0, "kind": "settings", "attempt": 0, "reason": "", "settings": {"launcher": [1]}}]}',
        b"[]",
        b"",
        b"\xff",
        None,
    ],
    ids=["null", "object", "odd items", "deep", "settings", "list", "nothing", "no text", "endless"],
)
def test_after_a_malformed_or_endless_answer_a_launcher_still_listens(body: bytes | None) -> None:
    got: list[Directive] = []
    with Broken([body]) as broken:
        link = MonitorLink("job", lambda: NodeRegistration("n", "h", 1, 2))
        link.on_directive = got.append
        link.connect(broken.url)
        try:
            wait_for(lambda: [each for each in got if each.reason == "why"], "the directive after it", 60.0)
        finally:
            link.close(5.0)
        assert broken.sent < 8 * answers.LARGEST_ANSWER


def test_a_directive_that_cannot_be_carried_out_does_not_end_the_thread() -> None:
    got: list[Directive] = []

    def receive(directive: Directive) -> None:
        got.append(directive)
        if len(got) == 1:
            raise KeyError("nobody thought of this")

    with Broken([]) as broken:
        link = MonitorLink("job", lambda: NodeRegistration("n", "h", 1, 2))
        link.on_directive = receive
        link.connect(broken.url)
        try:
            wait_for(lambda: len(got) > 1, "the thread goes on", 60.0)
        finally:
            link.close(5.0)
