from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

import rankwatch
from rankwatch.contract import env
from rankwatch.integrations.shared.report_log import ReportLog
from support.waiting import wait_for

TEXT = "GPU relative performance:\n  Rank=1 Node=h Score=0.50\n"
SLOW = {"rank": 1, "since": 5.0, "reason": "Rank 1 on h is slow", "action": "save_and_stop"}
OVERALL = {"gpu_relative": {"min": 0.5, "median": 0.75, "max": 1.0}, "gpu_individual": None}


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What the monitor answers about the scores, and how often it was asked for them."""
    answer = SimpleNamespace(at=None, stragglers=[], stopped_for=[], asked=0, path="")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/scores/report" in self.path:
                body = TEXT
            elif self.path.endswith("/stragglers"):
                body = json.dumps({"stragglers": answer.stopped_for})
            else:
                body = json.dumps({"at": answer.at, "stragglers": answer.stragglers, "overall": OVERALL})
                answer.asked, answer.path = answer.asked + 1, self.path
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    monkeypatch.setenv(env.MONITOR_URL, f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv(env.JOB_ID, "j")
    yield answer
    for thread in threading.enumerate():
        if thread.name == "rankwatch-scores":
            thread.join(10)
            assert not thread.is_alive()
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.mark.parametrize("shown", [5, 0])
def test_each_new_report_is_logged_once(
    reported: SimpleNamespace, caplog: pytest.LogCaptureFixture, shown: int
) -> None:
    caplog.set_level(logging.INFO, "here")
    reports = ReportLog(0.01, shown, logging.getLogger("here"), ("gpu_relative", "gpu_individual"))
    reports.start()

    def asked_again() -> None:
        before = reported.asked
        wait_for(lambda: reported.asked > before + 1, "the scores were asked for again")

    try:
        asked_again()
        assert caplog.messages == []
        reported.at = 1.0
        asked_again()
        assert caplog.messages == (["\n" + TEXT] if shown else []), "with 0 it is shown when somebody is slow"
        wanted = {"gpu_relative_perf/min": 0.5, "gpu_relative_perf/median": 0.75, "gpu_relative_perf/max": 1.0}
        assert reports.take_figures() == wanted
        assert reports.take_figures() is None, "they have been taken"
        reported.at, reported.stragglers = 2.0, [SLOW]
        warning = "STRAGGLER DETECTION WARNING: Rank 1 on h is slow"
        wait_for(lambda: caplog.messages[-2:] == ["\n" + TEXT, warning], "the report is logged")
        reported.at = 3.0
        asked_again()
        assert caplog.messages.count(warning) == 1, "once for each straggler"
    finally:
        reports.stop()


@pytest.mark.parametrize("stopped_for", [[SLOW], [{**SLOW, "action": "log"}], []])
def test_the_last_report_states_whether_the_run_was_stopped_for_a_straggler(
    reported: SimpleNamespace, caplog: pytest.LogCaptureFixture, stopped_for: list[dict]
) -> None:
    caplog.set_level(logging.INFO, "here")
    reported.at, reported.stopped_for = 1.0, stopped_for
    reports = ReportLog(3600.0, 0, logging.getLogger("here"))
    reports.start()
    try:
        assert reports.log_final(10.0) is (stopped_for == [SLOW])
        assert ("\n" + TEXT in caplog.messages) is (stopped_for == [SLOW])
    finally:
        reports.stop()


def test_without_a_monitor_that_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    reports = ReportLog(0.01, 5, logging.getLogger("here"))
    reports.start()
    assert "no monitor is configured" in caplog.text
    assert not reports.log_final(10.0)
    assert not [thread for thread in threading.enumerate() if thread.name == "rankwatch-scores"]


def test_the_monitor_and_the_job_that_init_was_given_are_asked(
    reported: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = os.environ[env.MONITOR_URL]
    monkeypatch.delenv(env.MONITOR_URL)
    reported.at = 1.0
    rankwatch.init(monitor=url, job_id="given", export_interval=3600.0)
    reports = ReportLog(3600.0, 5, logging.getLogger("here"), ("gpu_relative",))
    reports.start()
    try:
        reports.log_final(10.0)
        assert reported.path.partition("?")[0].endswith("/jobs/given/scores")
        assert reports.take_figures() is not None
    finally:
        reports.stop()
        rankwatch.shutdown()
