"""The logs of failed ranks: what an incident keeps of them, also in its record, and where the whole of each is."""

from __future__ import annotations

from dataclasses import replace

from monitor.core.scene import LOGS, Scene
from monitor.core.views.advice.test_lost_and_failed import POD, registered
from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.messages import LOG_LINE, LOG_LINES, LOGGED_RANKS, LOGS_UNSENT, RankLog
from rankwatch_monitor.core.incident.state_machine import kept_logs
from rankwatch_monitor.core.views import rank_logs
from rankwatch_monitor.core.views.advice import failed
from rankwatch_monitor.core.views.rank_logs import ANY_RUN, KEEP_THEM, NEWEST_ATTEMPT, Place, ShownLog
from rankwatch_monitor.publish.text import report

ERROR = "RuntimeError: CUDA error: device-side assert triggered"


def crashed(facts: dict[str, str] | None = None, ranks: int = 4) -> Scene:
    return Scene(ranks, hosts=2, facts=facts).run(20).crash(2, ERROR)


COUNTS = "Attempt 1 is in folder attempt_0: torch counts from 0."


def shown(scene: Scene) -> list[ShownLog]:
    return rank_logs.of_incident(scene.job, scene.incident)


def test_the_last_lines_of_the_rank_that_crashed_are_kept_with_the_incident() -> None:
    scene = crashed()
    (log,) = shown(scene.reload())
    assert (log.rank, log.host, log.stream, log.lines[-1]) == (2, "host-1", "stderr", ERROR)
    assert log.path == f"{LOGS}/gpt_x7k2/attempt_0/0/stderr.log"
    assert log.text == f"The last {len(log.lines)} lines."
    assert log.place == Place(f"tail -n 200 {log.path}", "host-1", COUNTS)


def test_logs_of_the_next_attempt_are_looked_for_in_the_folder_of_this_job() -> None:
    scene = crashed({"rank_logs": LOGS})
    scene.run(1).event(ProcessEventKind.RESTARTING, attempt=2)
    scene.launch(attempt=2)
    scene.run(1)
    assert rank_logs.place_of_rank(scene.job, 3, "host-1") == Place(
        f'tail -n 200 "$(ls -td {LOGS}/gpt_x7k2/attempt_*/ | head -1)"1/std*.log',
        "host-1",
        "Attempt 2 is in folder attempt_1: torch counts from 0.",
    )
    place = rank_logs.place_on(scene.job, "host-0")
    assert f"{LOGS}/*/attempt_*/" in place.command, "of this host no log is known, and each has a folder of its own"
    assert (place.note, place.newest) == (ANY_RUN, True)
    known = registered(scene, {"rank_logs": LOGS, "run_logs": f"{LOGS}/gpt_new"})
    assert rank_logs.place_on(known.job, "host-0") == Place(
        f'tail -n 200 "$(ls -td {LOGS}/gpt_new/attempt_*/ | head -1)"*/std*.log', "host-0", NEWEST_ATTEMPT
    )
    assert "/gpt_new/" in rank_logs.place_on(known.job, "host-1").command, "the log that is known is of a launch before"
    known = registered(scene, {"rank_logs": LOGS, "run_logs": f"{LOGS}/gpt_x7k2"})
    assert "folder attempt_1" in rank_logs.place_on(known.job, "host-1").note
    foreign = registered(crashed(), {"log": "/logs/gpt.log"})
    assert rank_logs.place_on(foreign.job, "host-1") == Place("tail -n 200 /logs/gpt.log", "host-1")


def test_a_log_that_ranks_share_is_called_so_and_an_empty_one_too() -> None:
    scene = Scene(4, hosts=2).run(20).die(2, exit_code=1, message=ERROR)
    log = scene.log(2, ERROR)
    scene.send_evidence("node-1", logs=(replace(log, shared=True, lines=("one",)), replace(log, path="/b", lines=())))
    assert [each.text for each in shown(scene)] == [
        "The last line, of any rank there: rank 2 has no log of its own.",
        "It is empty or cannot be read.",
    ]


def test_where_nothing_was_received_there_is_how_to_get_it() -> None:
    def of(facts: dict[str, str]) -> ShownLog:
        scene = registered(Scene(4, hosts=2).run(20).die(2, exit_code=1, message=ERROR), facts)
        (log,) = shown(scene)
        return log

    assert of({}).text == f"No line of its output was received: {KEEP_THEM}."
    assert of({"log": "/logs/a b/gpt.log"}).place == Place("tail -n 200 '/logs/a b/gpt.log'", "host-1")
    assert of({"rank_logs": LOGS}).place == Place(
        f'tail -n 200 "$(ls -td {LOGS}/*/attempt_*/ | head -1)"0/std*.log',
        "host-1",
        ANY_RUN,
        newest=True,
    )
    assert of(POD).place == Place("kubectl logs -n ml gpt-0 --tail 200")
    assert {of(facts).text for facts in (POD, {"log": "/a"})} == {"No line of its output was received."}
    kept = of({"log": "/a", LOGS_UNSENT: "true"})
    assert kept.text == "No line of its output was received: its launcher was started with --no-send-logs."
    assert kept.place == Place("tail -n 200 /a", "host-1")


def test_ranks_that_hang_have_no_log_in_the_incident() -> None:
    assert shown(Scene(4, hosts=2).run(20).hang(1).until_found().run(1)) == []


def test_logs_of_the_first_ranks_are_kept_and_those_of_culprits() -> None:
    received = [RankLog(rank, "stderr", "h", f"/{rank}") for rank in range(100)]
    assert [log.rank for log in kept_logs(received, [])] == list(range(LOGGED_RANKS))
    assert [log.rank for log in kept_logs(received, [70])] == [70, *range(LOGGED_RANKS - 1)]
    assert kept_logs((*received, replace(received[3], lines=("later",))), [3])[0].lines == ("later",)


def test_a_log_of_a_launcher_that_knows_no_bounds_is_cut() -> None:
    log = RankLog(1, "std\x1b[2Jerr", "h", "/a", ("x" * 9999,) * 100).bounded()
    assert (len(log.lines), len(log.lines[0])) == (LOG_LINES, LOG_LINE + 3)
    assert log.stream.isprintable()


def test_the_step_to_read_a_log_names_the_file_that_the_crash_was_in() -> None:
    scene = crashed()
    scene.finish(reason="rank 2 on host-1 exited with code 1")
    step = failed._read_log(scene.job, 2, "host-1")
    assert step == (
        "Read what rank 2 logged",
        "",
        f"tail -n 200 {LOGS}/gpt_x7k2/attempt_0/0/stderr.log",
        "host-1",
        COUNTS,
        2,
    )


def test_the_text_report_has_the_lines_and_the_path() -> None:
    text = report.text(crashed().job, 1_000_100.0)
    assert f"    | {ERROR}\n" in text
    assert f"the whole log, on host-1: tail -n 200 {LOGS}/gpt_x7k2/attempt_0/0/stderr.log" in text
    assert ANY_RUN not in text
    unsent = Scene(4, hosts=2, facts={"rank_logs": LOGS}).run(20).die(2, exit_code=1, message=ERROR).run(1)
    assert ANY_RUN in " ".join(report.text(unsent.job, 1_000_100.0).split())


def test_the_step_to_read_a_log_states_that_it_may_be_that_of_another_job() -> None:
    scene = Scene(4, hosts=2, facts={"rank_logs": LOGS}).run(20).die(2, exit_code=1, message=ERROR).run(1)
    assert failed._read_log(scene.job, 2, "host-1").note == ANY_RUN
