from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract import env
from rankwatch.integrations.nvrx import straggler
from rankwatch.integrations.nvrx.straggler import CallableId, Detector, Statistic
from rankwatch.recording import shared_slots
from rankwatch.recording.recorder import Recorder
from support.waiting import wait_for


def scores(at: float | None) -> dict[str, Any]:
    rows = [
        {"rank": rank, "host": "h", "gpu_relative": 1.0 - rank / 2, "gpu_individual": 1.0, "sections": {}}
        for rank in range(2)
    ]
    return {"at": at, "ranks": [] if at is None else rows}


@pytest.fixture
def reported() -> SimpleNamespace:
    """What the monitor answers, and the questions it was asked."""
    return SimpleNamespace(answer=scores(None), asked=[])


@pytest.fixture
def begin(reported: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Initialize the detector, with a monitor that answers as ``reported``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reported.asked.append(self.path)
            body = json.dumps(reported.answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    monkeypatch.setenv(env.MONITOR_URL, f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv(env.JOB_ID, "a job")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    def initialize(**arguments: Any) -> None:
        Detector.initialize(**arguments)

    yield initialize
    Detector.shutdown()
    server.shutdown()
    server.server_close()
    serving.join()
    for thread in threading.enumerate():
        if thread.name == "rankwatch-scores":
            thread.join(10)
            assert not thread.is_alive()


def test_a_report_is_asked_for_and_waited_for(begin: Callable[..., None], reported: SimpleNamespace) -> None:
    reported.answer = scores(5.0)
    begin(report_time_interval=3600)
    with Detector.detection_section("fwd"):
        pass
    made = Detector.generate_report()
    assert made is not None
    assert made.gpu_relative_perf_scores == {0: 1.0, 1: 0.5}
    assert reported.asked[0] == "/api/v1/jobs/a%20job/scores"
    assert made.local_section_summaries["fwd"][Statistic.NUM] == 1
    assert (made.rank, made.gather_on_rank0) == (0, True)
    again = Detector.generate_report()
    assert again is not None
    assert again.local_section_summaries == {}, "each report begins again"


def test_a_rank_may_report_on_itself_alone(
    begin: Callable[..., None], reported: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    reported.answer = scores(5.0)
    begin(gather_on_rank0=False, scores_to_compute=["relative_perf_scores"])
    made = Detector.generate_report()
    assert made is not None
    assert (made.gpu_relative_perf_scores, made.gpu_individual_perf_scores, made.rank) == ({1: 0.5}, {}, 1)


def test_other_ranks_have_nothing_to_report(
    begin: Callable[..., None], reported: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    begin(report_time_interval=0.0)
    assert Detector.generate_report() is None
    elapsed = []
    for _ in range(2 * straggler.REPORT_EVERY_CALLS):
        assert Detector.generate_report_if_interval_elapsed() is None
        elapsed.append(Detector.is_interval_elapsed())
    assert [at for at, is_so in enumerate(elapsed, 1) if is_so] == [
        straggler.REPORT_EVERY_CALLS,
        2 * straggler.REPORT_EVERY_CALLS,
    ]
    assert reported.asked == []


def test_a_report_comes_in_an_agreed_iteration_and_once_for_each_scoring(
    begin: Callable[..., None], reported: SimpleNamespace
) -> None:
    reported.answer = scores(5.0)
    begin(report_time_interval=0.0)
    assert Detector._reader is not None
    wait_for(Detector._reader.newest, "the scores have come")
    made = [Detector.generate_report_if_interval_elapsed() for _ in range(3 * straggler.REPORT_EVERY_CALLS)]
    assert [at for at, each in enumerate(made, 1) if each is not None] == [straggler.REPORT_EVERY_CALLS]


def test_nothing_is_waited_for_where_nothing_has_come(begin: Callable[..., None]) -> None:
    begin(report_time_interval=0.0)
    assert [Detector.generate_report_if_interval_elapsed() for _ in range(straggler.REPORT_EVERY_CALLS)] == [
        None
    ] * straggler.REPORT_EVERY_CALLS
    made = Detector.generate_report()
    assert made is not None
    assert made.gpu_relative_perf_scores == {}, "the monitor has no scores yet"


def test_callables_are_wrapped_and_put_back(begin: Callable[..., None]) -> None:
    begin()

    class Model:
        def forward(self) -> set[str]:
            from rankwatch.recording import sections

            recorder = sections.attached()
            assert recorder is not None
            seen = shared_slots.read(recorder.slots)
            assert seen is not None
            return set(seen.open_sections)

    model = Model()
    model.loose = model.forward  # type: ignore[attr-defined]
    before = model.loose  # type: ignore[attr-defined]
    Detector.wrap_callables([CallableId(model, "forward"), CallableId(model, "loose")])
    assert model.forward() == {"Model.forward", "step"}
    assert "Model.loose" in model.loose()  # type: ignore[attr-defined]
    Detector.restore_original_callables()
    assert "forward" not in vars(model)
    assert model.loose is before  # type: ignore[attr-defined]


def test_a_section_without_a_name_is_called_after_its_place(begin: Callable[..., None]) -> None:
    begin()
    with Detector.detection_section():
        pass
    (name,) = Detector._durations
    assert name.startswith("test_straggler.py:")


def test_names_that_are_made_up_do_not_fill_the_memory(begin: Callable[..., None]) -> None:
    begin()
    for number in range(200):
        with Detector.detection_section(f"batch {number}"):
            pass
    assert len(Detector._durations) == shared_slots.NAME_LIMIT


def test_misuse_is_reported_and_raises_nothing(caplog: pytest.LogCaptureFixture, recorder: Recorder) -> None:
    with Detector.detection_section("fwd"):
        pass
    assert Detector.generate_report() is None
    assert Detector.generate_report_if_interval_elapsed() is None
    Detector.shutdown()
    assert "Detector.initialize() was not called" in caplog.text
    assert recorder.iteration == 0
    with pytest.raises(RuntimeError, match="class methods"):
        Detector()


def test_without_a_monitor_the_report_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    Detector.initialize(report_time_interval=0.0)
    try:
        made = Detector.generate_report()
        assert made is not None
        assert made.gpu_relative_perf_scores == {}
        assert "no monitor is configured" in caplog.text
    finally:
        Detector.shutdown()
