"""``rankwatch why``: why a job stands, the moments it understands, and lines that cannot steer a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from monitor.core.scene import Scene
from monitor.core.views.test_node_verdict import slow
from monitor.service.test_trend import live
from rankwatch.cli.why import moment, text, why
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.core.views import job_view, rank_logs
from web.scene_monitor import serving_scenes

NOW = datetime(2025, 10, 9, 14, 5, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("words", "ago"),
    [
        ("-10m", 600),
        ("-90s", 90),
        ("-1.5h", 5400),
        ("-2d", 172_800),
        ("14:03", 120),
        ("14:03:20", 100),
        ("9:05", 5 * 3600),
        ("14:06", 86_400 - 60),  # today's has not come yet
        ("2025-10-09T14:04:00", 60),
        ("2025-10-09 14:04", 60),
        ("2025-10-09T14:04:00Z", 60),
        ("2025-10-09T16:04:00+02:00", 60),
        (str(int(NOW) - 5), 5),
        (f"{NOW - 5.5}", 5.5),
        ("2025-10-09", 14 * 3600 + 300),
    ],
)
def test_moments(words: str, ago: float) -> None:
    assert NOW - moment(words, NOW) == pytest.approx(ago)


@pytest.mark.parametrize("words", ["yesterday", "25:00", "12:61", "-10", "10m", "", "1e300", "2025-13-01"])
def test_an_invalid_time_lists_the_accepted_forms(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        why(["job", "--at", words])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert "give unix seconds, ISO 8601" in printed


def test_a_monitor_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert why(["job", "--monitor", "http://127.0.0.1:9", "--at", "-10m"]) == 1
    assert capsys.readouterr().err.startswith("rankwatch why: no monitor answers at http://127.0.0.1:9")


def test_help_names_the_forms_of_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        why(["--help"])
    assert "HH:MM[:SS]" in capsys.readouterr().out


def test_only_the_sentence_when_nothing_changed() -> None:
    assert text({"sentence": "Nothing changed.", "parts": [], "contributors": []}) == "Nothing changed.\n"


def test_all_that_is_known_as_lines() -> None:
    answer = {
        "sentence": "Steps take 2.1 times as long.",
        "parts": [{"part": "data", "before": 0.04, "after": 0.45, "share": 0.83}],
        "contributors": [
            {"share": 0.8, "sentence": "kernel \x1b[2J 40 ms -> 0.45 s", "stated": False},
            {"share": 0.1, "sentence": "section 'data' in other words", "stated": True},
            {"share": 0.0, "sentence": "section 'forward' 40 ms -> 0.45 s", "stated": False},
        ],
        "seen": ["Of the 411 ms, 82 ms is seen in section 'forward' on rank 3 (40 ms -> 122 ms)."],
        "circumstances": [{"sentence": "attempt 1 began"}],
    }
    assert text(answer).splitlines() == [
        "Steps take 2.1 times as long.",
        "",
        "What a step's time goes into",
        "  data            40.00 ms ->  0.450 s     83 %",
        "",
        "What takes another time",
        "    80 %  kernel \N{REPLACEMENT CHARACTER}[2J 40 ms -> 0.45 s",
        "",
        "Where it is seen too",
        "  Of the 411 ms, 82 ms is seen in section 'forward' on rank 3 (40 ms -> 122 ms).",
        "",
        "What else changed at that time",
        "  attempt 1 began",
    ]


@pytest.mark.parametrize("stated", [False, True])
def test_slow_ranks_are_listed_unless_the_answer_states_them(stated: bool) -> None:
    answer = {"sentence": "Nothing changed.", "slow": [{"sentence": "rank 3 was slow"}], "states_slow": stated}
    assert ("Slow ranks\n  rank 3 was slow\n" in text(answer)) is not stated


def answered(scene: Scene, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What the command prints of a job, on the monitor's own application."""
    with serving_scenes(scene.job, now=scene.now) as monitor:
        assert why([scene.job.id, "--monitor", monitor.url, *flags]) == 0
    return capsys.readouterr().out


ERROR = "RuntimeError: CUDA error: device-side assert triggered"
LOGGED = f"    | {ERROR}"


def test_of_a_job_that_crashed_it_has_the_incident_and_the_log_as_the_page_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = Scene(4, hosts=2).run(20).crash(2, ERROR)
    lines = answered(scene, capsys).splitlines()
    (log,) = rank_logs.of_incident(scene.job, scene.incident)
    assert lines[0] == "JOB gpt (job) is RESTARTING"
    assert "  culprit: rank 2 on host-1, dead" in lines
    assert [f"    | {line}" for line in log.lines] == [line for line in lines if line.startswith("    | ")]
    assert f"    the whole log, on host-1: {log.place.command}" in lines
    assert "STEP TIMES" not in lines, "nothing is known of them yet"
    assert " ".join(" ".join(lines).split()).count(ERROR) == 2, "in the reason and in the log"


def test_of_a_job_that_failed_it_has_the_incident_with_which_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(4, hosts=2).run(20).crash(2, ERROR)
    scene.run(3).finish(ProcessEventKind.FAILED, f"rank 2 on host-1 exited with code 1: {ERROR}; no restart is left")
    lines = answered(scene, capsys).splitlines()
    assert lines[0] == "JOB gpt (job) is FAILED"
    assert LOGGED in lines
    assert not any(line.startswith("  outcome:") for line in lines), "the reason stands above"


def test_without_windows_of_steps_attempts_are_compared_and_the_time_after_a_crash_is_none_of_theirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = Scene(4, hosts=2)
    live(scene, 200)
    for attempt in range(2, 5):
        scene.crash(2, ERROR)
        scene.run(1).event(ProcessEventKind.RESTARTING, attempt=attempt)
        scene.launch(attempt=attempt)
        live(scene, 15)
    scene.crash(2, ERROR)
    live(scene, 5)
    scene.finish(ProcessEventKind.FAILED, f"rank 2 on host-1 exited with code 1: {ERROR}; no restart is left")
    live(scene, 1)
    assert "\nSTEP TIMES\nStep time as before the 3 restarts: 1 s.\n" in answered(scene, capsys)


def test_an_incident_that_is_over_is_no_reason_for_a_later_end(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(4, hosts=2).run(20).crash(2, ERROR)
    scene.event(ProcessEventKind.RESTARTING, attempt=2)
    scene.launch(attempt=2)
    scene.run(60)
    assert not scene.incident.open
    assert "INCIDENT" not in answered(scene, capsys)
    scene.finish(ProcessEventKind.FAILED, "the rendezvous store does not respond")
    shown = answered(scene, capsys)
    assert "INCIDENT" not in shown
    assert "The rendezvous store does not respond" in shown


def test_of_a_job_that_runs_and_of_a_moment_it_has_the_step_times_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(answered(Scene(4).run(20), capsys).splitlines()) == 1
    crashed = Scene(4, hosts=2).run(20).crash(2, ERROR)
    assert len(answered(crashed, capsys, "--at", str(int(crashed.now) + 10**9 - 10**6)).splitlines()) == 1


def test_of_a_slow_job_it_begins_with_the_rank_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = slow(Scene(4, hosts=2).run(20), 3, "host-1", "host-1/1")
    look, then = (step["text"] for step in job_view.summary(scene.job, scene.now)["advice"]["steps"])
    assert then.endswith("gives 50 % of full speed, the slow job 60 %; mend host-1 or add a spare first.")
    above, _, _ = answered(scene, capsys).partition("STEP TIMES")
    told = " ".join(line.strip() for line in above.splitlines())
    assert told.index("It is slow") < told.index(f"next, 1: {look}") < told.index(then)


def test_json_has_the_incident_with_its_logs(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answered(Scene(4, hosts=2).run(20).crash(2, ERROR), capsys, "--json"))
    assert found["state"] == "restarting"
    assert found["incident"]["logs"][0]["lines"][-1] == ERROR
    assert json.loads(answered(Scene(4).run(20), capsys, "--json"))["incident"] is None
