from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from rankwatch.integrations.megatron_config import NVRxStragglerDetectionConfig, ReportLog, straggler_policy
from rankwatch.wire import environment
from rankwatch.wire.policy import Policy
from support.waiting import wait_for

TEXT = "GPU relative performance:\n  Rank=1 Node=h Score=0.50\n"


def test_the_settings_become_a_policy_that_can_be() -> None:
    plain = Policy().changed(straggler_policy(NVRxStragglerDetectionConfig(enabled=True)))
    assert (str(plain.on_straggler), str(plain.straggler_reference)) == ("log", "fastest")
    assert (plain.report_interval, plain.relative_threshold, plain.profiling_interval) == (300.0, 0.7, 0)
    config = NVRxStragglerDetectionConfig(
        stop_if_detected=True, gpu_individual_perf_threshold=0.5, calc_relative_gpu_perf=False, profiling_interval=4
    )
    other = Policy().changed(straggler_policy(config))
    assert (str(other.on_straggler), other.individual_threshold) == ("save_and_stop", 0.5)
    assert (other.calc_relative, other.profiling_interval) == (False, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False}, "or both"),
        ({"report_time_interval": 0}, "seconds above 0"),
    ],
)
def test_settings_that_make_no_sense_are_said(changes: dict, words: str) -> None:
    NVRxStragglerDetectionConfig(enabled=False, **changes).finalize()
    with pytest.raises(ValueError, match=words):
        NVRxStragglerDetectionConfig(enabled=True, **changes).finalize()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What the monitor answers about the scores, and how often it was asked for them."""
    answer = SimpleNamespace(scores='{"at": null, "stragglers": []}', asked=0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            of_report = "/scores/report?shown=" in self.path
            body = (TEXT if of_report else answer.scores).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            answer.asked += not of_report

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    monkeypatch.setenv(environment.MONITOR_URL, f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv(environment.JOB_ID, "j")
    yield answer
    for thread in threading.enumerate():
        if thread.name == "rankwatch-report":
            thread.join(10)
            assert not thread.is_alive()
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.mark.parametrize("shown", [5, 0])
def test_each_new_report_is_logged_once(told: SimpleNamespace, caplog: pytest.LogCaptureFixture, shown: int) -> None:
    caplog.set_level(logging.INFO, "here")
    reports = ReportLog(
        NVRxStragglerDetectionConfig(report_time_interval=0.01, num_gpu_perf_scores_to_print=shown, logger_name="here")
    )
    reports.start()

    def asked_again() -> None:
        before = told.asked
        wait_for(lambda: told.asked > before + 1, "the scores were asked for again")

    try:
        asked_again()
        assert caplog.messages == []
        told.scores = '{"at": 1.0, "stragglers": []}'
        asked_again()
        assert caplog.messages == ([TEXT] if shown else []), "with 0 it is shown when somebody is slow"
        told.scores = '{"at": 2.0, "stragglers": [{"reason": "Rank 1 on h is slow"}]}'
        asked_again()
        wait_for(lambda: caplog.messages[-1:] == [TEXT], "the report is logged")
        assert caplog.messages[-2] == "STRAGGLER DETECTION WARNING: Rank 1 on h is slow"
    finally:
        reports.stop()


def test_without_a_monitor_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    reports = ReportLog(NVRxStragglerDetectionConfig(report_time_interval=0.01))
    reports.start()
    assert "no monitor is named" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "rankwatch-report"]
